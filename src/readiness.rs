//! Readiness: what is true of an object, and how a sleeper learns that it changed.
//!
//! Owns the event bits, their meaning after tcp_poll of Linux, and the sleep protocol. May use `base`,
//! `telemetry`, `channel`. Any program thread and the lcore. Invariant: a wake-up is never lost.
//!
//! The sleep protocol, both directions (Dekker's, all SeqCst):
//!
//! | sleeper | waker |
//! |---|---|
//! | `sleeping = 1`, add the slot to the mask | write the state |
//! | read the state again; if it is ready, do not sleep | read the mask |
//! | sleep on the eventfd | `sleeping.swap(0) == 1`: write the eventfd |
//! | remove the slot, `sleeping = 0` | |

use crate::channel::cell::{EpollCell, Item, ObjectCell, SlotCell, flag, item, kind, shut};
use crate::channel::layout::EPOLLS;
use crate::channel::map::Control;
use crate::channel::mask::Mask;
use crate::channel::sync::{Ordering, fence, fence_behind_update};
use crate::channel::{accept_ring, byte_ring};

pub mod herald;
pub mod limit;
pub mod urgent;

/// Event bits, with the values of poll(2) and epoll(7).
pub mod event {
    /// POLLIN.
    pub const IN: u32 = 0x001;
    /// POLLPRI.
    pub const PRI: u32 = 0x002;
    /// POLLOUT.
    pub const OUT: u32 = 0x004;
    /// POLLERR.
    pub const ERR: u32 = 0x008;
    /// POLLHUP.
    pub const HUP: u32 = 0x010;
    /// POLLNVAL.
    pub const NVAL: u32 = 0x020;
    /// POLLRDNORM.
    pub const RDNORM: u32 = 0x040;
    /// POLLRDBAND.
    pub const RDBAND: u32 = 0x080;
    /// POLLWRNORM.
    pub const WRNORM: u32 = 0x100;
    /// POLLRDHUP.
    pub const RDHUP: u32 = 0x2000;
}

/// Bytes that can be read at once; never more than the ring. Not for listeners, see [`accept_ring::queued`].
#[must_use]
pub fn readable_bytes(cell: &ObjectCell) -> u64 {
    let head = cell.read.rx_head.load(Ordering::Acquire);
    cell.host
        .rx_tail
        .load(Ordering::Acquire)
        .saturating_sub(head)
}

/// SO_RCVLOWAT: bytes that make a stream readable. No more than leave a segment's room in the window that SO_RCVBUF allows, or the
/// peer might wait as well (tcp_epollin_ready looks whether the window is down to a segment).
#[must_use]
pub fn low_water(cell: &ObjectCell) -> u64 {
    let low = cell.read.rcvlowat.load(Ordering::Relaxed).max(1);
    let buffer = cell.option.rcvbuf.load(Ordering::Relaxed);
    if low == 1 || buffer == 0 {
        return low.into();
    }
    let segment = cell.fact.mss.load(Ordering::Relaxed);
    let window = buffer / 2;
    let most = if window / 2 > segment {
        window - segment
    } else {
        1
    };
    low.min(most).into()
}

/// Whether poll would report writable: a third of the send buffer is free (sk_stream_is_writeable).
#[must_use]
pub fn is_writable(cell: &ObjectCell, tx_ring_bytes: u32) -> bool {
    if limit::limit(cell).is_some_and(|limit| !limit.is_writable()) {
        return false;
    }
    let free = byte_ring::writable(&cell.host, &cell.write, tx_ring_bytes);
    let backed = byte_ring::backed(&cell.host, &cell.write, tx_ring_bytes);
    if free.saturating_mul(3) >= u64::from(backed) && free > 0 {
        return true;
    }
    if backed == tx_ring_bytes || cell.write.want_room.load(Ordering::SeqCst) != 0 {
        return false;
    }
    // A writer puts memory behind more of the ring; only one that could not has asked for room.
    let queued = cell
        .write
        .tx_reserved
        .load(Ordering::Relaxed)
        .saturating_sub(cell.host.tx_head.load(Ordering::Acquire));
    queued.saturating_mul(3) <= u64::from(tx_ring_bytes).saturating_mul(2)
}

/// The event bits of an object now, as tcp_poll gives them (Linux net/ipv4/tcp.c).
///
/// When it is not writable the cell is marked so that the lcore raises an edge once it is.
#[must_use]
pub fn bits(cell: &ObjectCell, tx_ring_bytes: u32) -> u32 {
    let what = cell.host.kind.load(Ordering::Acquire);
    if is_disconnected(cell, what) {
        // TCP_CLOSE: only HUP and room, the error if there is one, and the end if reading was shut since.
        let failed = cell.host.error.load(Ordering::Acquire) != 0;
        let error = if failed { event::ERR } else { 0 };
        let ended = cell.write.shut.load(Ordering::Relaxed) & shut::ENDED != 0;
        let end = if ended {
            event::IN | event::RDNORM | event::RDHUP
        } else {
            0
        };
        return event::HUP | event::OUT | event::WRNORM | error | end;
    }
    if what == kind::LISTENER {
        return if accept_ring::queued(&cell.queue) > 0 {
            event::IN | event::RDNORM
        } else {
            0
        };
    }
    let mut bits = 0;
    // Flags before positions: a FIN seen is behind all its bytes.
    let flags = cell.host.flags.load(Ordering::Acquire);
    let shut = cell.write.shut.load(Ordering::Relaxed);
    let over = flags & flag::OVER != 0 || what == kind::FAILED;
    let read_shut = over || flags & flag::RX_FINISHED != 0 || shut & shut::READ != 0;
    let write_shut = over || flags & flag::TX_BROKEN != 0 || shut & shut::WRITE != 0;
    if over || (read_shut && write_shut) {
        bits |= event::HUP;
    }
    if read_shut {
        bits |= event::IN | event::RDNORM | event::RDHUP;
    }
    if what != kind::CONNECTING {
        let mut low = low_water(cell);
        if flags & flag::URGENT != 0
            && let Some(mark) = urgent::mark(cell)
        {
            // A byte that reading steps over is none that can be read.
            low += u64::from(mark.is_stepped_over());
            if mark.arrived && !mark.taken {
                bits |= event::PRI;
            }
        }
        if readable_bytes(cell) >= low {
            bits |= event::IN | event::RDNORM;
        }
        if write_shut || writable_or_asked(cell, tx_ring_bytes) {
            bits |= event::OUT | event::WRNORM;
        }
    }
    // The error queue has notices, or there is an error.
    let notices = cell.write.zerocopy_sent.load(Ordering::Acquire)
        != cell.write.zerocopy_told.load(Ordering::Acquire);
    if notices || cell.host.error.load(Ordering::Acquire) != 0 {
        bits |= event::ERR;
    }
    bits
}

/// Whether an object of kind `what` is as after tcp_disconnect of Linux: its failed attempt to connect was told, or a
/// shutdown ended its attempt or its listening.
#[must_use]
pub fn is_disconnected(cell: &ObjectCell, what: u32) -> bool {
    match what {
        kind::FAILED | kind::CONNECTING => cell.wish.told.load(Ordering::Acquire) != 0,
        kind::LISTENER => cell.write.shut.load(Ordering::Acquire) & shut::READ != 0,
        _ => false,
    }
}

/// Whether it is writable; if not, asks the lcore for an edge, and looks again.
fn writable_or_asked(cell: &ObjectCell, tx_ring_bytes: u32) -> bool {
    if is_writable(cell, tx_ring_bytes) {
        return true;
    }
    cell.write.want_room.store(1, Ordering::SeqCst);
    fence(Ordering::SeqCst);
    is_writable(cell, tx_ring_bytes)
}

/// What an edge is about, as Linux wakes its waiters with a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum News {
    /// Bytes, or flows to accept (sk_data_ready).
    Arrived,
    /// Room to write (sk_write_space).
    Room,
    /// Anything else: it concerns everybody.
    State,
}

/// The edges so far that concern who asks for `events`; edge-triggered epoll compares the number.
///
/// The sum is read first: edges that come meanwhile make the result too small, which is news once more, never none.
#[must_use]
pub fn edge(cell: &ObjectCell, events: u32) -> u32 {
    let mut edge = cell.host.edge.load(Ordering::SeqCst);
    if events & (event::IN | event::RDNORM | event::PRI | event::RDBAND) == 0 {
        edge = edge.wrapping_sub(cell.host.edges_in.load(Ordering::SeqCst));
    }
    if events & (event::OUT | event::WRNORM) == 0 {
        edge = edge.wrapping_sub(cell.host.edges_out.load(Ordering::SeqCst));
    }
    edge
}

/// Host side: tells everybody who watches object `index` that it changed. The new state is already written. `wake` is called
/// for each slot that sleeps, of those that sleep on an epoll for one (ep_poll_callback of Linux).
pub fn alert(control: &Control, index: u32, news: News, mut wake: impl FnMut(u32)) {
    let Some(cell) = control.object(index) else {
        return;
    };
    // Before the sum, see `edge`.
    match news {
        News::Arrived => {
            cell.host.edges_in.fetch_add(1, Ordering::SeqCst);
        }
        News::Room => {
            cell.host.edges_out.fetch_add(1, Ordering::SeqCst);
        }
        News::State => {}
    }
    let edge = cell.host.edge.fetch_add(1, Ordering::SeqCst);
    // Pairs with the fence of a sleeper: it sees the state, or we see its mask bit.
    fence_behind_update();
    let exclusive = if cell.read.exclusive.load(Ordering::SeqCst) == 0 {
        None
    } else {
        Some(exclusive_epolls(control, index, cell))
    };
    let is_shared = |epoll: u32| exclusive.as_ref().is_none_or(|them| !them.has(epoll));
    let mut is_in_an_epoll = false;
    cell.watch.epolls.for_each(|epoll| {
        if is_shared(epoll)
            && let Some(ready) = control.ready(epoll)
        {
            ready.set(index);
            is_in_an_epoll = true;
        }
    });
    if is_in_an_epoll {
        // Again, for who sleeps on an epoll: he sees the ready bit, or we see his mask bit.
        fence_behind_update();
        cell.watch.epolls.for_each(|epoll| {
            if is_shared(epoll) {
                wake_epoll(control, epoll, &mut wake);
            }
        });
    }
    if let Some(exclusive) = exclusive {
        alert_one(control, index, &exclusive, edge, &mut wake);
    }
    cell.watch.slots.for_each(|slot| {
        wake_slot(control, slot, &mut wake);
    });
}

/// Tells the epolls that watch with EPOLLEXCLUSIVE, one after the other until a sleeper of one was woken. When nobody sleeps
/// all of them know.
fn alert_one(
    control: &Control,
    index: u32,
    exclusive: &Mask,
    edge: u32,
    wake: &mut impl FnMut(u32),
) {
    // Begins at another one each time, so that they share the work.
    let first = edge % EPOLLS;
    let mut is_done = false;
    let mut tell = |epoll: u32| {
        if is_done {
            return;
        }
        if let Some(ready) = control.ready(epoll) {
            ready.set(index);
            fence(Ordering::SeqCst);
            is_done = wake_epoll(control, epoll, &mut *wake);
        }
    };
    exclusive.for_each(|epoll| {
        if epoll >= first {
            tell(epoll);
        }
    });
    exclusive.for_each(|epoll| {
        if epoll < first {
            tell(epoll);
        }
    });
}

/// The epolls in which every interest of the object is EPOLLEXCLUSIVE. None of them when they do not all ask for the same: the
/// one that is told may not have asked.
#[cold]
fn exclusive_epolls(control: &Control, index: u32, cell: &ObjectCell) -> Mask {
    let (exclusive, shared) = (Mask::default(), Mask::default());
    let mut asked = None;
    let mut differ = false;
    let mut note = |item: &Item| {
        let word = item.epoll.load(Ordering::Acquire);
        let Some(epoll) = item::epoll(word) else {
            return;
        };
        let is_stale = control
            .epoll(epoll)
            .is_none_or(|cell| item::word(epoll, cell) != word);
        if is_stale {
            return;
        }
        let events = item.events.load(Ordering::Acquire);
        if events & item::EXCLUSIVE == 0 {
            shared.add(epoll);
        } else {
            differ |= *asked.get_or_insert(events) != events;
            exclusive.add(epoll);
        }
    };
    cell.items.iter().for_each(&mut note);
    if cell.read.spilled.load(Ordering::Acquire) != 0 {
        let generation = cell.host.generation.load(Ordering::Acquire);
        for spill in &control.header().spill {
            if spill.object.load(Ordering::Acquire) == index
                && spill.generation.load(Ordering::Acquire) == generation
            {
                note(&spill.item);
            }
        }
    }
    if differ {
        return Mask::default();
    }
    shared.for_each(|epoll| {
        exclusive.remove(epoll);
    });
    exclusive
}

/// Host side: tells everybody who watches object `index` once more, without an edge: who was told may have died before he
/// collected.
pub fn remind(control: &Control, index: u32, mut wake: impl FnMut(u32)) {
    let Some(cell) = control.object(index) else {
        return;
    };
    cell.watch.epolls.for_each(|epoll| {
        if let Some(ready) = control.ready(epoll) {
            ready.set(index);
            fence(Ordering::SeqCst);
            wake_epoll(control, epoll, &mut wake);
        }
    });
}

/// Host side: whether somebody who slept on an epoll with object `index` was woken and has not run since.
#[must_use]
pub fn has_unheard(control: &Control, index: u32) -> bool {
    let Some(cell) = control.object(index) else {
        return false;
    };
    let mut found = false;
    cell.watch.epolls.for_each(|epoll| {
        let Some(cell) = control.epoll(epoll) else {
            return;
        };
        // Who sleeps sets his flag before his bit, and takes the bit away when he is awake.
        cell.slots.for_each(|slot| {
            let slot = control.slot(slot);
            found |= slot.is_some_and(|cell| cell.sleeping.load(Ordering::SeqCst) == 0);
        });
    });
    found
}

/// Wakes one of those who sleep on epoll `epoll`, and rings its herald. Says whether one slept. The others sleep on: who is
/// woken collects, and wakes the next one when it leaves something behind. In each process one is woken: a process that was
/// stopped may hold up its own threads, and nobody else.
pub fn wake_epoll(control: &Control, epoll: u32, mut wake: impl FnMut(u32)) -> bool {
    let Some(cell) = control.epoll(epoll) else {
        return false;
    };
    let mut processes = [None; PROCESSES];
    let mut woken = 0;
    cell.slots.for_each(|slot| {
        let user = control
            .slot(slot)
            .map_or(0, |cell| cell.user.load(Ordering::Relaxed));
        let process = Some(user >> 32);
        if !processes.contains(&process) && wake_slot(control, slot, &mut wake) {
            if let Some(place) = processes.get_mut(woken) {
                *place = process;
            }
            woken += 1;
        }
    });
    let woken = woken > 0;
    if herald::ring(cell) {
        wake(herald::slot(epoll));
    }
    woken
}

/// Program side: wakes one of those who sleep on epoll `epoll`. A collector that leaves ready objects behind calls this:
/// while it held their bits, a sleeper found none and went to sleep (ep_done_scan of Linux wakes one as well).
pub fn wake_one_of_epoll(control: &Control, epoll: u32, mut wake: impl FnMut(u32)) {
    let Some(cell) = control.epoll(epoll) else {
        return;
    };
    // The bits are set again; as in `alert`, a sleeper sees them, or we see its mask bit.
    fence(Ordering::SeqCst);
    if !cell.slots.is_empty() {
        wake_one(control, cell, &mut wake);
    }
}

/// Processes that share an epoll, as far as they are told apart; of more than these all threads are woken.
const PROCESSES: usize = 8;

fn wake_one(control: &Control, cell: &EpollCell, wake: &mut impl FnMut(u32)) -> bool {
    let mut is_done = false;
    cell.slots.for_each(|slot| {
        if !is_done {
            is_done = wake_slot(control, slot, wake);
        }
    });
    is_done
}

/// Says whether it slept.
fn wake_slot(control: &Control, slot: u32, wake: &mut impl FnMut(u32)) -> bool {
    let slept = control.slot(slot).is_some_and(|cell| {
        cell.sleeping.load(Ordering::SeqCst) == 1 && cell.sleeping.swap(0, Ordering::SeqCst) == 1
    });
    if slept {
        wake(slot);
    }
    slept
}

/// Program side: rings the doorbell of `index` at the lcore that it belongs to; says which lcore sleeps and must be woken by its
/// eventfd.
#[must_use]
pub fn ring_doorbell(control: &Control, index: u32) -> Option<u32> {
    ring_doorbell_at(control, control.lcore_of(index), index)
}

/// As [`ring_doorbell`] at `lcore`: of a listener, whose queues every lcore fills.
#[must_use]
pub fn ring_doorbell_at(control: &Control, lcore: u32, index: u32) -> Option<u32> {
    if let Some(bells) = control.doorbells(lcore) {
        bells.set(index);
    }
    asleep(control, lcore)
}

/// Program side: asks the host to wake whoever sleeps on `epoll` (after ADD or MOD of a ready object); says which lcore must be
/// woken. The first lcore answers kicks.
#[must_use]
pub fn kick_epoll(control: &Control, epoll: u32) -> Option<u32> {
    control.header().kicks.epolls.add(epoll);
    asleep(control, FIRST_LCORE)
}

/// Program side: asks the host to write the eventfd of `slot`, which sleeps in another process and whose `sleeping` the
/// caller has taken; says which lcore must be woken.
#[must_use]
pub fn kick_slot(control: &Control, slot: u32) -> Option<u32> {
    control.header().kicks.slots.add(slot);
    asleep(control, FIRST_LCORE)
}

/// Program side: the sleeper's first half. `watch` puts the slot into the masks of what it waits for. The
/// caller then looks at the state again and sleeps only when it is still not ready.
pub fn begin_sleep(cell: &SlotCell, watch: impl FnOnce()) {
    cell.sleeping.store(1, Ordering::SeqCst);
    watch();
    // Pairs with the fence of `alert`: it sees our bit, or we see the state.
    fence(Ordering::SeqCst);
}

/// Program side: awake again. Says whether somebody has taken the flag: the eventfd is or will be readable.
pub fn end_sleep(cell: &SlotCell) -> bool {
    cell.sleeping.swap(0, Ordering::SeqCst) == 0
}

/// Host side: the first half of an lcore's sleep. It then looks at doorbells and kicks again and sleeps only when there are
/// none.
pub fn begin_lcore_sleep(control: &Control, lcore: u32) {
    if let Some(line) = control.header().lcores_asleep.get(lcore as usize) {
        line.sleeping.store(1, Ordering::SeqCst);
    }
    // Pairs with the fence of `ring_doorbell` and its kin.
    fence(Ordering::SeqCst);
}

/// Host side: the lcore is awake again.
pub fn end_lcore_sleep(control: &Control, lcore: u32) {
    if let Some(line) = control.header().lcores_asleep.get(lcore as usize) {
        line.sleeping.store(0, Ordering::SeqCst);
    }
}

/// `lcore`, if it sleeps and the caller, who has just set a bit for it, is the one that wakes it.
fn asleep(control: &Control, lcore: u32) -> Option<u32> {
    fence_behind_update();
    let line = control.header().lcores_asleep.get(lcore as usize)?;
    let sleeps =
        line.sleeping.load(Ordering::SeqCst) == 1 && line.sleeping.swap(0, Ordering::SeqCst) == 1;
    sleeps.then_some(lcore)
}

/// The lcore that answers for what belongs to none: kicks, listeners, the ends of processes.
pub const FIRST_LCORE: u32 = 0;

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::channel::layout::Layout;

    const RING: u32 = 4_096;

    fn stream() -> ObjectCell {
        let cell = ObjectCell::default();
        cell.host.kind.store(kind::STREAM, Ordering::Relaxed);
        cell.host.tx_backed.store(RING, Ordering::Relaxed);
        cell
    }

    #[test]
    fn an_edge_concerns_who_asks_for_what_it_is_about() {
        let cell = ObjectCell::default();
        let all = || {
            [
                edge(&cell, event::IN),
                edge(&cell, event::OUT),
                edge(&cell, 0),
            ]
        };
        let raise = |word: &crate::channel::sync::AtomicU32| {
            word.fetch_add(1, Ordering::SeqCst);
            cell.host.edge.fetch_add(1, Ordering::SeqCst);
        };
        assert_eq!(all(), [0, 0, 0]);
        raise(&cell.host.edges_in);
        assert_eq!(all(), [1, 0, 0], "bytes are no news for OUT");
        raise(&cell.host.edges_out);
        assert_eq!(all(), [1, 1, 0], "room is no news for IN");
        cell.host.edge.fetch_add(1, Ordering::SeqCst);
        assert_eq!(all(), [2, 2, 1]);
    }

    #[test]
    fn edges_are_told_apart_where_their_count_begins_again() {
        let cell = ObjectCell::default();
        cell.host.edge.store(u32::MAX, Ordering::SeqCst);
        cell.host.edges_in.store(u32::MAX - 1, Ordering::SeqCst);
        let (before_in, before_out) = (edge(&cell, event::IN), edge(&cell, event::OUT));
        for _ in 0..3 {
            cell.host.edges_in.fetch_add(1, Ordering::SeqCst);
            cell.host.edge.fetch_add(1, Ordering::SeqCst);
        }
        assert_eq!(edge(&cell, event::IN).wrapping_sub(before_in), 3);
        assert_eq!(edge(&cell, event::OUT), before_out);
    }

    #[test]
    fn bits_are_those_of_tcp_poll() {
        use event::{ERR, HUP, IN, OUT, RDHUP, RDNORM, WRNORM};
        let cell = stream();
        assert_eq!(bits(&cell, RING), OUT | WRNORM);
        cell.host.rx_tail.store(1, Ordering::Relaxed);
        assert_eq!(bits(&cell, RING), IN | RDNORM | OUT | WRNORM);
        cell.read.rcvlowat.store(2, Ordering::Relaxed);
        assert_eq!(bits(&cell, RING), OUT | WRNORM);
        // A mark above what the buffer lets in would never be reached.
        cell.option.rcvbuf.store(4, Ordering::Relaxed);
        cell.fact.mss.store(1, Ordering::Relaxed);
        assert_eq!(bits(&cell, RING), IN | RDNORM | OUT | WRNORM);
        cell.option.rcvbuf.store(0, Ordering::Relaxed);
        cell.host.flags.store(flag::RX_FINISHED, Ordering::Relaxed);
        assert_eq!(bits(&cell, RING), IN | RDNORM | RDHUP | OUT | WRNORM);
        cell.write.shut.store(shut::WRITE, Ordering::Relaxed);
        assert_eq!(bits(&cell, RING), IN | RDNORM | RDHUP | OUT | WRNORM | HUP);
        cell.host.error.store(104, Ordering::Relaxed);
        assert_eq!(bits(&cell, RING) & ERR, ERR);
        let connecting = ObjectCell::default();
        connecting
            .host
            .kind
            .store(kind::CONNECTING, Ordering::Relaxed);
        assert_eq!(bits(&connecting, RING), 0);
        connecting.host.kind.store(kind::FAILED, Ordering::Relaxed);
        connecting.host.error.store(111, Ordering::Relaxed);
        assert_eq!(
            bits(&connecting, RING),
            IN | RDNORM | RDHUP | OUT | WRNORM | HUP | ERR
        );
        // Told by connect(), which takes the error: TCP_CLOSE.
        connecting.wish.told.store(1, Ordering::Relaxed);
        connecting.host.error.store(0, Ordering::Relaxed);
        assert_eq!(bits(&connecting, RING), OUT | WRNORM | HUP);
        let listener = ObjectCell::default();
        listener.host.kind.store(kind::LISTENER, Ordering::Relaxed);
        assert_eq!(bits(&listener, RING), 0);
        listener.write.shut.store(shut::READ, Ordering::Relaxed);
        assert_eq!(bits(&listener, RING), OUT | WRNORM | HUP);
    }

    #[test]
    fn a_full_ring_asks_for_room_and_is_writable_from_a_third() {
        let cell = stream();
        cell.write
            .tx_reserved
            .store(u64::from(RING), Ordering::Relaxed);
        cell.write.tx_tail.store(u64::from(RING), Ordering::Relaxed);
        assert_eq!(bits(&cell, RING), 0);
        assert_eq!(cell.write.want_room.load(Ordering::Relaxed), 1);
        cell.host
            .tx_head
            .store(u64::from(RING / 3), Ordering::Relaxed);
        assert_eq!(bits(&cell, RING), 0);
        cell.host
            .tx_head
            .store(u64::from(RING / 3 + 1), Ordering::Relaxed);
        assert_eq!(bits(&cell, RING), event::OUT | event::WRNORM);
    }

    #[test]
    fn only_sleepers_are_woken_and_only_once() {
        let (control, _fd) = Control::create(Layout::for_flows(1, RING, RING)).unwrap();
        control.object(1).unwrap().watch.epolls.add(3);
        control.object(1).unwrap().watch.slots.add(9);
        control.epoll(3).unwrap().slots.add(4);
        control.slot(4).unwrap().sleeping.store(1, Ordering::SeqCst);
        control.slot(9).unwrap().sleeping.store(1, Ordering::SeqCst);
        let mut woken = Vec::new();
        alert(&control, 1, News::State, |slot| woken.push(slot));
        alert(&control, 1, News::State, |slot| woken.push(slot));
        assert_eq!(woken, [4, 9]);
        assert!(control.ready(3).unwrap().has(1));
        assert_eq!(
            control.object(1).unwrap().host.edge.load(Ordering::Relaxed),
            2
        );
    }
}

#[cfg(test)]
#[cfg(loom)]
mod loom_wakeups;
