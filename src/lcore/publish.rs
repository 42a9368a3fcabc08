//! What the program is told: facts of its flows, edges where Linux would wake, accepted flows.

use super::bell::{errno_number, options_of, store_endpoint};
use super::family::Work;
use super::listen::low;
use super::object::{Queued, Record, Role, Token};
use super::segments::PAGE;
use crate::channel::byte_ring;
use crate::channel::cell::{ObjectCell, flag, kind, option, shut};
use crate::channel::sync::{AtomicU32, Ordering};
use crate::gpu::Verdict;
use crate::id::{FlowId, ListenerId};
use crate::readiness::News;
use crate::stack::{Close, Facts, FlowState, UrgentMark};

impl Work<'_> {
    /// A passive flow is established: it gets its cell and goes into the listener's queue.
    pub(super) fn accepted(&mut self, listener_object: u32, listener: ListenerId, flow: FlowId) {
        // What the program has taken makes room in the queue.
        self.pops(listener_object);
        let stack = &self.shared.stack;
        let (Some(facts), Some(opening)) = (stack.facts(flow), stack.opening(flow)) else {
            return;
        };
        let is_listening = self
            .records
            .at(listener_object)
            .is_some_and(|record| record.role == Role::Listener(listener));
        if !is_listening {
            return self.refuse(flow);
        }
        let object = facts.ring;
        if !self.shared.memory.back_transmit(self.owner, object, PAGE) {
            self.shared.counters.flows_refused_no_memory.raise();
            return self.refuse(flow);
        }
        let (Some(cell), Some(from)) = (self.cell(object), self.cell(listener_object)) else {
            return self.refuse(flow);
        };
        inherit(from, cell);
        cell.fact.listener.store(listener_object, Ordering::Relaxed);
        cell.fact
            .peer_ttl
            .store(opening.ttl.into(), Ordering::Relaxed);
        store_endpoint(facts.local, &cell.fact.local_address, &cell.fact.local_port);
        store_endpoint(
            facts.remote,
            &cell.fact.remote_address,
            &cell.fact.remote_port,
        );
        let tx_bytes = self.segments.layout().tx_bytes(object);
        let position = self
            .records
            .at(listener_object)
            .map_or(0, |listener| listener.rx_tail);
        let Some(record) = self.records.at_mut(object) else {
            return self.refuse(flow);
        };
        *record = Record {
            role: Role::Flow(flow),
            options: cell.option.changed.load(Ordering::Relaxed),
            queued: Some(Queued {
                listener: listener_object,
                position,
            }),
            ..Record::default()
        };
        record.note_options(cell, tx_bytes);
        if opening.syn_saved {
            record.flags |= flag::SYN_SAVED;
        }
        cell.host.flags.store(record.flags, Ordering::Release);
        *self.busy += 1;
        self.shared.memory.make_known(self.owner, object);
        self.shared.stack.set_token(flow, self.token(object));
        self.shared.stack.set_options(flow, &options_of(from));
        cell.host.kind.store(kind::STREAM, Ordering::Release);
        self.tell(object, cell, &facts);
        // The stack admits no more than fit; should it ever, the flow has no place.
        if !self.push(listener_object, object) {
            self.shared.counters.flows_refused_no_memory.raise();
            if let Some(record) = self.records.at_mut(object) {
                record.queued = None;
                record.closed = true;
                record.closing = true;
            }
            return self.shared.stack.close(self.now, flow, Close::Abort);
        }
        self.shared.counters.flows_handed_over.raise();
        self.alert_of(listener_object, News::Arrived);
        self.note_offer(listener_object);
    }

    /// Puts `object` into our queue of a listener; false when there is no room. As [`Queue::push`], with our own idea of both
    /// positions.
    ///
    /// [`Queue::push`]: crate::channel::accept_ring::Queue::push
    fn push(&mut self, listener: u32, object: u32) -> bool {
        let Some(record) = self.records.at(listener).copied() else {
            return false;
        };
        let tail = record.rx_tail;
        let entries = self.segments.layout().accept_entries();
        let Some(queue) = self
            .queue(listener)
            .filter(|_| tail - record.rx_head < u64::from(entries))
        else {
            return false;
        };
        queue.push_at(low(tail), object);
        if let Some(record) = self.records.at_mut(listener) {
            record.rx_tail = tail + 1;
        }
        true
    }

    /// Resets a flow that no program will hear of.
    fn refuse(&mut self, flow: FlowId) {
        self.shared.stack.close(self.now, flow, Close::Abort);
    }

    /// The facts of a flow changed.
    pub(super) fn changed(&mut self, object: u32, flow: FlowId) {
        if !self.is_flow(object, flow) {
            return;
        }
        let (Some(cell), Some(facts)) = (self.cell(object), self.shared.stack.facts(flow)) else {
            return;
        };
        if let Some(news) = self.tell(object, cell, &facts) {
            self.alert_of(object, news);
        }
        let closing = self.records.at(object).is_some_and(|record| record.closing);
        if closing {
            self.let_go(object);
        } else if !self.is_level(object, cell) {
            self.pull(object, flow);
        }
    }

    /// Whether [`Work::pull`] would find nothing to move: the program has written and read nothing since the last time, which is
    /// so for most of what comes in, and what it does next rings. What acknowledgements make room for matters to limits only.
    fn is_level(&self, object: u32, cell: &ObjectCell) -> bool {
        let Some(record) = self.records.at(object) else {
            return false;
        };
        self.is_grounded()
            && !record.connecting
            && cell.host.flags.load(Ordering::Relaxed) & flag::LIMITED == 0
            && cell.write.shut.load(Ordering::Relaxed) == 0
            && cell.write.tx_tail.load(Ordering::Acquire) == record.tx_head
            && cell.read.rx_head.load(Ordering::Acquire) == record.rx_head
    }

    /// A flow is over. Bytes not read yet stay in its ring.
    pub(super) fn gone(&mut self, object: u32, flow: FlowId) {
        if !self.is_flow(object, flow) {
            return;
        }
        let Some(cell) = self.cell(object) else {
            return;
        };
        self.tell_rest(object, cell, flow);
        let mut connecting = false;
        if let Some(record) = self.records.at_mut(object) {
            connecting = core::mem::take(&mut record.connecting);
            record.role = Role::Over;
            record.flags |= flag::OVER | flag::TX_BROKEN;
            cell.host.flags.store(record.flags, Ordering::Release);
        }
        if connecting {
            cell.host.kind.store(kind::FAILED, Ordering::Release);
        }
        cell.fact
            .tcp_state
            .store(FlowState::Closed as u32, Ordering::Relaxed);
        self.alert(object);
        self.let_go(object);
    }

    /// A flow ends while bytes of it are with the GPU: they are judged now, and told.
    fn tell_rest(&mut self, object: u32, cell: &ObjectCell, flow: FlowId) {
        let Some(record) = self.records.at(object).copied() else {
            return;
        };
        if record.rx_seen <= record.rx_tail || self.shared.stage.is_none() || record.closed {
            return;
        }
        let (verdict, end) = self.judge_rest(object, flow, &record);
        if verdict == Verdict::Reset {
            return self.denied(object, cell, flow);
        }
        if let Some(record) = self.records.at_mut(object) {
            record.rx_tail = end;
        }
        // Release: the bytes before it are in the ring.
        cell.host.rx_tail.store(end, Ordering::Release);
    }

    fn is_flow(&self, object: u32, flow: FlowId) -> bool {
        self.records
            .at(object)
            .is_some_and(|record| record.role == Role::Flow(flow))
    }

    /// Says where the peer's urgent byte lies, before that byte counts as received. Whether that is news.
    #[cold]
    fn tell_mark(&mut self, object: u32, cell: &ObjectCell, mark: UrgentMark) -> bool {
        let Some(record) = self.records.at_mut(object) else {
            return false;
        };
        if record.mark == mark.end {
            return false;
        }
        record.mark = mark.end;
        // Release: who sees the flag sees the place, and who sees the byte sees the flag.
        cell.fact.urgent.store(mark.end, Ordering::Release);
        record.flags |= flag::URGENT;
        cell.host.flags.store(record.flags, Ordering::Release);
        self.summons.note(object, true);
        true
    }

    /// Writes the facts into the cell; says for what Linux would wake a waiter.
    fn tell(&mut self, object: u32, cell: &ObjectCell, facts: &Facts) -> Option<News> {
        let marked = facts.urgent.end != 0 && self.tell_mark(object, cell, facts.urgent);
        let record = self.records.at_mut(object)?;
        let mut news = None;
        let mut told = facts.rx_total;
        if facts.rx_total > record.rx_tail {
            if let Role::Flow(flow) = record.role
                && is_shut_both_ways(cell)
            {
                // Nobody will read them: the peer must know (tcp_rcv_state_process, RFC 1122 section 4.2.2.13).
                self.denied(object, cell, flow);
                return None;
            }
            if self.shared.stage.is_some() {
                // The end of a flow is told once: nothing may come behind it. A good end waits for bytes that no CPU can judge.
                let at_once =
                    is_over(facts) && (facts.error.is_some() || !self.needs_gpu(object, facts));
                let (verdict, end) = self.judge_received(object, facts, at_once);
                if verdict == Verdict::Reset {
                    if let Role::Flow(flow) =
                        self.records.at(object).map_or(Role::Idle, |it| it.role)
                    {
                        self.denied(object, cell, flow);
                    }
                    return None;
                }
                told = end;
                self.tell_payload_mark(object, cell);
            }
            let record = self.records.at_mut(object)?;
            record.rx_seen = facts.rx_total;
            if told > record.rx_tail {
                record.rx_tail = told;
                if record.stamped {
                    cell.fact.arrived_ns.store(wall_clock(), Ordering::Relaxed);
                }
                // Release: the bytes before it are in the ring.
                cell.host.rx_tail.store(told, Ordering::Release);
                news = Some(News::Arrived);
                let token = Token {
                    owner: self.owner,
                    object,
                };
                self.shared.latency.arrived(token, told);
            }
        }
        if marked {
            overtake(cell, facts);
        }
        let record = self.records.at_mut(object)?;
        cell.host.tx_acked.store(facts.tx_acked, Ordering::Release);
        if let Some(errno) = facts.error
            && !record.error_told
        {
            record.error_told = true;
            cell.host
                .error
                .store(errno_number(errno), Ordering::Release);
            news = Some(News::State);
        }
        let soft = facts.soft_error.map_or(0, errno_number);
        if soft != record.soft_error {
            record.soft_error = soft;
            if soft != 0 {
                cell.host.error.store(soft, Ordering::Release);
                news = Some(News::State);
            }
        }
        // After the positions: a FIN seen is behind all its bytes.
        let mut flags = record.flags | flags_of(facts);
        if told < facts.rx_total {
            // The GPU has bytes ahead of it.
            flags &= !(flag::RX_FINISHED | flag::OVER) | record.flags;
        }
        if flags != record.flags {
            record.flags = flags;
            cell.host.flags.store(flags, Ordering::Release);
            news = Some(News::State);
        }
        if record.connecting
            && facts.state != FlowState::SynSent
            && facts.state != FlowState::SynReceived
        {
            record.connecting = false;
            let failed = facts.error.is_some() || facts.state == FlowState::Closed;
            let what = if failed { kind::FAILED } else { kind::STREAM };
            cell.host.kind.store(what, Ordering::Release);
            news = Some(News::State);
        }
        let fact = &cell.fact;
        fact.tcp_state.store(facts.state as u32, Ordering::Relaxed);
        fact.srtt_us.store(facts.srtt_us, Ordering::Relaxed);
        fact.retransmits.store(facts.retransmits, Ordering::Relaxed);
        fact.mss.store(u32::from(facts.mss), Ordering::Relaxed);
        fact.unsent.store(facts.unsent, Ordering::Relaxed);
        news
    }
}

/// The time that SO_TIMESTAMP tells, in nanoseconds since 1970; never 0.
#[cold]
fn wall_clock() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(now.tv_nsec).unwrap_or(0);
    seconds
        .saturating_mul(1_000_000_000)
        .saturating_add(nanos)
        .max(1)
}

/// Steps over an urgent byte that nobody took, where reading stands before it and a newer one came (Linux tcp_check_urg).
#[cold]
fn overtake(cell: &ObjectCell, facts: &Facts) {
    let end = facts.urgent.overtaken;
    let inline = cell.option.bits.load(Ordering::Relaxed) & option::OOB_INLINE != 0;
    if end != 0 && end <= facts.rx_total && !inline {
        // Fails when reading stands elsewhere.
        byte_ring::take(&cell.read, end - 1, 1);
    }
}

/// The program has ended both ways by shutdown(2).
fn is_shut_both_ways(cell: &ObjectCell) -> bool {
    let both = shut::READ | shut::WRITE;
    cell.write.shut.load(Ordering::Relaxed) & both == both
}

/// The flow neither sends nor receives any more.
fn is_over(facts: &Facts) -> bool {
    facts.error.is_some() || matches!(facts.state, FlowState::Closed | FlowState::TimeWait)
}

fn flags_of(facts: &Facts) -> u32 {
    let mut flags = 0;
    if facts.rx_finished {
        flags |= flag::RX_FINISHED;
    }
    if facts.tx_finished {
        flags |= flag::TX_FINISHED;
    }
    if facts.error.is_some() {
        flags |= flag::TX_BROKEN | flag::OVER;
    }
    if is_over(facts) {
        flags |= flag::OVER;
    }
    flags
}

/// What a new connection takes over from its listener (Linux sk_clone): options, time-outs, linger. The program does not know
/// the cell yet, so its lines may be written here.
fn inherit(from: &ObjectCell, to: &ObjectCell) {
    let copy = |from: &AtomicU32, to: &AtomicU32| {
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    };
    let (listener, flow) = (&from.option, &to.option);
    copy(&listener.changed, &flow.changed);
    copy(&listener.bits, &flow.bits);
    copy(&listener.keepidle_s, &flow.keepidle_s);
    copy(&listener.keepintvl_s, &flow.keepintvl_s);
    copy(&listener.keepcnt, &flow.keepcnt);
    copy(&listener.user_timeout_ms, &flow.user_timeout_ms);
    copy(&listener.rcvbuf, &flow.rcvbuf);
    copy(&listener.sndbuf, &flow.sndbuf);
    copy(&listener.max_segment, &flow.max_segment);
    copy(&listener.tos, &flow.tos);
    copy(&listener.ttl, &flow.ttl);
    copy(&listener.min_ttl, &flow.min_ttl);
    copy(&listener.syn_count, &flow.syn_count);
    copy(&listener.linger2_s, &flow.linger2_s);
    copy(&listener.defer_accept_s, &flow.defer_accept_s);
    copy(&listener.notsent_lowat, &flow.notsent_lowat);
    copy(&from.wish.linger, &to.wish.linger);
    copy(&from.read.rcvlowat, &to.read.rcvlowat);
    copy(&from.read.peek_offset, &to.read.peek_offset);
    to.read.rcvtimeo_us.store(
        from.read.rcvtimeo_us.load(Ordering::Relaxed),
        Ordering::Relaxed,
    );
    to.read.sndtimeo_us.store(
        from.read.sndtimeo_us.load(Ordering::Relaxed),
        Ordering::Relaxed,
    );
}
