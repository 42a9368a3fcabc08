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

/// A listener of one lcore: an index and the generation that tells reuse.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ListenerId {
    /// Index into the listener table.
    pub index: u32,
    /// Raised each time the index is given to another listener.
    pub generation: u32,
}
