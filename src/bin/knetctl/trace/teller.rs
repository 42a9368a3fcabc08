//! What is told of a connection: a line an event.

use std::net::SocketAddrV4;

use serde_json::{Value, json};

use super::stream::Segment;
use crate::print::{self, number, text};

/// Writes events.
pub(super) struct Teller {
    json: bool,
    local: SocketAddrV4,
    /// The connection as it was; None: it was not seen yet.
    last: Option<Value>,
    /// The first sequence numbers seen: ours, the peer's.
    base: [Option<u32>; 2],
    /// The furthest end of a segment, each way, relative.
    reached: [u32; 2],
    began: Option<u64>,
}

impl Teller {
    pub(super) fn new(json: bool, local: SocketAddrV4) -> Self {
        Self {
            json,
            local,
            last: None,
            base: [None; 2],
            reached: [0; 2],
            began: None,
        }
    }

    /// A line; false when nobody reads any more.
    fn event(&mut self, at: u64, kind: &str, words: &str, facts: &Value) -> bool {
        let began = *self.began.get_or_insert(at);
        if self.json {
            return print::line(
                &json!({"at_ns": at, "event": kind, "text": words, "facts": facts}).to_string(),
            );
        }
        let since = at.saturating_sub(began);
        print::line(&format!(
            "{:>5}.{:06} {kind:<6} {words}",
            since / 1_000_000_000,
            since / 1_000 % 1_000_000
        ))
    }

    /// A captured segment.
    pub(super) fn segment(&mut self, at: u64, segment: &Segment) -> bool {
        let outbound = segment.source == self.local;
        let way = usize::from(!outbound);
        let base = |place: &mut Option<u32>, first: u32| *place.get_or_insert(first);
        let [our_base, their_base] = &mut self.base;
        let (own, other) = if outbound {
            (our_base, their_base)
        } else {
            (their_base, our_base)
        };
        let sequence = segment.sequence.wrapping_sub(base(own, segment.sequence));
        let acknowledged = segment.flags.contains('.').then(|| {
            segment
                .acknowledged
                .wrapping_sub(base(other, segment.acknowledged))
        });
        let occupies = segment.payload
            + u32::from(segment.flags.contains('S'))
            + u32::from(segment.flags.contains('F'));
        let end = sequence.wrapping_add(occupies);
        let mut notes = Vec::new();
        if let Some(reached) = self.reached.get_mut(way) {
            // Before what was reached, and not a whole half of the space away.
            if occupies > 0 && end.wrapping_sub(*reached).wrapping_sub(1) > 1 << 31 {
                notes.push("again");
            } else if occupies > 0 {
                *reached = end;
            }
        }
        if segment.window == 0 && !segment.flags.contains('R') {
            notes.push("window closed");
        }
        let ack = acknowledged.map_or_else(String::new, |ack| format!(" ack {ack}"));
        let notes = if notes.is_empty() {
            String::new()
        } else {
            format!("  [{}]", notes.join(", "))
        };
        let words = format!(
            "[{}] seq {sequence}{ack} win {} len {}{notes}",
            segment.flags, segment.window, segment.payload
        );
        let facts = json!({"flags": segment.flags, "seq": sequence, "ack": acknowledged, "window": segment.window,
            "payload": segment.payload});
        self.event(at, if outbound { "out" } else { "in" }, &words, &facts)
    }

    /// The connection as it is now; None: it is over.
    pub(super) fn look(&mut self, at: u64, now: Option<&Value>) -> bool {
        let Some(now) = now else {
            return self.event(at, "end", "the connection is gone", &Value::Null);
        };
        let Some(old) = self.last.replace(now.clone()) else {
            let words = format!(
                "{} recv-q {} send-q {}",
                text(now, "state"),
                number(now, "recv_q"),
                number(now, "send_q")
            );
            return self.event(at, "begin", &words, now);
        };
        let grew = |name: &str| number(now, name).saturating_sub(number(&old, name));
        let (written, read) = (grew("bytes_sent"), grew("bytes_read"));
        let mut goes_on = true;
        let mut tell =
            |kind: &str, words: String| goes_on = goes_on && self.event(at, kind, &words, now);
        if read > 0 {
            tell(
                "read",
                format!(
                    "the program read {read} bytes, {} left",
                    number(now, "recv_q")
                ),
            );
        }
        if written > 0 {
            tell(
                "write",
                format!(
                    "the program wrote {written} bytes, {} not acknowledged",
                    number(now, "send_q")
                ),
            );
        }
        if grew("retransmits") > 0 {
            tell(
                "resend",
                format!("{} segments sent again so far", number(now, "retransmits")),
            );
        }
        if old.get("cwnd") != now.get("cwnd") {
            tell(
                "cwnd",
                format!(
                    "the congestion window is in the way at {} segments",
                    print::plain(now.get("cwnd"))
                ),
            );
        }
        for name in ["state", "stage", "error"] {
            if old.get(name) != now.get(name) {
                tell(
                    name,
                    format!(
                        "{} -> {}",
                        print::plain(old.get(name)),
                        print::plain(now.get(name))
                    ),
                );
            }
        }
        goes_on
    }
}
