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

/// The cookie of the network namespace that the socket is in.
///
/// # Errors
/// ENOPROTOOPT before Linux 5.14.
pub fn namespace_cookie(fd: i32) -> Result<u64> {
    let mut bytes = [0; 8];
    read(fd, SOCKET, NETNS_COOKIE, &mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}
