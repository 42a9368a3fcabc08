//! The guard in front of the socket: what of a segment smoltcp gets to see.
//!
//! Read RFC 9293 section 3.10.7.4 and RFC 5961 first. Pure: it is told what is true of the flow and says what to do.

use super::api::FlowState;
use super::demux::{TcpFlags, TcpFrame};
use super::frame::{put_double, put_word};
use super::tracker::{ahead, distance};

/// What is true of a flow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View {
    /// TCP state.
    pub(crate) state: FlowState,
    /// It came through a listener.
    pub(crate) passive: bool,
    /// Our SYN or SYN-ACK has left.
    pub(crate) syn_sent: bool,
    /// The listener's accept queue is full.
    pub(crate) queue_full: bool,
    /// The handshake is not to be completed before bytes come (TCP_DEFER_ACCEPT).
    pub(crate) defers: bool,
    /// Packets with a lower time to live are dropped (RFC 5082).
    pub(crate) min_ttl: u8,
    /// The peer's initial sequence number.
    pub(crate) irs: u32,
    /// The next sequence number expected.
    pub(crate) rcv_nxt: u32,
    /// The first sequence number that was not advertised.
    pub(crate) edge: u32,
    /// The first sequence number not acknowledged.
    pub(crate) snd_una: u32,
    /// The first sequence number that has not left.
    pub(crate) snd_nxt: u32,
    /// Bytes of the ring, the most that was ever advertised at once.
    pub(crate) capacity: u32,
    /// The peer's window field, as it was told last.
    pub(crate) peer_window: u16,
}

/// What to do with a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    /// Feed it to the socket.
    Pass,
    /// Drop it.
    Ignore,
    /// Send the SYN-ACK again.
    SynAckAgain,
    /// Answer with a challenge ACK, if the limit allows.
    Challenge,
    /// The half-open flow is over.
    Forget,
    /// The peer reset the flow.
    Reset,
    /// It would complete a handshake that the accept queue has no room for: drop it, the peer tries again.
    QueueFull,
    /// It would complete a handshake that waits for bytes: drop it.
    Defer,
    /// Feed it without its SYN, which was seen before: both ends have sent one (RFC 9293 section 3.5, figure 7).
    WithoutSyn,
}

/// Says what to do with a segment of an existing flow.
pub(crate) fn judge(view: &View, frame: &TcpFrame) -> Action {
    let (syn, ack) = (
        frame.flags.contains(TcpFlags::SYN),
        frame.flags.contains(TcpFlags::ACK),
    );
    if frame.ttl < view.min_ttl {
        return Action::Ignore;
    }
    if view.state == FlowState::SynSent {
        // The rules of RFC 9293 section 3.10.7.3 are smoltcp's own.
        return Action::Pass;
    }
    let half_open = view.state == FlowState::SynReceived && view.passive;
    if frame.flags.contains(TcpFlags::RST) {
        // RFC 5961 section 3.2: only the exact number resets.
        return if frame.seq == view.rcv_nxt {
            if half_open {
                Action::Forget
            } else {
                Action::Reset
            }
        } else if in_window(view, frame.seq) {
            Action::Challenge
        } else {
            Action::Ignore
        };
    }
    if syn {
        // RFC 5961 section 4.2; a SYN sent again says that our SYN-ACK was lost.
        return match view.state {
            FlowState::SynReceived if half_open && !ack && frame.seq == view.irs => {
                Action::SynAckAgain
            }
            // smoltcp takes an acknowledgement there, and no second SYN.
            FlowState::SynReceived if !half_open && ack && frame.seq == view.irs => {
                Action::WithoutSyn
            }
            FlowState::SynReceived if !half_open => Action::Pass,
            _ => Action::Challenge,
        };
    }
    if !ack {
        return Action::Ignore;
    }
    if half_open && !view.syn_sent {
        // It acknowledges what was not sent.
        return Action::Ignore;
    }
    if half_open && view.queue_full && frame.ack == view.snd_una.wrapping_add(1) {
        return Action::QueueFull;
    }
    if view.defers && frame.sequence_len() == 0 && frame.ack == view.snd_una.wrapping_add(1) {
        return Action::Defer;
    }
    if view.state != FlowState::SynReceived
        && (distance(view.snd_nxt, frame.ack) > 0 || is_too_old(view, frame))
    {
        return Action::Challenge;
    }
    Action::Pass
}

/// Whether a segment is older than all that a peer may send again: its acknowledgement would be anybody's guess (RFC 9293 section
/// 3.10.7.4 does not look at it).
fn is_too_old(view: &View, frame: &TcpFrame) -> bool {
    let end = frame.seq.wrapping_add(frame.sequence_len());
    frame.sequence_len() > 0 && ahead(end, view.rcv_nxt) > view.capacity
}

/// Whether the peer answers our SYN for a connection of before, which it still has (RFC 5961 section 4, RFC 9293 section
/// 3.10.7.3).
pub(crate) fn is_of_before(view: &View, frame: &TcpFrame) -> bool {
    view.state == FlowState::SynSent
        && frame.flags.contains(TcpFlags::ACK)
        && !frame.flags.contains(TcpFlags::RST)
        && frame.ack != view.snd_una.wrapping_add(1)
}

/// Whether a segment begins or ends where the peer may be (RFC 9293 section 3.4): whoever does not see the connection
/// would have to guess that.
pub(crate) fn is_expected(view: &View, frame: &TcpFrame) -> bool {
    let end = frame.seq.wrapping_add(frame.sequence_len());
    frame.seq == view.rcv_nxt
        || in_window(view, frame.seq)
        || is_again(view, frame)
        || in_window(view, end.wrapping_sub(1))
}

/// Whether a segment carries something, and all of it was received before.
fn is_again(view: &View, frame: &TcpFrame) -> bool {
    let end = frame.seq.wrapping_add(frame.sequence_len());
    frame.sequence_len() > 0
        && distance(end, view.rcv_nxt) >= 0
        && ahead(end, view.rcv_nxt) <= view.capacity
}

fn in_window(view: &View, seq: u32) -> bool {
    distance(view.rcv_nxt, seq) >= 0 && distance(seq, view.edge) > 0
}

/// What [`trim`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Trim {
    /// Nothing: the segment lies inside what was advertised.
    Inside,
    /// The bytes beyond were cut off; the rest may be fed.
    Cut,
    /// Every byte lies beyond; only the acknowledgement may be fed, and an ACK is due.
    Probe,
    /// It lies so far beyond that nothing of it may be fed; an ACK is due.
    Outside,
}

/// Cuts off what lies beyond the advertised window, because memory may be missing there (RFC 9293 section 3.4:
/// a receiver may trim to the window). The checksum is not kept up: it was verified and smoltcp does not look.
pub(crate) fn trim(view: &View, bytes: &mut [u8], frame: &mut TcpFrame) -> Trim {
    // A payload is below 64 KiB: its length comes from a 16-bit field.
    let (Ok(length), Ok(signed)) = (
        u32::try_from(frame.payload_len),
        i32::try_from(frame.payload_len),
    ) else {
        return Trim::Outside;
    };
    let end = frame.seq.wrapping_add(length);
    let beyond = distance(view.edge, end);
    if length == 0 || beyond <= 0 {
        return Trim::Inside;
    }
    let keep = usize::try_from(signed - beyond).unwrap_or(0);
    let verdict = if keep > 0 {
        Trim::Cut
    } else if frame.seq == view.edge {
        Trim::Probe
    } else {
        return Trim::Outside;
    };
    let seq = if verdict == Trim::Probe {
        view.rcv_nxt
    } else {
        frame.seq
    };
    // What follows, a FIN too, cannot be in order any more.
    if cut(bytes, frame, keep, seq, TcpFlags::FIN).is_none() {
        return Trim::Outside;
    }
    verdict
}

/// Leaves the first `keep` bytes of the payload, gives the segment the number `seq` and takes `without` from its flags. None when
/// the frame is too short for that.
fn cut(
    bytes: &mut [u8],
    frame: &mut TcpFrame,
    keep: usize,
    seq: u32,
    without: TcpFlags,
) -> Option<()> {
    let flags = frame.flags.0 & !(without.0 | TcpFlags::PSH.0);
    let total = frame.payload - frame.ip.start + keep;
    put_word(bytes, frame.ip.start + 2, u16::try_from(total).ok()?)?;
    *bytes.get_mut(frame.tcp + 13)? = flags;
    put_double(bytes, frame.tcp + 4, seq)?;
    frame.flags = TcpFlags(flags);
    frame.payload_len = keep;
    frame.ip.end = frame.ip.start + total;
    frame.seq = seq;
    Some(())
}

/// Takes off what was received before, when that is all that a segment carries, or all but a FIN. Of the former only its
/// acknowledgement is looked at, and an ACK is due (RFC 9293 section 3.10.7.4): true. smoltcp looks at nothing of it, a new FIN behind
/// it among that, and answers once a second at most.
pub(crate) fn strip_old(view: &View, bytes: &mut [u8], frame: &mut TcpFrame) -> bool {
    let is_old = is_again(view, frame);
    let ends = frame.flags.contains(TcpFlags::FIN)
        && frame.payload_len > 0
        && frame.seq.wrapping_add(frame.sequence_len()) == view.rcv_nxt.wrapping_add(1);
    let without = if is_old { TcpFlags::FIN } else { TcpFlags(0) };
    let is_off = (is_old || ends) && cut(bytes, frame, 0, view.rcv_nxt, without).is_some();
    is_off && is_old
}

/// Takes the SYN off a segment. False when the frame is too short for it.
pub(crate) fn strip_syn(bytes: &mut [u8], frame: &mut TcpFrame) -> bool {
    let Some(flags) = bytes.get_mut(frame.tcp + 13) else {
        return false;
    };
    *flags &= !TcpFlags::SYN.0;
    frame.flags = TcpFlags(*flags);
    frame.seq = frame.seq.wrapping_add(1);
    put_double(bytes, frame.tcp + 4, frame.seq).is_some()
}

/// Lifts an old acknowledgement to what is known, so that smoltcp does not drop the data that came with it: it wants
/// a fresh one, RFC 9293 section 3.10.7.4 only says that an old one is ignored.
pub(crate) fn refresh_ack(view: &View, bytes: &mut [u8], frame: &mut TcpFrame) {
    let age = distance(frame.ack, view.snd_una);
    if frame.payload_len > 0
        && age > 0
        && age <= ACK_AGE_MAX
        && put_double(bytes, frame.tcp + 8, view.snd_una).is_some()
    {
        frame.ack = view.snd_una;
    }
}

/// RFC 5961 section 5.2 allows an acknowledgement as old as the largest window ever seen; this is the scale limit.
pub(crate) const ACK_AGE_MAX: i32 = 1 << 30;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stack::flow_table::key;

    const VIEW: View = View {
        state: FlowState::Established,
        passive: true,
        syn_sent: true,
        queue_full: false,
        defers: false,
        min_ttl: 0,
        irs: 999,
        rcv_nxt: 2000,
        edge: 3000,
        snd_una: 500,
        snd_nxt: 600,
        capacity: 1_000,
        peer_window: 1_000,
    };

    fn segment(flags: u8, seq: u32, payload_len: usize) -> TcpFrame {
        TcpFrame {
            key: key(80, 1),
            source_mac: [2; 6],
            ip: 14..54 + payload_len,
            tcp: 34,
            payload: 54,
            payload_len,
            seq,
            ack: 500,
            flags: TcpFlags(flags),
            window: 100,
            mss: None,
            window_scale: None,
            sack_permitted: false,
            tos: 0,
            ttl: 64,
            segments: 1,
        }
    }

    #[test]
    fn only_the_exact_reset_counts() {
        let judged = |seq| judge(&VIEW, &segment(0x04, seq, 0));
        assert_eq!(judged(2000), Action::Reset);
        assert_eq!(judged(2001), Action::Challenge);
        assert_eq!(judged(2999), Action::Challenge);
        assert_eq!(judged(3000), Action::Ignore);
        assert_eq!(judged(1999), Action::Ignore);
    }

    #[test]
    fn a_half_open_flow_is_forgotten_by_a_reset_and_repeats_its_answer() {
        let view = View {
            state: FlowState::SynReceived,
            rcv_nxt: 1000,
            ..VIEW
        };
        assert_eq!(judge(&view, &segment(0x04, 1000, 0)), Action::Forget);
        assert_eq!(judge(&view, &segment(0x02, 999, 0)), Action::SynAckAgain);
        assert_eq!(judge(&view, &segment(0x02, 5, 0)), Action::Challenge);
        let full = View {
            queue_full: true,
            snd_una: 499,
            ..view
        };
        assert_eq!(judge(&full, &segment(0x10, 1000, 0)), Action::QueueFull);
        assert_eq!(
            judge(
                &View {
                    queue_full: false,
                    ..full
                },
                &segment(0x10, 1000, 0)
            ),
            Action::Pass
        );
    }

    #[test]
    fn a_deferred_handshake_waits_for_bytes_or_a_fin() {
        let view = View {
            state: FlowState::SynReceived,
            rcv_nxt: 1000,
            snd_una: 499,
            defers: true,
            ..VIEW
        };
        let judged = |flags, len| judge(&view, &segment(flags, 1000, len));
        assert_eq!(judged(0x10, 0), Action::Defer);
        assert_eq!(judged(0x18, 1), Action::Pass);
        assert_eq!(judged(0x11, 0), Action::Pass);
        assert_eq!(judged(0x04, 0), Action::Forget);
    }

    #[test]
    fn a_packet_from_farther_away_than_allowed_says_nothing() {
        let view = View {
            min_ttl: 64,
            ..VIEW
        };
        assert_eq!(judge(&view, &segment(0x10, 2000, 0)), Action::Pass);
        let view = View {
            min_ttl: 65,
            ..VIEW
        };
        for flags in [0x10, 0x04, 0x02] {
            assert_eq!(judge(&view, &segment(flags, 2000, 0)), Action::Ignore);
        }
    }

    #[test]
    fn a_synchronised_flow_challenges_a_syn_and_ignores_what_has_no_ack() {
        assert_eq!(judge(&VIEW, &segment(0x02, 2000, 0)), Action::Challenge);
        assert_eq!(judge(&VIEW, &segment(0x12, 999, 0)), Action::Challenge);
        assert_eq!(judge(&VIEW, &segment(0x01, 2000, 0)), Action::Ignore);
    }

    #[test]
    fn data_beyond_the_advertised_edge_is_cut() {
        let mut bytes = vec![0; 54 + 1000];
        let mut inside = segment(0x18, 2000, 1000);
        assert_eq!(trim(&VIEW, &mut bytes, &mut inside), Trim::Inside);
        let mut over = segment(0x19, 2900, 300);
        assert_eq!(trim(&VIEW, &mut bytes, &mut over), Trim::Cut);
        assert_eq!(
            (over.payload_len, over.flags.0, over.ip.len()),
            (100, 0x10, 140)
        );
        let mut probe = segment(0x10, 3000, 1);
        assert_eq!(trim(&VIEW, &mut bytes, &mut probe), Trim::Probe);
        assert_eq!((probe.payload_len, probe.seq), (0, 2000));
        let mut far = segment(0x10, 3001, 1);
        assert_eq!(trim(&VIEW, &mut bytes, &mut far), Trim::Outside);
    }

    #[test]
    fn an_old_acknowledgement_does_not_take_its_data_down() {
        let mut bytes = vec![0; 200];
        let mut old = TcpFrame {
            ack: 400,
            ..segment(0x10, 2000, 10)
        };
        refresh_ack(&VIEW, &mut bytes, &mut old);
        assert_eq!(old.ack, 500);
        let mut new = TcpFrame {
            ack: 501,
            ..segment(0x10, 2000, 10)
        };
        refresh_ack(&VIEW, &mut bytes, &mut new);
        assert_eq!(new.ack, 501);
    }
}
