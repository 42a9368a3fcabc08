//! TCP_INFO.

use super::value::INFO_BYTES;
use crate::channel::cell::kind;
use crate::channel::sync::Ordering;
use crate::errno::{Errno, Result};
use crate::fd::options::name;
use crate::fd::{Socket, twin};
use crate::ffi::sockopt;
use crate::socket::{info, state};

/// TCP_INFO from what the stack says; fields that it does not know are 0 (docs/compatibility.md names those it does).
pub(super) fn tell(socket: Socket, buffer: &mut [u8; INFO_BYTES]) -> Result<&[u8]> {
    let facts = info::info(socket.link, socket.object)?;
    let cell = state::cell(socket.link, socket.object)?;
    // As many bytes as this kernel has.
    let size = sockopt::read(twin::spare()?, sockopt::TCP, name::INFO, buffer)?;
    buffer.fill(0);
    let mss = facts.mss.max(1);
    let segments = |bytes: u64| u32::try_from(bytes.div_ceil(u64::from(mss))).unwrap_or(u32::MAX);
    let small = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
    let listens = cell.host.kind.load(Ordering::Acquire) == kind::LISTENER;
    // State is the first byte, the scale of our window the upper half of the seventh.
    let scale = facts.window_shift << 4;
    let offsets = [
        (0, linux_state(facts.state, listens)),
        (8, facts.rto_us),
        (16, facts.mss),
        // What the peer sends at most, which is what we have announced.
        (20, facts.mss),
        (24, segments(u64::from(facts.in_flight))),
        (52, facts.silent_ms),
        (56, facts.silent_ms),
        (60, facts.mtu),
        (64, facts.window),
        (68, facts.srtt_us),
        (72, facts.rttvar_us),
        (
            76,
            facts
                .slow_start_threshold
                .map_or(NO_THRESHOLD, |bytes| segments(bytes.into())),
        ),
        (80, segments(u64::from(facts.congestion_window))),
        (84, facts.mss),
        // TCP_FASTRETRANS_THRESH: three acknowledgements again.
        (88, 3),
        (96, facts.backed),
        (100, facts.retransmits),
        (136, facts.segments),
        (144, small(facts.unsent)),
        (232, facts.window),
    ];
    for (offset, value) in offsets {
        if let Some(place) = buffer.get_mut(offset..offset + 4) {
            place.copy_from_slice(&value.to_ne_bytes());
        }
    }
    let sent = facts.acked + u64::from(facts.in_flight);
    for (offset, value) in [(120, facts.acked), (128, facts.received), (200, sent)] {
        if let Some(place) = buffer.get_mut(offset..offset + 8) {
            place.copy_from_slice(&value.to_ne_bytes());
        }
    }
    if let (Some(place), Ok(scale)) = (buffer.get_mut(6), u8::try_from(scale)) {
        *place = scale;
    }
    buffer.get(..size).ok_or(Errno::INVAL)
}

/// TCP_INFINITE_SSTHRESH of Linux.
const NO_THRESHOLD: u32 = 0x7fff_ffff;

/// The numbers of Linux' tcp_states.h for [`crate::stack::FlowState`].
fn linux_state(flow: u32, listens: bool) -> u32 {
    const LISTEN: u32 = 10;
    const CLOSE: u32 = 7;
    if listens {
        return LISTEN;
    }
    match flow {
        1 => 2,
        2 => 3,
        3 => 1,
        4 => 4,
        5 => 5,
        6 => 8,
        7 => 11,
        8 => 9,
        // A socket in TIME-WAIT is one without a connection to its program (inet_timewait_sock).
        _ => CLOSE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_have_the_numbers_of_linux() {
        use crate::stack::FlowState;
        assert_eq!(linux_state(FlowState::Established as u32, false), 1);
        assert_eq!(linux_state(FlowState::CloseWait as u32, false), 8);
        assert_eq!(linux_state(FlowState::TimeWait as u32, false), 7);
        assert_eq!(linux_state(0, false), 7);
        assert_eq!(linux_state(0, true), 10);
    }
}
