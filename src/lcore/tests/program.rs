//! A program reduced to what the contract sees of it: it writes cells and rings, and rings bells.

use core::net::SocketAddrV4;
use std::os::fd::AsFd;

use crate::channel::accept_ring;
use crate::channel::byte_ring::{self, Range};
use crate::channel::cell::{ObjectCell, kind, operation, process, shut};
use crate::channel::map::{Control, Receive};
use crate::channel::owner::Taken;
use crate::channel::sync::Ordering;
use crate::lcore::Segments;
use crate::readiness;

/// One process of a program family.
pub(crate) struct Program {
    pub(crate) control: Control,
    pub(crate) receive: Receive,
    pub(crate) cell: u32,
}

impl Program {
    /// Attaches to `segments` as process cell `cell`.
    pub(crate) fn attach(segments: &Segments, cell: u32) -> Self {
        let control = Control::attach(segments.control_fd().as_fd()).unwrap();
        let receive = Receive::attach(segments.receive_fd().as_fd(), control.layout()).unwrap();
        Self::over(control, receive, cell)
    }

    pub(crate) fn over(control: Control, receive: Receive, cell: u32) -> Self {
        let it = control.process(cell).unwrap();
        it.pid.store(1_000 + cell, Ordering::SeqCst);
        it.state.store(process::LIVE, Ordering::SeqCst);
        Self {
            control,
            receive,
            cell,
        }
    }

    pub(crate) fn cell(&self, object: u32) -> &ObjectCell {
        self.control.object(object).unwrap()
    }

    /// Takes an index of the program's half.
    pub(crate) fn claim(&self) -> u32 {
        let half = self.control.layout().first_host_object();
        let object = self.control.taken().unwrap().claim(0, half).unwrap();
        self.hold(object);
        object
    }

    pub(crate) fn hold(&self, object: u32) {
        self.control.held(self.cell).unwrap().set(object);
    }

    pub(crate) fn ring(&self, object: u32) {
        let _ = readiness::ring_doorbell(&self.control, object);
    }

    fn wish(&self, object: u32, what: u32) {
        let cell = self.cell(object);
        cell.wish.operation.store(what, Ordering::Relaxed);
        cell.wish.wish.fetch_add(1, Ordering::Release);
        self.ring(object);
    }

    pub(crate) fn listen(&self, object: u32, local: SocketAddrV4, backlog: u32) {
        let wish = &self.cell(object).wish;
        wish.local_address
            .store(local.ip().to_bits(), Ordering::Relaxed);
        wish.local_port
            .store(u32::from(local.port()), Ordering::Relaxed);
        wish.backlog.store(backlog, Ordering::Relaxed);
        self.wish(object, operation::LISTEN);
    }

    pub(crate) fn connect(&self, object: u32, remote: SocketAddrV4) {
        let wish = &self.cell(object).wish;
        wish.remote_address
            .store(remote.ip().to_bits(), Ordering::Relaxed);
        wish.remote_port
            .store(u32::from(remote.port()), Ordering::Relaxed);
        self.wish(object, operation::CONNECT);
    }

    /// The answer to the last wish, once there is one.
    pub(crate) fn answer(&self, object: u32) -> Option<u32> {
        let cell = self.cell(object);
        let wish = cell.wish.wish.load(Ordering::Relaxed);
        (cell.host.answered.load(Ordering::Acquire) == wish)
            .then(|| cell.host.answer.load(Ordering::Relaxed))
    }

    pub(crate) fn kind(&self, object: u32) -> u32 {
        self.cell(object).host.kind.load(Ordering::Acquire)
    }

    pub(crate) fn is_free(&self, object: u32) -> bool {
        self.kind(object) == kind::FREE
    }

    pub(crate) fn accept(&self, listener: u32) -> Option<u32> {
        let cell = self.cell(listener);
        let entries = self.control.layout().accept_entries();
        let entries = self.receive.accept_entries(listener, entries)?;
        let front = accept_ring::front(&cell.host, &cell.read, entries)?;
        self.hold(front.object);
        assert!(accept_ring::pop(&cell.read, front));
        self.ring(listener);
        Some(front.object)
    }

    pub(crate) fn send(&self, object: u32, bytes: &[u8]) -> usize {
        let cell = self.cell(object);
        let capacity = self.control.layout().tx_ring_bytes;
        assert_eq!(cell.write.tx_owner.take(7), Taken::Owned);
        let want = bytes.len() as u64;
        let range = byte_ring::reserve(&cell.host, &cell.write, capacity, want, false).range;
        self.control
            .tx_copy_in(object, range, &bytes[..range.len() as usize]);
        cell.write
            .tx_owner
            .release(7, || byte_ring::publish(&cell.write));
        if u64::from(range.len()) < want {
            cell.write.want_room.store(1, Ordering::SeqCst);
        }
        self.ring(object);
        range.len() as usize
    }

    pub(crate) fn recv(&self, object: u32, want: u64) -> Vec<u8> {
        let cell = self.cell(object);
        let capacity = self.control.layout().rx_ring_bytes;
        let readable = byte_ring::readable(&cell.host, &cell.read, capacity, 0, want);
        let Range { .. } = readable.range;
        let mut bytes = vec![0; readable.range.len() as usize];
        assert!(self.receive.copy_out(object, readable.range, &mut bytes));
        assert!(byte_ring::take(
            &cell.read,
            readable.head,
            readable.range.len()
        ));
        if !bytes.is_empty() {
            self.ring(object);
        }
        bytes
    }

    pub(crate) fn shutdown_write(&self, object: u32) {
        let cell = self.cell(object);
        cell.write.shut.fetch_or(shut::WRITE, Ordering::Release);
        self.ring(object);
    }

    pub(crate) fn bits(&self, object: u32) -> u32 {
        readiness::bits(self.cell(object), self.control.layout().tx_ring_bytes)
    }

    pub(crate) fn close(&self, object: u32) {
        self.control.held(self.cell).unwrap().clear(object);
        self.ring(object);
    }
}
