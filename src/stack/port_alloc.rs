//! Ephemeral ports: RFC 6056 section 3.3.4, the double-hash algorithm.
//!
//! A peer sees ports that it cannot foretell, and yet each peer sees them count up, so that a port
//! comes back as late as possible.

use core::net::{Ipv4Addr, SocketAddrV4};
use core::time::Duration;
use std::collections::VecDeque;

use super::api::PortWalk;
use super::demux::FlowKey;
use super::siphash::siphash;
use crate::time::Instant;

/// Counters; each serves the destinations that hash to it (the RFC suggests ten or more).
const COUNTERS: usize = 64;
/// Keeps what is hashed here apart from other uses of the same secret.
const DOMAIN_OFFSET: u8 = b'p';
const DOMAIN_COUNTER: u8 = b'q';

/// Chooses local ports for connections that we begin.
#[derive(Clone, Debug)]
pub struct PortAllocator {
    first: u16,
    last: u16,
    secret: [u8; 16],
    counters: [u64; COUNTERS],
    /// Destinations for which a search through the whole range found nothing a short while ago.
    exhausted: Vec<Exhausted>,
}

/// A destination without a free port. Searching again for each attempt would keep the lcore from everything else.
#[derive(Clone, Debug)]
struct Exhausted {
    local: Ipv4Addr,
    remote: SocketAddrV4,
    /// Ports that connections to it have left since, the oldest first.
    left: VecDeque<u16>,
    /// When to search again, whatever is known.
    until: Instant,
}

impl PortAllocator {
    /// An allocator over the ports `first` to `last`, both included.
    #[must_use]
    pub fn new((first, last): (u16, u16), PortWalk { secret, start }: PortWalk) -> Self {
        let mut counters = [0; COUNTERS];
        for (number, counter) in (0_u8..).zip(&mut counters) {
            let [low, high, ..] = siphash(&secret, &[number]).to_le_bytes();
            *counter = u64::from(u16::from_le_bytes([low, high])) + u64::from(start);
        }
        Self {
            first,
            last,
            secret,
            counters,
            exhausted: Vec::new(),
        }
    }

    /// A port from `local` to `remote` for which `in_use` says false; None when every port of the range is in use
    /// (EADDRNOTAVAIL). Asks about each port at most once; for a while after it has found none, only about ports of which it
    /// heard by [`PortAllocator::leave`].
    pub fn pick(
        &mut self,
        now: Instant,
        local: Ipv4Addr,
        remote: SocketAddrV4,
        mut in_use: impl FnMut(u16) -> bool,
    ) -> Option<u16> {
        self.exhausted.retain(|known| known.until > now);
        if let Some(known) = self.known(local, remote) {
            while let Some(port) = known.left.pop_front() {
                if !in_use(port) {
                    return Some(port);
                }
            }
            return None;
        }
        let found = self.search(local, remote, in_use);
        if found.is_none() && self.exhausted.len() < EXHAUSTED_MAX {
            self.exhausted.push(Exhausted {
                local,
                remote,
                left: VecDeque::new(),
                until: now + SEARCH_AGAIN_AFTER,
            });
        }
        found
    }

    /// Notes that a connection is over and its port may be free again.
    pub fn leave(&mut self, key: FlowKey) {
        if self.exhausted.is_empty() {
            return;
        }
        let (port, range) = (key.local.port(), self.first..=self.last);
        if let Some(known) = self.known(*key.local.ip(), key.remote)
            && range.contains(&port)
            && known.left.len() < range.len()
        {
            known.left.push_back(port);
        }
    }

    fn known(&mut self, local: Ipv4Addr, remote: SocketAddrV4) -> Option<&mut Exhausted> {
        self.exhausted
            .iter_mut()
            .find(|known| known.local == local && known.remote == remote)
    }

    fn search(
        &mut self,
        local: Ipv4Addr,
        remote: SocketAddrV4,
        mut in_use: impl FnMut(u16) -> bool,
    ) -> Option<u16> {
        let count = u32::from(self.last.checked_sub(self.first)?) + 1;
        let offset = self.hash(local, remote, DOMAIN_OFFSET);
        let [index, ..] = self.hash(local, remote, DOMAIN_COUNTER).to_le_bytes();
        let counter = self.counters.get_mut(usize::from(index) % COUNTERS)?;
        for _ in 0..count {
            let place = offset.wrapping_add(*counter) % u64::from(count);
            *counter = counter.wrapping_add(1);
            // The place is below the count, so that the sum is at most `last`.
            let port = self.first.saturating_add(u16::try_from(place).ok()?);
            if !in_use(port) {
                return Some(port);
            }
        }
        None
    }

    /// F and G of the RFC: a keyed hash of the two addresses and the remote port.
    fn hash(&self, local: Ipv4Addr, remote: SocketAddrV4, domain: u8) -> u64 {
        let [a, b, c, d] = local.octets();
        let [e, f, g, h] = remote.ip().octets();
        let [i, j] = remote.port().to_be_bytes();
        // Shifted, so that the sum with a counter never wraps.
        siphash(&self.secret, &[a, b, c, d, e, f, g, h, i, j, domain]) >> 1
    }
}

/// Destinations that are remembered as exhausted.
const EXHAUSTED_MAX: usize = 16;
/// A port may become free without [`PortAllocator::leave`], as when a listener goes.
const SEARCH_AGAIN_AFTER: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::seeded::Seeded;

    const LOCAL: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);

    fn allocator(range: (u16, u16), secret: [u8; 16]) -> PortAllocator {
        PortAllocator::new(range, PortWalk { secret, start: 0 })
    }

    fn remote(host: u8, port: u16) -> SocketAddrV4 {
        SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, host), port)
    }

    #[test]
    fn one_destination_sees_every_port_before_one_comes_back() {
        for range in [
            (49_152, 65_535),
            (1, 65_535),
            (5_000, 5_006),
            (65_535, 65_535),
            (0, 65_535),
        ] {
            let mut ports = allocator(range, [1; 16]);
            let count = usize::from(range.1 - range.0) + 1;
            let seen: BTreeSet<u16> = (0..count)
                .map(|_| {
                    ports
                        .pick(Instant::ZERO, LOCAL, remote(2, 80), |_| false)
                        .unwrap()
                })
                .collect();
            assert!(seen.iter().all(|port| (range.0..=range.1).contains(port)));
            assert_eq!(seen.len(), count);
        }
    }

    #[test]
    fn the_round_is_whole_after_four_billion_connections() {
        let range = (49_152, 65_535);
        let walk = PortWalk {
            secret: [1; 16],
            start: u32::MAX - 1_000,
        };
        let mut ports = PortAllocator::new(range, walk);
        let mut pick = || ports.pick(Instant::ZERO, LOCAL, remote(2, 80), |_| false);
        let seen: BTreeSet<u16> = (range.0..=range.1).filter_map(|_| pick()).collect();
        assert_eq!(seen.len(), usize::from(range.1 - range.0) + 1);
    }

    #[test]
    fn ports_in_use_are_stepped_over_and_the_last_free_one_is_found() {
        let mut random = Seeded::new(30);
        for _ in 0..200 {
            let mut ports = allocator((1_000, 1_999), [random.byte(); 16]);
            let free = 1_000 + u16::try_from(random.below(1_000)).unwrap();
            assert_eq!(
                ports.pick(Instant::ZERO, LOCAL, remote(random.byte(), 80), |port| port
                    != free),
                Some(free)
            );
        }
    }

    #[test]
    fn an_exhausted_or_empty_range_gives_nothing_after_one_round() {
        let mut ports = allocator((1_000, 1_999), [2; 16]);
        let mut asked = BTreeSet::new();
        assert_eq!(
            ports.pick(Instant::ZERO, LOCAL, remote(2, 80), |port| {
                asked.insert(port);
                true
            }),
            None
        );
        assert_eq!(asked.len(), 1_000);
        assert_eq!(
            allocator((2, 1), [2; 16]).pick(Instant::ZERO, LOCAL, remote(2, 80), |_| false),
            None
        );
    }

    #[test]
    fn an_exhausted_range_is_searched_once_a_second_and_knows_what_became_free() {
        let mut ports = allocator((1_000, 1_999), [4; 16]);
        let (to, other) = (remote(2, 80), remote(3, 80));
        let (mut asked, mut now) = (0, Instant::from_millis(5));
        let mut pick = |ports: &mut PortAllocator, now, to, free: Option<u16>| {
            let found = ports.pick(now, LOCAL, to, |port| {
                asked += 1;
                Some(port) != free
            });
            (found, core::mem::take(&mut asked))
        };
        assert_eq!(pick(&mut ports, now, to, None), (None, 1_000));
        assert_eq!(pick(&mut ports, now, to, None), (None, 0));
        assert!(pick(&mut ports, now, other, Some(1_500)).0.is_some());
        let key = |port, remote| FlowKey {
            local: SocketAddrV4::new(LOCAL, port),
            remote,
        };
        // Of another destination, outside of the range, in use again: none of them helps.
        ports.leave(key(1_200, other));
        ports.leave(key(80, to));
        ports.leave(key(1_300, to));
        ports.leave(key(1_400, to));
        assert_eq!(pick(&mut ports, now, to, Some(1_400)), (Some(1_400), 2));
        assert_eq!(pick(&mut ports, now, to, None), (None, 0));
        now = now + SEARCH_AGAIN_AFTER;
        assert_eq!(pick(&mut ports, now, to, None), (None, 1_000));
    }

    #[test]
    fn ports_that_nobody_picks_again_do_not_pile_up() {
        let mut ports = allocator((1_000, 1_009), [4; 16]);
        let to = remote(2, 80);
        assert_eq!(ports.pick(Instant::ZERO, LOCAL, to, |_| true), None);
        // Connections of a program that chooses its port itself.
        for _ in 0..100 {
            ports.leave(FlowKey {
                local: SocketAddrV4::new(LOCAL, 1_005),
                remote: to,
            });
        }
        assert_eq!(ports.known(LOCAL, to).unwrap().left.len(), 10);
        assert!(ports.pick(Instant::ZERO, LOCAL, to, |_| false).is_some());
    }

    #[test]
    fn ports_follow_each_other_for_one_peer_and_differ_between_peers_and_secrets() {
        let mut ports = allocator((32_768, 60_999), [3; 16]);
        let mut pick = |host| {
            ports
                .pick(Instant::ZERO, LOCAL, remote(host, 80), |_| false)
                .unwrap()
        };
        let first: Vec<u16> = (0..4).map(|_| pick(9)).collect();
        assert!(
            first
                .windows(2)
                .all(|pair| pair[1] == pair[0] + 1 || pair[1] == 32_768),
            "{first:?}"
        );
        let firsts: BTreeSet<u16> = (10..110).map(pick).collect();
        assert!(firsts.len() > 90);
        let by_secret: BTreeSet<Option<u16>> = (0..100)
            .map(|byte| {
                allocator((32_768, 60_999), [byte; 16]).pick(
                    Instant::ZERO,
                    LOCAL,
                    remote(2, 80),
                    |_| false,
                )
            })
            .collect();
        assert!(by_secret.len() > 90);
    }

    #[test]
    fn a_stack_after_another_goes_on_behind_its_ports() {
        let range = (32_768, 60_999);
        let ports = |start, count| {
            let secret = [8; 16];
            let mut ports = PortAllocator::new(range, PortWalk { secret, start });
            let mut pick = || ports.pick(Instant::ZERO, LOCAL, remote(2, 80), |_| false);
            (0..count).filter_map(|_| pick()).collect::<BTreeSet<u16>>()
        };
        let (before, after) = (ports(7, 1_000), ports(1_007, 1_000));
        assert_eq!((before.len(), after.len()), (1_000, 1_000));
        assert!(before.is_disjoint(&after));
        assert!(!before.is_disjoint(&ports(1_006, 1)));
    }
}
