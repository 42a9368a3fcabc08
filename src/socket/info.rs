//! What TCP_INFO tells of a connection: the host is asked, and answers within a turn.

use core::time::Duration;

use super::{state, stream};
use crate::attach::{Link, Object};
use crate::channel::cell::{ObjectCell, flag};
use crate::channel::sync::{AtomicU32, Ordering};
use crate::errno::Result;
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
    wait(link, object, cell, asked)?;
    Ok(read(state::cell(link, object)?))
}

fn wait(link: &Link, object: Object, cell: &ObjectCell, asked: u32) -> Result<()> {
    // A later question has a later answer, which is as good.
    let told = || {
        let told = cell.info.told.load(Ordering::Acquire);
        told.wrapping_sub(asked) < u32::MAX / 2
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

fn read(cell: &ObjectCell) -> Info {
    let word = |word: &AtomicU32| word.load(Ordering::Relaxed);
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
        in_flight: word(&cell.info.in_flight),
        unsent: waiting + u64::from(word(&cell.info.unsent)),
        segments: word(&cell.info.segments),
        silent_ms: word(&cell.info.silent_ms),
        mtu: word(&cell.info.mtu),
        window: word(&cell.info.window),
        window_shift: word(&cell.info.window_shift),
        ring: word(&cell.info.ring),
        backed: word(&cell.info.backed),
        congestion_window: word(&cell.info.congestion_window),
        rttvar_us: word(&cell.info.rttvar_us),
        rto_us: word(&cell.info.rto_us),
        slow_start_threshold: Some(word(&cell.info.slow_start_threshold))
            .filter(|bytes| *bytes > 0),
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
                let cell = fake.cell(object);
                let asked = cell.wish.info.load(Ordering::Acquire);
                if asked != cell.info.told.load(Ordering::Relaxed) {
                    cell.info.segments.store(7, Ordering::Relaxed);
                    cell.info.told.store(asked, Ordering::Release);
                }
            },
        );
        assert_eq!(told.unwrap().segments, 7);
    }

    #[test]
    fn of_a_connection_that_is_over_nobody_is_asked() {
        let fake = Fake::new();
        let object = fake.stream(1);
        fake.cell(object).info.segments.store(3, Ordering::Relaxed);
        fake.fail(object, 104);
        let begin = monotonic();
        assert_eq!(info(fake.link, object).unwrap().segments, 3);
        assert!(monotonic().since(begin) < PATIENCE);
    }
}
