//! Epolls inside epolls, poll and select: their heralds ([`crate::readiness::herald`]) are kept true, and out of the program's sight.

use core::sync::atomic::AtomicU8;

use super::epoll_set;
use crate::attach::{self, Link, Object};
use crate::channel::cell::{EpollCell, herald};
use crate::channel::sync::Ordering;
use crate::errno::{Errno, Result};
use crate::ffi::wait::{self, EpollEvent};
use crate::readiness::herald::{self as protocol, Eventfd};
use crate::readiness::{self, event};
use crate::socket::{interest, state};
use crate::waiter::herald::{self as eventfds, HeraldFd};
use crate::waiter::owner::{self, Held};

pub use crate::waiter::herald::{any, forget};

/// EPOLL_CTL_ADD.
const ADD: i32 = 1;

/// Its address is the data of heralds in kernel epolls: no program has it.
static MARK: AtomicU8 = AtomicU8::new(0);

fn mark() -> u64 {
    core::ptr::from_ref(&MARK).addr() as u64
}

/// The right to collect from an epoll and to settle its herald; given back on drop.
#[derive(Debug)]
pub(super) struct Turn<'a>(&'a EpollCell);

impl<'a> Turn<'a> {
    /// Waits for it. None in a signal handler that interrupted the thread's own: it must leave the herald alone.
    fn take(link: &Link, cell: &'a EpollCell) -> Option<Self> {
        (owner::take(link, &cell.turn) != Held::Nested).then_some(Self(cell))
    }

    /// As [`Turn::take`] for a collector: nothing when the epoll has no herald.
    pub(super) fn of_collector(link: &Link, cell: &'a EpollCell) -> Option<Self> {
        if cell.herald.load(Ordering::SeqCst) == herald::NONE {
            return None;
        }
        Self::take(link, cell)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        owner::release(&self.0.turn, || ());
    }
}

/// Gives `epoll` a herald, or lets the one that it has be rung again, and makes it true. `kernel_epfd` is the kernel epoll of the
/// same number.
///
/// # Errors
/// No eventfd, or the host cannot be spoken with.
pub fn announce(link: &Link, epoll: u32, kernel_epfd: i32) -> Result<()> {
    if link.is_disowned() {
        // Nothing of its sockets is to be seen.
        return Ok(());
    }
    let cell = link.control.epoll(epoll).ok_or(Errno::BADF)?;
    let state = cell.herald.load(Ordering::SeqCst);
    if matches!(state, herald::RUNG | herald::DIRTY | herald::CLEAN)
        && eventfds::of(epoll).is_some()
    {
        settle(link, epoll);
        return Ok(());
    }
    let Some(_turn) = Turn::take(link, cell) else {
        return Ok(());
    };
    let is_new = cell.herald.load(Ordering::SeqCst) == herald::NONE;
    let fd = match eventfds::of(epoll) {
        Some(fd) => fd,
        None if is_new => eventfds::make(epoll)?,
        None => learn(link, epoll)?,
    };
    if is_new {
        let event = EpollEvent {
            events: event::IN,
            data: mark(),
        };
        match wait::epoll_ctl(kernel_epfd, ADD, fd.number(), Some(event)) {
            // It stands there since an earlier host.
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error),
        }
        eventfds::register(link, epoll, fd)?;
    }
    protocol::arm(cell, &fd);
    settle_alone(link, epoll, cell, fd);
    Ok(())
}

/// How often the host is asked for a herald that another process has just made: its message may come behind ours.
const ASKS: u32 = 50;

fn learn(link: &Link, epoll: u32) -> Result<HeraldFd> {
    for _ in 1..ASKS {
        match eventfds::learn(link, epoll) {
            Err(Errno::NOENT) => attach::pause(),
            other => return other,
        }
    }
    eventfds::learn(link, epoll)
}

/// Nobody asks the kernel about `epoll` any more.
pub fn mute(link: &Link, epoll: u32) {
    if link.is_disowned() {
        // It is for those who have a share.
        return;
    }
    let (Some(cell), Some(fd)) = (link.control.epoll(epoll), eventfds::of(epoll)) else {
        return;
    };
    if let Some(_turn) = Turn::of_collector(link, cell) {
        protocol::mute(cell, &fd);
    }
}

/// Makes the heralds that this process knows true, before the kernel is asked about what they lie in.
pub fn settle_all(link: &Link) {
    eventfds::for_each(|epoll, _| settle(link, epoll));
}

/// Makes the herald of `epoll` true.
pub fn settle(link: &Link, epoll: u32) {
    if link.is_disowned() {
        // Nothing is ready to us, and what it says is for those who have a share.
        return;
    }
    let (Some(cell), Some(fd)) = (link.control.epoll(epoll), eventfds::of(epoll)) else {
        return;
    };
    if let Some(_turn) = Turn::of_collector(link, cell) {
        settle_alone(link, epoll, cell, fd);
    }
}

fn settle_alone(link: &Link, epoll: u32, cell: &EpollCell, fd: HeraldFd) {
    epoll_set::bury_if_needed(link, epoll, cell);
    protocol::settle(cell, || has_events(link, epoll), &fd);
}

/// Whether a wait on `epoll` would find an accelerated socket with an event. Takes nothing.
fn has_events(link: &Link, epoll: u32) -> bool {
    let (Some(ready), Ok(word)) = (link.control.ready(epoll), interest::epoll_word(link, epoll))
    else {
        return false;
    };
    ready.any(|index| {
        let Some(object) = Object::at(link, index) else {
            return false;
        };
        let Ok(cell) = state::cell(link, object) else {
            return false;
        };
        let mut found = false;
        interest::for_each(link, object, cell, word, |item, interest| {
            let edge = readiness::edge(cell, interest.events);
            let is_news = interest.events & epoll_set::flag::ET == 0
                || item.seen_edge.load(Ordering::Acquire) != edge;
            let asked = interest.events & epoll_set::flag::EVENTS;
            found |= is_news && state::bits(link, object) & asked != 0;
        });
        found
    })
}

/// Takes the herald out of what a kernel epoll reported in `events`; returns how many events are left, at the front.
pub fn strip(events: &mut [EpollEvent]) -> usize {
    let mark = mark();
    let count = events.len();
    let Some(place) = events.iter().position(|event| event.data == mark) else {
        return count;
    };
    if let Some(rest) = events.get_mut(place..) {
        rest.rotate_left(1);
    }
    count - 1
}

/// epoll_wait(2) of a kernel epoll, without waiting and without the herald. Epolls in it are made true before.
///
/// # Errors
/// As the kernel says.
pub(super) fn kernel_events(
    link: &Link,
    epoll: u32,
    kernel_epfd: i32,
    events: &mut [EpollEvent],
) -> Result<usize> {
    let has_herald = || {
        let cell = link.control.epoll(epoll);
        cell.is_some_and(|cell| cell.herald.load(Ordering::SeqCst) != herald::NONE)
    };
    if !any() && !has_herald() {
        return wait::epoll_wait(kernel_epfd, events, 0);
    }
    if eventfds::of(epoll).is_none() && has_herald() {
        // Made by another process. Without it what is readable for nothing stays so.
        if let Err(error) = learn(link, epoll) {
            crate::debug!("epoll={epoll} event=herald_unknown error={error:?}");
        }
    }
    settle_all(link);
    let found = wait::epoll_wait(kernel_epfd, events, 0)?;
    let left = strip(events.get_mut(..found).unwrap_or(&mut []));
    if left > 0 || found == 0 {
        return Ok(left);
    }
    if let (Some(cell), Some(fd)) = (link.control.epoll(epoll), eventfds::of(epoll))
        && cell.herald.load(Ordering::SeqCst) == herald::MUTE
    {
        // Written by who rang it just before.
        fd.drain();
    }
    // The herald stood in the place of what is behind it.
    let found = wait::epoll_wait(kernel_epfd, events, 0)?;
    Ok(strip(events.get_mut(..found).unwrap_or(&mut [])))
}

#[cfg(test)]
mod tests;
