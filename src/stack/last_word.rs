//! The end of sending when the peer has ended before.
//!
//! In LAST-ACK the engine looks at no acknowledgement that acknowledges nothing new: it sees no window open and no duplicate. A
//! flow is therefore not let into that state with a closed window or without a timer; there it never hears of a closed window, but
//! of one that takes a few bytes, so that its time-outs go on; and when the peer's window opens, a time-out passes at once (`mend.rs`).

use super::api::FlowState;
use super::demux::TcpFrame;
use super::flow::Due;
use super::frame::put_word;
use super::stack::Stack;
use crate::time::Instant;

impl Stack {
    /// The program sends no more. The engine is told, or will be ([`Stack::finish_later`]).
    pub(crate) fn finish(&mut self, now: Instant, index: u32) {
        let is_safe = self.can_be_last(now, index);
        let Some((hot, cold)) = self.table.parts(index) else {
            return;
        };
        cold.meter.finishes = !is_safe;
        if is_safe {
            hot.engine.shutdown();
            cold.state = hot.engine.facts().state;
        }
    }

    /// Tells the engine what it could not be told before.
    pub(crate) fn finish_later(&mut self, now: Instant, index: u32) {
        let waits = |stack: &Self| {
            let found = stack.table.look(index);
            found.is_some_and(|(_, cold)| cold.meter.finishes)
        };
        if !waits(self) {
            return;
        }
        self.finish(now, index);
        if !waits(self) {
            self.note_change(index);
            self.mark_dirty(index);
        }
    }

    /// Whether the engine can do in LAST-ACK with new acknowledgements alone.
    fn can_be_last(&mut self, now: Instant, index: u32) -> bool {
        let Some((hot, cold)) = self.table.parts(index) else {
            return true;
        };
        if cold.state != FlowState::CloseWait || hot.engine.facts().tx_queue == 0 {
            return true;
        }
        let Some(interface) = self.interfaces.of(cold.meter.mtu_class) else {
            return true;
        };
        cold.meter.peer_window > 0 && hot.engine.poll_at(interface, now) != Due::Ingress
    }
}

/// Keeps the engine in LAST-ACK from seeing that the window is closed, before a segment is fed.
pub(crate) fn hide_closed_window(bytes: &mut [u8], frame: &mut TcpFrame) {
    if frame.window == 0 {
        set_window(bytes, frame, SMALLEST);
    }
}

/// Gives a segment another window field. The checksum is not kept up: it was verified and the engine does not look.
pub(crate) fn set_window(bytes: &mut [u8], frame: &mut TcpFrame, window: u16) {
    if put_word(bytes, frame.tcp + WINDOW, window).is_some() {
        frame.window = window;
    }
}

/// Where the window field stands in a TCP header.
const WINDOW: usize = 14;
/// The window that is told for a closed one.
const SMALLEST: u16 = 1;
