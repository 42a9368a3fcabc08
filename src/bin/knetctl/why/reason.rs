//! Why one socket is on the kernel.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr};

use knet::config::Policy;

use crate::process::{Internet, Kind, Socket};

/// A socket in words.
pub(super) fn describe(kind: &Kind) -> String {
    let ends = |name: &str, ends: &Internet| {
        let (local, remote) = (ends.local, ends.remote);
        if ends.listens {
            format!("{name} {}:{} LISTEN", local.0, local.1)
        } else if remote.1 != 0 {
            format!(
                "{name} {}:{} to {}:{}",
                local.0, local.1, remote.0, remote.1
            )
        } else {
            format!("{name} {}:{}", local.0, local.1)
        }
    };
    match kind {
        Kind::Tcp(tcp) => ends("TCP", tcp),
        Kind::Udp(udp) => ends("UDP", udp),
        Kind::Unix => "AF_UNIX".to_owned(),
        Kind::Netlink => "AF_NETLINK".to_owned(),
        Kind::Raw => "raw".to_owned(),
        Kind::Unbound => "not bound".to_owned(),
    }
}

/// Why a socket is on the kernel. `listening` are the ports on which the program listens there.
pub(super) fn reason(
    socket: &Socket,
    policy: Option<&Policy>,
    listening: &[u16],
    whole: &Result<String, String>,
) -> String {
    let ends = match &socket.kind {
        Kind::Unix => return "AF_UNIX sockets are the kernel's".to_owned(),
        Kind::Netlink => return "netlink sockets are the kernel's".to_owned(),
        Kind::Raw => return "raw sockets are the kernel's".to_owned(),
        Kind::Udp(_) => return "UDP is not on the stack in this version".to_owned(),
        Kind::Unbound => {
            return match whole {
                Ok(_) => {
                    "undecided: neither listening nor connected, or closed by its peer".to_owned()
                }
                Err(_) => "the whole program is on the kernel, see above".to_owned(),
            };
        }
        Kind::Tcp(ends) => ends,
    };
    let loopback = "loopback is the kernel's".to_owned();
    let (IpAddr::V4(local), IpAddr::V4(remote)) = (ends.local.0, ends.remote.0) else {
        if ends.local.0.is_loopback() || ends.remote.0.is_loopback() {
            return loopback;
        }
        return "IPv6 is not on the stack in this version".to_owned();
    };
    if local.is_loopback() || remote.is_loopback() {
        return loopback;
    }
    if whole.is_err() {
        return "the whole program is on the kernel, see above".to_owned();
    }
    let Some(policy) = policy else {
        return "the config cannot be read now, so that nothing can be said".to_owned();
    };
    let listed: HashSet<Ipv4Addr> = policy
        .addresses
        .iter()
        .map(|(address, _)| *address)
        .collect();
    // A connection that came in has the port of a listener; one that went out is judged by the peer's.
    let came_in = !ends.listens && listening.contains(&ends.local.1);
    let (name, port) = if ends.listens || came_in {
        ("listens on", ends.local.1)
    } else {
        ("connects to", ends.remote.1)
    };
    if !policy.covers_port(port) {
        return format!("common.accelerate.ports does not list {port}, which it {name}");
    }
    if !local.is_unspecified() && !listed.contains(&local) {
        return format!("{local} is an address of the kernel, not one of the config's");
    }
    if listed.contains(&local) && !policy.covers_address(local) {
        return format!("common.accelerate.addresses does not list {local}");
    }
    "routed to the kernel when no host could serve it: the device did not open, or the stack refused it".to_owned()
}

#[cfg(test)]
mod tests {
    use knet::config;

    use super::*;

    fn policy(accelerate: &str) -> Policy {
        let text = format!(
            r#"{{"interface": {{"vdevs": ["knet_unix,path=/tmp/x"], "ip": "10.77.0.1",
            "addresses": ["10.77.0.9/24"]}}, "common": {{"accelerate": {{{accelerate}}}}}}}"#
        );
        Policy::from(&config::load_bytes("test", text.as_bytes()).expect("config"))
    }

    fn tcp(local: &str, remote: &str, listens: bool) -> Socket {
        let end = |text: &str| {
            let end: std::net::SocketAddr = text.parse().expect("endpoint");
            (end.ip(), end.port())
        };
        let ends = Internet {
            local: end(local),
            remote: end(remote),
            listens,
        };
        Socket {
            fd: 5,
            inode: 7,
            kind: Kind::Tcp(ends),
        }
    }

    #[test]
    fn each_socket_has_its_own_reason() {
        let all = policy("");
        let some = policy(r#""ports": [6379], "addresses": ["10.77.0.1"]"#);
        let fine = Ok(String::new());
        let say = |socket: &Socket, policy: &Policy, listening: &[u16]| {
            reason(socket, Some(policy), listening, &fine)
        };
        let none = "0.0.0.0:0";
        for (socket, policy, listening, part) in [
            (tcp("127.0.0.1:80", none, true), &all, &[80][..], "loopback"),
            (tcp("[::1]:80", "[::]:0", true), &all, &[80][..], "loopback"),
            (tcp("[::]:80", "[::]:0", true), &all, &[80][..], "IPv6"),
            (
                tcp("192.168.0.1:80", none, true),
                &all,
                &[80][..],
                "192.168.0.1 is an address of the kernel",
            ),
            (
                tcp("10.77.0.1:80", none, true),
                &some,
                &[80][..],
                "ports does not list 80, which it listens on",
            ),
            (
                tcp("10.77.0.9:6379", none, true),
                &some,
                &[6379][..],
                "addresses does not list 10.77.0.9",
            ),
            (
                tcp("10.77.0.1:5000", "10.0.0.9:443", false),
                &some,
                &[][..],
                "443, which it connects to",
            ),
            (
                tcp("10.77.0.1:80", "10.0.0.9:6379", false),
                &some,
                &[80][..],
                "80, which it listens on",
            ),
            (
                tcp("10.77.0.1:6379", none, true),
                &some,
                &[6379][..],
                "no host could serve",
            ),
        ] {
            let said = say(&socket, policy, listening);
            assert!(said.contains(part), "{socket:?}: {said}");
        }
        let other = |kind| {
            reason(
                &Socket {
                    fd: 1,
                    inode: 1,
                    kind,
                },
                Some(&all),
                &[],
                &fine,
            )
        };
        assert!(other(Kind::Unix).contains("AF_UNIX"));
        assert!(other(Kind::Unbound).contains("undecided"));
        let whole = Err("static".to_owned());
        let said = reason(&tcp("10.77.0.1:80", none, true), Some(&all), &[], &whole);
        assert!(said.contains("whole program"), "{said}");
    }
}
