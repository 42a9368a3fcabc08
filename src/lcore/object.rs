//! What the host knows of an object: its own truth beside the cell. The program can write every line of a cell, the host's
//! included, so that nothing is decided by what we once wrote there.

use crate::channel::cell::{ObjectCell, flag, option};
use crate::channel::layout::OBJECTS_MAX;
use crate::channel::sync::Ordering;
use crate::id::{FlowId, ListenerId};
use crate::stack::Owner;
use crate::time::Instant;

/// What an object is to the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Role {
    /// Nothing of the stack's, now or yet: free, claimed by the program, or refused.
    #[default]
    Idle,
    /// A listener of the stack.
    Listener(ListenerId),
    /// A flow of the stack.
    Flow(FlowId),
    /// A flow or listener that the stack has let go of; the program may still read from it.
    Over,
}

/// Where an accepted flow waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Queued {
    /// The listener's object index.
    pub(super) listener: u32,
    /// Position in its accept queue.
    pub(super) position: u64,
}

/// The host's private record of an object.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Record {
    /// What it is.
    pub(super) role: Role,
    /// The wish that was carried out last.
    pub(super) wish: u32,
    /// The value of `OptionLine::changed` that was carried out last.
    pub(super) options: u32,
    /// Bits of `cell::flag` told so far.
    pub(super) flags: u32,
    /// Stream bytes taken out of the transmit ring.
    pub(super) tx_head: u64,
    /// Stream bytes told to be readable; for a listener: flows put into this lcore's queue.
    pub(super) rx_tail: u64,
    /// Stream bytes that the stack had received when it was last asked; those behind `rx_tail` are with the payload stage.
    pub(super) rx_seen: u64,
    /// Stream bytes that the program has read; for a listener: flows that it has taken.
    pub(super) rx_head: u64,
    /// Stream bytes up to the end of the urgent data that the stack knows of.
    pub(super) urgent: u64,
    /// Stream position behind the peer's urgent byte, as told.
    pub(super) mark: u64,
    /// The soft error that was told last, as an errno.
    pub(super) soft_error: u32,
    /// The question about it that was answered last.
    pub(super) info: u32,
    /// TCP_CORK is set.
    pub(super) corked: bool,
    /// The program wants to know when bytes come.
    pub(super) stamped: bool,
    /// When bytes that are held back go out all the same; see `held.rs`.
    pub(super) held_until: Option<Instant>,
    /// Stream bytes that are not held back any more.
    pub(super) released: u64,
    /// Waits in an accept queue.
    pub(super) queued: Option<Queued>,
    /// Of its connections one sleeper was told, a moment ago; see `offers.rs`.
    pub(super) offered: bool,
    /// Its handshake has not ended; for a flow that the program asked for.
    pub(super) connecting: bool,
    /// FIN was asked of the stack.
    pub(super) finished: bool,
    /// Nobody holds it any more: what is in the ring goes out, then it ends.
    pub(super) closing: bool,
    /// The end was asked of the stack.
    pub(super) closed: bool,
    /// The pending error was told.
    pub(super) error_told: bool,
    /// So many other lcores have something to do for it.
    pub(super) waits: u32,
    /// The wish is answered when they are done.
    pub(super) owes_answer: bool,
    /// It listens or has listened.
    pub(super) was_listener: bool,
}

impl Record {
    /// Keeps what of the options is asked for often, so that nobody else touches their line.
    pub(super) fn note_options(&mut self, cell: &ObjectCell, tx_bytes: u32) {
        let bits = cell.option.bits.load(Ordering::Relaxed);
        self.corked = bits & option::CORK != 0;
        self.stamped = bits & (option::STAMP | option::STAMP_NANOS) != 0;
        let sndbuf = cell.option.sndbuf.load(Ordering::Relaxed);
        let limited = (sndbuf != 0 && sndbuf / 2 < tx_bytes)
            || cell.option.notsent_lowat.load(Ordering::Relaxed) != 0;
        if limited {
            self.flags |= flag::LIMITED;
        }
    }
}

/// The lcore's number for an object of a family, as the stack carries it: family in the upper 11 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Token {
    /// The family.
    pub owner: Owner,
    /// The object index.
    pub object: u32,
}

/// Families of one lcore at most.
pub const FAMILIES_MAX: u32 = 1 << (32 - OBJECT_BITS);

const OBJECT_BITS: u32 = 21;
const _: () = assert!(OBJECTS_MAX == 1 << OBJECT_BITS);

impl Token {
    /// The number that the stack carries.
    #[must_use]
    pub const fn pack(self) -> u32 {
        self.owner.0 << OBJECT_BITS | self.object
    }

    /// The token behind a number.
    #[must_use]
    pub const fn unpack(number: u32) -> Self {
        Self {
            owner: Owner(number >> OBJECT_BITS),
            object: number & ((1 << OBJECT_BITS) - 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_comes_back() {
        let token = Token {
            owner: Owner(FAMILIES_MAX - 1),
            object: OBJECTS_MAX - 1,
        };
        assert_eq!(Token::unpack(token.pack()), token);
    }
}
