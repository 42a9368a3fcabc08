//! What an lcore counts of itself.

use crate::counters;

counters! {
    /// Counters of one lcore.
    pub struct LcoreCounters of OwnCounter {
        /// Turns of the loop.
        turns,
        /// Turns that found nothing to do.
        turns_idle,
        /// What those took, in nanoseconds: of each at most 20 us, as more is somebody else's on the CPU.
        turns_idle_ns,
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
        /// Times that bytes behind a cork, or sent with MSG_MORE, had waited for as long as they may.
        holds_timed_out,
        /// Times that all who watch a listener with EPOLLEXCLUSIVE were told, because the one who was told first took nothing.
        offers_repeated,
        /// Signals sent to programs that asked for them (O_ASYNC, F_SETOWN).
        signals_sent,
        /// Listeners made.
        listeners_made,
        /// Flows handed to a program through an accept queue.
        flows_handed_over,
        /// Flows that a program asked for.
        flows_connected,
        /// Wishes refused.
        wishes_refused,
        /// Times that there was no memory for a ring, or for more of one: flows reset, SYNs dropped, rings that stay small.
        flows_refused_no_memory,
        /// Flows reset or SYNs dropped because their family had its share of connections.
        flows_refused_quota,
        /// Rings that did not grow because their family had its share of memory.
        rings_refused_quota,
        /// Times that the kernel did not take the memory behind a ring back: it stays in the account, for whoever gets the ring next.
        rings_not_returned,
        /// Flows or listeners ended because the program had broken its channel.
        objects_broken_by_program,
        /// Processes of the program whose end was seen.
        processes_gone,
        /// Frames passed on to the lcore that their flow belongs to.
        frames_passed,
        /// Frames dropped because the ring to their lcore was full.
        frames_dropped_ring_full,
        /// Flows reset because the time after their program's end was over.
        flows_reset_linger_over,
    }
}
