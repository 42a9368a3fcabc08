//! What TCP_INFO tells of a connection: the host is asked, and answers within a turn.

use core::time::Duration;

use super::{state, stream};
use crate::attach::{Link, Object};
use crate::channel::cell::{AnswerCell, ObjectCell, SYN_BYTES, flag};
use crate::channel::sync::{AtomicU32, Ordering};
use crate::errno::{Errno, Result};
use crate::readiness;
use crate::time::monotonic;

/// The numbers behind TCP_INFO.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Info {
    /// [`crate::stack::FlowState`] as a number.
    pub state: u32,
    /// Smoothed round-trip time in microseconds.
    pub srtt_us: u32,
    /// Segments sent again.
    pub retransmits: u32,
    /// Segment size towards the peer in bytes.
    pub mss: u32,
    /// Bytes written and not acknowledged.
    pub unacked_bytes: u64,
    /// Bytes received and not read.
    pub unread_bytes: u64,
    /// Bytes that the peer has acknowledged.
    pub acked: u64,
    /// Bytes received.
    pub received: u64,
    /// Bytes sent and not acknowledged.
    pub in_flight: u32,
    /// Bytes written that have not left yet.
    pub unsent: u64,
    /// Segments sent.
    pub segments: u32,
    /// Milliseconds since the peer's last segment.
    pub silent_ms: u32,
    /// The path's MTU in bytes.
    pub mtu: u32,
    /// The receive window that we have advertised last, in bytes, and the scale of its field.
    pub window: u32,
    /// See [`Info::window`].
    pub window_shift: u32,
    /// Bytes of the receive ring.
    pub ring: u32,
    /// Bytes of it that have memory.
    pub backed: u32,
    /// The congestion window in bytes when it was in the way last; 0 = it never was.
    pub congestion_window: u32,
    /// Mean deviation of the round-trip time in microseconds.
    pub rttvar_us: u32,
    /// Retransmission time-out in microseconds.
    pub rto_us: u32,
    /// The slow start threshold in bytes; None: nothing was ever lost.
    pub slow_start_threshold: Option<u32>,
    /// Segments sent that had bytes.
    pub data_segments: u32,
    /// Segments received.
    pub came: u32,
    /// Of those, with bytes.
    pub data_came: u32,
    /// Bytes sent again.
    pub again_bytes: u32,
    /// Milliseconds since bytes left last, or since the connection began.
    pub quiet_ms: u32,
    /// The smallest round-trip time in microseconds; None: none is known.
    pub min_rtt_us: Option<u32>,
    /// Retransmission time-outs in a row.
    pub backoff: u32,
    /// The peer's receive window in bytes, and the scale of its field.
    pub peer_window: (u32, u32),
}

/// The headers of a SYN that the host has kept.
#[derive(Debug)]
pub struct SavedSyn<'a> {
    answer: &'a AnswerCell,
    bytes: [u8; SYN_BYTES],
    count: usize,
}

impl SavedSyn<'_> {
    /// They are.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.count).unwrap_or(&self.bytes)
    }

    /// They are given out once (tcp_saved_syn_free).
    pub fn take(self) {
        self.answer.syn_bytes.store(0, Ordering::Relaxed);
    }
}

/// What TCP_SAVED_SYN gives; None when nothing was kept, or somebody has taken it.
///
/// # Errors
/// EBADF for a handle that is no more.
pub fn saved_syn(link: &Link, object: Object) -> Result<Option<SavedSyn<'_>>> {
    let cell = state::cell(link, object)?;
    if cell.host.flags.load(Ordering::Acquire) & flag::SYN_SAVED == 0 {
        return Ok(None);
    }
    let answer = link.control.answer(object.index).ok_or(Errno::BADF)?;
    let count = answer.syn_bytes.load(Ordering::Acquire);
    Ok((count > 0).then(|| SavedSyn {
        answer,
        bytes: answer.syn(),
        count: usize::try_from(count).unwrap_or(0),
    }))
}

/// How long the host may take; one that is stopped must not hold a program up.
const PATIENCE: Duration = Duration::from_millis(500);
/// Looks without a pause: a host that polls answers within microseconds.
const LOOKS: u32 = 2_000;
/// And between the looks behind those.
const PAUSE_NS: i64 = 50_000;

/// Asks the host and returns what it says; what it said before when it does not answer.
///
/// # Errors
/// EBADF for a handle that is no more.
pub fn info(link: &Link, object: Object) -> Result<Info> {
    let cell = state::cell(link, object)?;
    let asked = cell
        .wish
        .info
        .fetch_add(1, Ordering::AcqRel)
        .wrapping_add(1);
    link.ring(object.index);
    let answer = link.control.answer(object.index).ok_or(Errno::BADF)?;
    wait(link, object, cell, answer, asked)?;
    let (of, _) = AnswerCell::told_of(answer.told.load(Ordering::Acquire));
    let answer = (of == object.generation).then_some(answer);
    Ok(read(state::cell(link, object)?, answer))
}

fn wait(
    link: &Link,
    object: Object,
    cell: &ObjectCell,
    answer: &AnswerCell,
    asked: u32,
) -> Result<()> {
    // A later question has a later answer, which is as good.
    let told = || {
        let (of, told) = AnswerCell::told_of(answer.told.load(Ordering::Acquire));
        of == object.generation && told.wrapping_sub(asked) < u32::MAX / 2
    };
    let over = || cell.host.flags.load(Ordering::Acquire) & flag::OVER != 0;
    let mut looks = 0;
    let mut end = None;
    while !told() && !link.is_dead() && !over() {
        looks += 1;
        if looks < LOOKS {
            core::hint::spin_loop();
            continue;
        }
        state::look_again(link, object)?;
        let now = monotonic();
        if now >= *end.get_or_insert(now + PATIENCE) {
            break;
        }
        let pause = rustix::time::Timespec {
            tv_sec: 0,
            tv_nsec: PAUSE_NS,
        };
        // A handler only makes it shorter.
        let _ = rustix::thread::nanosleep(&pause);
    }
    Ok(())
}

/// The peer's FIN counts as a byte (tcp_rcv_nxt_update).
fn finished(cell: &ObjectCell) -> u64 {
    u64::from(cell.host.flags.load(Ordering::Acquire) & flag::RX_FINISHED != 0)
}

/// What the cell knows, and the host's answer, if it has given one about this object.
fn read(cell: &ObjectCell, answer: Option<&AnswerCell>) -> Info {
    let word = |word: &AtomicU32| word.load(Ordering::Relaxed);
    let told =
        |which: fn(&AnswerCell) -> &AtomicU32| answer.map_or(0, |answer| word(which(answer)));
    let waiting = cell
        .write
        .tx_tail
        .load(Ordering::Acquire)
        .saturating_sub(cell.host.tx_head.load(Ordering::Acquire));
    Info {
        state: word(&cell.fact.tcp_state),
        srtt_us: word(&cell.fact.srtt_us),
        retransmits: word(&cell.fact.retransmits),
        mss: word(&cell.fact.mss),
        unacked_bytes: stream::queued_bytes(cell),
        unread_bytes: readiness::readable_bytes(cell),
        acked: cell.host.tx_acked.load(Ordering::Acquire),
        received: cell.host.rx_tail.load(Ordering::Acquire) + finished(cell),
        in_flight: told(|answer| &answer.in_flight),
        unsent: waiting + u64::from(told(|answer| &answer.unsent)),
        segments: told(|answer| &answer.segments),
        silent_ms: told(|answer| &answer.silent_ms),
        mtu: told(|answer| &answer.mtu),
        window: told(|answer| &answer.window),
        window_shift: told(|answer| &answer.window_shift),
        ring: told(|answer| &answer.ring),
        backed: told(|answer| &answer.backed),
        congestion_window: told(|answer| &answer.congestion_window),
        rttvar_us: told(|answer| &answer.rttvar_us),
        rto_us: told(|answer| &answer.rto_us),
        slow_start_threshold: Some(told(|answer| &answer.slow_start_threshold))
            .filter(|bytes| *bytes > 0),
        data_segments: told(|answer| &answer.data_segments),
        came: told(|answer| &answer.came),
        data_came: told(|answer| &answer.data_came),
        again_bytes: told(|answer| &answer.again_bytes),
        quiet_ms: told(|answer| &answer.quiet_ms),
        min_rtt_us: Some(told(|answer| &answer.min_rtt_us)).filter(|micros| *micros > 0),
        backoff: told(|answer| &answer.backoff),
        peer_window: (
            told(|answer| &answer.peer_window),
            told(|answer| &answer.peer_shift),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::fake::Fake;

    #[test]
    fn the_answer_to_the_question_is_waited_for() {
        let fake = Fake::new();
        let object = fake.stream(1);
        let told = fake.while_serving(
            |link| info(link, object),
            |fake| {
                let asked = fake.cell(object).wish.info.load(Ordering::Acquire);
                let answer = fake.link.control.answer(object.index).unwrap();
                let word = AnswerCell::told_word(object.generation, asked);
                if word != answer.told.load(Ordering::Relaxed) {
                    answer.segments.store(7, Ordering::Relaxed);
                    answer.told.store(word, Ordering::Release);
                }
            },
        );
        assert_eq!(told.unwrap().segments, 7);
    }

    #[test]
    fn of_a_connection_that_is_over_nobody_is_asked() {
        let fake = Fake::new();
        let object = fake.stream(1);
        let answer = fake.link.control.answer(object.index).unwrap();
        answer.segments.store(3, Ordering::Relaxed);
        let word = |generation| AnswerCell::told_word(generation, 0);
        answer
            .told
            .store(word(object.generation), Ordering::Release);
        fake.fail(object, 104);
        let begin = monotonic();
        assert_eq!(info(fake.link, object).unwrap().segments, 3);
        let before = object.generation.wrapping_sub(1);
        answer.told.store(word(before), Ordering::Release);
        assert_eq!(info(fake.link, object).unwrap().segments, 0, "of another");
        assert!(monotonic().since(begin) < PATIENCE);
    }
}
