use super::*;
use crate::seeded::Seeded;
use crate::stack::frame::{ETHERTYPE_ARP, EthernetHeader, MAC_BROADCAST};

const US: [u8; 6] = [2, 0, 0, 0, 0, 1];
const PEER: [u8; 6] = [2, 0, 0, 0, 0, 2];
const OTHER: [u8; 6] = [2, 0, 0, 0, 0, 3];
const OUR_IP: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const PEER_IP: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);

fn table(max: usize) -> NeighborTable {
    NeighborTable::new(US, &[OUR_IP, Ipv4Addr::new(192, 168, 0, 1)], max)
}

fn at(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

fn payload(arp: ArpFrame) -> Vec<u8> {
    let mut bytes = vec![0; ArpFrame::frame_bytes(None)];
    arp.emit(None, &mut bytes).unwrap();
    bytes.split_off(14)
}

fn arp(reply: bool, sender_mac: [u8; 6], sender: Ipv4Addr, target: Ipv4Addr) -> Vec<u8> {
    payload(ArpFrame {
        destination: US,
        reply,
        sender_mac,
        sender,
        target_mac: [0; 6],
        target,
    })
}

/// Everything that is due at `now`, and the addresses that failed.
fn poll(table: &mut NeighborTable, now: Instant) -> (Vec<ArpFrame>, Vec<Ipv4Addr>) {
    let (mut frames, mut failed) = (Vec::new(), Vec::new());
    let mut emit = |frame| {
        frames.push(frame);
        true
    };
    table.poll(now, &mut emit, &mut |address| failed.push(address));
    (frames, failed)
}

fn known(max: usize) -> NeighborTable {
    let mut table = table(max);
    assert_eq!(table.resolve(at(0), PEER_IP), Resolution::Pending);
    poll(&mut table, at(0));
    let outcome = table.ingress_arp(at(1), &arp(true, PEER, PEER_IP, OUR_IP));
    assert_eq!(outcome.learned, Some(PEER_IP));
    table
}

#[test]
fn a_packet_comes_back_as_it_was_written() {
    let frame = ArpFrame {
        destination: MAC_BROADCAST,
        reply: true,
        sender_mac: PEER,
        sender: PEER_IP,
        target_mac: US,
        target: OUR_IP,
    };
    for vlan in [None, Some(5)] {
        let mut bytes = vec![0; ArpFrame::frame_bytes(vlan)];
        assert_eq!(frame.emit(vlan, &mut bytes), Some(bytes.len()));
        let (link, offset) = EthernetHeader::parse(&bytes).unwrap();
        assert_eq!(
            (link.ether_type, link.vlan, link.source),
            (ETHERTYPE_ARP, vlan, PEER)
        );
        assert_eq!(ArpFrame::parse(&bytes[offset..]), Some(frame));
        assert_eq!(ArpFrame::parse(&bytes[offset..bytes.len() - 1]), None);
        assert_eq!(frame.emit(vlan, &mut bytes[1..]), None);
    }
}

#[test]
fn an_unanswered_address_is_asked_three_times_and_fails_after_three_seconds() {
    let mut table = table(8);
    assert_eq!(table.resolve(at(0), PEER_IP), Resolution::Pending);
    for millis in [0, 1_000, 2_000] {
        assert_eq!(table.next_due(), Some(at(millis)));
        let (frames, failed) = poll(&mut table, at(millis));
        assert_eq!(frames, [request(US, OUR_IP, PEER_IP, None)]);
        assert!(failed.is_empty());
        assert_eq!(table.resolve(at(millis), PEER_IP), Resolution::Pending);
    }
    assert_eq!(poll(&mut table, at(2_999)), (vec![], vec![]));
    assert_eq!(poll(&mut table, at(3_000)), (vec![], vec![PEER_IP]));
    assert_eq!(table.resolve(at(3_999), PEER_IP), Resolution::Failed);
    poll(&mut table, at(4_000));
    assert_eq!(table.next_due(), None);
    // A new wish asks anew.
    assert_eq!(table.resolve(at(4_000), PEER_IP), Resolution::Pending);
    assert_eq!(table.stats().failed, 1);
}

#[test]
fn an_answer_resolves_and_ends_the_asking() {
    let mut table = known(8);
    assert_eq!(table.resolve(at(2), PEER_IP), Resolution::Known(PEER));
    assert_eq!(table.next_due(), None);
}

#[test]
fn an_answer_that_nobody_asked_for_teaches_nothing() {
    let mut table = table(8);
    assert_eq!(
        table.ingress_arp(at(0), &arp(true, PEER, PEER_IP, OUR_IP)),
        ArpOutcome::default()
    );
    // Neither does talk between others, nor a stranger's gratuitous ARP.
    table.ingress_arp(
        at(0),
        &arp(false, PEER, PEER_IP, Ipv4Addr::new(10, 77, 0, 9)),
    );
    table.ingress_arp(at(0), &arp(false, PEER, PEER_IP, PEER_IP));
    assert!(table.is_empty());
}

#[test]
fn a_request_for_us_is_answered_and_teaches() {
    let mut table = table(8);
    let outcome = table.ingress_arp(at(0), &arp(false, PEER, PEER_IP, OUR_IP));
    let reply = outcome.reply.unwrap();
    assert_eq!((reply.destination, reply.reply), (PEER, true));
    assert_eq!((reply.sender_mac, reply.sender), (US, OUR_IP));
    assert_eq!((reply.target_mac, reply.target), (PEER, PEER_IP));
    assert_eq!(table.resolve(at(0), PEER_IP), Resolution::Known(PEER));
    // A probe for our address is answered; it has no sender to learn.
    let outcome = table.ingress_arp(at(0), &arp(false, OTHER, Ipv4Addr::UNSPECIFIED, OUR_IP));
    assert!(outcome.reply.is_some() && outcome.learned.is_none());
    assert_eq!(table.len(), 1);
}

#[test]
fn a_gratuitous_arp_moves_a_known_gateway() {
    for reply in [false, true] {
        let mut table = known(8);
        let outcome = table.ingress_arp(at(5), &arp(reply, OTHER, PEER_IP, PEER_IP));
        assert_eq!((outcome.learned, outcome.reply), (Some(PEER_IP), None));
        assert_eq!(table.resolve(at(6), PEER_IP), Resolution::Known(OTHER));
    }
}

#[test]
fn a_stale_entry_is_probed_by_unicast_and_used_meanwhile() {
    let mut table = known(8);
    assert_eq!(table.resolve(at(60_000), PEER_IP), Resolution::Known(PEER));
    assert_eq!(table.next_due(), None, "not stale before a minute is over");
    assert_eq!(table.resolve(at(60_001), PEER_IP), Resolution::Known(PEER));
    for millis in [60_001, 61_001, 62_001] {
        let (frames, _) = poll(&mut table, at(millis));
        assert_eq!(frames, [request(US, OUR_IP, PEER_IP, Some(PEER))]);
        assert_eq!(table.resolve(at(millis), PEER_IP), Resolution::Known(PEER));
    }
    // Silence: it is asked for by broadcast, and given up three seconds later.
    let (frames, _) = poll(&mut table, at(63_001));
    assert_eq!(frames, [request(US, OUR_IP, PEER_IP, None)]);
    assert_eq!(table.resolve(at(63_001), PEER_IP), Resolution::Pending);
    poll(&mut table, at(64_001));
    poll(&mut table, at(65_001));
    assert_eq!(poll(&mut table, at(66_001)).1, [PEER_IP]);
}

#[test]
fn traffic_keeps_an_entry_and_ends_a_probe() {
    let mut table = known(8);
    table.confirm(at(59_000), PEER_IP, PEER);
    assert_eq!(table.resolve(at(100_000), PEER_IP), Resolution::Known(PEER));
    assert_eq!(table.next_due(), None);
    assert_eq!(table.resolve(at(119_000), PEER_IP), Resolution::Known(PEER));
    assert!(table.next_due().is_some());
    // Another station's frames do not confirm it.
    table.confirm(at(119_500), PEER_IP, OTHER);
    assert!(table.next_due().is_some());
    table.confirm(at(119_500), PEER_IP, PEER);
    assert_eq!(table.next_due(), None);
    table.confirm(at(119_500), OUR_IP, PEER);
    assert_eq!(table.len(), 1, "traffic makes no entry");
}

#[test]
fn a_duplicate_of_our_address_is_told_and_defended_once_in_ten_seconds() {
    let mut table = known(8);
    for (millis, defended) in [
        (0, true),
        (1, false),
        (9_999, false),
        (10_000, true),
        (10_001, false),
    ] {
        let claim = arp(true, OTHER, OUR_IP, PEER_IP);
        let outcome = table.ingress_arp(at(millis), &claim);
        assert_eq!(
            outcome,
            ArpOutcome {
                duplicate: Some((OUR_IP, OTHER)),
                ..ArpOutcome::default()
            }
        );
        let (frames, _) = poll(&mut table, at(millis));
        let expected = if defended {
            vec![announcement(US, OUR_IP)]
        } else {
            vec![]
        };
        assert_eq!(frames, expected, "at {millis} ms");
    }
    assert_eq!((table.stats().duplicates, table.stats().defences), (5, 2));
    // Our own frames that come back are no claim.
    assert_eq!(
        table.ingress_arp(at(0), &payload(announcement(US, OUR_IP))),
        ArpOutcome::default()
    );
}

#[test]
fn our_addresses_are_probed_once_and_announced_twice() {
    let mut table = table(8);
    table.announce(at(0));
    let (frames, _) = poll(&mut table, at(0));
    let second = Ipv4Addr::new(192, 168, 0, 1);
    let probe = |address| request(US, Ipv4Addr::UNSPECIFIED, address, None);
    assert_eq!(
        frames,
        [
            probe(OUR_IP),
            announcement(US, OUR_IP),
            probe(second),
            announcement(US, second)
        ]
    );
    assert_eq!(table.next_due(), Some(at(2_000)));
    let (frames, _) = poll(&mut table, at(2_000));
    assert_eq!(frames, [announcement(US, OUR_IP), announcement(US, second)]);
    assert_eq!(table.next_due(), None);
}

#[test]
fn a_full_port_leaves_everything_due() {
    let mut table = table(8);
    table.announce(at(0));
    table.resolve(at(0), PEER_IP);
    table.poll(at(0), &mut |_| false, &mut |_| panic!("nothing failed"));
    assert_eq!(table.next_due(), Some(at(0)));
    let (frames, _) = poll(&mut table, at(1));
    assert_eq!(frames.len(), 5, "{frames:?}");
}

#[test]
fn a_flood_of_requests_never_moves_an_entry_in_use() {
    let mut table = known(16);
    let mut random = Seeded::new(11);
    for step in 0..20_000_u64 {
        let stranger = Ipv4Addr::from_bits(0x0a4d_0100 + (random.double() & 0xffff));
        let outcome = table.ingress_arp(at(step), &arp(false, OTHER, stranger, OUR_IP));
        assert!(outcome.reply.is_some(), "every request is answered");
        assert!(table.len() <= 16);
        assert_eq!(table.resolve(at(step), PEER_IP), Resolution::Known(PEER));
    }
    assert!(table.stats().evicted > 0);
}

#[test]
fn our_own_wishes_never_move_an_entry_in_use_either() {
    let mut table = table(4);
    let station = |number: u8| Ipv4Addr::new(10, 77, 0, 10 + number);
    for number in 0..4 {
        assert_eq!(table.resolve(at(0), station(number)), Resolution::Pending);
    }
    assert_eq!(table.resolve(at(59_999), station(9)), Resolution::Failed);
    assert_eq!(table.stats().refused_full, 1);
    table.resolve(at(59_999), station(0));
    assert_eq!(table.resolve(at(60_000), station(9)), Resolution::Pending);
    assert_eq!(
        table.resolve(at(60_000), station(0)),
        Resolution::Pending,
        "still there"
    );
    assert_eq!((table.len(), table.stats().evicted), (4, 1));
}

#[test]
fn damaged_packets_are_counted_and_timers_match_entries() {
    let mut random = Seeded::new(12);
    let mut table = table(32);
    let mut malformed = 0;
    for step in 0..100_000 {
        let station = Ipv4Addr::from_bits(0x0a4d_0000 + (random.double() & 0x3f));
        let target = if random.below(2) == 0 {
            OUR_IP
        } else {
            station
        };
        let mut packet = arp(
            random.below(2) == 0,
            [2, 0, 0, 1, random.byte(), random.byte()],
            station,
            target,
        );
        if random.below(3) == 0 {
            let place = random.below(packet.len());
            packet[place] = random.byte();
        }
        if random.below(20) == 0 {
            packet.truncate(random.below(29));
        }
        malformed += u64::from(ArpFrame::parse(&packet).is_none());
        let now = at(step * 37);
        table.ingress_arp(now, &packet);
        table.resolve(
            now,
            Ipv4Addr::from_bits(0x0a4d_0000 + (random.double() & 0x3f)),
        );
        if random.below(3) == 0 {
            poll(&mut table, now);
            assert!(table.timers.first().is_none_or(|(due, _)| *due > now));
        }
        let with_timer = table
            .entries
            .iter()
            .filter_map(|(address, entry)| Some((entry.due?, *address)));
        assert!(table.entries.len() <= 32);
        if step % 64 == 0 {
            assert_eq!(with_timer.collect::<BTreeSet<_>>(), table.timers);
        }
    }
    assert!(malformed > 1_000);
    assert_eq!(table.stats().malformed, malformed);
}

#[test]
fn who_was_never_wanted_goes_first_and_then_who_was_wanted_longest_ago() {
    let mut table = table(3);
    let station = |number: u8| Ipv4Addr::new(10, 77, 0, 10 + number);
    let ask = |number: u8| arp(false, PEER, station(number), OUR_IP);
    for number in 0..3 {
        table.ingress_arp(at(0), &ask(number));
    }
    table.resolve(at(2), station(0));
    table.resolve(at(1), station(1));
    let gone = |table: &NeighborTable, number| !table.entries.contains_key(&station(number));
    assert_eq!(table.resolve(at(70_000), station(7)), Resolution::Pending);
    assert!(gone(&table, 2) && !gone(&table, 1));
    assert_eq!(table.resolve(at(70_000), station(8)), Resolution::Pending);
    assert!(gone(&table, 1) && !gone(&table, 0));
}

#[test]
fn requests_that_find_no_room_count_as_lost() {
    let mut table = table(8);
    table.announce(at(0));
    assert_eq!(table.resolve(at(0), PEER_IP), Resolution::Pending);
    let mut failed = Vec::new();
    for millis in (0..2_990).step_by(10) {
        table.poll(at(millis), &mut |_| false, &mut |address| {
            failed.push(address)
        });
        assert!(failed.is_empty(), "{millis} ms");
    }
    table.poll(at(3_000), &mut |_| false, &mut |address| {
        failed.push(address)
    });
    assert_eq!(failed, [PEER_IP]);
    assert_eq!(table.resolve(at(3_010), PEER_IP), Resolution::Failed);
}
