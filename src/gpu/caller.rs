//! Who calls the driver while an lcore runs: a thread of its own for each ring, because a call may take its time, or never return.
//!
//! The lcore posts orders and looks at words; it neither takes a lock nor waits. A thread whose call does not return is left
//! behind: what it works with lives as long as the process.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use core::time::Duration;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Thread;

use crate::ffi::cuda::Fault;
use crate::ffi::signals;
use crate::time::monotonic;

/// What is to be called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Order {
    /// A slot was handed over with so many packets.
    Submit {
        /// The slot.
        slot: usize,
        /// How many.
        count: usize,
    },
    /// A slot was read and is free again.
    Reaped {
        /// The slot.
        slot: usize,
    },
    /// How is the GPU?
    Look,
}

impl Order {
    /// As a word: what, slot, count.
    fn word(self) -> u64 {
        let (what, slot, count) = match self {
            Self::Submit { slot, count } => (1, slot, count),
            Self::Reaped { slot } => (2, slot, 0),
            Self::Look => (3, 0, 0),
        };
        what << 62 | (slot as u64) << 31 | count as u64
    }

    fn of(word: u64) -> Self {
        let part = |word: u64| usize::try_from(word & 0x7fff_ffff).unwrap_or(0);
        let (slot, count) = (part(word >> 31), part(word));
        match word >> 62 {
            1 => Self::Submit { slot, count },
            2 => Self::Reaped { slot },
            _ => Self::Look,
        }
    }
}

/// The calls of one way to drive a ring; made by the thread alone.
pub(super) trait Calls: Send + core::fmt::Debug {
    /// Puts what stays or waits on the GPU there, ahead of the thread: nothing is taken of the GPU from then on.
    fn begin(&mut self) -> Result<(), Fault> {
        Ok(())
    }

    /// The thread begins.
    fn enter(&mut self) -> Result<(), Fault>;

    /// As [`Order::Submit`].
    fn submit(&mut self, slot: usize, count: usize) -> Result<(), Fault> {
        let _ = (slot, count);
        Ok(())
    }

    /// As [`Order::Reaped`].
    fn reaped(&mut self, slot: usize) -> Result<(), Fault> {
        let _ = slot;
        Ok(())
    }

    /// Whether nothing is left on the GPU.
    ///
    /// # Errors
    /// What has happened to the context: nothing of it can be used again.
    fn is_idle(&mut self) -> Result<bool, Fault>;
}

#[derive(Debug)]
struct Shared {
    orders: Box<[AtomicU64]>,
    /// Counts the orders given; the lcore's.
    posted: AtomicU64,
    /// Counts the orders carried out; the thread's.
    done: AtomicU64,
    sleeps: AtomicBool,
    is_over: AtomicBool,
    /// The last look found nothing on the GPU.
    is_idle: AtomicBool,
    has_failed: AtomicBool,
    fault: Mutex<Option<Fault>>,
}

/// The lcore's side.
#[derive(Debug)]
pub(super) struct Caller {
    shared: Arc<Shared>,
    thread: Thread,
}

/// How long the thread looks for the next order before it sleeps: waking it costs the lcore a system call.
const SPIN: Duration = Duration::from_micros(20);

impl Caller {
    /// Starts the thread, for at most `places` orders that wait.
    ///
    /// # Errors
    /// What pthread_create says, in one line.
    pub(super) fn start(calls: Box<dyn Calls>, places: usize) -> Result<Self, String> {
        let places = places.next_power_of_two();
        let shared = Arc::new(Shared {
            orders: (0..places).map(|_| AtomicU64::new(0)).collect(),
            posted: AtomicU64::new(0),
            done: AtomicU64::new(0),
            sleeps: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            is_idle: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
            fault: Mutex::new(None),
        });
        let theirs = Arc::clone(&shared);
        // Inherited: no signal of a program's is handled there.
        let saved = signals::block();
        let started = std::thread::Builder::new()
            .name("knet-gpu".to_owned())
            .spawn(move || theirs.serve(calls));
        signals::restore(&saved);
        let started =
            started.map_err(|error| format!("a thread for the driver's calls: {error}"))?;
        Ok(Self {
            thread: started.thread().clone(),
            shared,
        })
    }

    /// Gives an order; false: there is no place for it. Never waits.
    #[must_use]
    pub(super) fn post(&self, order: Order) -> bool {
        let shared = &*self.shared;
        let posted = shared.posted.load(Ordering::Relaxed);
        let waiting = posted - shared.done.load(Ordering::Acquire);
        if waiting >= shared.orders.len() as u64 {
            return false;
        }
        if let Some(place) = shared.place(posted) {
            place.store(order.word(), Ordering::Relaxed);
        }
        if order == Order::Look {
            shared.is_idle.store(false, Ordering::Relaxed);
        }
        // Release: pairs with the thread's acquire; the order lies in its place.
        shared.posted.store(posted + 1, Ordering::Release);
        // Pairs with the thread's: either it sees the order, or we see that it sleeps.
        fence(Ordering::SeqCst);
        if shared.sleeps.load(Ordering::Relaxed) {
            self.thread.unpark();
        }
        true
    }

    /// Whether an order has not been carried out yet.
    pub(super) fn is_busy(&self) -> bool {
        let posted = self.shared.posted.load(Ordering::Relaxed);
        posted != self.shared.done.load(Ordering::Acquire)
    }

    /// Whether the last look found nothing on the GPU.
    pub(super) fn is_idle(&self) -> bool {
        self.shared.is_idle.load(Ordering::Acquire)
    }

    /// Whether a call has failed; nothing is called any more.
    pub(super) fn has_failed(&self) -> bool {
        self.shared.has_failed.load(Ordering::Acquire)
    }

    /// What the call that failed has said, once.
    pub(super) fn fault(&self) -> Option<Fault> {
        // Acquire: pairs with the thread's release; it holds the lock no more.
        if !self.has_failed() {
            return None;
        }
        let fault = self.shared.fault.try_lock();
        fault.ok().and_then(|mut fault| fault.take())
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        self.thread.unpark();
    }
}

impl Shared {
    fn place(&self, number: u64) -> Option<&AtomicU64> {
        let mask = self.orders.len() - 1;
        self.orders.get(usize::try_from(number).unwrap_or(0) & mask)
    }

    fn serve(&self, mut calls: Box<dyn Calls>) {
        let mut said = calls.enter();
        loop {
            if let Err(fault) = said {
                self.fail(fault);
            }
            let Some((number, order)) = self.next() else {
                return;
            };
            // After a fault nothing is called: it stays with the context.
            said = if self.has_failed.load(Ordering::Relaxed) {
                Ok(())
            } else {
                self.carry_out(calls.as_mut(), order)
            };
            self.done.store(number + 1, Ordering::Release);
        }
    }

    fn carry_out(&self, calls: &mut dyn Calls, order: Order) -> Result<(), Fault> {
        match order {
            Order::Submit { slot, count } => calls.submit(slot, count),
            Order::Reaped { slot } => calls.reaped(slot),
            Order::Look => {
                let is_idle = calls.is_idle()?;
                self.is_idle.store(is_idle, Ordering::Release);
                Ok(())
            }
        }
    }

    fn fail(&self, fault: Fault) {
        let mut place = self.fault.lock().unwrap_or_else(PoisonError::into_inner);
        *place = Some(fault);
        drop(place);
        self.has_failed.store(true, Ordering::Release);
    }

    /// Waits for the next order; None: there will be none.
    fn next(&self) -> Option<(u64, Order)> {
        let number = self.done.load(Ordering::Relaxed);
        let is_there = || self.posted.load(Ordering::Acquire) != number;
        let spun = monotonic() + SPIN;
        while !is_there() {
            if self.is_over.load(Ordering::SeqCst) {
                return None;
            }
            if monotonic() < spun {
                std::thread::yield_now();
                continue;
            }
            self.sleeps.store(true, Ordering::Relaxed);
            // Pairs with the lcore's.
            fence(Ordering::SeqCst);
            if !is_there() && !self.is_over.load(Ordering::SeqCst) {
                std::thread::park();
            }
            self.sleeps.store(false, Ordering::Relaxed);
        }
        let word = self.place(number)?.load(Ordering::Relaxed);
        Some((number, Order::of(word)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};

    /// Tells what it is called for, and waits for leave before each answer.
    #[derive(Debug)]
    struct Told(Sender<Order>, Receiver<Result<bool, i32>>);

    impl Told {
        fn answer(&self, order: Order) -> Result<bool, Fault> {
            self.0.send(order).unwrap();
            self.1.recv().unwrap_or(Ok(true)).map_err(|code| Fault {
                call: "call",
                code,
                name: String::new(),
            })
        }
    }

    impl Calls for Told {
        fn enter(&mut self) -> Result<(), Fault> {
            Ok(())
        }

        fn submit(&mut self, slot: usize, count: usize) -> Result<(), Fault> {
            self.answer(Order::Submit { slot, count }).map(|_| ())
        }

        fn reaped(&mut self, slot: usize) -> Result<(), Fault> {
            self.answer(Order::Reaped { slot }).map(|_| ())
        }

        fn is_idle(&mut self) -> Result<bool, Fault> {
            self.answer(Order::Look)
        }
    }

    type Lab = (Caller, Receiver<Order>, Sender<Result<bool, i32>>);

    fn lab(places: usize) -> Lab {
        let (to, told) = channel();
        let (leave, from) = channel();
        let caller = Caller::start(Box::new(Told(to, from)), places).unwrap();
        (caller, told, leave)
    }

    fn wait(is_so: impl Fn() -> bool) {
        let began = monotonic();
        while !is_so() {
            assert!(monotonic().since(began) < Duration::from_secs(60));
            std::thread::yield_now();
        }
    }

    #[test]
    fn orders_are_carried_out_in_turn_and_nobody_waits_for_them() {
        let (caller, told, leave) = lab(4);
        let slot = 1_023;
        let orders = [
            Order::Submit { slot, count: 1_024 },
            Order::Reaped { slot },
            Order::Look,
            Order::Submit { slot: 0, count: 1 },
        ];
        for order in orders {
            assert!(caller.post(order));
        }
        assert!(!caller.post(Order::Look), "no place");
        assert!(caller.is_busy());
        for order in orders {
            assert_eq!(told.recv().unwrap(), order);
            leave.send(Ok(true)).unwrap();
        }
        wait(|| !caller.is_busy());
        assert!(caller.is_idle());
        // Asleep by now, or not: it hears of the next one.
        for _ in 0..100 {
            assert!(caller.post(Order::Look));
            assert_eq!(told.recv().unwrap(), Order::Look);
            leave.send(Ok(false)).unwrap();
            wait(|| !caller.is_busy());
            assert!(!caller.is_idle());
        }
        assert_eq!(caller.fault(), None);
    }

    #[test]
    fn a_fault_is_told_once_and_ends_the_calls() {
        let (caller, told, leave) = lab(4);
        assert!(caller.post(Order::Look));
        leave.send(Err(700)).unwrap();
        told.recv().unwrap();
        wait(|| !caller.is_busy());
        wait(|| caller.has_failed());
        assert_eq!(caller.fault().map(|fault| fault.code), Some(700));
        assert_eq!(caller.fault(), None);
        assert!(caller.post(Order::Look));
        wait(|| !caller.is_busy());
        assert!(told.try_recv().is_err(), "it was called");
    }

    #[test]
    fn a_call_that_does_not_return_is_left_behind() {
        let (caller, told, leave) = lab(4);
        assert!(caller.post(Order::Look));
        told.recv().unwrap();
        drop(caller);
        // Until now the thread was in its call.
        leave.send(Ok(true)).unwrap();
        assert!(told.recv().is_err(), "the thread goes on");
    }
}
