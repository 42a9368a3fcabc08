//! TCP_INFO.

use super::value::INFO_BYTES;
use crate::channel::cell::kind;
use crate::channel::sync::Ordering;
use crate::errno::{Errno, Result};
use crate::fd::options::name;
use crate::fd::{Socket, twin};
use crate::ffi::sockopt;
use crate::socket::{info, state};

/// TCP_INFO from what the stack says; fields that it does not know are 0 (docs/compatibility.md names those it does).
pub(super) fn tell(socket: Socket, buffer: &mut [u8; INFO_BYTES]) -> Result<&[u8]> {
    let facts = info::info(socket.link, socket.object)?;
    let cell = state::cell(socket.link, socket.object)?;
    // As many bytes as this kernel has.
    let size = sockopt::read(twin::spare()?, sockopt::TCP, name::INFO, buffer)?;
    buffer.fill(0);
    let mss = facts.mss.max(1);
    let segments = |bytes: u64| u32::try_from(bytes.div_ceil(u64::from(mss))).unwrap_or(u32::MAX);
    let small = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
    let listens = cell.host.kind.load(Ordering::Acquire) == kind::LISTENER;
    let min_rtt = match facts.min_rtt_us {
        // Of a listener nothing of this kind is told (tcp_get_info).
        None if !listens => u32::MAX,
        known => known.unwrap_or(0),
    };
    // State is the first byte; the others of the first eight stand below.
    let offsets = [
        (0, linux_state(facts.state, listens)),
        (8, facts.rto_us),
        (44, facts.quiet_ms),
        (16, facts.mss),
        // What the peer sends at most, which is what we have announced.
        (20, facts.mss),
        (24, segments(u64::from(facts.in_flight))),
        (52, facts.silent_ms),
        (56, facts.silent_ms),
        (60, facts.mtu),
        (64, facts.window),
        (68, facts.srtt_us),
        (72, facts.rttvar_us),
        (
            76,
            facts
                .slow_start_threshold
                .map_or(NO_THRESHOLD, |bytes| segments(bytes.into())),
        ),
        (80, segments(u64::from(facts.congestion_window))),
        (84, facts.mss),
        // TCP_FASTRETRANS_THRESH: three acknowledgements again.
        (88, 3),
        (96, facts.backed),
        (100, facts.retransmits),
        (136, facts.segments),
        (140, facts.came),
        (144, small(facts.unsent)),
        (148, min_rtt),
        (152, facts.data_came),
        (156, facts.data_segments),
        (228, facts.peer_window.0),
        (232, facts.window),
    ];
    for (offset, value) in offsets {
        if let Some(place) = buffer.get_mut(offset..offset + 4) {
            place.copy_from_slice(&value.to_ne_bytes());
        }
    }
    let again = u64::from(facts.again_bytes);
    let sent = facts.acked + u64::from(facts.in_flight) + again;
    for (offset, value) in [
        // Nothing is paced.
        (104, u64::MAX),
        (112, u64::MAX),
        (120, facts.acked),
        (128, facts.received),
        (200, sent),
        (208, again),
    ] {
        if let Some(place) = buffer.get_mut(offset..offset + 8) {
            place.copy_from_slice(&value.to_ne_bytes());
        }
    }
    let backoff = facts.backoff.min(u8::MAX.into());
    let scales = facts.window_shift << 4 | facts.peer_window.1;
    let options = if scales == 0 { 0 } else { OPTION_WSCALE };
    // TCP_CA_Loss between a time-out and the next sample; Open.
    let recovery = if backoff == 0 { 0 } else { 4 };
    for (offset, value) in [
        (1, recovery),
        (2, backoff),
        (4, backoff),
        (5, options),
        (6, scales),
    ] {
        if let (Some(place), Ok(value)) = (buffer.get_mut(offset), u8::try_from(value)) {
            *place = value;
        }
    }
    buffer.get(..size).ok_or(Errno::INVAL)
}

/// TCPI_OPT_WSCALE.
const OPTION_WSCALE: u32 = 4;
/// TCP_INFINITE_SSTHRESH of Linux.
const NO_THRESHOLD: u32 = 0x7fff_ffff;

/// The numbers of Linux' tcp_states.h for [`crate::stack::FlowState`].
fn linux_state(flow: u32, listens: bool) -> u32 {
    const LISTEN: u32 = 10;
    const CLOSE: u32 = 7;
    if listens {
        return LISTEN;
    }
    match flow {
        1 => 2,
        2 => 3,
        3 => 1,
        4 => 4,
        5 => 5,
        6 => 8,
        7 => 11,
        8 => 9,
        // A socket in TIME-WAIT is one without a connection to its program (inet_timewait_sock).
        _ => CLOSE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_have_the_numbers_of_linux() {
        use crate::stack::FlowState;
        assert_eq!(linux_state(FlowState::Established as u32, false), 1);
        assert_eq!(linux_state(FlowState::CloseWait as u32, false), 8);
        assert_eq!(linux_state(FlowState::TimeWait as u32, false), 7);
        assert_eq!(linux_state(0, false), 7);
        assert_eq!(linux_state(0, true), 10);
    }
}
