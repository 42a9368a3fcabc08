//! Model checks of the rings, the owner word and the bitmap.

use loom::sync::Arc;
use loom::thread;

use super::accept_ring::Queue;
use super::bitmap::Bitmap;
use super::byte_ring::{self, Pending};
use super::cell::{HostLine, QueueLine, ReadLine, WriteLine};
use super::owner::Taken;
use super::sync::{AtomicU32, AtomicU64, Ordering, fence};

fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

fn words(count: usize) -> Vec<AtomicU64> {
    (0..count).map(|_| AtomicU64::new(0)).collect()
}

const CAPACITY: u32 = 8;

/// A transmit ring whose bytes loom follows.
struct Transmit {
    host: HostLine,
    write: WriteLine,
    bytes: Vec<AtomicU32>,
}

impl Transmit {
    fn new() -> Self {
        let host = HostLine::default();
        host.tx_backed.store(CAPACITY, Ordering::Relaxed);
        Self {
            host,
            write: WriteLine::default(),
            bytes: (0..CAPACITY).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    fn append(&self, byte: u32, nested: bool) {
        let range = byte_ring::reserve(&self.host, &self.write, CAPACITY, 1, nested).range;
        assert_eq!(range.len(), 1);
        self.bytes[range.first.offset as usize].store(byte, Ordering::Relaxed);
    }

    /// What the lcore finds.
    fn published(&self) -> Vec<u32> {
        let Pending::Bytes(range) = byte_ring::pending(&self.write, 0, CAPACITY, CAPACITY) else {
            panic!("broken")
        };
        (0..range.len())
            .map(|at| self.bytes[(range.first.offset + at) as usize].load(Ordering::Relaxed))
            .collect()
    }
}

/// A handler runs before the owner publishes, or between publishing and giving the word back.
#[derive(Clone, Copy)]
enum Handler {
    BeforePublish,
    AfterPublish,
}

fn nested_publish(when: Handler) {
    check(3, move || {
        let ring = Arc::new(Transmit::new());
        let other = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || match ring.write.tx_owner.take(8) {
                Taken::Owned => {
                    ring.append(3, false);
                    ring.write
                        .tx_owner
                        .release(8, || byte_ring::publish(&ring.write));
                    (true, false)
                }
                Taken::Busy(busy) => {
                    // Would sleep when the word is still the announced one (what a futex compares).
                    let value = ring.write.tx_owner.announce_sleep(busy);
                    let word = ring.write.tx_owner.word();
                    let sleeps = value.is_some_and(|value| word.load(Ordering::Relaxed) == value);
                    (false, sleeps)
                }
                Taken::Nested => panic!("8 is not 7"),
            })
        };
        let lcore = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || {
                assert!(!ring.published().contains(&0), "published before copied");
            })
        };
        let mut woke = false;
        let owned = ring.write.tx_owner.take(7) == Taken::Owned;
        if owned {
            ring.append(1, false);
            let mut handler = Some(|| {
                assert_eq!(ring.write.tx_owner.take(7), Taken::Nested);
                ring.append(2, true);
            });
            if let (Handler::BeforePublish, Some(run)) = (when, handler) {
                run();
                handler = None;
            }
            woke = ring.write.tx_owner.release(7, || {
                byte_ring::publish(&ring.write);
                if let Some(run) = handler.take() {
                    run();
                }
            });
        }
        let (other_wrote, slept) = other.join().unwrap();
        lcore.join().unwrap();
        assert!(!slept || woke || !owned, "a sleeper was forgotten");
        let all = ring.published();
        let count = if owned { 2 } else { 0 } + usize::from(other_wrote);
        assert_eq!(all.len(), count, "{all:?}");
        assert!(!all.contains(&0));
        if owned {
            let first = all.iter().position(|&byte| byte == 1).unwrap();
            assert_eq!(
                all[first + 1],
                2,
                "the handler's byte is behind the owner's"
            );
        }
        assert_eq!(ring.write.tx_owner.word().load(Ordering::Relaxed), 0);
    });
}

#[test]
fn loom_a_handler_before_the_publish_is_published() {
    nested_publish(Handler::BeforePublish);
}

#[test]
fn loom_a_handler_after_the_publish_is_published() {
    nested_publish(Handler::AfterPublish);
}

#[test]
fn loom_no_bell_is_lost() {
    check(3, || {
        let memory = Arc::new((words(3), AtomicU32::new(0), AtomicU32::new(0)));
        let ringers: Vec<_> = [(3, 0), (70, 1)]
            .into_iter()
            .map(|(index, which)| {
                let memory = Arc::clone(&memory);
                thread::spawn(move || {
                    let wish = if which == 0 { &memory.1 } else { &memory.2 };
                    wish.store(1, Ordering::Relaxed);
                    Bitmap::new(&memory.0, 2).unwrap().set(index);
                })
            })
            .collect();
        let mut heard = [false; 2];
        let mut listen = || {
            Bitmap::new(&memory.0, 2).unwrap().take(65, |index| {
                let (which, wish) = if index == 3 {
                    (0, &memory.1)
                } else {
                    assert_eq!(index, 70);
                    (1, &memory.2)
                };
                assert_eq!(
                    wish.load(Ordering::Relaxed),
                    1,
                    "the wish comes with the bell"
                );
                assert!(!heard[which], "a bell rings once");
                heard[which] = true;
                true
            });
        };
        listen();
        for ringer in ringers {
            ringer.join().unwrap();
        }
        listen();
        assert_eq!(heard, [true; 2]);
        assert!(!Bitmap::new(&memory.0, 2).unwrap().has(3));
    });
}

#[test]
fn loom_a_byte_goes_to_one_reader_and_is_not_overwritten_under_him() {
    check(3, || {
        // A ring of one byte: its place is used again as soon as the head has moved.
        let ring = Arc::new((HostLine::default(), ReadLine::default(), AtomicU32::new(0)));
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let ring = Arc::clone(&ring);
                thread::spawn(move || {
                    let view = byte_ring::readable(&ring.0, &ring.1, 1, 0, 1);
                    if view.range.is_empty() {
                        return None;
                    }
                    let byte = ring.2.load(Ordering::Relaxed);
                    byte_ring::take(&ring.1, view.head, 1).then_some((view.head, byte))
                })
            })
            .collect();
        for byte in 1..=2_u32 {
            if ring.1.rx_head.load(Ordering::Acquire) == u64::from(byte - 1) {
                ring.2.store(byte, Ordering::Relaxed);
                ring.0.rx_tail.store(u64::from(byte), Ordering::Release);
            }
        }
        let mut seen = Vec::new();
        for reader in readers {
            if let Some((head, byte)) = reader.join().unwrap() {
                assert_eq!(u64::from(byte), head + 1, "not the byte that was taken");
                seen.push(head);
            }
        }
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(ring.1.rx_head.load(Ordering::Relaxed), seen.len() as u64);
    });
}

#[test]
fn loom_a_connection_goes_to_one_popper() {
    check(3, || {
        let memory = Arc::new((QueueLine::default(), [AtomicU32::new(0), AtomicU32::new(0)]));
        let pop = |memory: &(QueueLine, [AtomicU32; 2])| {
            let queue = Queue::of(&memory.0, 0, &memory.1).unwrap();
            let front = queue.front()?;
            queue.pop(front).then_some(front)
        };
        let poppers: Vec<_> = (0..2)
            .map(|_| {
                let memory = Arc::clone(&memory);
                thread::spawn(move || pop(&memory))
            })
            .collect();
        for object in [40, 41] {
            let queue = Queue::of(&memory.0, 0, &memory.1).unwrap();
            assert!(queue.push(object));
        }
        let mut popped: Vec<_> = poppers
            .into_iter()
            .filter_map(|popper| popper.join().unwrap())
            .collect();
        while let Some(front) = pop(&memory) {
            popped.push(front);
        }
        popped.sort_unstable_by_key(|front| front.position);
        let all: Vec<_> = popped.iter().map(|f| (f.position, f.object)).collect();
        assert_eq!(all, [(0, 40), (1, 41)]);
    });
}

#[test]
fn loom_memory_leaves_no_ring_that_is_written() {
    check(3, || {
        let ring = Arc::new(Transmit::new());
        let writer = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || {
                assert_eq!(ring.write.tx_owner.take(8), Taken::Owned);
                fence(Ordering::SeqCst);
                let (host, write) = (&ring.host, &ring.write);
                if let Some(bytes) = byte_ring::growth_for(host, write, CAPACITY, 1) {
                    write.tx_grown.fetch_max(bytes, Ordering::Release);
                }
                let range = byte_ring::reserve(host, write, CAPACITY, 1, false).range;
                if !range.is_empty() {
                    ring.bytes[range.first.offset as usize].store(1, Ordering::Relaxed);
                }
                write.tx_owner.release(8, || byte_ring::publish(write));
            })
        };
        if byte_ring::begin_leaving(&ring.host, &ring.write) {
            for byte in &ring.bytes {
                byte.store(0, Ordering::Relaxed);
            }
            byte_ring::finish_leaving(&ring.host);
        }
        writer.join().unwrap();
        assert!(!ring.published().contains(&0), "written bytes are gone");
    });
}
