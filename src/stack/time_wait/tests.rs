use core::net::{Ipv4Addr, SocketAddrV4};
use std::collections::BTreeMap;

use super::*;
use crate::seeded::Seeded;

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
const WAIT: Duration = Duration::from_secs(60);
const SND: u32 = 5_000;
/// Close below the wrap of sequence numbers.
const RCV: u32 = 0xffff_ff00;

fn key(port: u16) -> FlowKey {
    FlowKey {
        local: SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, 1), 6379),
        remote: SocketAddrV4::new(Ipv4Addr::new(10, 77, 0, 2), port),
    }
}

fn entry(port: u16) -> TimeWait {
    TimeWait {
        is_guest: false,
        key: key(port),
        snd_nxt: SND,
        rcv_nxt: RCV,
        window: 77,
        source_mac: MAC,
    }
}

fn segment(port: u16, flags: TcpFlags, seq: u32, payload_len: usize) -> TcpFrame {
    TcpFrame {
        key: key(port),
        source_mac: MAC,
        ip: 14..54 + payload_len,
        tcp: 34,
        payload: 54,
        payload_len,
        seq,
        ack: SND,
        flags,
        window: 1,
        mss: None,
        window_scale: None,
        sack_permitted: false,
        tos: 0,
        ttl: 64,
        segments: 1,
    }
}

fn at(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

fn table(max: usize) -> TimeWaitTable {
    TimeWaitTable::new(max, WAIT, [3; 16])
}

fn acknowledged() -> Verdict {
    Verdict::Acknowledge(ControlSegment::acknowledge(key(1), SND, RCV, 77))
}

#[test]
fn each_segment_gets_the_verdict_of_the_rfcs() {
    let fin_ack = TcpFlags::FIN.with(TcpFlags::ACK);
    let replace = Verdict::Replace { old_snd_nxt: SND };
    let cases = [
        (
            "pure ack",
            segment(1, TcpFlags::ACK, RCV, 0),
            Verdict::Ignore,
        ),
        ("fin again", segment(1, fin_ack, RCV - 1, 0), acknowledged()),
        (
            "data and fin again",
            segment(1, fin_ack, RCV - 11, 10),
            acknowledged(),
        ),
        (
            "old data",
            segment(1, TcpFlags::ACK, RCV - 11, 10),
            acknowledged(),
        ),
        (
            "data beyond the fin",
            segment(1, TcpFlags::ACK, RCV, 10),
            acknowledged(),
        ),
        (
            "keep-alive",
            segment(1, TcpFlags::ACK, RCV - 1, 0),
            acknowledged(),
        ),
        (
            "reset in window",
            segment(1, TcpFlags::RST, RCV, 0),
            Verdict::Over,
        ),
        (
            "reset elsewhere",
            segment(1, TcpFlags::RST.with(TcpFlags::ACK), 1, 0),
            Verdict::Ignore,
        ),
        ("new syn", segment(1, TcpFlags::SYN, RCV + 1, 0), replace),
        (
            "new syn beyond the wrap",
            segment(1, TcpFlags::SYN, RCV.wrapping_add(0x7fff_ffff), 0),
            replace,
        ),
        (
            "syn at rcv_nxt",
            segment(1, TcpFlags::SYN, RCV, 0),
            acknowledged(),
        ),
        (
            "old syn",
            segment(1, TcpFlags::SYN, RCV - 5_000, 0),
            acknowledged(),
        ),
        (
            "half the space away",
            segment(1, TcpFlags::SYN, RCV.wrapping_add(0x8000_0000), 0),
            acknowledged(),
        ),
        (
            "syn-ack",
            segment(1, TcpFlags::SYN.with(TcpFlags::ACK), RCV + 1, 0),
            acknowledged(),
        ),
        (
            "other port",
            segment(2, TcpFlags::SYN, RCV + 1, 0),
            Verdict::Unknown,
        ),
    ];
    for (name, frame, verdict) in cases {
        let mut table = table(8);
        table.insert(at(0), entry(1));
        assert_eq!(table.on_segment(at(1), &frame), verdict, "{name}");
        let stays = verdict != replace && verdict != Verdict::Over;
        assert_eq!(table.contains(key(1)), stays, "{name}");
    }
}

#[test]
fn only_the_fin_begins_the_wait_anew() {
    let mut table = table(8);
    table.insert(at(0), entry(1));
    table.insert(at(1_000), entry(2));
    assert_eq!(table.next_due(), Some(at(60_000)));
    table.on_segment(at(10_000), &segment(1, TcpFlags::ACK, RCV - 9, 3));
    assert_eq!(table.next_due(), Some(at(60_000)));
    table.on_segment(
        at(20_000),
        &segment(1, TcpFlags::FIN.with(TcpFlags::ACK), RCV - 1, 0),
    );
    assert_eq!(table.next_due(), Some(at(61_000)));
    assert_eq!(table.expire(at(79_999), 8, |_| {}), 1);
    assert!(table.contains(key(1)));
    assert_eq!(table.expire(at(80_000), 8, |_| {}), 1);
    assert!(table.is_empty());
}

#[test]
fn an_expired_connection_is_unknown_even_before_it_is_swept() {
    let mut table = table(8);
    table.insert(at(0), entry(1));
    let fin = segment(1, TcpFlags::FIN.with(TcpFlags::ACK), RCV - 1, 0);
    assert_eq!(table.on_segment(at(60_000), &fin), Verdict::Unknown);
    assert!(table.is_empty());
}

#[test]
fn answers_to_anything_but_a_fin_are_rare() {
    let mut table = table(8);
    table.insert(at(0), entry(1));
    let data = segment(1, TcpFlags::ACK, RCV - 9, 3);
    for (millis, answered) in [
        (0, true),
        (1, false),
        (499, false),
        (500, true),
        (501, false),
    ] {
        let expected = if answered {
            acknowledged()
        } else {
            Verdict::Ignore
        };
        assert_eq!(
            table.on_segment(at(millis), &data),
            expected,
            "at {millis} ms"
        );
    }
    let fin = segment(1, TcpFlags::FIN.with(TcpFlags::ACK), RCV - 1, 0);
    assert_eq!(table.on_segment(at(502), &fin), acknowledged());
    assert_eq!(table.on_segment(at(503), &fin), acknowledged());
}

#[test]
fn a_full_table_gives_up_its_oldest_entry() {
    let mut table = table(3);
    for port in 1..=5 {
        table.insert(at(u64::from(port)), entry(port));
    }
    assert_eq!((table.len(), table.dropped_full()), (3, 2));
    assert!(!table.contains(key(2)) && table.contains(key(3)));
    // The same key again takes no second place.
    table.insert(at(9), entry(4));
    assert_eq!((table.len(), table.dropped_full()), (3, 2));
    assert_eq!(table.remove(key(4)), Some(entry(4)));
    assert_eq!(table.remove(key(4)), None);
}

#[test]
fn random_use_agrees_with_a_plain_map() {
    let mut random = Seeded::new(13);
    for max in [1, 7, 64] {
        let mut table = table(max);
        // Key to (expiry, order of entry).
        let mut model: BTreeMap<u16, (Instant, u64)> = BTreeMap::new();
        for step in 0..50_000_u64 {
            let now = at(step * 700);
            let port = u16::try_from(random.below(100)).unwrap();
            match random.below(4) {
                0 | 1 => {
                    model.remove(&port);
                    if model.len() == max {
                        let oldest = *model.iter().min_by_key(|(_, (_, order))| *order).unwrap().0;
                        model.remove(&oldest);
                    }
                    model.insert(port, (now + WAIT, step));
                    table.insert(now, entry(port));
                }
                2 => assert_eq!(
                    table.remove(key(port)).is_some(),
                    model.remove(&port).is_some()
                ),
                _ => {
                    let budget = random.below(10);
                    let mut due: Vec<(u64, u16)> = model
                        .iter()
                        .filter(|(_, (expiry, _))| *expiry <= now)
                        .map(|(port, (_, order))| (*order, *port))
                        .collect();
                    due.sort_unstable();
                    due.truncate(budget);
                    assert_eq!(table.expire(now, budget, |_| {}), due.len());
                    for (_, port) in due {
                        model.remove(&port);
                    }
                }
            }
            assert_eq!(table.len(), model.len());
            assert_eq!(
                table.next_due(),
                model.values().map(|(expiry, _)| *expiry).min()
            );
            let asked = u16::try_from(random.below(100)).unwrap();
            assert_eq!(table.contains(key(asked)), model.contains_key(&asked));
        }
        assert!(table.nodes.len() <= max, "places are used again");
    }
}
