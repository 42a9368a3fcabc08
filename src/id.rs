//! Small index types, so that an lcore is never mistaken for a CPU or a flow for a listener.

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
        pub struct $name(pub u32);

        impl $name {
            /// The number as an index into a table.
            #[must_use]
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }
    };
}

id!(
    /// One of our pinned polling threads, numbered from 0.
    LcoreId
);
id!(
    /// A CPU as the operating system numbers it.
    CpuId
);
id!(
    /// A DPDK ethdev port.
    PortId
);
id!(
    /// A receive and transmit queue pair of a port.
    QueueId
);

/// A flow of one lcore: an index into its flow table, and the generation that tells reuse.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FlowId {
    /// Index into the flow table.
    pub index: u32,
    /// Raised each time the index is given to another flow.
    pub generation: u32,
}

/// Hashes ids, which we give out ourselves, so that nobody can choose ones that meet: one multiplication instead of a keyed hash.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spread(u64);

impl core::hash::Hasher for Spread {
    fn write_u32(&mut self, word: u32) {
        self.0 = self.0.rotate_left(32) ^ u64::from(word);
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn finish(&self) -> u64 {
        // The upper half of the product is the well mixed one; a table looks at both ends.
        let mixed = self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^ mixed >> 32
    }
}

/// A listener of one lcore: an index and the generation that tells reuse.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ListenerId {
    /// Index into the listener table.
    pub index: u32,
    /// Raised each time the index is given to another listener.
    pub generation: u32,
}
