//! A host for tests: writes cells and rings as the lcore does, in the same process.

#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // small numbers

use core::net::SocketAddrV4;
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use crate::attach::link::Parts;
use crate::attach::{Link, Object};
use crate::channel::accept_ring::Queue;
use crate::channel::byte_ring::{self, Pending};
use crate::channel::cell::{ObjectCell, flag, kind, operation, process};
use crate::channel::layout::{LCORES_MAX, Layout};
use crate::channel::map::{Control, Receive};
use crate::channel::sync::{Ordering, fence};
use crate::ffi::descriptor;
use crate::{readiness, waiter};

/// Bytes of both rings.
pub(crate) const RING: u32 = 4_096;

/// The host's end.
pub(crate) struct Fake {
    /// The program's end.
    pub(crate) link: &'static Link,
    layout: Layout,
    receive: OwnedFd,
    /// The host's end of the control socket; dropped = the host is dead.
    control_socket: Option<OwnedFd>,
}

/// The waiter's counters live as long as the process: what tests raise is noted here.
impl Drop for Fake {
    fn drop(&mut self) {
        waiter::counters::COUNTERS.note_raised();
    }
}

impl Fake {
    pub(crate) fn new() -> Self {
        Self::of_lcores(1)
    }

    /// A host with so many lcores.
    pub(crate) fn of_lcores(lcores: u32) -> Self {
        Self::of(Layout::for_flows(1, RING, RING).with_lcores(lcores))
    }

    /// A host with such memory.
    pub(crate) fn of(layout: Layout) -> Self {
        let (control, _) = Control::create(layout).unwrap();
        let (receive, receive_fd) = Receive::create(layout).unwrap();
        control.note_process(0);
        let cell = control.process(0).unwrap();
        cell.state.store(process::LIVE, Ordering::Release);
        cell.pid.store(crate::thread::process(), Ordering::Relaxed);
        let (ours, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        let mut bells = [-1; LCORES_MAX as usize];
        for bell in bells.iter_mut().take(layout.lcores as usize) {
            let eventfd = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK);
            *bell = descriptor::raw(eventfd.unwrap());
        }
        let parts = Parts {
            control,
            receive,
            process: 0,
            control_socket: descriptor::raw(theirs),
            lcore_eventfds: bells,
            family: 0,
            registry: None,
        };
        Self {
            link: Box::leak(Box::new(Link::for_test(parts))),
            layout,
            receive: receive_fd,
            control_socket: Some(ours),
        }
    }

    pub(crate) fn cell(&self, object: Object) -> &'static ObjectCell {
        self.link.control.object(object.index).unwrap()
    }

    fn make(&self, index: u32, what: u32) -> Object {
        let cell = self.link.control.object(index).unwrap();
        cell.host.tx_backed.store(RING, Ordering::Relaxed);
        cell.host.kind.store(what, Ordering::Release);
        Object::at(self.link, index).unwrap()
    }

    /// A connected stream at `index`, held by nobody.
    pub(crate) fn stream(&self, index: u32) -> Object {
        self.make(index, kind::STREAM)
    }

    pub(crate) fn listener(&self, index: u32) -> Object {
        self.make(index, kind::LISTENER)
    }

    pub(crate) fn alert(&self, object: Object) {
        readiness::alert(
            &self.link.control,
            object.index,
            readiness::News::State,
            |slot| {
                waiter::wake(self.link, slot);
            },
        );
    }

    fn write(&self, index: u32, at: u64, bytes: &[u8]) {
        for (offset, byte) in (0..).zip(bytes) {
            let place = self.layout.rx_ring_at(index) + (at + offset) % u64::from(RING);
            rustix::io::pwrite(&self.receive, &[*byte], place).unwrap();
        }
    }

    /// Bytes from the peer.
    pub(crate) fn receive(&self, object: Object, bytes: &[u8]) {
        let cell = self.cell(object);
        let tail = cell.host.rx_tail.load(Ordering::Relaxed);
        let queued = tail - cell.read.rx_head.load(Ordering::Acquire);
        assert!(queued + bytes.len() as u64 <= u64::from(RING), "window");
        self.write(object.index, tail, bytes);
        cell.host
            .rx_tail
            .store(tail + bytes.len() as u64, Ordering::Release);
        self.alert(object);
    }

    /// FIN from the peer.
    pub(crate) fn finish(&self, object: Object) {
        let cell = self.cell(object);
        cell.host
            .flags
            .fetch_or(flag::RX_FINISHED, Ordering::Release);
        self.alert(object);
    }

    /// RST from the peer, or a time-out.
    pub(crate) fn fail(&self, object: Object, errno: i32) {
        let cell = self.cell(object);
        cell.host.error.store(errno as u32, Ordering::Release);
        cell.host
            .flags
            .fetch_or(flag::OVER | flag::TX_BROKEN, Ordering::Release);
        self.alert(object);
    }

    /// Takes up to `want` bytes out of the transmit ring, as egress does.
    pub(crate) fn sent(&self, object: Object, want: usize) -> Vec<u8> {
        let cell = self.cell(object);
        let head = cell.host.tx_head.load(Ordering::Relaxed);
        let backed = cell.host.tx_backed.load(Ordering::Relaxed);
        let Pending::Bytes(range) = byte_ring::pending(&cell.write, head, backed, RING) else {
            panic!("broken transmit ring")
        };
        let mut out = Vec::new();
        for span in [range.first, range.second] {
            let mut part = vec![0; span.len as usize];
            assert!(self.link.control.tx_copy_out(object.index, span, &mut part));
            out.extend(part);
        }
        out.truncate(want);
        cell.host
            .tx_head
            .store(head + out.len() as u64, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if cell.write.want_room.load(Ordering::SeqCst) == 1 && readiness::is_writable(cell, RING) {
            cell.write.want_room.store(0, Ordering::SeqCst);
            self.alert(object);
        }
        out
    }

    /// A connection of `peer` at object `index` waits at `listener`, in the queue of the lcore that the index belongs to.
    pub(crate) fn connection(&self, listener: Object, index: u32, peer: SocketAddrV4) {
        let stream = self.stream(index);
        let fact = &self.cell(stream).fact;
        fact.remote_address
            .store(peer.ip().to_bits(), Ordering::Relaxed);
        fact.remote_port
            .store(u32::from(peer.port()), Ordering::Relaxed);
        let lcore = self.layout.lcore_of(index);
        // The host's own mapping is writable: the queue is written by the same function as there.
        let cell = self.cell(listener);
        let entries = self.link.receive.accept_entries(listener.index, lcore);
        let queue = Queue::new(cell, lcore, entries.unwrap()).unwrap();
        assert!(queue.push(index));
        self.alert(listener);
    }

    /// The share of the host's indices that begins at the number returned belongs to `lcore`.
    pub(crate) fn first_of(&self, lcore: u32) -> u32 {
        self.layout.host_share(lcore).start
    }

    /// The lcores at which the bell of `object` rang.
    pub(crate) fn rang_at(&self, object: Object) -> Vec<u32> {
        let bells = |lcore| self.link.control.doorbells(lcore).unwrap();
        (0..self.layout.lcores)
            .filter(|lcore| bells(*lcore).clear(object.index))
            .collect()
    }

    /// Takes the bells that rang, and answers wishes: `answer` 0, or the errno of a refusal.
    pub(crate) fn bells(&self, answer: i32) -> Vec<u32> {
        let mut rung = Vec::new();
        for lcore in 0..self.layout.lcores {
            self.link
                .control
                .doorbells(lcore)
                .unwrap()
                .take(0, |index| {
                    rung.push(index);
                    true
                });
        }
        for &index in &rung {
            let cell = self.link.control.object(index).unwrap();
            let wish = cell.wish.wish.load(Ordering::Acquire);
            if wish == cell.host.answered.load(Ordering::Relaxed) {
                continue;
            }
            let what = match cell.wish.operation.load(Ordering::Relaxed) {
                operation::LISTEN => kind::LISTENER,
                _ => kind::CONNECTING,
            };
            cell.host.tx_backed.store(RING, Ordering::Relaxed);
            cell.host.kind.store(
                if answer == 0 { what } else { kind::FAILED },
                Ordering::Release,
            );
            for (to, from) in [
                (&cell.fact.local_address, &cell.wish.local_address),
                (&cell.fact.local_port, &cell.wish.local_port),
                (&cell.fact.remote_address, &cell.wish.remote_address),
                (&cell.fact.remote_port, &cell.wish.remote_port),
            ] {
                to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
            }
            cell.host.answer.store(answer as u32, Ordering::Release);
            cell.host.answered.store(wish, Ordering::Release);
            self.alert(Object::at(self.link, index).unwrap());
        }
        rung
    }

    /// Runs `call` while this thread is the lcore: `turn` runs until `call` has returned.
    pub(crate) fn while_serving<T: Send>(
        &self,
        call: impl FnOnce(&'static Link) -> T + Send,
        mut turn: impl FnMut(&Self),
    ) -> T {
        let link = self.link;
        std::thread::scope(|scope| {
            let caller = scope.spawn(move || call(link));
            while !caller.is_finished() {
                turn(self);
                std::thread::yield_now();
            }
            caller.join().unwrap()
        })
    }

    /// Whether a thread sleeps on the object.
    pub(crate) fn has_sleeper(&self, object: Object) -> bool {
        let mut found = false;
        self.cell(object).watch.slots.for_each(|slot| {
            let cell = self.link.control.slot(slot).unwrap();
            found |= cell.sleeping.load(Ordering::SeqCst) == 1;
        });
        found
    }

    /// Runs `call`, and `event` once as soon as the caller sleeps on `object`.
    pub(crate) fn once_asleep<T: Send>(
        &self,
        object: Object,
        call: impl FnOnce(&'static Link) -> T + Send,
        event: impl FnOnce(&Self),
    ) -> T {
        let mut event = Some(event);
        self.while_serving(call, |fake| {
            if fake.has_sleeper(object)
                && let Some(event) = event.take()
            {
                event(fake);
            }
        })
    }

    /// Messages that came on the control socket, taken out of it.
    pub(crate) fn messages(&self) -> usize {
        let socket = self.control_socket.as_ref().unwrap();
        let flags = rustix::net::RecvFlags::DONTWAIT;
        let mut bytes = [0; 4_096];
        core::iter::from_fn(|| rustix::net::recv(socket, &mut bytes, flags).ok()).count()
    }

    /// The host process is gone.
    pub(crate) fn die(&mut self) {
        self.control_socket = None;
    }
}
