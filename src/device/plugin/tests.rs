//! The queue halves over a table that counts its buffers instead of sending them.

#![allow(clippy::cast_possible_truncation)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

use super::*;
use crate::device::plugin_abi::{Queue, RX_CHECKSUM_GOOD, Slot, TABLE_BYTES, TX_CHECKSUM};
use crate::device::{RxFrame, TxMeta, TxQueue};
use crate::time::Instant;

/// A plug-in of Rust functions: buffers are boxes, `limit` of them; sent frames are kept.
#[derive(Default)]
struct Fake {
    limit: usize,
    out: usize,
    /// Slots that the next `tx_burst` calls take.
    takes: Vec<usize>,
    sent: Vec<(Vec<u8>, u16, u16)>,
    receive: Vec<Vec<u8>>,
    stopped: usize,
    /// Buffers that were ever taken.
    made: usize,
    /// There are large ones as well.
    has_large: bool,
    /// What it tells of its memory.
    chunks: Vec<(usize, usize)>,
    /// Super-frames cannot be sent now.
    refuses_large: bool,
}

// One test at a time: the table has no place for a context before `queue`.
static FAKE: Mutex<Option<Fake>> = Mutex::new(None);
static TURN: Mutex<()> = Mutex::new(());

fn with<T>(call: impl FnOnce(&mut Fake) -> T) -> T {
    let mut fake = FAKE
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    call(fake.get_or_insert_default())
}

const ROOM: usize = 2048;

const LARGE: usize = 40_000;

fn buffer(fake: &mut Fake) -> Option<Slot> {
    buffer_of(fake, ROOM)
}

fn buffer_of(fake: &mut Fake, room: usize) -> Option<Slot> {
    (fake.out < fake.limit).then(|| {
        fake.out += 1;
        fake.made += 1;
        let mut bytes = Box::new(vec![0_u8; room]);
        let data = bytes.as_mut_ptr();
        Slot {
            handle: Box::into_raw(bytes).cast(),
            data,
            len: room as u32,
            ..Slot::EMPTY
        }
    })
}

unsafe extern "C" fn start(_: *const StartArgs, facts: *mut PortFacts, _: *mut ErrorText) -> i32 {
    // SAFETY: the caller's own record.
    let facts = unsafe { &mut *facts };
    facts.queues = 1;
    facts.mtu = 1500;
    facts.offloads = TRUST_CHECKSUM;
    facts.description[..4].copy_from_slice(b"fake");
    0
}
unsafe extern "C" fn refuse(_: *const StartArgs, _: *mut PortFacts, text: *mut ErrorText) -> i32 {
    // SAFETY: the caller's own record.
    let text = unsafe { &mut *text };
    text.bytes[..7].copy_from_slice(b"no port");
    -19
}
unsafe extern "C" fn queue(index: u32) -> *mut Queue {
    if index == 0 {
        core::ptr::dangling_mut()
    } else {
        core::ptr::null_mut()
    }
}
unsafe extern "C" fn thread_enter() -> i32 {
    0
}
unsafe extern "C" fn nothing() {}
unsafe extern "C" fn rx_burst(_: *mut Queue, slots: *mut Slot, max: u32) -> u32 {
    // SAFETY: the caller has room for `max` slots.
    let slots = unsafe { core::slice::from_raw_parts_mut(slots, max as usize) };
    with(|fake| {
        let count = fake.receive.len().min(slots.len());
        for (place, frame) in slots
            .iter_mut()
            .zip(fake.receive.drain(..count).collect::<Vec<_>>())
        {
            let mut slot = buffer(fake).expect("buffers for received frames");
            // SAFETY: the buffer has room for every frame of these tests.
            unsafe { core::ptr::copy_nonoverlapping(frame.as_ptr(), slot.data, frame.len()) };
            slot.len = frame.len() as u32;
            slot.flags = RX_CHECKSUM_GOOD;
            *place = slot;
        }
        count as u32
    })
}
unsafe extern "C" fn free(_: *mut Queue, slots: *const Slot, count: u32) {
    // SAFETY: the caller gives `count` slots.
    let slots = unsafe { core::slice::from_raw_parts(slots, count as usize) };
    for slot in slots {
        // SAFETY: made by `buffer`.
        drop(unsafe { Box::from_raw(slot.handle.cast::<Vec<u8>>()) });
        with(|fake| fake.out -= 1);
    }
}
unsafe extern "C" fn tx_alloc(_: *mut Queue, slots: *mut Slot, count: u32, bytes: u32) -> u32 {
    let large = with(|fake| fake.has_large);
    let room = match bytes as usize {
        0..=ROOM => ROOM,
        ..=LARGE if large => LARGE,
        _ => return 0,
    };
    // SAFETY: the caller has room for `count` slots.
    let slots = unsafe { core::slice::from_raw_parts_mut(slots, count as usize) };
    with(|fake| {
        for (index, place) in slots.iter_mut().enumerate() {
            let Some(slot) = buffer_of(fake, room) else {
                return index as u32;
            };
            *place = slot;
        }
        count
    })
}
unsafe extern "C" fn tx_burst(queue: *mut Queue, slots: *const Slot, count: u32) -> u32 {
    // SAFETY: the caller gives `count` slots.
    let slots = unsafe { core::slice::from_raw_parts(slots, count as usize) };
    let take = with(|fake| {
        if fake.takes.is_empty() {
            0
        } else {
            fake.takes.remove(0)
        }
    });
    let take = take.min(slots.len());
    for slot in &slots[..take] {
        // SAFETY: the slot's own bytes.
        let bytes = unsafe { core::slice::from_raw_parts(slot.data, slot.len as usize) };
        with(|fake| {
            fake.sent
                .push((bytes.to_vec(), slot.flags, slot.segment_bytes))
        });
        // SAFETY: a sent buffer is the device's.
        unsafe { free(queue, slot, 1) };
    }
    take as u32
}
unsafe extern "C" fn tx_cuts(_: *mut Queue) -> u32 {
    u32::from(with(|fake| !fake.refuses_large))
}
unsafe extern "C" fn wait_fd(_: *mut Queue) -> i32 {
    -1
}
unsafe extern "C" fn arm(_: *mut Queue, _: u32) -> i32 {
    0
}
unsafe extern "C" fn stats(out: *mut Stats) {
    // SAFETY: the caller's own record.
    let out = unsafe { &mut *out };
    out.rx_missed = 1;
    out.rx_errors = 2;
    out.dropped.rx_dropped_chained = 4;
    out.tx_errors = 8;
    out.dropped.tx_dropped_malformed = 16;
    out.buffers = 32;
    out.buffers_free = 31;
    out.buffer_bytes = 64;
    out.buffer_bytes_free = 62;
}
unsafe extern "C" fn link_up() -> i32 {
    1
}
unsafe extern "C" fn stop() {
    with(|fake| fake.stopped += 1);
}
unsafe extern "C" fn memory(chunks: *mut Chunk, room: u32) -> u32 {
    let told = with(|fake| fake.chunks.clone());
    // SAFETY: the caller has room for `room` chunks.
    let chunks = unsafe { core::slice::from_raw_parts_mut(chunks, room as usize) };
    for (place, (start, bytes)) in chunks.iter_mut().zip(&told) {
        place.start = core::ptr::without_provenance_mut(*start);
        place.bytes = *bytes as u64;
    }
    told.len() as u32
}

static TABLE: Table = Table {
    abi: ABI,
    size: TABLE_BYTES,
    start,
    queue,
    thread_enter,
    thread_leave: nothing,
    thread_borrow: nothing,
    thread_return: nothing,
    rx_burst,
    free,
    tx_alloc,
    tx_burst,
    tx_cuts,
    wait_fd,
    arm,
    stats,
    link_up,
    stop,
    memory,
};

fn config() -> PluginConfig {
    PluginConfig::new(
        PortSelector::Vdev("net_fake0".to_owned()),
        "knet-test".to_owned(),
    )
}

fn device(limit: usize) -> PluginDevice {
    with(|fake| {
        *fake = Fake {
            limit,
            ..Fake::default()
        }
    });
    let plugin = Plugin::check(&raw const TABLE, Path::new("fake")).unwrap();
    PluginDevice::start(plugin, &config(), &[]).unwrap()
}

fn turn() -> std::sync::MutexGuard<'static, ()> {
    TURN.lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn put(queue: &mut dyn TxQueue, byte: u8) -> bool {
    let Some(room) = queue.alloc(60) else {
        return false;
    };
    assert_eq!(room.len(), 60);
    room.fill(byte);
    queue.commit(60, TxMeta::default());
    true
}

#[test]
fn unsent_frames_stay_in_order_and_no_buffer_is_lost() {
    let _turn = turn();
    let mut device = device(100);
    let (receive, mut transmit) = device.queue_pair(0).unwrap();
    for byte in 0..BURST_MAX {
        assert!(put(&mut *transmit, byte as u8));
    }
    assert!(!put(&mut *transmit, 99), "a full burst takes no more");
    assert_eq!(transmit.room(), 0);
    with(|fake| fake.takes = vec![3, 0]);
    assert_eq!(transmit.flush(Instant::ZERO), 3);
    assert_eq!(transmit.room(), 3);
    assert!(put(&mut *transmit, 32));
    with(|fake| fake.takes = vec![10, 20]);
    assert_eq!(transmit.flush(Instant::ZERO), 30);
    assert_eq!(
        transmit.flush(Instant::ZERO),
        0,
        "nothing waits, so nothing is called"
    );
    let order: Vec<u8> = with(|fake| fake.sent.iter().map(|sent| sent.0[0]).collect());
    assert_eq!(order, (0..33).collect::<Vec<u8>>());
    drop((device, receive, transmit));
    assert_eq!(with(|fake| (fake.out, fake.stopped)), (0, 1));
}

#[test]
fn an_empty_pool_ends_the_burst_and_heals() {
    let _turn = turn();
    let mut device = device(2);
    let (_receive, mut transmit) = device.queue_pair(0).unwrap();
    assert!(put(&mut *transmit, 1));
    assert!(put(&mut *transmit, 2));
    assert!(!put(&mut *transmit, 3));
    with(|fake| fake.takes = vec![2]);
    assert_eq!(transmit.flush(Instant::ZERO), 2);
    assert!(put(&mut *transmit, 3));
    drop(transmit);
    assert_eq!(with(|fake| fake.out), 0);
}

#[test]
fn a_frame_larger_than_every_buffer_is_refused_and_keeps_the_burst() {
    let _turn = turn();
    let mut device = device(40);
    let (_receive, mut transmit) = device.queue_pair(0).unwrap();
    assert!(put(&mut *transmit, 1));
    assert!(transmit.alloc(ROOM + 1).is_none());
    assert!(put(&mut *transmit, 2));
    with(|fake| fake.takes = vec![2]);
    assert_eq!(transmit.flush(Instant::ZERO), 2);
    assert_eq!(with(|fake| fake.sent.len()), 2);
}

#[test]
fn large_and_usual_frames_in_turns_keep_each_others_buffers() {
    let _turn = turn();
    let mut device = device(100);
    with(|fake| fake.has_large = true);
    let (_receive, mut transmit) = device.queue_pair(0).unwrap();
    let mut sent = 0;
    for round in 0..50_usize {
        for len in [60, 30_000, 60, 30_000] {
            // A look whether a large one can be had, as the stack does, takes nothing away.
            assert!(transmit.alloc(LARGE).is_some());
            let room = transmit.alloc(len).unwrap();
            room.fill(round as u8);
            transmit.commit(len, TxMeta::default());
            sent += 1;
        }
        if round % 5 == 4 {
            with(|fake| fake.takes = vec![20]);
            assert_eq!(transmit.flush(Instant::ZERO), 20);
        }
    }
    let (made, order) = with(|fake| {
        let order: Vec<(usize, u8)> = fake.sent.iter().map(|it| (it.0.len(), it.0[0])).collect();
        (fake.made, order)
    });
    assert!(
        made <= sent + 2 * BURST_MAX,
        "{made} buffers for {sent} frames"
    );
    let wanted: Vec<(usize, u8)> = (0..sent)
        .map(|at| ([60, 30_000][at % 2], (at / 4) as u8))
        .collect();
    assert_eq!(order, wanted);
    drop(transmit);
    assert_eq!(with(|fake| fake.out), 0);
}

#[test]
fn a_large_frame_finds_room_behind_a_full_set_of_usual_buffers() {
    let _turn = turn();
    let mut device = device(100);
    with(|fake| fake.has_large = true);
    let (_receive, mut transmit) = device.queue_pair(0).unwrap();
    for byte in 0..BURST_MAX - 1 {
        assert!(put(&mut *transmit, byte as u8));
    }
    assert!(transmit.alloc(30_000).is_some());
    transmit.commit(30_000, TxMeta::default());
    assert!(transmit.alloc(30_000).is_none() && !put(&mut *transmit, 1));
    with(|fake| fake.takes = vec![BURST_MAX]);
    assert_eq!(transmit.flush(Instant::ZERO), BURST_MAX);
    // No large ones are left: a usual one is had all the same.
    with(|fake| fake.has_large = false);
    assert!(transmit.alloc(30_000).is_none());
    assert!(put(&mut *transmit, 9));
    drop(transmit);
    assert_eq!(with(|fake| fake.out), 0);
}

#[test]
fn a_peer_that_takes_no_super_frames_any_more_is_lent_none() {
    let _turn = turn();
    let mut device = device(100);
    with(|fake| fake.has_large = true);
    let (_receive, mut transmit) = device.queue_pair(0).unwrap();
    // A buffer for one was lent before, and is still there.
    assert!(transmit.alloc(30_000).is_some());
    with(|fake| fake.refuses_large = true);
    assert!(transmit.alloc(30_000).is_none());
    assert!(put(&mut *transmit, 1));
    with(|fake| fake.refuses_large = false);
    assert!(transmit.alloc(30_000).is_some());
    drop(transmit);
    assert_eq!(with(|fake| fake.out), 0);
}

#[test]
fn a_commit_carries_length_and_wishes_and_a_second_alloc_lends_the_same_buffer() {
    let _turn = turn();
    let mut device = device(40);
    let (_receive, mut transmit) = device.queue_pair(0).unwrap();
    transmit.commit(10, TxMeta::default());
    assert_eq!(
        transmit.room(),
        BURST_MAX,
        "a commit without a buffer is nothing"
    );
    let first = transmit.alloc(100).unwrap().as_ptr();
    assert_eq!(transmit.alloc(200).unwrap().as_ptr(), first);
    transmit.commit(
        70,
        TxMeta {
            checksum_offload: true,
            segment_bytes: 1460,
        },
    );
    with(|fake| fake.takes = vec![1]);
    assert_eq!(transmit.flush(Instant::ZERO), 1);
    with(|fake| {
        assert_eq!(
            (fake.sent[0].0.len(), fake.sent[0].1, fake.sent[0].2),
            (70, TX_CHECKSUM, 1460)
        )
    });
}

#[test]
fn received_frames_are_lent_and_given_back_also_by_a_panic() {
    let _turn = turn();
    let mut device = device(100);
    let (mut receive, _transmit) = device.queue_pair(0).unwrap();
    assert_eq!(
        receive.rx_burst(Instant::ZERO, &mut |_| panic!("called without frames")),
        0
    );
    with(|fake| {
        fake.receive = (0..40)
            .map(|byte| vec![byte; 60 + usize::from(byte)])
            .collect()
    });
    let mut seen = Vec::new();
    let mut deliver = |frames: &mut [RxFrame<'_>]| {
        for frame in frames {
            assert!(frame.meta.checksum_good && !frame.meta.checksum_bad);
            seen.push((frame.bytes[0], frame.bytes.len()));
        }
    };
    assert_eq!(receive.rx_burst(Instant::ZERO, &mut deliver), 32);
    assert_eq!(receive.rx_burst(Instant::ZERO, &mut deliver), 8);
    assert_eq!(
        seen,
        (0..40)
            .map(|byte| (byte, 60 + usize::from(byte)))
            .collect::<Vec<_>>()
    );
    with(|fake| fake.receive = vec![vec![1; 60]]);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        receive.rx_burst(Instant::ZERO, &mut |_| panic!("on purpose"))
    }));
    panicked.unwrap_err();
    assert_eq!(with(|fake| fake.out), 0);
}

#[test]
fn a_queue_pair_is_given_once() {
    let _turn = turn();
    let mut device = device(1);
    assert!(device.queue_pair(1).is_err());
    drop(device.queue_pair(0).unwrap());
    assert_eq!(device.queue_pair(0).err(), Some(Errno::INVAL));
}

#[test]
fn facts_and_counters_are_translated() {
    let _turn = turn();
    let device = device(1);
    assert_eq!(device.capabilities().description, "fake");
    assert!(device.capabilities().trust_checksum && !device.capabilities().tx_checksum);
    assert_eq!(
        (device.stats().rx_missed, device.stats().tx_dropped),
        (7, 24)
    );
    let stats = device.stats();
    assert_eq!((stats.buffers, stats.buffers_free), (32, 31));
    assert_eq!((stats.buffer_bytes, stats.buffer_bytes_free), (64, 62));
    assert!(device.link_up());
}

#[test]
fn a_refused_start_names_device_and_reason() {
    let _turn = turn();
    let table: &'static Table = Box::leak(Box::new(Table {
        start: refuse,
        ..TABLE
    }));
    let plugin = Plugin::check(table, Path::new("fake")).unwrap();
    let refused = PluginDevice::start(plugin, &config(), &[]).unwrap_err();
    assert_eq!(refused.message, "device net_fake0: no port");
}

#[test]
fn another_version_or_size_is_refused_before_anything_is_called() {
    for (abi, size) in [(ABI + 1, TABLE.size), (ABI, TABLE.size - 8)] {
        let table: &'static Table = Box::leak(Box::new(Table { abi, size, ..TABLE }));
        let refused = Plugin::check(table, Path::new("/x/libknet_dpdk.so"))
            .unwrap_err()
            .message;
        assert!(refused.contains("/x/libknet_dpdk.so"), "{refused}");
        assert!(
            refused.contains(&format!("version {abi} of {size} bytes")),
            "{refused}"
        );
        assert!(refused.contains("same build"), "{refused}");
    }
}

#[test]
fn the_chunks_of_the_pools_are_told_and_too_many_are_none() {
    let _turn = turn();
    let device = device(1);
    assert!(device.memory().is_none());
    let chunks = vec![(4_096, 8_192), (20_480, 100)];
    with(|fake| fake.chunks = chunks.clone());
    // SAFETY: nobody registers it.
    let wanted = unsafe { Lasting::new(chunks) };
    assert_eq!(device.memory(), Some(wanted));
    with(|fake| fake.chunks = vec![(4_096, 1); CHUNKS_MAX + 1]);
    assert!(device.memory().is_none());
}

#[test]
fn kept_frames_stay_where_they_lie_until_they_are_given_back() {
    let _turn = turn();
    let mut device = device(100);
    let (mut receive, _transmit) = device.queue_pair(0).unwrap();
    assert_eq!(receive.keeps(), config().mbufs() as usize / 8);
    with(|fake| fake.receive = (0..5).map(|byte| vec![byte; 60]).collect());
    let mut places = Vec::new();
    let count = receive.rx_burst_keeping(Instant::ZERO, &mut |frames, keeps| {
        frames.swap(1, 4);
        for (at, ticket) in [(1, 7), (2, 3)] {
            keeps.keep(&frames[at], ticket);
            places.push(frames[at].bytes.as_ptr().addr());
        }
    });
    assert_eq!((count, with(|fake| fake.out)), (5, 2));
    assert_eq!(receive.kept(7).unwrap().as_ptr().addr(), places[0]);
    assert_eq!(receive.kept(3).unwrap(), [2; 60]);
    assert!(receive.kept(0).is_none());
    let mut seen = Vec::new();
    receive.lend_kept(&[7, 9, 3, 7], &mut |frames| {
        seen.extend(frames.iter().map(|frame| frame.bytes[0]));
    });
    assert_eq!(seen, [4, 2]);
    receive.lend_kept(&[9], &mut |_| panic!("called without frames"));
    receive.free_kept(7);
    receive.free_kept(7);
    assert_eq!(with(|fake| fake.out), 1);
    // Whoever looks at one when the queue ends may go on: it is the port's for good.
    drop(receive);
    assert_eq!(with(|fake| fake.out), 1);
}

#[test]
fn kept_frames_are_sent_later_in_any_order_and_no_buffer_is_lost() {
    let _turn = turn();
    let mut device = device(100);
    let (_receive, mut transmit) = device.queue_pair(0).unwrap();
    assert!(!transmit.keep(60, TxMeta::default(), 0), "nothing was lent");
    let meta = TxMeta {
        checksum_offload: true,
        segment_bytes: 9,
    };
    for byte in 0..40_u8 {
        transmit.alloc(60).unwrap().fill(byte);
        assert!(transmit.keep(50, meta, u32::from(byte)));
        assert_eq!(transmit.room(), BURST_MAX);
    }
    assert!(put(&mut *transmit, 99));
    assert!(!transmit.keep(60, meta, 50), "nothing was lent");
    transmit.alloc(60).unwrap().fill(100);
    assert!(!transmit.keep(60, meta, 3), "the ticket has a frame");
    transmit.commit(60, TxMeta::default());
    assert_eq!(transmit.kept(5).unwrap(), [5; 50]);
    for ticket in (10..40).rev() {
        assert!(transmit.commit_kept(ticket));
    }
    assert!(!transmit.commit_kept(5), "the burst is full");
    with(|fake| fake.takes = vec![32]);
    assert_eq!(transmit.flush(Instant::ZERO), 32);
    assert!(transmit.commit_kept(5) && !transmit.commit_kept(5));
    assert!(put(&mut *transmit, 101));
    with(|fake| fake.takes = vec![32]);
    assert_eq!(transmit.flush(Instant::ZERO), 2);
    let sent: Vec<_> = with(|fake| {
        let about = |sent: &(Vec<u8>, u16, u16)| (sent.0[0], sent.0.len(), sent.1, sent.2);
        fake.sent.iter().map(about).collect()
    });
    let mut wanted = vec![(99, 60, 0, 0), (100, 60, 0, 0)];
    wanted.extend((10..40).rev().map(|byte| (byte, 50, TX_CHECKSUM, 9)));
    wanted.extend([(5, 50, TX_CHECKSUM, 9), (101, 60, 0, 0)]);
    assert_eq!(sent, wanted);
    for ticket in 0..10 {
        transmit.free_kept(ticket);
    }
    drop(transmit);
    assert_eq!(with(|fake| fake.out), 0);
}

#[test]
fn a_kept_super_frame_that_the_port_cuts_no_more_is_dropped() {
    let _turn = turn();
    let mut device = device(100);
    with(|fake| fake.has_large = true);
    let (_receive, mut transmit) = device.queue_pair(0).unwrap();
    for ticket in 0..2 {
        transmit.alloc(30_000).unwrap();
        assert!(transmit.keep(30_000, TxMeta::default(), ticket));
    }
    assert!(transmit.commit_kept(0));
    with(|fake| fake.refuses_large = true);
    assert!(transmit.commit_kept(1));
    assert!(transmit.kept(1).is_none());
    with(|fake| fake.takes = vec![32]);
    assert_eq!(transmit.flush(Instant::ZERO), 1);
    drop(transmit);
    assert_eq!(with(|fake| fake.out), 0);
}

#[test]
fn few_super_frames_are_kept_and_usual_ones_all_the_same() {
    let _turn = turn();
    let mut device = device(100);
    with(|fake| fake.has_large = true);
    device.shares.sent_large = 2;
    let (_receive, mut transmit) = device.queue_pair(0).unwrap();
    for ticket in 0..2 {
        transmit.alloc(30_000).unwrap();
        assert!(transmit.can_keep());
        assert!(transmit.keep(30_000, TxMeta::default(), ticket));
    }
    transmit.alloc(30_000).unwrap();
    assert!(!transmit.can_keep());
    transmit.alloc(100).unwrap();
    assert!(transmit.can_keep());
    assert!(transmit.keep(100, TxMeta::default(), 2));
    for ticket in 0..2 {
        transmit.alloc(30_000).unwrap();
        assert!(!transmit.can_keep() || ticket == 1);
        if ticket == 0 {
            transmit.free_kept(0);
        } else {
            assert!(transmit.commit_kept(1));
        }
        transmit.alloc(30_000).unwrap();
        assert!(transmit.can_keep());
    }
    transmit.free_kept(2);
    with(|fake| fake.takes = vec![32]);
    assert_eq!(transmit.flush(Instant::ZERO), 1);
    drop(transmit);
    assert_eq!(with(|fake| fake.out), 0);
}
