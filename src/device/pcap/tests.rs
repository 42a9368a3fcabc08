use std::path::PathBuf;

use super::format::{file_header, parse, record_header};
use super::*;
use crate::device::fault::FaultConfig;
use crate::device::pair::pair;
use crate::device::{Device, RxQueue, TxMeta, TxQueue};
use crate::errno::Errno;
use crate::time::Instant;

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// A file of the test's own that goes with it.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let name = format!("knet-{}-{name}.pcap", std::process::id());
        Self(std::env::temp_dir().join(name))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn put(tx: &mut dyn TxQueue, bytes: &[u8]) {
    tx.alloc(bytes.len()).expect("room").copy_from_slice(bytes);
    tx.commit(bytes.len(), TxMeta::default());
}

fn get(rx: &mut dyn RxQueue, now: Instant) -> Vec<Vec<u8>> {
    let mut seen = Vec::new();
    rx.rx_burst(now, &mut |burst| {
        seen.extend(burst.iter().map(|frame| frame.bytes.to_vec()))
    });
    seen
}

fn file(records: &[(u64, &[u8])]) -> Vec<u8> {
    let mut file = file_header().to_vec();
    for (nanos, bytes) in records {
        file.extend_from_slice(&record_header(
            Instant::from_nanos(*nanos),
            bytes.len(),
            bytes.len(),
        ));
        file.extend_from_slice(bytes);
    }
    file
}

#[test]
fn what_a_tap_wrote_is_replayed_with_its_spacing() {
    let scratch = Scratch::new("tap");
    let (mut a, mut b) = pair(FaultConfig::none(), FaultConfig::none(), 1500);
    let tap = Tap::create(&scratch.0).unwrap();
    let (rx, tx) = a.queue_pair(0).unwrap();
    let (mut a_rx, mut a_tx) = tap.wrap(rx, tx);
    let (mut b_rx, mut b_tx) = b.queue_pair(0).unwrap();

    put(a_tx.as_mut(), &[1; 60]);
    put(a_tx.as_mut(), &[2; 1514]);
    assert_eq!(a_tx.room(), 62);
    assert_eq!(a_tx.flush(Instant::from_nanos(5_000_000_123)), 2);
    assert_eq!(
        get(b_rx.as_mut(), Instant::from_millis(5_001)),
        [vec![1; 60], vec![2; 1514]]
    );
    put(b_tx.as_mut(), &[3; 70]);
    b_tx.flush(Instant::from_millis(5_001));
    assert_eq!(
        get(a_rx.as_mut(), Instant::from_nanos(5_000_002_123)),
        [vec![3; 70]]
    );
    tap.sync().unwrap();

    let mut replay = PcapReplay::open(&scratch.0, MAC, 1500).unwrap();
    let (mut rx, mut tx) = replay.queue_pair(0).unwrap();
    assert!(matches!(replay.queue_pair(0), Err(Errno::INVAL)));
    assert_eq!(rx.next_due(), Some(Instant::ZERO));
    let start = Instant::from_millis(77);
    assert_eq!(get(rx.as_mut(), start), [vec![1; 60], vec![2; 1514]]);
    assert_eq!(rx.next_due(), Some(Instant::from_nanos(77_002_000)));
    assert!(get(rx.as_mut(), Instant::from_nanos(77_001_999)).is_empty());
    assert_eq!(
        get(rx.as_mut(), Instant::from_nanos(77_002_000)),
        [vec![3; 70]]
    );
    assert_eq!(rx.next_due(), None);
    put(tx.as_mut(), &[4; 60]);
    assert_eq!(tx.flush(start), 1);
    let stats = replay.stats();
    assert_eq!(
        (stats.rx_frames, stats.tx_frames, stats.rx_missed),
        (3, 1, 0)
    );
}

#[test]
fn a_tap_commits_what_was_filled_even_after_a_second_alloc() {
    let scratch = Scratch::new("alloc");
    let (mut a, mut b) = pair(FaultConfig::none(), FaultConfig::none(), 1500);
    let (rx, tx) = a.queue_pair(0).unwrap();
    let (_rx, mut tx) = Tap::create(&scratch.0).unwrap().wrap(rx, tx);
    let (mut b_rx, _b_tx) = b.queue_pair(0).unwrap();
    assert!(tx.alloc(1400).is_some());
    tx.alloc(100).unwrap().fill(9);
    tx.commit(64, TxMeta::default());
    tx.commit(64, TxMeta::default());
    assert_eq!(tx.flush(Instant::ZERO), 1);
    assert_eq!(get(b_rx.as_mut(), Instant::ZERO), [vec![9; 64]]);
    drop((_rx, tx));
    assert_eq!(std::fs::read(&scratch.0).unwrap().len(), 24 + 16 + 64);
}

#[test]
fn a_long_capture_comes_in_bursts_and_giants_are_missed() {
    let frames: Vec<Vec<u8>> = (0..40).map(|number| vec![number; 60]).collect();
    let mut records: Vec<(u64, &[u8])> = frames.iter().map(|frame| (1, frame.as_slice())).collect();
    let giant = vec![0xff; 2_000];
    records.insert(3, (1, &giant));
    let mut replay = PcapReplay::from_bytes(file(&records), MAC, 1500).unwrap();
    let (mut rx, _tx) = replay.queue_pair(0).unwrap();
    let mut seen = get(rx.as_mut(), Instant::ZERO);
    assert_eq!(seen.len(), 32);
    seen.extend(get(rx.as_mut(), Instant::ZERO));
    assert_eq!(seen, frames);
    assert_eq!(replay.stats().rx_missed, 1);
}

#[test]
fn both_byte_orders_and_both_resolutions_are_read() {
    let ours = file(&[(3_000_005_000, &[1; 14])]);
    let micros = {
        let mut bytes = ours.clone();
        bytes[..4].copy_from_slice(&0xa1b2_c3d4_u32.to_le_bytes());
        bytes
    };
    let swapped = {
        let mut bytes = ours.clone();
        for field in [0..4, 20..24, 24..28, 28..32, 32..36, 36..40] {
            bytes[field].reverse();
        }
        bytes
    };
    let at = |bytes: &[u8]| {
        let records = parse(bytes).unwrap();
        assert_eq!((records.len(), records[0].bytes.clone()), (1, 40..54));
        records[0].at.nanos()
    };
    assert_eq!(at(&ours), 3_000_005_000);
    assert_eq!(at(&swapped), 3_000_005_000);
    assert_eq!(at(&micros), 3_005_000_000);
}

#[test]
fn a_broken_file_is_refused_where_it_breaks() {
    let whole = file(&[(1, &[1; 60]), (2, &[2; 60])]);
    for len in 0..whole.len() {
        let good = [24, 24 + 76].contains(&len);
        assert_eq!(parse(&whole[..len]).is_ok(), good, "{len} bytes");
    }
    let changed = |place: usize, value: u8| {
        let mut bytes = whole.clone();
        bytes[place] = value;
        parse(&bytes).expect_err("a broken file").message
    };
    assert!(changed(0, 0).contains("byte 0: not a pcap file"));
    assert!(changed(20, 101).contains("link type 101"));
    assert!(changed(24 + 11, 0xff).contains("byte 24: a record is longer"));
    assert!(changed(24 + 76 + 8, 61).contains("byte 100: a record is cut"));
    let missing = PcapReplay::open(&std::env::temp_dir().join("knet-no-such.pcap"), MAC, 1500);
    assert!(
        missing
            .expect_err("no file")
            .message
            .contains("knet-no-such.pcap")
    );
}
