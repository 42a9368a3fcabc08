//! What happened to sleepers of this process.

crate::counters! {
    /// Counters of the waiter.
    pub struct WaiterCounters {
        /// Waits that went to sleep.
        waits_slept,
        /// Waits ended by looking again for some microseconds.
        waits_spun,
        /// Sleeps of a wait that drives the loop, on the loop's bell and port.
        waits_rested,
        /// Waits without a slot, because the pool was empty: they look every millisecond.
        waits_sliced_no_slot,
        /// Slots taken over from a thread that is gone, or that does not sleep.
        slots_taken_over,
        /// Owner words taken over from a thread that is gone.
        owners_replaced,
    }
}

/// This process's counters.
pub static COUNTERS: WaiterCounters = WaiterCounters::new();
