//! A kernel socket of its own behind an accepted number, for the options that only a kernel socket keeps.
//!
//! An accepted number is a copy of the spare socket ([`super::twin`]), on which nothing may be set. The first option that
//! the channel does not keep gets the number a socket of its own, and so does a connection whose listener hands such
//! options down (sk_clone_lock).
//!
//! DEVIATION: copies of the number that another process has keep the spare socket; their getsockopt gives the defaults.

use rustix::io::FdFlags;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::table::{self, Entry};
use super::twin;
use crate::errno::Result;
use crate::ffi::number_limit::with_room;
use crate::ffi::sockopt::{self, HANDED_DOWN};
use crate::ffi::{descriptor, errno};

/// The longest value: a device or a congestion control by name.
const VALUE_BYTES: usize = 16;

/// An option of `fd`; None where this kernel does not know it.
fn value(fd: i32, (level, name): (i32, i32)) -> Option<([u8; VALUE_BYTES], usize)> {
    let mut bytes = [0; VALUE_BYTES];
    let size = sockopt::read(fd, level, name, &mut bytes).ok()?;
    // A number is written as one, a name with its end.
    Some((bytes, size.max(4)))
}

/// Whether a connection of the listener `fd` must get a socket of its own.
#[must_use]
pub fn hands_down(fd: i32) -> bool {
    let saved = errno::save();
    let differs = twin::spare().is_ok_and(|spare| {
        HANDED_DOWN
            .iter()
            .any(|option| value(fd, *option) != value(spare, *option))
    });
    errno::restore(saved);
    differs
}

fn socket() -> Result<i32> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)
        .map(descriptor::raw)
}

/// A number for a connection of the listener `from`, with its options.
///
/// # Errors
/// EMFILE as accept(2).
pub fn number(from: i32, close_on_exec: bool) -> Result<i32> {
    let made = socket()?;
    for (level, name) in HANDED_DOWN {
        let wanted = value(from, (level, name));
        if let Some((bytes, size)) = wanted
            && wanted != value(made, (level, name))
        {
            // What needs a privilege that the program no longer has stays as it is.
            let _ = sockopt::write(made, level, name, bytes.get(..size).unwrap_or(&bytes));
        }
    }
    if !close_on_exec {
        rustix::io::fcntl_setfd(descriptor::lend(made)?, FdFlags::empty())?;
    }
    Ok(made)
}

/// Whether `fd` is still a copy of the spare socket.
fn is_spare(fd: i32, spare: i32) -> Result<bool> {
    let [one, other] = [fd, spare].map(|fd| descriptor::lend(fd).and_then(rustix::fs::fstat));
    Ok(one?.st_ino == other?.st_ino)
}

/// Gives the accepted number `fd`, and its copies in this process, a socket of its own unless they have one.
///
/// # Errors
/// EMFILE, ENFILE and what else socket(2) says.
pub fn give(fd: i32) -> Result<()> {
    let spare = twin::spare()?;
    if !is_spare(fd, spare)? {
        return Ok(());
    }
    let made = with_room(socket)?;
    let wanted = table::entry(fd);
    table::for_each(0, table::end(), |copy, entry| {
        // A number that is closed at this very moment is the program's own race, as on Linux.
        if entry == wanted && matches!(entry, Entry::Socket(_)) && is_spare(copy, spare) == Ok(true)
        {
            replace(copy, made);
        }
    });
    descriptor::close(made);
    Ok(())
}

fn replace(copy: i32, made: i32) {
    let Ok(flags) = descriptor::lend(copy).and_then(rustix::io::fcntl_getfd) else {
        return;
    };
    // Neither is closed, so this cannot fail; the number would keep the spare socket.
    let _ = descriptor::replace(made, copy, flags.contains(FdFlags::CLOEXEC));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ffi::sockopt::TCP;

    const SYNCNT: i32 = 7;
    const CONGESTION: i32 = 13;

    #[test]
    fn a_listeners_options_are_handed_down() {
        let listener = socket().unwrap();
        assert!(!hands_down(listener));
        sockopt::set_number(listener, TCP, SYNCNT, 3).unwrap();
        sockopt::write(listener, TCP, CONGESTION, b"reno").unwrap();
        assert!(hands_down(listener));
        let made = number(listener, false).unwrap();
        assert_eq!(sockopt::number(made, TCP, SYNCNT), Ok(3));
        let (name, _) = value(made, (TCP, CONGESTION)).unwrap();
        assert_eq!(name.get(..5), Some(b"reno\0".as_slice()));
        descriptor::close(made);
        descriptor::close(listener);
    }

    #[test]
    fn a_copy_of_the_spare_is_told_from_a_socket_of_its_own() {
        let fd = twin::number(true).unwrap();
        let spare = twin::spare().unwrap();
        assert_eq!(is_spare(fd, spare), Ok(true));
        let made = socket().unwrap();
        replace(fd, made);
        assert_eq!(is_spare(fd, spare), Ok(false));
        descriptor::close(made);
        descriptor::close(fd);
    }
}
