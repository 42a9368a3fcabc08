//! Which lcore a connection belongs to, where several serve one port.
//!
//! By the hash that a port with receive-side scaling computes ([`crate::device::rss`]), so that its frames come in at the queue of
//! that lcore. Connections that we begin get a local port with which the hash of the replies leads back; only one whose
//! program has chosen the port itself may lie elsewhere, as a *guest*: it is in a table that is asked before the hash.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::demux::FlowKey;
use crate::device::rss::{self, Toeplitz};

/// The rule, the same for all lcores of a host.
#[derive(Debug)]
pub struct Steering {
    hash: Toeplitz,
    entries: u32,
    lcores: u32,
    /// Entries of `guests`, so that nobody locks an empty table.
    count: AtomicUsize,
    guests: Mutex<HashMap<FlowKey, u32>>,
}

/// For whom a received frame is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Receiver {
    /// One lcore.
    One(u32),
    /// Whoever received it.
    Any,
    /// Whoever received it answers, and all others learn from it: ARP.
    All,
}

impl Steering {
    /// The rule for `lcores` lcores, with an indirection table of `entries` entries.
    #[must_use]
    pub fn new(key: &[u8; rss::KEY_BYTES], entries: u32, lcores: u32) -> Self {
        Self {
            hash: Toeplitz::new(key),
            entries,
            lcores,
            count: AtomicUsize::new(0),
            guests: Mutex::default(),
        }
    }

    /// The lcore of a connection.
    #[must_use]
    pub fn lcore_of(&self, key: FlowKey) -> u32 {
        // Relaxed: whoever made it a guest sends its first segment afterwards.
        if self.count.load(Ordering::Relaxed) > 0
            && let Some(lcore) = self.guests().get(&key)
        {
            return *lcore;
        }
        self.by_hash(key)
    }

    /// The lcore that a connection's hash leads to.
    #[must_use]
    pub fn by_hash(&self, key: FlowKey) -> u32 {
        let hash = self.hash.hash(key.remote, key.local);
        rss::queue_of(hash, self.entries, self.lcores)
    }

    /// For whom a received frame is. Looks at no more than the headers; what is wrong with it its receiver finds.
    #[must_use]
    pub fn receiver(&self, frame: &[u8]) -> Receiver {
        if let Some((remote, local)) = rss::tcp_ends(frame) {
            return Receiver::One(self.lcore_of(FlowKey { local, remote }));
        }
        if rss::is_arp(frame) {
            return Receiver::All;
        }
        match reported(frame) {
            Some(key) => Receiver::One(self.lcore_of(key)),
            None => Receiver::Any,
        }
    }

    /// Makes a connection one of `lcore`, wherever its hash leads. False when it is taken.
    pub(crate) fn invite(&self, key: FlowKey, lcore: u32) -> bool {
        let mut guests = self.guests();
        if guests.contains_key(&key) {
            return false;
        }
        guests.insert(key, lcore);
        self.count.store(guests.len(), Ordering::Relaxed);
        true
    }

    /// A guest is over.
    pub(crate) fn dismiss(&self, key: FlowKey) {
        let mut guests = self.guests();
        guests.remove(&key);
        self.count.store(guests.len(), Ordering::Relaxed);
    }

    /// Lcores that there are.
    #[must_use]
    pub const fn lcores(&self) -> u32 {
        self.lcores
    }

    /// Every change under the lock is one call: a panic elsewhere leaves the table whole.
    fn guests(&self) -> MutexGuard<'_, HashMap<FlowKey, u32>> {
        self.guests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The connection that an ICMP error is about (RFC 792: the packet's header and its first 8 bytes lie in the message).
fn reported(frame: &[u8]) -> Option<FlowKey> {
    let packet = frame.get(rss::packet_at(frame)?..)?;
    let head = *packet.first_chunk::<20>()?;
    let [version, _, _, _, _, _, _, _, _, ICMP, ..] = head else {
        return None;
    };
    let message = packet.get(usize::from(version & 0xf) * 4..)?;
    let is_error = matches!(message.first(), Some(3..=5 | 11 | 12));
    let (local, remote) = rss::ends_of_packet(message.get(8..).filter(|_| is_error)?)?;
    Some(FlowKey { local, remote })
}

const ICMP: u8 = 1;

/// The place of one stack among several.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) steering: Arc<Steering>,
    pub(crate) lcore: u32,
}

impl Place {
    /// Whether the hash of a connection leads here.
    pub(crate) fn is_at_home(&self, key: FlowKey) -> bool {
        self.steering.by_hash(key) == self.lcore
    }

    /// Whether segments of a connection come here now.
    pub(crate) fn receives(&self, key: FlowKey) -> bool {
        self.steering.lcore_of(key) == self.lcore
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(port: u16) -> FlowKey {
        FlowKey {
            local: "10.0.0.1:80".parse().unwrap(),
            remote: core::net::SocketAddrV4::new([10, 0, 0, 2].into(), port),
        }
    }

    fn packet(protocol: u8, from: [u8; 4], to: [u8; 4], body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0x45, 0, 0, 60, 0, 0, 0, 0, 64, protocol, 0, 0];
        bytes.extend(from);
        bytes.extend(to);
        bytes.extend(body);
        bytes
    }

    fn frame(packet: &[u8]) -> Vec<u8> {
        let mut frame = vec![2; 12];
        frame.extend([8, 0]);
        frame.extend(packet);
        frame
    }

    #[test]
    fn segments_and_the_errors_about_our_own_go_to_one_lcore() {
        let steering = Steering::new(&[0x5b; rss::KEY_BYTES], 128, 4);
        let (peer, ours, router) = ([10, 0, 0, 2], [10, 0, 0, 1], [10, 0, 0, 3]);
        for port in 1_000..1_100_u16 {
            let home = Receiver::One(steering.by_hash(key(port)));
            let [high, low] = port.to_be_bytes();
            let segment = packet(6, peer, ours, &[high, low, 0, 80, 0, 0, 0, 0]);
            assert_eq!(steering.receiver(&frame(&segment)), home);
            let mut message = vec![3, 4, 0, 0, 0, 0, 5, 0];
            message.extend(packet(6, ours, peer, &[0, 80, high, low, 0, 0, 0, 1]));
            let error = frame(&packet(1, router, ours, &message));
            assert_eq!(steering.receiver(&error), home);
        }
        let echo = frame(&packet(1, peer, ours, &[8, 0, 0, 0, 0, 1, 0, 1]));
        assert_eq!(steering.receiver(&echo), Receiver::Any);
        assert_eq!(steering.receiver(&[]), Receiver::Any);
    }

    #[test]
    fn a_guest_goes_before_its_hash() {
        let steering = Steering::new(&[7; rss::KEY_BYTES], 128, 2);
        let home = steering.by_hash(key(5));
        assert!(steering.invite(key(5), 1 - home));
        assert!(!steering.invite(key(5), home), "once");
        assert_eq!(steering.lcore_of(key(5)), 1 - home);
        assert_eq!(steering.lcore_of(key(6)), steering.by_hash(key(6)));
        steering.dismiss(key(5));
        assert_eq!(steering.lcore_of(key(5)), home);
    }
}
