//! What the payload stage counts of itself.

use crate::counters;

counters! {
    /// Counters of the payload stage of one lcore.
    pub struct StageCounters {
        /// Chunks that met at least one kernel.
        payload_chunks,
        /// Bytes of those chunks; a byte counts once a kernel.
        payload_bytes,
        /// Chunks in which a kernel found what it looks for.
        payload_matched,
        /// Flows reset by a verdict.
        payload_flows_reset,
        /// Segments dropped by a verdict.
        payload_segments_dropped,
        /// Flows reset because one segment was dropped by a verdict too often.
        payload_flows_reset_drops,
        /// Chunks marked.
        payload_chunks_marked,
        /// Chunks copied to a mirror.
        payload_chunks_mirrored,
        /// Copies that a mirror had no room for, or that no mirror was named for.
        payload_mirror_dropped,
        /// Chunks that a GPU has judged, once a kernel.
        payload_chunks_offloaded,
        /// Chunks that the CPU had to judge because the GPU was late or failed.
        payload_chunks_redone,
        /// Chunks that found the GPU's ring full.
        payload_chunks_refused_full,
        /// Chunks that passed unjudged, as `on_full` or `on_timeout` says.
        payload_chunks_bypassed,
        /// Flows reset because a chunk could not be judged, as `on_full` or `on_timeout` says.
        payload_flows_reset_gpu,
        /// Segments dropped because they could not be judged, as `on_full` or `on_timeout` says.
        payload_segments_dropped_gpu,
        /// Segments that the CPU judged although a GPU was there: their frames cannot be kept,
        /// as many as may be are held, or they are too long for it.
        payload_segments_grounded,
        /// Segments dropped because there was no place to hold them behind those ahead of them.
        payload_segments_unheld,
        /// Bytes of segments that were copied for the GPU, because it does not reach the port's memory.
        payload_segment_bytes_copied,
        /// Chunks that a kernel could not work on: their flows are reset.
        payload_failed,
    }
}
