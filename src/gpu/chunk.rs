//! A piece of payload on its way.

use core::net::SocketAddrV4;

/// Which way the bytes go, as the host sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// From the peer to the program.
    Rx,
    /// From the program to the peer.
    Tx,
}

/// Both ends of a connection as we see it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ends {
    /// Our end.
    pub local: SocketAddrV4,
    /// The peer's end.
    pub remote: SocketAddrV4,
}

/// Consecutive bytes of one direction of a flow, lent for the call. Never empty.
#[derive(Debug)]
pub struct Chunk<'a> {
    /// Which way they go.
    pub direction: Direction,
    /// Whose they are.
    pub ends: Ends,
    /// Stream offset of the first byte; 0 at the attach point `packet`, where none is known.
    pub offset: u64,
    /// The bytes, to be changed in place by a kernel that writes.
    pub bytes: &'a mut [u8],
}

impl Chunk<'_> {
    /// The end that sent the bytes.
    #[must_use]
    pub const fn sender(&self) -> SocketAddrV4 {
        match self.direction {
            Direction::Rx => self.ends.remote,
            Direction::Tx => self.ends.local,
        }
    }

    /// The end that the bytes are for.
    #[must_use]
    pub const fn receiver(&self) -> SocketAddrV4 {
        match self.direction {
            Direction::Rx => self.ends.local,
            Direction::Tx => self.ends.remote,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Bytes that 10.0.0.1:40000 sends to our 10.0.0.2:80.
    pub(in super::super) fn chunk(offset: u64, bytes: &mut [u8]) -> Chunk<'_> {
        Chunk {
            direction: Direction::Rx,
            ends: Ends {
                local: "10.0.0.2:80".parse().unwrap(),
                remote: "10.0.0.1:40000".parse().unwrap(),
            },
            offset,
            bytes,
        }
    }
}
