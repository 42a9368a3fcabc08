//! Taking ready objects out of an epoll's map and turning them into events.

use super::epoll_set::flag;
use crate::attach::{Link, Object};
use crate::channel::cell::{Item, ObjectCell};
use crate::channel::sync::Ordering;
use crate::ffi::wait::EpollEvent;
use crate::readiness;
use crate::socket::interest::{self, Interest};
use crate::socket::{state, stream};
use crate::waiter;

/// Reported items that are also in the kernel epoll, as far as remembered.
const TWINS_MAX: usize = 8;

/// What a collection found.
#[derive(Debug, Default)]
pub(super) struct Collected {
    /// Events written.
    pub(super) count: usize,
    /// Which of them stand in the kernel epoll as well, with their descriptors.
    pub(super) twins: [Option<Twin>; TWINS_MAX],
}

/// An event of an object whose kernel twin is registered too.
#[derive(Clone, Copy, Debug)]
pub(super) struct Twin {
    /// Place among the events.
    pub(super) position: usize,
    /// The descriptor.
    pub(super) fd: i32,
    /// It was one-shot: the kernel's half must be disarmed.
    pub(super) oneshot: bool,
}

/// Fills `events` with what is ready in `epoll`, beginning behind what was reported last.
pub(super) fn collect(
    link: &Link,
    epoll: u32,
    from: u32,
    events: &mut [EpollEvent],
) -> (Collected, u32) {
    let mut found = Collected::default();
    let mut next = from;
    let mut leaves_some = false;
    if link.is_disowned() {
        // What is ready is for those who have a share.
        return (found, next);
    }
    let (Some(ready), Ok(word)) = (link.control.ready(epoll), interest::epoll_word(link, epoll))
    else {
        return (found, next);
    };
    ready.take(from, |index| {
        let room = events.get_mut(found.count..).unwrap_or(&mut []);
        if room.is_empty() {
            leaves_some = true;
            return false;
        }
        let Some(object) = Object::at(link, index) else {
            return true;
        };
        let Ok(cell) = state::cell(link, object) else {
            return true;
        };
        let mut report = Report {
            link,
            object,
            cell,
            room,
            base: found.count,
            used: 0,
            stays: false,
            is_full: false,
            twins: &mut found.twins,
        };
        let is_watched = interest::for_each(link, object, cell, word, |item, interest| {
            report.add(item, interest);
        });
        let Report {
            used,
            stays,
            is_full,
            ..
        } = report;
        found.count += used;
        if !is_watched {
            interest::unwatch(link, object, epoll);
        }
        leaves_some |= is_full || stays;
        if is_full {
            return false;
        }
        if stays {
            // Level-triggered: looked at again by the next wait.
            ready.set(index);
        }
        if used > 0 {
            next = index.wrapping_add(1);
            stream::fetch(link, object, cell);
        }
        true
    });
    if leaves_some {
        readiness::wake_one_of_epoll(&link.control, epoll, |slot| waiter::wake(link, slot));
    }
    (found, next)
}

struct Report<'a, 'b> {
    link: &'a Link,
    object: Object,
    cell: &'a ObjectCell,
    room: &'b mut [EpollEvent],
    base: usize,
    used: usize,
    stays: bool,
    is_full: bool,
    twins: &'b mut [Option<Twin>; TWINS_MAX],
}

impl Report<'_, '_> {
    fn add(&mut self, item: &Item, interest: Interest) {
        // The edge before the state: an edge that comes later sets the object ready again.
        let edge = readiness::edge(self.cell, interest.events);
        let events = state::bits(self.link, self.object) & interest.events & flag::EVENTS;
        if events == 0 {
            return;
        }
        let edge_triggered = interest.events & flag::ET != 0;
        let oneshot = interest.events & flag::ONESHOT != 0;
        let seen = item.seen_edge.load(Ordering::Acquire);
        if edge_triggered && seen == edge {
            return;
        }
        let Some(place) = self.room.get_mut(self.used) else {
            self.is_full = true;
            return;
        };
        // One thread reports an edge, one thread fires a shot.
        let lost_edge = edge_triggered
            && item
                .seen_edge
                .compare_exchange(seen, edge, Ordering::AcqRel, Ordering::Relaxed)
                .is_err();
        let lost_shot = oneshot
            && item
                .events
                .compare_exchange(interest.events, 0, Ordering::AcqRel, Ordering::Relaxed)
                .is_err();
        if lost_edge || lost_shot {
            return;
        }
        *place = EpollEvent {
            events,
            data: interest.data,
        };
        if interest.events & flag::TWIN != 0
            && let Some(free) = self.twins.iter_mut().find(|twin| twin.is_none())
        {
            *free = Some(Twin {
                position: self.base + self.used,
                fd: interest.fd,
                oneshot,
            });
        }
        self.used += 1;
        self.stays |= !edge_triggered && !oneshot;
    }
}
