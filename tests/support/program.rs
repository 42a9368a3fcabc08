//! A program reduced to what the contract sees of it: it writes cells and rings, and rings bells.

use core::net::SocketAddrV4;
use std::os::fd::BorrowedFd;

use knet::channel::accept_ring::Queue;
use knet::channel::byte_ring;
use knet::channel::cell::{ObjectCell, kind, operation, process, shut};
use knet::channel::map::{Control, Receive};
use knet::channel::owner::Taken;
use knet::channel::sync::Ordering;
use knet::readiness;

/// Process id of cell 0; the others follow.
pub(crate) const PID: u32 = 1_000;

/// One process of a program family.
pub(crate) struct Program {
    pub(crate) control: Control,
    pub(crate) receive: Receive,
    pub(crate) cell: u32,
}

impl Program {
    /// Attaches to both kinds of channel memory as process cell `cell`.
    pub(crate) fn attach(control: BorrowedFd<'_>, receive: BorrowedFd<'_>, cell: u32) -> Self {
        let control = Control::attach(control).unwrap();
        let receive = Receive::attach(receive, control.layout()).unwrap();
        control.note_process(cell);
        let it = control.process(cell).unwrap();
        it.pid.store(PID + cell, Ordering::SeqCst);
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

    /// Takes an index of the program's half, of the first lcore's.
    pub(crate) fn claim(&self) -> u32 {
        self.claim_at(0)
    }

    /// Takes an index of the program's half, of this lcore's.
    pub(crate) fn claim_at(&self, lcore: u32) -> u32 {
        let share = self.control.layout().program_share(lcore);
        let object = self.control.taken().unwrap().claim(0, share).unwrap();
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
        (0..self.control.layout().lcores).find_map(|lcore| self.accept_at(listener, lcore))
    }

    fn queue(&self, listener: u32, lcore: u32) -> Option<Queue<'_>> {
        let entries = self.receive.accept_entries(listener, lcore)?;
        Queue::new(self.cell(listener), lcore, entries)
    }

    /// Accepts from the queue of one lcore.
    pub(crate) fn accept_at(&self, listener: u32, lcore: u32) -> Option<u32> {
        let queue = self.queue(listener, lcore)?;
        let front = queue.front()?;
        self.hold(front.object);
        assert!(queue.pop(front));
        let _ = readiness::ring_doorbell_at(&self.control, lcore, listener);
        Some(front.object)
    }

    pub(crate) fn send(&self, object: u32, bytes: &[u8]) -> usize {
        let cell = self.cell(object);
        let capacity = self.control.layout().tx_bytes(object);
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
        let capacity = self.control.layout().rx_bytes(object);
        let readable = byte_ring::readable(&cell.host, &cell.read, capacity, 0, want);
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

    /// As `accept`, for a program that may have forged its queue.
    pub(crate) fn accept_any(&self, listener: u32) -> Option<u32> {
        let queue = self.queue(listener, 0)?;
        let front = queue.front()?;
        self.hold(front.object);
        let popped = queue.pop(front);
        self.ring(listener);
        (popped && front.object < self.control.layout().objects).then_some(front.object)
    }

    /// As `send`, for a program that may have forged its positions.
    pub(crate) fn try_send(&self, object: u32, bytes: &[u8]) {
        let cell = self.cell(object);
        let capacity = self.control.layout().tx_bytes(object);
        if cell.write.tx_tail.load(Ordering::SeqCst) < 1 << 40 {
            let want = bytes.len() as u64;
            let range = byte_ring::reserve(&cell.host, &cell.write, capacity, want, false).range;
            self.control
                .tx_copy_in(object, range, &bytes[..range.len() as usize]);
            byte_ring::publish(&cell.write);
        }
        self.ring(object);
    }

    /// As `recv`, for a program that may have forged its positions.
    pub(crate) fn try_recv(&self, object: u32, want: u64) {
        let cell = self.cell(object);
        let capacity = self.control.layout().rx_bytes(object);
        let head = cell.read.rx_head.load(Ordering::SeqCst);
        if head < 1 << 40 {
            let readable = byte_ring::readable(&cell.host, &cell.read, capacity, 0, want);
            byte_ring::take(&cell.read, readable.head, readable.range.len());
        }
        self.ring(object);
    }

    pub(crate) fn shutdown_write(&self, object: u32) {
        let cell = self.cell(object);
        cell.write.shut.fetch_or(shut::WRITE, Ordering::Release);
        self.ring(object);
    }

    pub(crate) fn bits(&self, object: u32) -> u32 {
        readiness::bits(self.cell(object), self.control.layout().tx_bytes(object))
    }

    pub(crate) fn close(&self, object: u32) {
        self.control.held(self.cell).unwrap().clear(object);
        self.ring(object);
    }
}
