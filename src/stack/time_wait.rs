//! TIME-WAIT: what is left of a connection whose flow is gone.
//!
//! Read RFC 9293 sections 3.6.1 and 3.10.7.4, RFC 1337 and RFC 6191 before editing.

use core::time::Duration;

use super::demux::{FlowKey, TcpFlags, TcpFrame};
use super::segment::ControlSegment;
use crate::time::Instant;

/// Segments other than a FIN are answered at most this often per connection, so that two ends in
/// TIME-WAIT do not answer each other for ever (RFC 5961 section 7 gives the reason).
const ACK_INTERVAL: Duration = Duration::from_millis(500);

/// No node.
const NONE: u32 = u32::MAX;

/// What must be remembered of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimeWait {
    /// Whose it was.
    pub key: FlowKey,
    /// Our next sequence number, after our FIN.
    pub snd_nxt: u32,
    /// The peer's next sequence number, after its FIN.
    pub rcv_nxt: u32,
    /// The window field that we sent last.
    pub window: u16,
    /// The station that the peer's segments came from.
    pub source_mac: [u8; 6],
    /// Its segments come to this lcore because it was a guest; see `steering`.
    pub is_guest: bool,
}

/// What a segment for a connection in TIME-WAIT calls for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// No connection in TIME-WAIT has this key.
    Unknown,
    /// Drop it.
    Ignore,
    /// Send this to the station it came from.
    Acknowledge(ControlSegment),
    /// A new connection may begin with this SYN: the entry is gone, and the new ISN must be beyond
    /// `old_snd_nxt` (RFC 1122 section 4.2.2.13).
    Replace {
        /// Our next sequence number on the old connection.
        old_snd_nxt: u32,
    },
    /// The peer has reset it: the entry is gone.
    Over,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    entry: TimeWait,
    expiry: Instant,
    /// When a segment that is no FIN was last answered.
    answered: Option<Instant>,
    /// The next of the same bucket, or of the free list.
    chained: u32,
    /// Neighbours in order of expiry.
    older: u32,
    younger: u32,
}

/// The connections in TIME-WAIT; a full table gives up its oldest entry. Every call takes constant
/// time.
#[derive(Debug)]
pub struct TimeWaitTable {
    duration: Duration,
    secret: [u8; 16],
    max: usize,
    nodes: Vec<Node>,
    buckets: Vec<u32>,
    free: u32,
    len: usize,
    oldest: u32,
    youngest: u32,
    dropped_full: u64,
    /// Guests of which nothing is remembered any more.
    guests_over: Vec<FlowKey>,
}

impl TimeWaitTable {
    /// A table of at most `max` connections (at least one), each kept for `duration` (twice the
    /// MSL). The secret keeps peers from filling one bucket.
    #[must_use]
    pub fn new(max: usize, duration: Duration, secret: [u8; 16]) -> Self {
        let max = max.clamp(1, NONE as usize - 1);
        Self {
            duration,
            secret,
            max,
            nodes: Vec::new(),
            buckets: vec![NONE; max.next_power_of_two()],
            free: NONE,
            len: 0,
            oldest: NONE,
            youngest: NONE,
            dropped_full: 0,
            guests_over: Vec::new(),
        }
    }

    /// Connections now.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Places of the table, some of which are free.
    pub(crate) const fn places(&self) -> usize {
        self.nodes.len()
    }

    /// What rests at a place, and until when.
    pub(crate) fn at(&self, index: u32) -> Option<(TimeWait, Instant)> {
        let node = self.node(index)?;
        // A free place still has its last key.
        (self.find(node.entry.key) == Some(index)).then_some((node.entry, node.expiry))
    }

    /// Connections given up early because the table was full.
    #[must_use]
    pub const fn dropped_full(&self) -> u64 {
        self.dropped_full
    }

    /// Guests of which nothing was remembered any more since the last call: their segments need not come here.
    pub(crate) fn take_guests_over(&mut self) -> Vec<FlowKey> {
        core::mem::take(&mut self.guests_over)
    }

    /// Enters a connection; one with the same key is replaced.
    pub fn insert(&mut self, now: Instant, entry: TimeWait) {
        self.remove(entry.key);
        if self.len >= self.max {
            self.drop_node(self.oldest);
            self.dropped_full += 1;
        }
        let bucket = self.bucket(entry.key);
        let chained = self.buckets.get(bucket).copied().unwrap_or(NONE);
        let node = Node {
            entry,
            expiry: now + self.duration,
            answered: None,
            chained,
            older: NONE,
            younger: NONE,
        };
        let index = self.place(node);
        if let Some(head) = self.buckets.get_mut(bucket) {
            *head = index;
        }
        self.append(index);
        self.len += 1;
    }

    /// Whether a connection with this key is in TIME-WAIT.
    #[must_use]
    pub fn contains(&self, key: FlowKey) -> bool {
        self.find(key).is_some()
    }

    /// What is remembered of a connection.
    #[must_use]
    pub fn entry(&self, key: FlowKey) -> Option<TimeWait> {
        Some(self.node(self.find(key)?)?.entry)
    }

    /// Forgets a connection and returns what was remembered.
    pub fn remove(&mut self, key: FlowKey) -> Option<TimeWait> {
        let index = self.find(key)?;
        let entry = self.node(index)?.entry;
        self.drop_node(index);
        Some(entry)
    }

    /// Says what a segment calls for.
    ///
    /// RFC 9293 section 3.10.7.4: the peer's FIN again is acknowledged and begins the wait anew,
    /// and so is whatever else lies outside of what can be expected, without beginning it anew. A
    /// reset with the exact number ends the wait, as Linux has it unless `tcp_rfc1337` is set: a peer that was started again
    /// answers so to our acknowledgement of its SYN, and sends that once more. Any other reset is ignored. A SYN beyond everything received replaces the
    /// connection (RFC 1122 section 4.2.2.13 (b), RFC 6191 section 2 without timestamps).
    pub fn on_segment(&mut self, now: Instant, frame: &TcpFrame) -> Verdict {
        let Some(index) = self.find(frame.key) else {
            return Verdict::Unknown;
        };
        let Some(node) = self.node(index).copied() else {
            return Verdict::Unknown;
        };
        if node.expiry <= now {
            self.drop_node(index);
            return Verdict::Unknown;
        }
        let entry = node.entry;
        let flags = frame.flags;
        if flags.contains(TcpFlags::RST) {
            if frame.seq != entry.rcv_nxt {
                return Verdict::Ignore;
            }
            self.drop_node(index);
            return Verdict::Over;
        }
        let syn = flags.contains(TcpFlags::SYN);
        if syn && !flags.contains(TcpFlags::ACK) && is_after(frame.seq, entry.rcv_nxt) {
            self.drop_node(index);
            return Verdict::Replace {
                old_snd_nxt: entry.snd_nxt,
            };
        }
        let expected = !syn && frame.seq == entry.rcv_nxt && frame.sequence_len() == 0;
        if expected {
            return Verdict::Ignore;
        }
        let fin_again = flags.contains(TcpFlags::FIN)
            && frame.seq.wrapping_add(frame.sequence_len()) == entry.rcv_nxt;
        if fin_again {
            self.unlink(index);
            self.append(index);
        }
        let rested = node
            .answered
            .is_none_or(|last| now.since(last) >= ACK_INTERVAL);
        if !fin_again && !rested {
            return Verdict::Ignore;
        }
        let expiry = now + self.duration;
        if let Some(node) = self.node_mut(index) {
            if fin_again {
                node.expiry = expiry;
            } else {
                node.answered = Some(now);
            }
        }
        let TimeWait {
            key,
            snd_nxt,
            rcv_nxt,
            window,
            ..
        } = entry;
        Verdict::Acknowledge(ControlSegment::acknowledge(key, snd_nxt, rcv_nxt, window))
    }

    /// Forgets connections whose time is over, at most `budget` of them; returns how many. `over` hears of each.
    pub fn expire(&mut self, now: Instant, budget: usize, mut over: impl FnMut(FlowKey)) -> usize {
        let mut count = 0;
        while count < budget && self.next_due().is_some_and(|due| due <= now) {
            if let Some(node) = self.node(self.oldest) {
                over(node.entry.key);
            }
            self.drop_node(self.oldest);
            count += 1;
        }
        count
    }

    /// When the next connection's time is over.
    #[must_use]
    pub fn next_due(&self) -> Option<Instant> {
        Some(self.node(self.oldest)?.expiry)
    }

    fn node(&self, index: u32) -> Option<&Node> {
        self.nodes.get(index as usize)
    }

    fn node_mut(&mut self, index: u32) -> Option<&mut Node> {
        self.nodes.get_mut(index as usize)
    }

    #[allow(clippy::cast_possible_truncation)] // only the low bits are kept
    fn bucket(&self, key: FlowKey) -> usize {
        key.keyed_hash(&self.secret) as usize & (self.buckets.len() - 1)
    }

    fn find(&self, key: FlowKey) -> Option<u32> {
        let mut index = *self.buckets.get(self.bucket(key))?;
        while let Some(node) = self.node(index) {
            if node.entry.key == key {
                return Some(index);
            }
            index = node.chained;
        }
        None
    }

    /// Puts a node into a free place.
    fn place(&mut self, node: Node) -> u32 {
        let index = self.free;
        if let Some(place) = self.nodes.get_mut(index as usize) {
            self.free = place.chained;
            *place = node;
            return index;
        }
        self.nodes.push(node);
        // `max` is below NONE, so the number of nodes fits.
        u32::try_from(self.nodes.len() - 1).unwrap_or(NONE)
    }

    /// Takes a node out of its bucket and out of the order, and frees its place.
    fn drop_node(&mut self, index: u32) {
        let Some(node) = self.node(index).copied() else {
            return;
        };
        if node.entry.is_guest {
            self.guests_over.push(node.entry.key);
        }
        let bucket = self.bucket(node.entry.key);
        let head = self.buckets.get(bucket).copied().unwrap_or(NONE);
        if head == index {
            if let Some(head) = self.buckets.get_mut(bucket) {
                *head = node.chained;
            }
        } else {
            let mut before = head;
            while let Some(other) = self.node_mut(before) {
                if other.chained == index {
                    other.chained = node.chained;
                    break;
                }
                before = other.chained;
            }
        }
        self.unlink(index);
        let free = self.free;
        if let Some(place) = self.node_mut(index) {
            place.chained = free;
        }
        self.free = index;
        self.len -= 1;
    }

    /// Takes a node out of the order of expiry.
    fn unlink(&mut self, index: u32) {
        let Some(Node { older, younger, .. }) = self.node(index).copied() else {
            return;
        };
        match self.node_mut(older) {
            Some(node) => node.younger = younger,
            None => self.oldest = younger,
        }
        match self.node_mut(younger) {
            Some(node) => node.older = older,
            None => self.youngest = older,
        }
    }

    /// Puts a node at the young end: every wait takes equally long.
    fn append(&mut self, index: u32) {
        let youngest = self.youngest;
        if let Some(node) = self.node_mut(index) {
            node.older = youngest;
            node.younger = NONE;
        }
        match self.node_mut(youngest) {
            Some(node) => node.younger = index,
            None => self.oldest = index,
        }
        self.youngest = index;
    }
}

/// Whether `seq` comes after `other` in sequence space (RFC 9293 section 3.4).
#[must_use]
pub const fn is_after(seq: u32, other: u32) -> bool {
    let ahead = seq.wrapping_sub(other);
    ahead != 0 && ahead < 1 << 31
}

#[cfg(test)]
mod tests;
