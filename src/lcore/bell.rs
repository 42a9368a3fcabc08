//! What a doorbell means: the whole cell is looked at, and what differs from the record is carried out.

use core::net::{Ipv4Addr, SocketAddrV4};

use super::family::Work;
use super::listen::Answer;
use super::object::{Record, Role, Token};
use super::segments::PAGE;
use crate::channel::cell::{ObjectCell, flag, kind, operation, option, shut};
use crate::channel::sync::{AtomicU32, Ordering};
use crate::errno::{Errno, Result};
use crate::stack::{ConnectRequest, FlowOptions, SEGMENT_MIN, SaveSyn};

impl<'a> Work<'a> {
    /// The doorbell of `object` rang.
    pub(super) fn bell(&mut self, object: u32) {
        let Some(cell) = self.cell(object) else {
            return;
        };
        if !self.is_ours(object) {
            // A listener, of which we fill a queue.
            return self.pops(object);
        }
        if !self.is_in_use(object) {
            return;
        }
        self.wish(object, cell);
        self.options(object, cell);
        self.answer_info(object, cell);
        let Some(record) = self.records.at_mut(object).copied() else {
            return;
        };
        match record.role {
            Role::Flow(flow) => {
                if let Some(queued) = record.queued {
                    self.pops(queued.listener);
                }
                if record.connecting && cell.write.shut.load(Ordering::Relaxed) & shut::READ != 0 {
                    self.disconnect(object, cell, flow);
                } else {
                    self.pull(object, flow);
                }
            }
            Role::Listener(listener) => {
                self.pops(object);
                if cell.write.shut.load(Ordering::Relaxed) & shut::READ != 0 {
                    // It may listen again; nothing is wrong with it (Linux inet_shutdown).
                    self.unlisten(object, listener);
                    cell.wish.told.store(1, Ordering::Relaxed);
                    cell.host.kind.store(kind::FAILED, Ordering::Release);
                    self.alert(object);
                }
            }
            Role::Idle | Role::Over => {}
        }
        self.let_go(object);
    }

    /// Whether the index was handed out: by us, or by the program in its `taken` map.
    pub(super) fn is_in_use(&self, object: u32) -> bool {
        if object >= self.segments.layout().first_host_object() {
            return self.shared.memory.is_known(self.owner, object);
        }
        self.segments
            .control
            .taken()
            .is_some_and(|taken| taken.has(object))
    }

    /// Whether `object` belongs to this lcore.
    pub(super) const fn is_ours(&self, object: u32) -> bool {
        self.segments.control.lcore_of(object) == self.shared.me
    }

    /// Whether the program hands the index out.
    pub(super) const fn is_program_share(&self, object: u32) -> bool {
        object < self.segments.layout().first_host_object()
    }

    /// Whether the program asks something of `object` that is not answered.
    pub(super) fn asks(&self, object: u32) -> bool {
        let done = self.records.at(object).map_or(0, |record| record.wish);
        self.cell(object)
            .is_some_and(|cell| cell.wish.wish.load(Ordering::Relaxed) != done)
    }

    fn wish(&mut self, object: u32, cell: &ObjectCell) {
        // Acquire: the fields of the wish are written before its number.
        let wish = cell.wish.wish.load(Ordering::Acquire);
        let Some(record) = self.records.at_mut(object) else {
            return;
        };
        // While other lcores have something to do for the last one, it comes again when they are done.
        if record.wish == wish || record.waits > 0 {
            return;
        }
        record.wish = wish;
        let done = match cell.wish.operation.load(Ordering::Relaxed) {
            operation::LISTEN => self.listen(object, cell),
            operation::CONNECT => self.connect(object, cell).map(|()| Answer::Now),
            _ => Err(Errno::INVAL),
        };
        match done {
            Ok(Answer::Later) => {
                if let Some(record) = self.records.at_mut(object) {
                    record.owes_answer = true;
                }
            }
            Ok(Answer::Now) => self.answer(object, cell, wish, Ok(())),
            Err(errno) => self.answer(object, cell, wish, Err(errno)),
        }
    }

    /// Answers a wish.
    pub(super) fn answer(&mut self, object: u32, cell: &ObjectCell, wish: u32, done: Result<()>) {
        let answer = done.err().map_or(0, errno_number);
        if answer != 0 {
            self.shared.counters.wishes_refused.raise();
        }
        cell.host.answer.store(answer, Ordering::Relaxed);
        // Release: the answer and the new kind are there before the number says so.
        cell.host.answered.store(wish, Ordering::Release);
        self.alert(object);
    }

    fn connect(&mut self, object: u32, cell: &ObjectCell) -> Result<()> {
        let record = *self.records.at_mut(object).ok_or(Errno::INVAL)?;
        match record.role {
            Role::Idle if self.is_program_share(object) => {}
            // After a refused attempt nothing has passed, and the object may be used again.
            Role::Over if record.rx_tail == 0 && record.tx_head == 0 && !record.closing => {
                cell.host.flags.store(0, Ordering::Release);
            }
            // The program has seen it fail, or has given it up by a shutdown that we have not seen yet.
            Role::Flow(flow)
                if (record.connecting || record.flags & flag::OVER != 0)
                    && record.rx_tail == 0
                    && record.tx_head == 0 =>
            {
                let shared = &mut self.shared;
                shared
                    .stack
                    .forget(self.now, flow, shared.memory, shared.tx);
                cell.host.flags.store(0, Ordering::Release);
            }
            Role::Flow(_) => return Err(Errno::ALREADY),
            _ => return Err(Errno::INVAL),
        }
        let remote = endpoint(&cell.wish.remote_address, &cell.wish.remote_port)?;
        let local_address = Ipv4Addr::from_bits(cell.wish.local_address.load(Ordering::Relaxed));
        let local_port = port(&cell.wish.local_port)?;
        // From here on nobody else takes the object's memory.
        self.shared.memory.want(self.owner, Some(object));
        if !self.shared.memory.back_transmit(self.owner, object, PAGE) {
            self.shared.memory.want(self.owner, None);
            return self.refused(cell, Errno::NOBUFS);
        }
        let request = ConnectRequest {
            local_address: (!local_address.is_unspecified()).then_some(local_address),
            local_port: (local_port != 0).then_some(local_port),
            remote,
            owner: self.owner,
            token: self.token(object),
            options: options_of(cell),
        };
        let shared = &mut self.shared;
        let connected = shared
            .stack
            .connect(self.now, &request, shared.memory, shared.tx);
        shared.memory.want(self.owner, None);
        let (flow, local) = match connected {
            Ok(connected) => connected,
            Err(errno) => return self.refused(cell, errno),
        };
        if record.role == Role::Idle {
            *self.busy += 1;
        }
        let record = self.records.at_mut(object).ok_or(Errno::INVAL)?;
        *record = Record {
            role: Role::Flow(flow),
            wish: record.wish,
            options: cell.option.changed.load(Ordering::Acquire),
            connecting: true,
            ..Record::default()
        };
        let capacity = self.segments.layout().tx_bytes(object);
        record.note_options(cell, capacity);
        cell.host.flags.store(record.flags, Ordering::Release);
        self.shared.counters.flows_connected.raise();
        store_endpoint(local, &cell.fact.local_address, &cell.fact.local_port);
        store_endpoint(remote, &cell.fact.remote_address, &cell.fact.remote_port);
        cell.host.kind.store(kind::CONNECTING, Ordering::Release);
        Ok(())
    }

    /// Marks a wish that ended the object's hopes.
    pub(super) fn refused<T>(&self, cell: &ObjectCell, errno: Errno) -> Result<T> {
        cell.host
            .error
            .store(errno_number(errno), Ordering::Release);
        cell.host.kind.store(kind::FAILED, Ordering::Release);
        Err(errno)
    }

    pub(super) const fn token(&self, object: u32) -> u32 {
        Token {
            owner: self.owner,
            object,
        }
        .pack()
    }

    fn options(&mut self, object: u32, cell: &ObjectCell) {
        // Acquire: the options are written before the number is raised.
        let changed = cell.option.changed.load(Ordering::Acquire);
        let Some(record) = self.records.at_mut(object) else {
            return;
        };
        if record.options == changed {
            return;
        }
        record.options = changed;
        record.note_options(cell, self.segments.layout().tx_bytes(object));
        cell.host.flags.store(record.flags, Ordering::Release);
        match record.role {
            Role::Flow(flow) => self.shared.stack.set_options(flow, &options_of(cell)),
            Role::Listener(id) => self.listener_options(object, id, &options_of(cell)),
            Role::Idle | Role::Over => {}
        }
    }
}

/// Options as the stack takes them.
pub(super) fn options_of(cell: &ObjectCell) -> FlowOptions {
    let of = |word: &AtomicU32| word.load(Ordering::Relaxed);
    let bits = of(&cell.option.bits);
    let byte = |word: &AtomicU32| u8::try_from(of(word)).unwrap_or(u8::MAX);
    let word = |word: &AtomicU32| u16::try_from(of(word)).unwrap_or(u16::MAX);
    FlowOptions {
        nodelay: bits & option::NODELAY != 0,
        keepalive: bits & option::KEEPALIVE != 0,
        keepidle_s: word(&cell.option.keepidle_s),
        keepintvl_s: word(&cell.option.keepintvl_s),
        keepcnt: byte(&cell.option.keepcnt),
        user_timeout_ms: of(&cell.option.user_timeout_ms),
        rx_bytes: of(&cell.option.rcvbuf),
        window_kib: window_kib(of(&cell.option.rcvbuf)),
        max_segment: max_segment(of(&cell.option.max_segment)),
        tos: u8::try_from(of(&cell.option.tos) & 0xff).unwrap_or(0),
        ttl: byte(&cell.option.ttl),
        min_ttl: byte(&cell.option.min_ttl),
        syn_count: byte(&cell.option.syn_count),
        linger2_s: linger2(of(&cell.option.linger2_s)),
        defer_accept_s: word(&cell.option.defer_accept_s),
        receive_errors: bits & option::RECEIVE_ERRORS != 0,
        save_syn: match (bits & option::SAVE_SYN, bits & option::SAVE_SYN_LINK) {
            (0, _) => SaveSyn::Nothing,
            (_, 0) => SaveSyn::Packet,
            _ => SaveSyn::Frame,
        },
    }
}

/// The window of an SO_RCVBUF as the kernel reports it: half of it, as with `tcp_adv_win_scale` 1 (tcp_win_from_space), and no less than
/// lets a reader that tells of each KiB keep it open. 0 = nobody asked, or there is no such ring.
fn window_kib(reported: u32) -> u16 {
    match reported {
        0 => 0,
        bytes => u16::try_from(bytes / 2 / 1_024).map_or(0, |window| window.max(WINDOW_KIB_MIN)),
    }
}

/// The smallest window that a program can ask for.
const WINDOW_KIB_MIN: u16 = 2;

/// TCP_LINGER2 as the stack takes it: Linux allows two minutes at most.
fn linger2(word: u32) -> i16 {
    i16::try_from(i32::from_ne_bytes(word.to_ne_bytes())).unwrap_or(0)
}

/// TCP_MAXSEG as the stack takes it: 0 = as large as fits. The program is asked for more than this; its memory may say anything.
fn max_segment(word: u32) -> u16 {
    match u16::try_from(word).unwrap_or(u16::MAX) {
        0 => 0,
        wanted => wanted.max(SEGMENT_MIN),
    }
}

/// An errno as the cell carries it.
pub(super) fn errno_number(errno: Errno) -> u32 {
    errno.raw_os_error().unsigned_abs()
}

fn port(word: &AtomicU32) -> Result<u16> {
    u16::try_from(word.load(Ordering::Relaxed)).map_err(|_| Errno::INVAL)
}

pub(super) fn endpoint(address: &AtomicU32, number: &AtomicU32) -> Result<SocketAddrV4> {
    let address = Ipv4Addr::from_bits(address.load(Ordering::Relaxed));
    Ok(SocketAddrV4::new(address, port(number)?))
}

pub(super) fn store_endpoint(endpoint: SocketAddrV4, address: &AtomicU32, port: &AtomicU32) {
    address.store(endpoint.ip().to_bits(), Ordering::Relaxed);
    port.store(u32::from(endpoint.port()), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_what_the_kernel_reports_is_window() {
        assert_eq!(window_kib(0), 0, "the ring's");
        assert_eq!(window_kib(131_072), 64);
        assert_eq!(window_kib(2_304), WINDOW_KIB_MIN);
        assert_eq!(window_kib(u32::MAX), 0, "the ring's");
    }

    #[test]
    fn a_segment_size_that_no_program_may_ask_for_is_not_believed() {
        assert_eq!(max_segment(0), 0, "as large as fits");
        assert_eq!(max_segment(1), SEGMENT_MIN);
        assert_eq!(max_segment(536), 536);
        assert_eq!(max_segment(u32::MAX), u16::MAX);
    }
}
