//! What an lcore counts of itself.

use crate::counters;

counters! {
    /// Counters of one lcore.
    pub struct LcoreCounters {
        /// Turns of the loop.
        turns,
        /// Turns that found nothing to do.
        turns_idle,
        /// Times the lcore slept.
        sleeps,
        /// Gaps above 500 ms between two turns (stopped, paused machine).
        time_gaps,
        /// Doorbells answered.
        bells,
        /// Wake-ups written to sleeping threads.
        wakeups,
        /// Wake-ups of a slot that has sent no descriptor.
        wakeups_dropped_no_waiter,
        /// Families that are not woken any more because an eventfd of theirs blocked the lcore.
        families_muted,
        /// Listeners made.
        listeners_made,
        /// Flows handed to a program through an accept queue.
        flows_accepted,
        /// Flows that a program asked for.
        flows_connected,
        /// Wishes refused.
        wishes_refused,
        /// Accepted flows reset because the accept queue had no room.
        flows_reset_queue_full,
        /// Flows reset or SYNs dropped because there was no memory for a ring.
        flows_refused_no_memory,
        /// Flows or listeners ended because the program had broken its channel.
        objects_broken_by_program,
        /// Processes of the program whose end was seen.
        processes_gone,
        /// Flows reset because the time after their program's end was over.
        flows_reset_linger_over,
    }
}
