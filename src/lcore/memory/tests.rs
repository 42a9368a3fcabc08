//! What waits for a connection, and who gets it.

use super::*;

const BYTES: usize = 64 << 10;

#[test]
fn larger_rings_are_lent_before_others_and_again() {
    let mut memory = Memory::new(0, Arc::default());
    let usual = crate::channel::layout::Layout::for_flows(256, 4 << 10, 4 << 10);
    let layout = usual.with_large_rings(16 << 10);
    memory.attach(Owner(0), Arc::new(Segments::create(layout).unwrap()));
    let lengths = |rings: &[RxRing]| {
        let large = rings.iter().filter(|ring| ring.bytes.len() == 16 << 10);
        (large.count(), rings.len())
    };
    for _ in 0..2 {
        let rings: Vec<RxRing> = (0..100)
            .map(|_| memory.take(Owner(0), BYTES).unwrap())
            .collect();
        assert_eq!(lengths(&rings), (64, 100));
        for ring in rings {
            memory.give_back(Owner(0), ring);
        }
        let few: Vec<RxRing> = (0..64)
            .map(|_| memory.take(Owner(0), BYTES).unwrap())
            .collect();
        assert_eq!(lengths(&few), (64, 64));
        for ring in few {
            memory.give_back(Owner(0), ring);
        }
    }
}

/// Takes flows with full receive rings until something is refused.
fn fill(memory: &mut Memory, owner: Owner) -> Vec<RxRing> {
    let mut rings = Vec::new();
    while let Some(ring) = memory.take(owner, BYTES) {
        let full = ring.bytes.len();
        rings.push(ring);
        if !memory.back(owner, rings[rings.len() - 1].id, full) {
            break;
        }
    }
    rings
}

#[test]
fn a_family_that_fills_its_rings_leaves_memory_to_the_others() {
    const TOTAL: u64 = 1 << 20;
    let counters = Arc::new(LcoreCounters::default());
    let mut memory = Memory::new(0, Arc::clone(&counters));
    let layout = crate::channel::layout::Layout::for_flows(16, 64 << 10, 64 << 10);
    for owner in [Owner(0), Owner(1)] {
        memory.attach(owner, Arc::new(Segments::create(layout).unwrap()));
    }
    memory.share_out(Share {
        flows: 1_000,
        ring_bytes: TOTAL,
    });
    let bytes = |memory: &mut Memory, owner| memory.pool(owner).unwrap().bytes();
    let first = fill(&mut memory, Owner(0));
    let has = bytes(&mut memory, Owner(0));
    assert!(
        (TOTAL / 2..=TOTAL * 4 / 5 + u64::from(PAGE)).contains(&has),
        "{has}"
    );
    assert_eq!(counters.rings_refused_quota.value(), 1);
    let second = fill(&mut memory, Owner(1));
    assert!(bytes(&mut memory, Owner(1)) >= 64 << 10);
    // A flow without room to grow still has its first page, in both directions.
    let ring = memory.take(Owner(0), BYTES).unwrap();
    assert_eq!(ring.backed, PAGE as usize);
    assert!(memory.back_transmit(Owner(0), ring.id, PAGE));
    assert!(!memory.back_transmit(Owner(0), ring.id, 64 << 10));
    // What is given back can be had again.
    for (owner, ring) in first
        .into_iter()
        .chain([ring])
        .map(|ring| (Owner(0), ring))
        .chain(second.into_iter().map(|ring| (Owner(1), ring)))
    {
        let id = ring.id;
        memory.make_known(owner, id);
        memory.give_back(owner, ring);
        memory.release(owner, id, 0);
    }
    assert_eq!(memory.kept_bytes(), memory.ring_bytes());
    assert!(fill(&mut memory, Owner(1)).len() >= 8);
}

/// A family, its segments, and a clock.
fn family(rx_bytes: u32) -> (Memory, Arc<Segments>) {
    let layout = crate::channel::layout::Layout::for_flows(4_096, rx_bytes, 16 << 10);
    let segments = Arc::new(Segments::create(layout).unwrap());
    let mut memory = Memory::new(0, Arc::default());
    memory.attach(Owner(0), Arc::clone(&segments));
    (memory, segments)
}

/// A connection whose rings grow to `receive` and `transmit` bytes.
fn grown(memory: &mut Memory, receive: usize, transmit: u32) -> u32 {
    let id = memory.take(Owner(0), BYTES).unwrap().id;
    memory.make_known(Owner(0), id);
    assert!(memory.back(Owner(0), id, receive));
    assert!(memory.back_transmit(Owner(0), id, transmit));
    id
}

/// It ends.
fn end(memory: &mut Memory, id: u32) {
    let ring = RxRing {
        bytes: &mut [],
        backed: 0,
        id,
    };
    memory.give_back(Owner(0), ring);
    memory.release(Owner(0), id, 0);
}

const SECOND: u64 = 1_000_000;

#[test]
fn the_next_connection_finds_the_rings_of_the_last_one_whole() {
    let (mut memory, segments) = family(64 << 10);
    let id = grown(&mut memory, 64 << 10, 8 << 10);
    let resident = segments.resident_bytes();
    end(&mut memory, id);
    assert_eq!(
        (memory.kept_bytes(), memory.ring_bytes()),
        (72 << 10, 72 << 10)
    );
    assert_eq!(segments.resident_bytes(), resident);
    segments
        .pages_left
        .store(0, core::sync::atomic::Ordering::Relaxed);
    let ring = memory.take(Owner(0), BYTES).unwrap();
    assert_eq!((ring.id, ring.backed), (id, 64 << 10));
    assert!(memory.back_transmit(Owner(0), id, PAGE));
    let cell = segments.control.object(id).unwrap();
    let backed = cell
        .host
        .tx_backed
        .load(crate::channel::sync::Ordering::Relaxed);
    assert_eq!((backed, memory.kept_bytes()), (8 << 10, 0));
}

#[test]
fn what_no_connection_wants_goes_back_after_a_while_a_few_rings_a_turn() {
    let (mut memory, segments) = family(64 << 10);
    let before = segments.resident_bytes();
    let crowd: Vec<u32> = (0..10)
        .map(|_| grown(&mut memory, 64 << 10, PAGE))
        .collect();
    // The cells' own pages stay.
    let cells = segments.resident_bytes() - before - memory.ring_bytes();
    memory.sweep(Instant::from_micros(SECOND));
    for id in crowd {
        end(&mut memory, id);
    }
    let due = Instant::from_micros(SECOND) + KEPT_FOR;
    assert_eq!(memory.next_due(), Some(due));
    memory.sweep(Instant::from_micros(2 * SECOND));
    assert_eq!(memory.kept_bytes(), 10 * (68 << 10));
    let mut now = due;
    for left in [6, 2, 0] {
        memory.sweep(now);
        assert_eq!(memory.kept_bytes(), left * (68 << 10));
        now = memory.next_due().unwrap_or(now);
    }
    assert_eq!((memory.next_due(), memory.ring_bytes()), (None, 0));
    assert_eq!(segments.resident_bytes(), before + cells);
    // The index that is taken next begins with a page of zeros.
    let ring = memory.take(Owner(0), BYTES).unwrap();
    assert_eq!(ring.backed, PAGE as usize);
}

#[test]
fn a_crowd_leaves_no_more_behind_than_the_bound() {
    const RING: u64 = 256 << 10;
    let (mut memory, segments) = family(256 << 10);
    let count = KEPT_MAX / RING + 8;
    let crowd: Vec<u32> = (0..count)
        .map(|_| grown(&mut memory, 256 << 10, PAGE))
        .collect();
    let warmest = crowd[crowd.len() - 1];
    for id in crowd {
        end(&mut memory, id);
    }
    let kept = memory.kept_bytes();
    assert!(kept <= KEPT_MAX && kept > KEPT_MAX - 2 * RING, "{kept}");
    assert_eq!(memory.ring_bytes(), kept);
    assert!(segments.resident_bytes() < KEPT_MAX + (1 << 20));
    // The oldest went.
    let ring = memory.take(Owner(0), BYTES).unwrap();
    assert_eq!((ring.id, ring.backed), (warmest, 256 << 10));
}

#[test]
fn memory_that_waits_is_given_up_before_anybody_is_refused() {
    let (mut memory, segments) = family(64 << 10);
    let (first, second) = (
        grown(&mut memory, 64 << 10, PAGE),
        grown(&mut memory, 4 << 10, PAGE),
    );
    end(&mut memory, first);
    // The share: 4/5 of it for a family alone.
    memory.share_out(Share {
        flows: 100,
        ring_bytes: 90 << 10,
    });
    assert!(memory.back(Owner(0), second, 64 << 10));
    assert_eq!((memory.kept_bytes(), memory.ring_bytes()), (0, 68 << 10));
    assert_eq!(memory.counters.rings_refused_quota.value(), 0);
    // The kernel: it has nothing but what we give back. Its ring is lent, a page of a third one waits.
    memory.share = None;
    let third = grown(&mut memory, 4 << 10, PAGE);
    pages(&segments, 0);
    end(&mut memory, third);
    let fourth = memory.pool(Owner(0)).unwrap().index().unwrap();
    assert_eq!(fourth, third);
    let ring = memory.take(Owner(0), BYTES).unwrap();
    assert_ne!(ring.id, third);
    assert_eq!((memory.kept_bytes(), pages_left(&segments)), (0, 1));
    // With none left it is refused, and the account is as before.
    let before = memory.ring_bytes();
    pages(&segments, 0);
    assert!(memory.take(Owner(0), BYTES).is_none());
    assert_eq!(memory.ring_bytes(), before);
}

fn pages(segments: &Segments, count: u64) {
    let left = &segments.pages_left;
    left.store(count, core::sync::atomic::Ordering::Relaxed);
}

fn pages_left(segments: &Segments) -> u64 {
    let left = &segments.pages_left;
    left.load(core::sync::atomic::Ordering::Relaxed)
}

/// What the program takes for the memory of the transmit ring of `id`.
fn told(segments: &Segments, id: u32) -> u32 {
    let cell = segments.control.object(id).unwrap();
    let backed = &cell.host.tx_backed;
    backed.load(crate::channel::sync::Ordering::Relaxed)
}

/// As many connections come and end, each with a page of each ring.
fn crowd(memory: &mut Memory, count: usize) {
    let ids: Vec<u32> = (0..count).map(|_| grown(memory, 4 << 10, PAGE)).collect();
    for id in ids {
        end(memory, id);
    }
}

const TWO: u64 = 2 * PAGE as u64;

#[test]
fn a_wish_takes_no_more_than_it_needs_and_a_bounded_number_of_rings() {
    let (mut memory, segments) = family(256 << 10);
    let open = grown(&mut memory, 4 << 10, PAGE);
    crowd(&mut memory, 100);
    pages(&segments, 0);
    // Three pages: two of four rings would do.
    assert!(memory.back(Owner(0), open, 16 << 10));
    assert_eq!(memory.kept_bytes(), 96 * TWO);
    assert_eq!(pages_left(&segments), 5);
    // More than 16 rings have is refused, and comes again.
    pages(&segments, 0);
    assert!(!memory.back(Owner(0), open, 256 << 10));
    assert_eq!(memory.kept_bytes(), 80 * TWO);
}

#[test]
fn a_refusal_that_stands_without_what_waits_takes_nothing_away() {
    let (mut memory, _segments) = family(64 << 10);
    let open = grown(&mut memory, 32 << 10, PAGE);
    crowd(&mut memory, 10);
    memory.share_out(Share {
        flows: 1_000,
        ring_bytes: 64 << 10,
    });
    assert!(!memory.back(Owner(0), open, 64 << 10));
    assert_eq!(memory.kept_bytes(), 10 * TWO);
    assert_eq!(memory.counters.rings_refused_quota.value(), 1);
}

#[test]
fn the_memory_of_the_family_itself_goes_before_that_of_others() {
    let (mut memory, segments) = family(64 << 10);
    let others = Arc::new(Segments::create(segments.layout()).unwrap());
    memory.attach(Owner(1), others);
    let rings: Vec<RxRing> = (0..3)
        .map(|_| memory.take(Owner(1), BYTES).unwrap())
        .collect();
    crowd(&mut memory, 3);
    for ring in rings {
        memory.give_back(Owner(1), ring);
    }
    let kept =
        |memory: &mut Memory| [0, 1].map(|owner| memory.pool(Owner(owner)).unwrap().kept_bytes());
    let page = u64::from(PAGE);
    assert_eq!(kept(&mut memory), [3 * TWO, 3 * page]);
    // Four rings at once: three of its own and one of the others.
    assert!(memory.cool_some(Owner(1)));
    assert_eq!(kept(&mut memory), [2 * TWO, 0]);
    assert!(memory.cool_some(Owner(0)));
    assert!(!memory.cool_some(Owner(0)));
}

#[test]
fn a_resting_connection_that_wakes_up_gets_what_waits() {
    let (mut memory, segments) = family(64 << 10);
    let open = grown(&mut memory, 4 << 10, PAGE);
    assert!(memory.rest(Owner(0), open));
    crowd(&mut memory, 1);
    pages(&segments, 0);
    assert!(memory.back_part(Owner(0), open, 8 << 10, 4 << 10));
    assert_eq!(
        (memory.kept_bytes(), memory.ring_bytes()),
        (0, u64::from(PAGE))
    );
}

#[test]
fn a_wake_up_that_finds_no_memory_leaves_the_account_and_no_page() {
    let (mut memory, segments) = family(64 << 10);
    let open = grown(&mut memory, 4 << 10, PAGE);
    assert!(memory.rest(Owner(0), open));
    let resident = segments.resident_bytes();
    // None, and enough for the part before the ring's end only.
    for left in [0, 1, 2] {
        pages(&segments, left);
        assert!(!memory.back_part(Owner(0), open, 60 << 10, 12 << 10));
        assert_eq!((memory.ring_bytes(), pages_left(&segments)), (0, left));
        assert_eq!(segments.resident_bytes(), resident);
    }
    pages(&segments, 3);
    assert!(memory.back_part(Owner(0), open, 60 << 10, 12 << 10));
    assert_eq!(memory.ring_bytes(), 12 << 10);
}

#[test]
fn an_accept_queue_gets_what_waits() {
    let (mut memory, segments) = family(64 << 10);
    crowd(&mut memory, 1);
    pages(&segments, 0);
    assert_eq!(memory.back_queue(Owner(0), 1, PAGE), Ok(()));
    assert_eq!(
        (memory.kept_bytes(), memory.ring_bytes()),
        (0, u64::from(PAGE))
    );
    pages(&segments, 0);
    assert_eq!(memory.back_queue(Owner(0), 2, PAGE), Err(Errno::NOSPC));
}

#[test]
fn a_connecting_object_keeps_the_memory_that_its_program_was_told_of() {
    let (mut memory, segments) = family(64 << 10);
    // It was used before, and its transmit ring alone has memory.
    memory.want(Owner(0), Some(1));
    assert!(memory.back_transmit(Owner(0), 1, PAGE));
    memory.want(Owner(0), None);
    memory.release(Owner(0), 1, 0);
    assert_eq!(memory.kept_bytes(), u64::from(PAGE));
    pages(&segments, 0);
    memory.want(Owner(0), Some(1));
    assert!(memory.back_transmit(Owner(0), 1, PAGE));
    assert!(memory.take(Owner(0), BYTES).is_none());
    memory.want(Owner(0), None);
    let backed = memory.transmit_backed(Owner(0), 1);
    assert_eq!((backed, told(&segments, 1)), (PAGE, PAGE));
    assert_eq!(memory.kept_bytes(), 0);
    memory.release(Owner(0), 1, 0);
    assert_eq!(memory.kept_bytes(), u64::from(PAGE));
}

#[test]
fn what_the_kernel_does_not_take_back_stays_in_the_account() {
    let (mut memory, segments) = family(64 << 10);
    let id = grown(&mut memory, 64 << 10, 8 << 10);
    end(&mut memory, id);
    let stays = |yes| {
        let flag = &segments.transmit_stays;
        flag.store(yes, core::sync::atomic::Ordering::Relaxed);
    };
    stays(true);
    assert!(memory.cool_some(Owner(0)));
    assert_eq!((memory.ring_bytes(), memory.kept_bytes()), (8 << 10, 0));
    assert_eq!(memory.transmit_backed(Owner(0), id), 8 << 10);
    // Whoever takes the index next has it.
    stays(false);
    let ring = memory.take(Owner(0), BYTES).unwrap();
    assert_eq!((ring.id, ring.backed), (id, PAGE as usize));
    assert_eq!(memory.ring_bytes(), 12 << 10);
}

#[test]
fn what_a_released_ring_keeps_stays_in_the_account_until_it_is_taken_back() {
    use core::sync::atomic::Ordering;
    let (mut memory, segments) = family(64 << 10);
    let stay = |yes| {
        segments.transmit_stays.store(yes, Ordering::Relaxed);
        segments.receive_stays.store(yes, Ordering::Relaxed);
    };
    let id = grown(&mut memory, 4 << 10, PAGE);
    assert!(memory.back_part(Owner(0), id, 48 << 10, 12 << 10));
    assert!(segments.control.tx_populate(id, 16 << 10));
    let ring = RxRing {
        bytes: &mut [],
        backed: 0,
        id,
    };
    memory.give_back(Owner(0), ring);
    let resident = segments.resident_bytes();
    stay(true);
    memory.release(Owner(0), id, 16 << 10);
    assert_eq!(segments.resident_bytes(), resident);
    let all = (4 + 12 + 16) << 10;
    assert_eq!((memory.ring_bytes(), memory.kept_bytes()), (all, all));
    assert_eq!(memory.counters.rings_not_returned.value(), 1);
    assert!(memory.cool_some(Owner(0)));
    assert_eq!((memory.ring_bytes(), memory.kept_bytes()), (all, 0));
    assert_eq!(memory.counters.rings_not_returned.value(), 2);
    // The next one gets it, and the kernel the whole of it later.
    let ring = memory.take(Owner(0), BYTES).unwrap();
    assert_eq!(ring.id, id);
    stay(false);
    memory.give_back(Owner(0), ring);
    while memory.cool_some(Owner(0)) {}
    assert_eq!((memory.ring_bytes(), memory.kept_bytes()), (0, 0));
    assert_eq!(segments.resident_bytes(), resident - all);
}

#[test]
fn a_part_that_could_be_neither_completed_nor_undone_stays_in_the_account() {
    use core::sync::atomic::Ordering;
    let (mut memory, segments) = family(64 << 10);
    let id = grown(&mut memory, 4 << 10, 0);
    let before = memory.ring_bytes();
    segments.receive_stays.store(true, Ordering::Relaxed);
    pages(&segments, 1);
    // Round the end: its first page is to be had, its second one is not.
    assert!(!memory.back_part(Owner(0), id, 60 << 10, 8 << 10));
    assert_eq!(memory.ring_bytes(), before + u64::from(PAGE));
    assert_eq!(memory.counters.rings_not_returned.value(), 1);
}

#[test]
fn half_open_connections_leave_no_more_behind_than_the_bound() {
    let (_, segments) = family(64 << 10);
    let mut pool = Pool::new(segments, 0, Arc::default());
    let objects: Vec<u32> = (0..100).map(|_| pool.index().unwrap()).collect();
    for &object in &objects {
        pool.lend(object).unwrap();
    }
    for object in objects {
        pool.give_back(Instant::default(), object, 10 * u64::from(PAGE));
    }
    assert_eq!((pool.kept_bytes(), pool.bytes()), (10 << 12, 10 << 12));
}

#[test]
fn one_end_gives_a_bounded_number_of_rings_back() {
    let (_, segments) = family(64 << 10);
    let mut pool = Pool::new(segments, 0, Arc::default());
    let objects: Vec<u32> = (0..100).map(|_| pool.index().unwrap()).collect();
    for &object in &objects {
        pool.lend(object).unwrap();
        pool.give_back(Instant::default(), object, u64::MAX);
    }
    let last = pool.index().unwrap();
    pool.lend(last).unwrap();
    pool.give_back(Instant::default(), last, 0);
    assert_eq!(pool.kept_bytes(), 96 << 12);
}

#[test]
fn pages_that_a_writer_grew_and_never_filled_do_not_wait() {
    let (mut memory, segments) = family(64 << 10);
    let id = grown(&mut memory, 4 << 10, PAGE);
    assert!(segments.control.tx_populate(id, 16 << 10));
    let resident = segments.resident_bytes();
    let ring = RxRing {
        bytes: &mut [],
        backed: 0,
        id,
    };
    memory.give_back(Owner(0), ring);
    memory.release(Owner(0), id, 16 << 10);
    assert_eq!(segments.resident_bytes(), resident - (12 << 10));
    assert_eq!(memory.kept_bytes(), 2 * u64::from(PAGE));
}
