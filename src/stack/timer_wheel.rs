//! Timers of flows: a hierarchical wheel with slots of 1 ms (Varghese and Lauck, 1987).
//!
//! Level `n` has 64 slots of 64^n ms. A timer lies at the level at which its time first differs
//! from the wheel's position, so that the levels together cover all of time and nothing overflows.
//! When the position enters a slot of a higher level, its timers move down.

use crate::prefetch;
use crate::time::Instant;

const SLOT_BITS: u32 = 6;
const SLOTS: usize = 1 << SLOT_BITS;
/// Six bits each of a 64-bit number of milliseconds.
const LEVELS: usize = 11;
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Node {
    /// When it is due, in ms.
    due: u64,
    /// The time of the slot that it lies in was computed from this; never later than `due`.
    queued: u64,
    /// Neighbours in its slot.
    previous: u32,
    next: u32,
    /// Which list it is in: level * 64 + slot, or NONE for not armed.
    list: u32,
}

impl Node {
    const IDLE: Self = Self {
        due: 0,
        queued: 0,
        previous: NONE,
        next: NONE,
        list: NONE,
    };
}

/// One timer per index. Arming, moving and cancelling take constant time; a timer never fires
/// early, and at most 1 ms late plus however late [`TimerWheel::expire`] is called. Memory grows to
/// 32 bytes times the largest index used.
#[derive(Debug)]
pub struct TimerWheel {
    nodes: Vec<Node>,
    /// First node of each list.
    heads: Box<[u32]>,
    /// Which slots of a level hold timers.
    occupied: [u64; LEVELS],
    /// Every time before this, in ms, has been dealt with.
    position: u64,
    /// No slot that holds timers begins before this time, in ms: most looks end here.
    quiet_until: u64,
    armed: usize,
}

/// A slot that holds timers.
#[derive(Clone, Copy)]
struct Slot {
    list: u32,
    /// When it begins, in ms.
    start: u64,
}

impl TimerWheel {
    /// Memory of an index that was armed once.
    pub const BYTES_PER_TIMER: usize = size_of::<Node>();

    /// A wheel without timers that begins at `now`.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            nodes: Vec::new(),
            heads: vec![NONE; LEVELS * SLOTS].into_boxed_slice(),
            occupied: [0; LEVELS],
            position: now.millis(),
            quiet_until: u64::MAX,
            armed: 0,
        }
    }

    /// Timers that are armed.
    #[must_use]
    pub const fn armed(&self) -> usize {
        self.armed
    }

    /// Lets the timer of `index` fire at `due`; an earlier setting is forgotten. Moving a timer to
    /// a later time only notes the time: it is queued anew when its old time comes, so that a timer
    /// pushed back with every segment costs nothing.
    pub fn arm(&mut self, index: u32, due: Instant) {
        if index == NONE {
            return;
        }
        if self.nodes.len() <= index as usize {
            self.nodes.resize(index as usize + 1, Node::IDLE);
        }
        let due = due.nanos().div_ceil(NANOS_PER_MS);
        let Some(node) = self.nodes.get_mut(index as usize) else {
            return;
        };
        node.due = due;
        if node.list == NONE {
            self.armed += 1;
        } else if node.queued <= due {
            return;
        } else {
            self.unlink(index);
        }
        self.link(index, due);
    }

    /// Disarms the timer of `index`.
    pub fn cancel(&mut self, index: u32) {
        if self.is_armed(index) {
            self.unlink(index);
            self.armed -= 1;
        }
    }

    /// Fetches what arming or disarming `index` needs.
    pub fn prefetch(&self, index: u32) {
        if let Some(node) = self.nodes.get(index as usize) {
            prefetch::value(node);
        }
    }

    /// Whether the timer of `index` is armed.
    #[must_use]
    pub fn is_armed(&self, index: u32) -> bool {
        self.nodes
            .get(index as usize)
            .is_some_and(|node| node.list != NONE)
    }

    /// Calls `fire` for each timer that is due at `now`, disarmed before, in order of due time (to
    /// the millisecond). Touches at most `budget` timers, fired or moved, and returns how many;
    /// less than `budget` means that all is done.
    pub fn expire(&mut self, now: Instant, budget: usize, fire: &mut dyn FnMut(u32)) -> usize {
        let now = now.millis();
        if now < self.quiet_until {
            self.position = self.position.max(now);
            return 0;
        }
        let mut touched = 0;
        loop {
            let first = self.first_slot();
            let Some(slot) = first.filter(|slot| slot.start <= now) else {
                self.position = self.position.max(now);
                self.quiet_until = first.map_or(u64::MAX, |slot| slot.start);
                return touched;
            };
            self.position = self.position.max(slot.start);
            while let Some(index) = self.head(slot.list) {
                if touched == budget {
                    return touched;
                }
                touched += 1;
                self.unlink(index);
                let due = self.nodes.get(index as usize).map_or(0, |node| node.due);
                if due <= self.position {
                    self.armed -= 1;
                    fire(index);
                } else {
                    self.link(index, due);
                }
            }
        }
    }

    /// A time not later than the first due time, at which [`TimerWheel::expire`] has something to
    /// fire or to move; None without timers.
    #[must_use]
    pub fn next_due(&self) -> Option<Instant> {
        self.first_slot()
            .map(|slot| Instant::from_millis(slot.start))
    }

    /// The slot that begins first.
    fn first_slot(&self) -> Option<Slot> {
        let mut first: Option<Slot> = None;
        for (level, occupied) in (0_u32..).zip(self.occupied) {
            let shift = level * SLOT_BITS;
            // No timer lies in a slot before the position's own: bits are cleared as slots empty,
            // and time within one turn of a level only grows. The position's own slot is left of a
            // level above 0 only while `expire` is cut short by its budget.
            let here = (self.position >> shift) & SLOT_MASK;
            let ahead = occupied & (u64::MAX << here);
            if ahead == 0 {
                continue;
            }
            let slot = ahead.trailing_zeros();
            // The top level has only four bits left; nothing is above it.
            let turn = self.position.checked_shr(shift + SLOT_BITS).unwrap_or(0);
            let turn = turn.checked_shl(shift + SLOT_BITS).unwrap_or(0);
            let start = turn | (u64::from(slot) << shift);
            if first.is_none_or(|first| start < first.start) {
                first = Some(Slot {
                    list: level * SLOTS_U32 + slot,
                    start,
                });
            }
        }
        first
    }

    fn head(&self, list: u32) -> Option<u32> {
        self.heads
            .get(list as usize)
            .copied()
            .filter(|index| *index != NONE)
    }

    /// Puts a node that is in no list into the one for time `due`, or for now if that has passed.
    fn link(&mut self, index: u32, due: u64) {
        let queued = due.max(self.position);
        let differing = (queued ^ self.position) | SLOT_MASK;
        let level = (63 - differing.leading_zeros()) / SLOT_BITS;
        let slot = (queued >> (level * SLOT_BITS)) & SLOT_MASK;
        let list = usize_of(level) * SLOTS + usize_of_slot(slot);
        let shift = level * SLOT_BITS;
        self.quiet_until = self.quiet_until.min((queued >> shift) << shift);
        let Some(head) = self.heads.get_mut(list) else {
            return;
        };
        let next = core::mem::replace(head, index);
        if let Some(node) = self.nodes.get_mut(next as usize) {
            node.previous = index;
        }
        if let Some(occupied) = self.occupied.get_mut(usize_of(level)) {
            *occupied |= 1 << slot;
        }
        if let Some(node) = self.nodes.get_mut(index as usize) {
            node.queued = queued;
            node.previous = NONE;
            node.next = next;
            node.list = u32::try_from(list).unwrap_or(NONE);
        }
    }

    /// Takes a node out of its list.
    fn unlink(&mut self, index: u32) {
        let Some(node) = self.nodes.get_mut(index as usize) else {
            return;
        };
        let Node {
            previous,
            next,
            list,
            ..
        } = *node;
        node.list = NONE;
        if let Some(node) = self.nodes.get_mut(next as usize) {
            node.previous = previous;
        }
        if let Some(node) = self.nodes.get_mut(previous as usize) {
            node.next = next;
            return;
        }
        if let Some(head) = self.heads.get_mut(list as usize) {
            *head = next;
        }
        if next != NONE {
            return;
        }
        if let Some(occupied) = self.occupied.get_mut(usize_of(list / SLOTS_U32)) {
            *occupied &= !(1 << (list % SLOTS_U32));
        }
    }
}

const NANOS_PER_MS: u64 = 1_000_000;
const SLOT_MASK: u64 = 63;
const SLOTS_U32: u32 = 64;

const fn usize_of(level: u32) -> usize {
    level as usize
}

/// A slot number, below 64.
#[allow(clippy::cast_possible_truncation)] // masked to six bits
const fn usize_of_slot(slot: u64) -> usize {
    (slot & SLOT_MASK) as usize
}

#[cfg(test)]
mod tests;
