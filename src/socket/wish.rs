//! A new object and what the host is asked to make of it.

use core::net::SocketAddrV4;

use super::{close, hold, options, state};
use crate::attach::{Link, Object};
use crate::channel::cell::{ObjectCell, operation};
use crate::channel::sync::Ordering;
use crate::errno::{Errno, Result};
use crate::progress::Drive;
use crate::thread;

/// Takes a free index of the program's half at any lcore, another one each time, and holds it.
///
/// # Errors
/// ENFILE when all are in use, ENOMEM, ENETDOWN when the host is gone.
pub(super) fn claim_anywhere(link: &Link, options: &options::Options) -> Result<Object> {
    let lcores = link.lcores();
    let first = if lcores > 1 { link.turn() } else { 0 };
    let mut claimed = Err(Errno::NFILE);
    for step in 0..lcores {
        claimed = claim(link, first.wrapping_add(step) % lcores, options, true);
        if claimed != Err(Errno::NFILE) {
            break;
        }
    }
    claimed
}

/// Takes a free index of the program's half at `lcore` and holds it; with larger rings where there are such, `for_bytes` are to
/// go through.
///
/// # Errors
/// ENFILE when all are in use, ENOMEM, ENETDOWN when the host is gone.
pub(super) fn claim(
    link: &Link,
    lcore: u32,
    options: &options::Options,
    for_bytes: bool,
) -> Result<Object> {
    if link.is_dead() {
        return Err(Errno::NETDOWN);
    }
    let taken = link.control.taken().ok_or(Errno::NFILE)?;
    let layout = link.control.layout();
    let share = layout.program_share(lcore);
    // Threads begin at different words, so that they seldom meet.
    let hint = thread::id().wrapping_mul(64);
    let classes = layout.classes(&share);
    let asks = for_bytes && layout.asks_for_more(options.rcvbuf, options.sndbuf);
    let large = for_bytes && layout.large_ring_bytes != 0;
    let index = asks
        .then(|| taken.claim(0, classes.asked))
        .flatten()
        .or_else(|| large.then(|| taken.claim(0, classes.common)).flatten())
        .or_else(|| taken.claim(hint, classes.usual))
        .or_else(|| taken.claim(hint, share))
        .ok_or(Errno::NFILE)?;
    let object = Object::at(link, index).ok_or(Errno::NFILE)?;
    if let Err(error) = hold::add(link, object) {
        taken.clear(index);
        return Err(error);
    }
    if let Some(cell) = object.cell(link) {
        options::Options {
            rcvlowat: options::low_water(link, options.rcvlowat),
            ..*options
        }
        .apply(cell);
    }
    Ok(object)
}

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wish {
    /// Listen, or change the backlog.
    Listen { local: SocketAddrV4, backlog: u32 },
    /// Connect.
    Connect {
        local: Option<SocketAddrV4>,
        remote: SocketAddrV4,
    },
}

impl Wish {
    fn write(self, cell: &ObjectCell) {
        let wish = &cell.wish;
        let local = match self {
            Self::Listen { local, backlog } => {
                wish.backlog.store(backlog, Ordering::Relaxed);
                wish.operation.store(operation::LISTEN, Ordering::Relaxed);
                Some(local)
            }
            Self::Connect { local, remote } => {
                let (address, port) = numbers(remote);
                wish.remote_address.store(address, Ordering::Relaxed);
                wish.remote_port.store(port, Ordering::Relaxed);
                wish.operation.store(operation::CONNECT, Ordering::Relaxed);
                local
            }
        };
        let (address, port) = local.map_or((0, 0), numbers);
        wish.local_address.store(address, Ordering::Relaxed);
        wish.local_port.store(port, Ordering::Relaxed);
    }
}

fn numbers(address: SocketAddrV4) -> (u32, u32) {
    (address.ip().to_bits(), u32::from(address.port()))
}

/// Asks and waits for the answer, which the host gives without waiting for the network. Signals do not end this wait.
///
/// # Errors
/// The host's refusal; ENETDOWN when it is gone.
pub(super) fn ask(link: &Link, object: Object, wish: Wish) -> Result<()> {
    let cell = state::cell(link, object)?;
    wish.write(cell);
    // Release: the fields are written before; the host reads `wish` with Acquire.
    let number = cell
        .wish
        .wish
        .fetch_add(1, Ordering::Release)
        .wrapping_add(1);
    link.ring(object.index);
    let answered = || cell.host.answered.load(Ordering::Acquire) == number;
    // A turn for each of many connections that begin one behind the other would send them one by one.
    Drive::new().errand();
    while !answered() {
        if link.is_dead() {
            return Err(Errno::NETDOWN);
        }
        match state::until(link, object, None, None, &mut || {
            answered() || link.is_dead()
        }) {
            Ok(()) | Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    match i32::try_from(cell.host.answer.load(Ordering::Acquire)) {
        Ok(0) | Err(_) => Ok(()),
        Ok(errno) => Err(Errno::from_raw_os_error(errno)),
    }
}

/// As [`ask`] for a fresh object, which is given back when the host refuses.
///
/// # Errors
/// As [`ask`].
pub(super) fn ask_first(link: &Link, object: Object, wish: Wish) -> Result<Object> {
    match ask(link, object, wish) {
        Ok(()) => Ok(object),
        Err(error) => {
            close::release(link, object);
            Err(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::layout::Layout;
    use crate::socket::fake::Fake;
    use crate::socket::options::Options;

    #[test]
    fn who_asks_for_more_than_a_usual_ring_has_a_larger_one() {
        let layout = Layout::for_flows(1, 64 << 10, 64 << 10).with_large_rings(256 << 10);
        let fake = Fake::of(layout);
        let claimed = |options: &Options, for_bytes| {
            let object = claim(fake.link, 0, options, for_bytes).unwrap();
            layout.rx_bytes(object.index)
        };
        let (usual, asks) = (
            Options::default(),
            Options {
                rcvbuf: 400 << 10,
                ..Options::default()
            },
        );
        let count = |options: &Options, rings: usize| {
            (0..rings)
                .filter(|_| claimed(options, true) == 256 << 10)
                .count()
        };
        assert_eq!(claimed(&usual, false), 64 << 10, "a listener");
        assert_eq!(count(&usual, 100), 64);
        assert_eq!(count(&asks, 100), 64);
        assert_eq!(claimed(&usual, true), 64 << 10);
    }
}
