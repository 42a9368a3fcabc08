//! Neighbours: which MAC address a station on the link has, by ARP.
//!
//! Read RFC 826, RFC 1122 section 2.3.2 and RFC 5227 before editing.

use core::net::Ipv4Addr;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use super::arp::{ArpFrame, announcement, request};
use crate::time::Instant;

/// Requests are sent this far apart (RFC 1122 section 2.3.2.1: at most one a second).
const REQUEST_INTERVAL: Duration = Duration::from_secs(1);
/// Requests before a station counts as unreachable: at 0, 1 and 2 s, given up after 3 s.
const REQUESTS: u8 = 3;
/// How long a failed resolution is remembered, so that nobody asks at once again.
const NEGATIVE_TTL: Duration = Duration::from_secs(1);
/// An entry that was not confirmed for this long is asked again, by unicast (RFC 1122 section
/// 2.3.2.1).
const STALE_AFTER: Duration = Duration::from_secs(60);
/// An entry that was not used for this long may make place for another.
const UNUSED_AFTER: Duration = Duration::from_secs(60);
/// Our address is defended at most this often (RFC 5227 section 2.4, DEFEND_INTERVAL).
const DEFEND_INTERVAL: Duration = Duration::from_secs(10);
/// Announcements at start, and how far apart (RFC 5227 section 1.1, ANNOUNCE_NUM and
/// ANNOUNCE_INTERVAL).
const ANNOUNCEMENTS: u8 = 2;
const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(2);
/// Entries looked at for one that may go when a stranger's request wants a place.
const EVICTION_SCAN: usize = 8;

/// What is known of a next hop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resolution {
    /// Its MAC address.
    Known([u8; 6]),
    /// Asked for; [`ArpOutcome::learned`] or [`NeighborTable::poll`] will tell.
    Pending,
    /// It does not answer, or the table is full of entries in use (EHOSTUNREACH).
    Failed,
}

/// What a received ARP packet calls for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ArpOutcome {
    /// A frame to send: the answer to a request for one of our addresses.
    pub reply: Option<ArpFrame>,
    /// An address whose MAC address is known now, new, changed or confirmed: what waits for it can
    /// go.
    pub learned: Option<Ipv4Addr>,
    /// One of our addresses that this other station claims; told each time, see also
    /// [`NeighborStats::duplicates`].
    pub duplicate: Option<(Ipv4Addr, [u8; 6])>,
}

/// Numbers that only grow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NeighborStats {
    /// Packets that are no ARP for Ethernet and IPv4.
    pub malformed: u64,
    /// Packets in which another station claimed one of our addresses.
    pub duplicates: u64,
    /// Announcements sent in defence.
    pub defences: u64,
    /// Entries that were not made because the table was full of entries in use.
    pub refused_full: u64,
    /// Entries that made place for others.
    pub evicted: u64,
    /// Resolutions without an answer.
    pub failed: u64,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Asked for by broadcast `requests` times.
    Incomplete { requests: u8 },
    /// Last confirmed at this time.
    Known { mac: [u8; 6], confirmed: Instant },
    /// Stale, asked again by unicast `requests` times, and used meanwhile.
    Probing { mac: [u8; 6], requests: u8 },
    /// Nobody answered.
    Failed,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    state: State,
    /// When the state's timer is due; an entry of `Known` has none.
    due: Option<Instant>,
    /// When we last wanted it; None when only the station itself spoke.
    used: Option<Instant>,
}

/// A frame that waits for [`NeighborTable::poll`], by the address it speaks for.
#[derive(Clone, Copy, Debug)]
struct Announcing {
    left: u8,
    due: Instant,
    probed: bool,
}

/// The neighbour table of one link, and the voice of our addresses on it.
#[derive(Debug)]
pub struct NeighborTable {
    mac: [u8; 6],
    addresses: Vec<Ipv4Addr>,
    max: usize,
    entries: BTreeMap<Ipv4Addr, Entry>,
    /// Entries with a timer, by time.
    timers: BTreeSet<(Instant, Ipv4Addr)>,
    announcing: BTreeMap<Ipv4Addr, Announcing>,
    /// When each of our addresses was last defended, and whether the announcement still has to go.
    defended: BTreeMap<Ipv4Addr, (Instant, bool)>,
    /// Where the next look for an entry to evict begins.
    cursor: Ipv4Addr,
    stats: NeighborStats,
}

impl NeighborTable {
    /// A table of at most `max` entries (at least one) for a station with `mac` and `addresses`.
    #[must_use]
    pub fn new(mac: [u8; 6], addresses: &[Ipv4Addr], max: usize) -> Self {
        Self {
            mac,
            addresses: addresses.to_vec(),
            max: max.max(1),
            entries: BTreeMap::new(),
            timers: BTreeSet::new(),
            announcing: BTreeMap::new(),
            defended: BTreeMap::new(),
            cursor: Ipv4Addr::UNSPECIFIED,
            stats: NeighborStats::default(),
        }
    }

    /// Numbers so far.
    #[must_use]
    pub const fn stats(&self) -> NeighborStats {
        self.stats
    }

    /// Entries now.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Makes our addresses known: one probe each, which whoever has the address too answers, then
    /// announcements at once and after 2 s (RFC 5227 section 2.3). Does not wait for answers to the
    /// probe: a duplicate is told when it speaks up.
    pub fn announce(&mut self, now: Instant) {
        for address in &self.addresses {
            let start = Announcing {
                left: ANNOUNCEMENTS,
                due: now,
                probed: false,
            };
            self.announcing.insert(*address, start);
        }
    }

    /// Takes an ARP packet, the payload of a frame. Learns from requests to us, from answers to our
    /// requests and from whatever a station that is already known says of itself; never from
    /// others, so that strangers cannot fill the table. Takes time O(log n).
    pub fn ingress_arp(&mut self, now: Instant, packet: &[u8]) -> ArpOutcome {
        let mut outcome = ArpOutcome::default();
        let Some(arp) = ArpFrame::parse(packet) else {
            self.stats.malformed += 1;
            return outcome;
        };
        if arp.sender_mac == self.mac {
            // Our own broadcast, come back through a switch loop or a mirror.
            return outcome;
        }
        if self.addresses.contains(&arp.sender) {
            outcome.duplicate = Some((arp.sender, arp.sender_mac));
            self.claimed(now, arp.sender);
            return outcome;
        }
        let to_us = self.addresses.contains(&arp.target);
        // An address probe (RFC 5227 section 2.1.1) has no sender address to learn.
        if !arp.sender.is_unspecified() {
            let known = self.entries.contains_key(&arp.sender);
            if known || (to_us && !arp.reply && self.make_room(now, false)) {
                self.learn(now, arp.sender, arp.sender_mac);
                outcome.learned = Some(arp.sender);
            }
        }
        if to_us && !arp.reply {
            outcome.reply = Some(ArpFrame {
                destination: arp.sender_mac,
                reply: true,
                sender_mac: self.mac,
                sender: arp.target,
                target_mac: arp.sender_mac,
                target: arp.sender,
            });
        }
        outcome
    }

    /// Says where frames for `address`, a station on the link, go; begins to ask when that is not
    /// known. The request leaves with the next [`NeighborTable::poll`], which is due at once.
    pub fn resolve(&mut self, now: Instant, address: Ipv4Addr) -> Resolution {
        let Some(entry) = self.entries.get_mut(&address) else {
            if !self.make_room(now, true) {
                return Resolution::Failed;
            }
            let entry = Entry {
                state: State::Incomplete { requests: 0 },
                due: None,
                used: Some(now),
            };
            self.entries.insert(address, entry);
            self.set_due(address, Some(now));
            return Resolution::Pending;
        };
        entry.used = Some(now);
        match entry.state {
            State::Incomplete { .. } => Resolution::Pending,
            State::Failed => Resolution::Failed,
            State::Probing { mac, .. } => Resolution::Known(mac),
            State::Known { mac, confirmed } => {
                if now.since(confirmed) >= STALE_AFTER {
                    entry.state = State::Probing { mac, requests: 0 };
                    self.set_due(address, Some(now));
                }
                Resolution::Known(mac)
            }
        }
    }

    /// Notes that `address` is alive at `mac`: it acknowledged something new (RFC 1122 section
    /// 2.3.2.1, advice of higher layers). Never makes an entry and never changes its MAC address.
    /// Takes time O(log n), so that a flow should call it once a second and not once a segment.
    pub fn confirm(&mut self, now: Instant, address: Ipv4Addr, mac: [u8; 6]) {
        let Some(entry) = self.entries.get_mut(&address) else {
            return;
        };
        match entry.state {
            State::Known { mac: known, .. } | State::Probing { mac: known, .. } if known == mac => {
                entry.state = State::Known {
                    mac,
                    confirmed: now,
                };
                entry.used = Some(now);
                self.set_due(address, None);
            }
            _ => {}
        }
    }

    /// Sends what is due: requests, probes, announcements. A false of `emit` says that the port is
    /// full; the rest then stays due, and a request that finds no room until the next one would be due
    /// counts as lost. `failed` learns of each address that did not answer.
    pub fn poll(
        &mut self,
        now: Instant,
        emit: &mut dyn FnMut(ArpFrame) -> bool,
        failed: &mut dyn FnMut(Ipv4Addr),
    ) {
        let announces = !self.announcing.is_empty() || !self.defended.is_empty();
        if announces {
            // What found no room is due still. Entries are looked at all the same, because they may end without any.
            let _ = self.poll_announcements(now, emit);
        }
        while let Some((due, address)) = self.timers.first().copied() {
            if due > now || !self.poll_entry(now, address, emit, failed) {
                return;
            }
        }
    }

    /// Whether [`NeighborTable::poll`] has nothing to do at `now`, which is so at nearly every look.
    #[must_use]
    pub fn is_quiet(&self, now: Instant) -> bool {
        self.announcing.values().all(|it| it.due > now)
            && !self.defended.values().any(|(_, open)| *open)
            && self.timers.first().is_none_or(|(due, _)| *due > now)
    }

    /// When [`NeighborTable::poll`] has something to do.
    #[must_use]
    pub fn next_due(&self) -> Option<Instant> {
        let timer = self.timers.first().map(|(due, _)| *due);
        let announcing = self
            .announcing
            .values()
            .map(|announcing| announcing.due)
            .min();
        let defence = self
            .defended
            .values()
            .filter(|(_, open)| *open)
            .map(|(since, _)| *since)
            .min();
        [timer, announcing, defence].into_iter().flatten().min()
    }

    /// Sends announcements and defences that are due; false when the port is full.
    fn poll_announcements(&mut self, now: Instant, emit: &mut dyn FnMut(ArpFrame) -> bool) -> bool {
        for address in &self.addresses {
            if let Some((_, open @ true)) = self.defended.get_mut(address) {
                if !emit(announcement(self.mac, *address)) {
                    return false;
                }
                *open = false;
                self.stats.defences += 1;
            }
            let Some(announcing) = self.announcing.get_mut(address).filter(|it| it.due <= now)
            else {
                continue;
            };
            if !announcing.probed {
                if !emit(request(self.mac, Ipv4Addr::UNSPECIFIED, *address, None)) {
                    return false;
                }
                announcing.probed = true;
            }
            if !emit(announcement(self.mac, *address)) {
                return false;
            }
            announcing.left = announcing.left.saturating_sub(1);
            announcing.due = now + ANNOUNCE_INTERVAL;
            if announcing.left == 0 {
                self.announcing.remove(address);
            }
        }
        true
    }

    /// Does what is due for one entry; false when the port is full.
    fn poll_entry(
        &mut self,
        now: Instant,
        address: Ipv4Addr,
        emit: &mut dyn FnMut(ArpFrame) -> bool,
        failed: &mut dyn FnMut(Ipv4Addr),
    ) -> bool {
        let sender = self.sender_for(address);
        let Some(entry) = self.entries.get_mut(&address) else {
            // Timers and entries are removed together.
            self.timers.retain(|(_, of)| *of != address);
            return true;
        };
        let since = entry.due.unwrap_or(now);
        // When the next request is due, or None while this one still waits for room.
        let mut ask = |target| {
            if emit(request(self.mac, sender, address, target)) {
                Some(now + REQUEST_INTERVAL)
            } else {
                let next = since + REQUEST_INTERVAL;
                (next <= now).then_some(next)
            }
        };
        let due = match entry.state {
            State::Incomplete { requests } if requests < REQUESTS => {
                let Some(next) = ask(None) else {
                    return false;
                };
                entry.state = State::Incomplete {
                    requests: requests + 1,
                };
                Some(next)
            }
            State::Incomplete { .. } => {
                entry.state = State::Failed;
                self.stats.failed += 1;
                failed(address);
                Some(now + NEGATIVE_TTL)
            }
            State::Probing { mac, requests } if requests < REQUESTS => {
                let Some(next) = ask(Some(mac)) else {
                    return false;
                };
                entry.state = State::Probing {
                    mac,
                    requests: requests + 1,
                };
                Some(next)
            }
            // It may have another MAC address now: ask everybody.
            State::Probing { .. } => {
                entry.state = State::Incomplete { requests: 0 };
                Some(now)
            }
            State::Failed => {
                self.set_due(address, None);
                self.entries.remove(&address);
                return true;
            }
            State::Known { .. } => None,
        };
        self.set_due(address, due);
        true
    }

    /// Enters what a station said of itself.
    fn learn(&mut self, now: Instant, address: Ipv4Addr, mac: [u8; 6]) {
        let known = State::Known {
            mac,
            confirmed: now,
        };
        let entry = self.entries.entry(address).or_insert(Entry {
            state: known,
            due: None,
            used: None,
        });
        entry.state = known;
        self.set_due(address, None);
    }

    /// Moves the timer of an entry.
    fn set_due(&mut self, address: Ipv4Addr, due: Option<Instant>) {
        let Some(entry) = self.entries.get_mut(&address) else {
            return;
        };
        if let Some(old) = entry.due {
            self.timers.remove(&(old, address));
        }
        entry.due = due;
        if let Some(due) = due {
            self.timers.insert((due, address));
        }
    }

    /// Another station claims `address`, which is ours (RFC 5227 section 2.4, (b) with the limit of
    /// (c): we keep it and defend it, at most once in ten seconds).
    fn claimed(&mut self, now: Instant, address: Ipv4Addr) {
        self.stats.duplicates += 1;
        let rested = self
            .defended
            .get(&address)
            .is_none_or(|(last, _)| now.since(*last) >= DEFEND_INTERVAL);
        if rested {
            self.defended.insert(address, (now, true));
        }
    }

    /// Makes sure that an entry can be added. An entry that was used within the last minute never
    /// goes. For our own wish (`wanted`) the whole table is looked through, for a stranger's only a
    /// few entries.
    fn make_room(&mut self, now: Instant, wanted: bool) -> bool {
        if self.entries.len() < self.max {
            return true;
        }
        let scan = if wanted { self.max } else { EVICTION_SCAN };
        let from_cursor = self.entries.range(self.cursor..);
        let wrapped = self.entries.range(..self.cursor);
        let mut last = self.cursor;
        let mut oldest: Option<(Option<Instant>, Ipv4Addr)> = None;
        for (address, entry) in from_cursor.chain(wrapped).take(scan) {
            last = *address;
            let in_use = entry
                .used
                .is_some_and(|used| now.since(used) < UNUSED_AFTER);
            if !in_use && oldest.is_none_or(|(used, _)| entry.used < used) {
                oldest = Some((entry.used, *address));
            }
        }
        self.cursor = Ipv4Addr::from_bits(last.to_bits().wrapping_add(1));
        let Some((_, address)) = oldest else {
            self.stats.refused_full += 1;
            return false;
        };
        self.set_due(address, None);
        self.entries.remove(&address);
        self.stats.evicted += 1;
        true
    }

    /// The address that asks for `target`: the one most like it, which on a usual link shares its
    /// network.
    fn sender_for(&self, target: Ipv4Addr) -> Ipv4Addr {
        let likeness = |address: &&Ipv4Addr| (address.to_bits() ^ target.to_bits()).leading_zeros();
        self.addresses
            .iter()
            .max_by_key(likeness)
            .copied()
            .unwrap_or(Ipv4Addr::UNSPECIFIED)
    }
}

#[cfg(test)]
mod tests;
