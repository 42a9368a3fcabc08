//! Composition roots: where the parts of a process are put together.
//!
//! May use everything but `shim`. Runs at the start of a process, on its first thread. Invariant: nothing
//! below knows who wired it.

pub mod host;
pub mod inline;
