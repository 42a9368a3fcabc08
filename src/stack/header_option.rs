//! Options of IPv4 and TCP headers, which both code alike (RFC 791 section 3.1, RFC 9293 section 3.2).

use super::drop_reason::DropReason;

/// One option of an IPv4 or TCP header: its kind, its value, and the options after it.
#[derive(Debug)]
pub struct HeaderOption<'a> {
    /// The kind octet.
    pub kind: u8,
    /// The value octets; none for a one-octet option.
    pub value: &'a [u8],
    /// What follows.
    pub rest: &'a [u8],
}

impl<'a> HeaderOption<'a> {
    const END: u8 = 0;
    const NO_OPERATION: u8 = 1;

    /// Takes the next option that is no padding; Ok(None) at the end of the list.
    ///
    /// # Errors
    /// [`BadOption`] when a length is below 2 or reaches beyond the header.
    pub fn next(mut options: &'a [u8]) -> Result<Option<Self>, BadOption> {
        loop {
            match options {
                [] | [Self::END, ..] => return Ok(None),
                [Self::NO_OPERATION, rest @ ..] => options = rest,
                [_] => return Err(BadOption),
                [kind, length, rest @ ..] => {
                    let value_bytes = usize::from(*length).checked_sub(2).ok_or(BadOption)?;
                    let (value, rest) = rest.split_at_checked(value_bytes).ok_or(BadOption)?;
                    return Ok(Some(Self {
                        kind: *kind,
                        value,
                        rest,
                    }));
                }
            }
        }
    }
}

/// A header option has an illegal length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadOption;

/// Refuses options that are malformed, and source routes.
///
/// # Errors
/// The reason to drop the frame.
pub fn check_ipv4_options(mut options: &[u8]) -> Result<(), DropReason> {
    const LOOSE_SOURCE_ROUTE: u8 = 131;
    const STRICT_SOURCE_ROUTE: u8 = 137;
    while let Some(option) =
        HeaderOption::next(options).map_err(|BadOption| DropReason::Ipv4Options)?
    {
        if matches!(option.kind, LOOSE_SOURCE_ROUTE | STRICT_SOURCE_ROUTE) {
            return Err(DropReason::SourceRoute);
        }
        options = option.rest;
    }
    Ok(())
}

/// Kind of the maximum segment size option (RFC 9293 section 3.2).
pub const TCP_OPTION_MSS: u8 = 2;
/// Kind of the window scale option (RFC 7323 section 2.2).
const TCP_OPTION_WINDOW_SCALE: u8 = 3;
/// Kind of the SACK permitted option (RFC 2018 section 2).
const TCP_OPTION_SACK_PERMITTED: u8 = 4;

/// The options of a TCP header that mean something to us.
#[derive(Clone, Copy, Default, Debug)]
pub struct TcpOptions {
    /// Maximum segment size, bytes.
    pub mss: Option<u16>,
    /// Window scale, a shift.
    pub window_scale: Option<u8>,
    /// SACK is permitted.
    pub sack_permitted: bool,
}

impl TcpOptions {
    /// Reads the options of a TCP header.
    ///
    /// # Errors
    /// [`DropReason::TcpOptions`] when a length is illegal.
    pub fn parse(mut options: &[u8]) -> Result<Self, DropReason> {
        let mut found = Self::default();
        while let Some(option) =
            HeaderOption::next(options).map_err(|BadOption| DropReason::TcpOptions)?
        {
            match (option.kind, option.value) {
                (TCP_OPTION_MSS, [high, low]) => {
                    found.mss = Some(u16::from_be_bytes([*high, *low]))
                }
                (TCP_OPTION_WINDOW_SCALE, [shift]) => found.window_scale = Some(*shift),
                (TCP_OPTION_SACK_PERMITTED, []) => found.sack_permitted = true,
                (TCP_OPTION_MSS | TCP_OPTION_WINDOW_SCALE | TCP_OPTION_SACK_PERMITTED, _) => {
                    return Err(DropReason::TcpOptions);
                }
                // RFC 9293 MUST-6: an option that is not known is ignored by its length.
                _ => {}
            }
            options = option.rest;
        }
        Ok(found)
    }
}
