//! A ring through which one thread of the host hands values to one other: frames from lcore to lcore, and their empty buffers back.
//!
//! No program sees it. What is pushed is seen once it is published, so that a burst costs one store.
//!
//! # Safety
//! A slot between `head` and `tail` holds a value, every other slot holds none. Only [`Sender`] writes slots from `tail` on and moves
//! `tail` over them (Release), only [`Receiver`] reads slots before a `tail` that it has seen (Acquire) and moves `head` over
//! them (Release); there is one of each, neither can be cloned, and both work by `&mut self`.

#![allow(unsafe_code)]

use core::mem::MaybeUninit;

#[cfg(not(loom))]
use std::sync::Arc;

#[cfg(loom)]
use loom::{cell::UnsafeCell, sync::Arc};

use super::sync::{AtomicU32, Ordering};

#[cfg(not(loom))]
#[derive(Debug)]
struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    const fn new(value: T) -> Self {
        Self(core::cell::UnsafeCell::new(value))
    }

    fn with_mut<R>(&self, act: impl FnOnce(*mut T) -> R) -> R {
        act(self.0.get())
    }
}

/// A counter on a line of its own, because the other side's thread writes its neighbour.
#[derive(Debug)]
#[repr(align(64))]
struct Line(AtomicU32);

#[derive(Debug)]
struct Shared<T> {
    slots: Box<[UnsafeCell<MaybeUninit<T>>]>,
    /// Values published so far.
    tail: Line,
    /// Values taken so far.
    head: Line,
}

// SAFETY: a value is moved from one thread to the other, never seen by both; see above.
unsafe impl<T: Send> Sync for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Shared<T> {}

impl<T> Shared<T> {
    /// Runs `act` on the slot of a position.
    fn slot<R>(&self, position: u32, act: impl FnOnce(*mut MaybeUninit<T>) -> R) -> Option<R> {
        let place = position as usize % self.slots.len().max(1);
        Some(self.slots.get(place)?.with_mut(act))
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        let tail = self.tail.0.load(Ordering::Acquire);
        let mut head = self.head.0.load(Ordering::Acquire);
        while head != tail {
            self.slot(head, |slot| {
                // SAFETY: both sides are gone, so the slot is ours.
                let slot = unsafe { &mut *slot };
                // SAFETY: a slot between head and tail holds a value.
                unsafe { slot.assume_init_drop() };
            });
            head = head.wrapping_add(1);
        }
    }
}

/// The end that pushes.
#[derive(Debug)]
pub struct Sender<T> {
    shared: Arc<Shared<T>>,
    /// Values pushed so far, some of which may not be published.
    tail: u32,
    /// The head as it was seen last.
    head: u32,
}

/// The end that pops.
#[derive(Debug)]
pub struct Receiver<T> {
    shared: Arc<Shared<T>>,
    /// Values taken so far.
    head: u32,
    /// The tail as it was seen last.
    tail: u32,
}

/// A ring of `entries` slots, rounded up to a power of two.
#[must_use]
pub fn ring<T: Send>(entries: u32) -> (Sender<T>, Receiver<T>) {
    ring_from(entries, 0)
}

/// The same, with `first` values pushed and taken already.
fn ring_from<T: Send>(entries: u32, first: u32) -> (Sender<T>, Receiver<T>) {
    let empty = || UnsafeCell::new(MaybeUninit::uninit());
    let shared = Arc::new(Shared {
        slots: (0..entries.next_power_of_two()).map(|_| empty()).collect(),
        tail: Line(AtomicU32::new(first)),
        head: Line(AtomicU32::new(first)),
    });
    let sender = Sender {
        shared: Arc::clone(&shared),
        tail: first,
        head: first,
    };
    let receiver = Receiver {
        shared,
        head: first,
        tail: first,
    };
    (sender, receiver)
}

impl<T: Send> Sender<T> {
    /// Puts a value in, to be seen once it is published.
    ///
    /// # Errors
    /// The value, when the ring is full.
    pub fn push(&mut self, value: T) -> Result<(), T> {
        let full = self.shared.slots.len();
        if self.tail.wrapping_sub(self.head) as usize >= full {
            // Acquire: the receiver has moved the value out.
            self.head = self.shared.head.0.load(Ordering::Acquire);
            if self.tail.wrapping_sub(self.head) as usize >= full {
                return Err(value);
            }
        }
        self.shared.slot(self.tail, |slot| {
            // SAFETY: the slot lies behind the tail and holds no value, and only this end uses it.
            let slot = unsafe { &mut *slot };
            slot.write(value);
        });
        self.tail = self.tail.wrapping_add(1);
        Ok(())
    }

    /// Shows what was pushed; says whether there was something.
    pub fn publish(&mut self) -> bool {
        if self.shared.tail.0.load(Ordering::Relaxed) == self.tail {
            return false;
        }
        // Release: the values are in their slots.
        self.shared.tail.0.store(self.tail, Ordering::Release);
        true
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        // Whoever drops the ring drops these as well.
        self.shared.tail.0.store(self.tail, Ordering::Release);
    }
}

impl<T: Send> Receiver<T> {
    /// Takes the oldest value.
    pub fn pop(&mut self) -> Option<T> {
        if !self.has_any() {
            return None;
        }
        let value = self.shared.slot(self.head, |slot| {
            // SAFETY: the slot lies between head and tail, and only this end uses it.
            let slot = unsafe { &*slot };
            // SAFETY: it holds a value, and the head moves over it below, so that nobody takes it twice.
            unsafe { slot.assume_init_read() }
        })?;
        self.head = self.head.wrapping_add(1);
        // Release: the value is out of its slot.
        self.shared.head.0.store(self.head, Ordering::Release);
        Some(value)
    }

    /// Whether there is something.
    pub fn has_any(&mut self) -> bool {
        if self.head == self.tail {
            // Acquire: the values before it are in their slots. SeqCst, because a receiver that is about to sleep looks here
            // after it has said so.
            self.tail = self.shared.tail.0.load(Ordering::SeqCst);
        }
        self.head != self.tail
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn what_is_published_comes_in_order_and_a_full_ring_refuses() {
        // Positions go round.
        let (mut sender, mut receiver) = ring_from(3, u32::MAX - 5);
        for round in 0..5 {
            for n in 0..4 {
                assert_eq!(sender.push(round * 10 + n), Ok(()));
            }
            assert_eq!(sender.push(99), Err(99));
            assert_eq!(receiver.pop(), None, "not published yet");
            assert!(sender.publish() && !sender.publish());
            for n in 0..4 {
                assert!(receiver.has_any());
                assert_eq!(receiver.pop(), Some(round * 10 + n));
            }
            assert!(!receiver.has_any());
        }
    }

    #[test]
    fn what_nobody_took_is_dropped_once() {
        let value = Arc::new(());
        let (mut sender, mut receiver) = ring(8);
        for _ in 0..5 {
            sender.push(Arc::clone(&value)).unwrap();
        }
        sender.publish();
        drop(receiver.pop());
        sender.push(Arc::clone(&value)).unwrap();
        assert_eq!(Arc::strong_count(&value), 6);
        drop(receiver);
        drop(sender);
        assert_eq!(Arc::strong_count(&value), 1);
    }
}

#[cfg(test)]
#[cfg(loom)]
mod loom_ring {
    use loom::thread;

    use super::*;

    #[test]
    fn loom_values_cross_once_in_order() {
        loom::model(|| {
            let (mut sender, mut receiver) = ring(2);
            let producer = thread::spawn(move || {
                let mut next = 0;
                for _ in 0..4 {
                    if sender.push(Box::new(next)).is_ok() {
                        next += 1;
                    }
                    sender.publish();
                }
                next
            });
            let mut seen = 0;
            for _ in 0..3 {
                if let Some(value) = receiver.pop() {
                    assert_eq!(*value, seen);
                    seen += 1;
                }
            }
            let sent = producer.join().unwrap();
            while let Some(value) = receiver.pop() {
                assert_eq!(*value, seen);
                seen += 1;
            }
            assert_eq!(seen, sent);
        });
    }
}
