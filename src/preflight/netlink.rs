//! The kernel's interfaces, IPv4 addresses and default routes, asked by rtnetlink(7).
//!
//! Netlink and not /sys: it tells of this network namespace, whatever is mounted.

use core::net::Ipv4Addr;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::errno::{Errno, Result};

/// A kernel interface.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Link {
    /// The kernel's number for it.
    pub index: u32,
    /// Name.
    pub name: String,
    /// Administratively up (IFF_UP).
    pub up: bool,
    /// Loopback (IFF_LOOPBACK).
    pub loopback: bool,
    /// MTU in bytes.
    pub mtu: u32,
    /// MAC address, when it has one of six bytes.
    pub mac: Option<[u8; 6]>,
}

/// What the kernel's network looks like.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Net {
    /// Interfaces.
    pub links: Vec<Link>,
    /// IPv4 addresses: interface number, address, prefix length.
    pub addresses: Vec<(u32, Ipv4Addr, u8)>,
    /// Interface numbers of the IPv4 default routes of the main table.
    pub default_routes: Vec<u32>,
}

impl Net {
    /// The interface called `name`.
    #[must_use]
    pub fn link(&self, name: &str) -> Option<&Link> {
        self.links.iter().find(|link| link.name == name)
    }

    /// The name of interface `index`.
    #[must_use]
    pub fn name(&self, index: u32) -> Option<&str> {
        self.links
            .iter()
            .find(|link| link.index == index)
            .map(|link| link.name.as_str())
    }

    /// Asks the kernel.
    ///
    /// # Errors
    /// What socket, sendto and recvfrom say; EPROTO for an answer that is not understood.
    pub fn ask() -> Result<Self> {
        let mut net = Self::default();
        for (request, body) in [(RTM_GETLINK, 16), (RTM_GETADDR, 8), (RTM_GETROUTE, 12)] {
            dump(request, body, &mut net)?;
        }
        Ok(net)
    }

    /// Asks the kernel for its interfaces only.
    ///
    /// # Errors
    /// As [`Net::ask`].
    pub fn ask_links() -> Result<Self> {
        let mut net = Self::default();
        dump(RTM_GETLINK, 16, &mut net)?;
        Ok(net)
    }

    /// Takes one datagram of an answer; true when the answer is complete.
    ///
    /// # Errors
    /// EPROTO for a length that does not fit, or the errno of an error message.
    pub fn take(&mut self, mut datagram: &[u8]) -> Result<bool> {
        while !datagram.is_empty() {
            // struct nlmsghdr: length, type, flags, sequence number, port number.
            let length = u32_at(datagram, 0)
                .and_then(|length| usize::try_from(length).ok())
                .ok_or(Errno::PROTO)?;
            let body = datagram.get(16..length).ok_or(Errno::PROTO)?;
            match u16_at(datagram, 4).ok_or(Errno::PROTO)? {
                NLMSG_DONE => return Ok(true),
                NLMSG_ERROR => {
                    let code = body
                        .get(..4)
                        .and_then(|code| code.try_into().ok())
                        .ok_or(Errno::PROTO)?;
                    let code = i32::from_ne_bytes(code);
                    return match code.saturating_neg() {
                        0 => Ok(true),
                        code @ 1..4096 => Err(Errno::from_raw_os_error(code)),
                        _ => Err(Errno::PROTO),
                    };
                }
                RTM_NEWLINK => self.links.extend(link(body)),
                RTM_NEWADDR => self.addresses.extend(address(body)),
                RTM_NEWROUTE => self.default_routes.extend(default_route(body)),
                _ => {}
            }
            datagram = datagram.get(align(length)..).unwrap_or(&[]);
        }
        Ok(false)
    }
}

fn dump(request: u16, body: usize, net: &mut Net) -> Result<()> {
    // Protocol 0 is NETLINK_ROUTE; an unbound socket talks to the kernel.
    let socket = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        None,
    )?;
    let mut message = vec![0; 16 + body];
    let length = u32::try_from(message.len()).unwrap_or(0);
    let header = [
        &length.to_ne_bytes()[..],
        &request.to_ne_bytes(),
        &(NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes(),
    ]
    .concat();
    for (to, from) in message.iter_mut().zip(header) {
        *to = from;
    }
    // The first byte of each body is the address family; interfaces have none.
    if let (Some(family), true) = (message.get_mut(16), request != RTM_GETLINK) {
        *family = AF_INET;
    }
    rustix::net::send(&socket, &message, SendFlags::empty())?;
    let mut buffer = vec![0_u8; 64 * 1024];
    loop {
        let (count, _) = match rustix::net::recv(&socket, buffer.as_mut_slice(), RecvFlags::empty())
        {
            Err(Errno::INTR) => continue,
            other => other?,
        };
        if count == 0 || net.take(buffer.get(..count).unwrap_or(&[]))? {
            return Ok(());
        }
    }
}

/// struct ifinfomsg: family, pad, type, index, flags, change.
fn link(body: &[u8]) -> Option<Link> {
    let (index, flags) = (u32_at(body, 4)?, u32_at(body, 8)?);
    let mut link = Link {
        index,
        name: String::new(),
        up: flags & 1 != 0,
        loopback: flags & 8 != 0,
        mtu: 0,
        mac: None,
    };
    for (kind, value) in attributes(body.get(16..)?) {
        match kind {
            IFLA_ADDRESS => link.mac = value.try_into().ok(),
            IFLA_IFNAME => {
                link.name = String::from_utf8_lossy(value)
                    .trim_end_matches('\0')
                    .to_owned()
            }
            IFLA_MTU => link.mtu = u32_at(value, 0)?,
            _ => {}
        }
    }
    (!link.name.is_empty()).then_some(link)
}

/// struct ifaddrmsg: family, prefix length, flags, scope, index.
fn address(body: &[u8]) -> Option<(u32, Ipv4Addr, u8)> {
    let (family, prefix_len, index) = (*body.first()?, *body.get(1)?, u32_at(body, 4)?);
    let read = |wanted| {
        let (_, value) = attributes(body.get(8..)?).find(|(kind, _)| *kind == wanted)?;
        <[u8; 4]>::try_from(value).ok().map(Ipv4Addr::from)
    };
    // On a point-to-point interface IFA_ADDRESS is the peer's.
    let address = read(IFA_LOCAL).or_else(|| read(IFA_ADDRESS))?;
    (family == AF_INET).then_some((index, address, prefix_len))
}

/// struct rtmsg: family, destination length, source length, tos, table, protocol, scope, type, flags.
fn default_route(body: &[u8]) -> Option<u32> {
    let (family, length, table, kind) =
        (*body.first()?, *body.get(1)?, *body.get(4)?, *body.get(7)?);
    let (_, interface) = attributes(body.get(12..)?).find(|(kind, _)| *kind == RTA_OIF)?;
    (family == AF_INET && length == 0 && table == RT_TABLE_MAIN && kind == RTN_UNICAST)
        .then(|| u32_at(interface, 0))?
}

/// struct rtattr: length, type, then the value, padded to four bytes.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    core::iter::from_fn(move || {
        let length = usize::from(u16_at(bytes, 0)?);
        // The upper two bits are flags (NLA_F_NESTED, NLA_F_NET_BYTEORDER).
        let kind = u16_at(bytes, 2)? & 0x3fff;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(align(length)..).unwrap_or(&[]);
        Some((kind, value))
    })
}

const fn align(length: usize) -> usize {
    length.saturating_add(3) & !3
}

fn u16_at(bytes: &[u8], index: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(
        bytes.get(index..index + 2)?.try_into().ok()?,
    ))
}

fn u32_at(bytes: &[u8], index: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(
        bytes.get(index..index + 4)?.try_into().ok()?,
    ))
}

// linux/netlink.h
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_DUMP: u16 = 0x300;
// linux/rtnetlink.h, linux/if_link.h, linux/if_addr.h
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const RTA_OIF: u16 = 4;
const RT_TABLE_MAIN: u8 = 254;
const RTN_UNICAST: u8 = 1;
const AF_INET: u8 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let length = u16::try_from(value.len() + 4).expect("short");
        let mut bytes = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), value].concat();
        bytes.resize(align(bytes.len()), 0);
        bytes
    }

    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len() + 16).expect("short");
        let mut bytes = [
            &length.to_ne_bytes()[..],
            &kind.to_ne_bytes(),
            &[0; 10],
            body,
        ]
        .concat();
        bytes.resize(align(bytes.len()), 0);
        bytes
    }

    fn sample() -> Vec<u8> {
        let mut info = vec![0; 16];
        info[4] = 7;
        info[8] = 1;
        info.extend(attribute(IFLA_IFNAME, b"eth0\0"));
        info.extend(attribute(IFLA_MTU, &1500_u32.to_ne_bytes()));
        info.extend(attribute(IFLA_ADDRESS, &[2, 0, 0, 0, 0, 1]));
        let mut inet = vec![AF_INET, 24, 0, 0, 7, 0, 0, 0];
        inet.extend(attribute(IFA_LOCAL, &[192, 168, 1, 58]));
        let mut route = vec![
            AF_INET,
            0,
            0,
            0,
            RT_TABLE_MAIN,
            0,
            0,
            RTN_UNICAST,
            0,
            0,
            0,
            0,
        ];
        route.extend(attribute(RTA_OIF, &7_u32.to_ne_bytes()));
        [
            message(RTM_NEWLINK, &info),
            message(RTM_NEWADDR, &inet),
            message(RTM_NEWROUTE, &route),
        ]
        .concat()
    }

    #[test]
    fn an_answer_is_read() {
        let mut net = Net::default();
        assert_eq!(net.take(&sample()), Ok(false));
        assert_eq!(net.take(&message(NLMSG_DONE, &[0; 4])), Ok(true));
        let link = net.link("eth0").expect("eth0");
        assert_eq!(
            (link.index, link.up, link.mtu, link.mac),
            (7, true, 1500, Some([2, 0, 0, 0, 0, 1]))
        );
        assert_eq!(net.addresses, [(7, Ipv4Addr::new(192, 168, 1, 58), 24)]);
        assert_eq!(net.default_routes, [7]);
        assert_eq!(
            net.take(&message(NLMSG_ERROR, &(-1_i32).to_ne_bytes())),
            Err(Errno::PERM)
        );
    }

    #[test]
    fn a_truncated_answer_ends_without_a_panic() {
        let whole = sample();
        for length in 0..whole.len() {
            let mut net = Net::default();
            let _ = net.take(&whole[..length]);
            let mut broken = whole.clone();
            broken[length] = !broken[length];
            let _ = net.take(&broken);
        }
    }

    #[test]
    fn the_kernel_knows_loopback() {
        let net = Net::ask().expect("rtnetlink needs no privilege");
        assert!(net.links.iter().any(|link| link.loopback), "{net:?}");
    }
}
