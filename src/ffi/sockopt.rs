//! Socket options as raw bytes, past the exported getsockopt and setsockopt.
//!
//! # Safety
//! The kernel reads and writes at most the length of the slice that it is given.

#![allow(unsafe_code)]

use crate::errno::{Errno, Result};

/// SOL_SOCKET.
pub const SOCKET: i32 = libc::SOL_SOCKET;
/// IPPROTO_IP.
pub const IP: i32 = libc::IPPROTO_IP;
/// IPPROTO_TCP.
pub const TCP: i32 = libc::IPPROTO_TCP;
/// SO_NETNS_COOKIE (Linux 5.14).
const NETNS_COOKIE: i32 = 71;
/// IP_FREEBIND.
pub const FREEBIND: i32 = libc::IP_FREEBIND;

/// Level and number of the options that a connection has from its listener (sk_clone_lock), without those that the channel
/// keeps.
pub const HANDED_DOWN: [(i32, i32); 37] = [
    (SOCKET, libc::SO_DEBUG),
    (SOCKET, libc::SO_DONTROUTE),
    (SOCKET, libc::SO_BROADCAST),
    (SOCKET, libc::SO_NO_CHECK),
    (SOCKET, libc::SO_BINDTODEVICE),
    (SOCKET, libc::SO_TIMESTAMP),
    (SOCKET, libc::SO_TIMESTAMPNS),
    (SOCKET, libc::SO_MARK),
    (SOCKET, libc::SO_TIMESTAMPING),
    (SOCKET, libc::SO_RXQ_OVFL),
    (SOCKET, libc::SO_WIFI_STATUS),
    (SOCKET, libc::SO_NOFCS),
    (SOCKET, libc::SO_SELECT_ERR_QUEUE),
    (SOCKET, libc::SO_BUSY_POLL),
    (SOCKET, libc::SO_MAX_PACING_RATE),
    (SOCKET, libc::SO_PREFER_BUSY_POLL),
    (SOCKET, SO_BUF_LOCK),
    (SOCKET, SO_TXREHASH),
    (TCP, libc::TCP_SYNCNT),
    (TCP, libc::TCP_LINGER2),
    (TCP, libc::TCP_WINDOW_CLAMP),
    (TCP, libc::TCP_QUICKACK),
    (TCP, libc::TCP_CONGESTION),
    (TCP, libc::TCP_THIN_LINEAR_TIMEOUTS),
    (TCP, libc::TCP_NOTSENT_LOWAT),
    (TCP, libc::TCP_FASTOPEN_NO_COOKIE),
    (TCP, TCP_TX_DELAY),
    (IP, libc::IP_RECVOPTS),
    (IP, libc::IP_PKTINFO),
    (IP, libc::IP_MTU_DISCOVER),
    (IP, libc::IP_RECVERR),
    (IP, libc::IP_RECVTTL),
    (IP, libc::IP_RECVTOS),
    (IP, libc::IP_FREEBIND),
    (IP, libc::IP_MINTTL),
    (IP, libc::IP_BIND_ADDRESS_NO_PORT),
    (IP, libc::IP_MULTICAST_LOOP),
];
/// SO_BINDTOIFINDEX: SO_BINDTODEVICE as a number.
const BIND_TO_INTERFACE: i32 = 62;
/// Linux 5.15.
const SO_BUF_LOCK: i32 = 72;
/// Linux 5.18.
const SO_TXREHASH: i32 = 74;
const TCP_TX_DELAY: i32 = 37;

/// Reads an option into `value` and returns how many bytes the kernel wrote.
///
/// # Errors
/// As getsockopt(2): EBADF, ENOTSOCK, ENOPROTOOPT ...
pub fn read(fd: i32, level: i32, name: i32, value: &mut [u8]) -> Result<usize> {
    let mut len = libc::socklen_t::try_from(value.len()).map_err(|_| Errno::INVAL)?;
    // SAFETY: `len` says how long `value` is.
    let result = unsafe {
        libc::syscall(
            libc::SYS_getsockopt,
            fd,
            level,
            name,
            value.as_mut_ptr(),
            &raw mut len,
        )
    };
    if result < 0 {
        Err(super::errno::last())
    } else {
        Ok(len as usize)
    }
}

/// Sets an option from `value`.
///
/// # Errors
/// As setsockopt(2).
pub fn write(fd: i32, level: i32, name: i32, value: &[u8]) -> Result<()> {
    // SAFETY: pointer and length are those of one slice.
    let result = unsafe {
        libc::syscall(
            libc::SYS_setsockopt,
            fd,
            level,
            name,
            value.as_ptr(),
            value.len(),
        )
    };
    if result < 0 {
        Err(super::errno::last())
    } else {
        Ok(())
    }
}

/// Reads an int.
///
/// # Errors
/// As getsockopt(2).
pub fn number(fd: i32, level: i32, name: i32) -> Result<i32> {
    let mut bytes = [0; 4];
    read(fd, level, name, &mut bytes)?;
    Ok(i32::from_ne_bytes(bytes))
}

/// Sets an int.
///
/// # Errors
/// As setsockopt(2).
pub fn set_number(fd: i32, level: i32, name: i32, value: i32) -> Result<()> {
    write(fd, level, name, &value.to_ne_bytes())
}

/// The user who made the other end of a connected AF_UNIX socket (unix(7), SO_PEERCRED).
///
/// # Errors
/// As getsockopt(2).
pub fn peer_user(fd: i32) -> Result<u32> {
    // struct ucred: pid, uid, gid.
    let mut bytes = [0; 12];
    read(fd, SOCKET, libc::SO_PEERCRED, &mut bytes)?;
    let [_, _, _, _, a, b, c, d, ..] = bytes;
    Ok(u32::from_ne_bytes([a, b, c, d]))
}

/// The number of the interface that a socket is bound to (socket(7), SO_BINDTODEVICE); 0 = to none.
#[must_use]
pub fn interface(fd: i32) -> u32 {
    let number_of = number(fd, SOCKET, BIND_TO_INTERFACE);
    number_of
        .ok()
        .and_then(|number| u32::try_from(number).ok())
        .unwrap_or(0)
}

/// The cookie of the network namespace that the socket is in.
///
/// # Errors
/// ENOPROTOOPT before Linux 5.14.
pub fn namespace_cookie(fd: i32) -> Result<u64> {
    let mut bytes = [0; 8];
    read(fd, SOCKET, NETNS_COOKIE, &mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}
