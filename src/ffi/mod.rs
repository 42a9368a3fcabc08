//! The border to C: libc's own functions behind ours, and the few raw calls that rustix leaves out.
//!
//! Owns every `libc` type below the shim. May use `base`. Any program thread runs it, also in a signal handler.
//! Invariant: nothing here allocates, locks or calls a symbol that the shim exports.

pub mod async_io;
pub mod cuda;
pub mod descriptor;
pub mod end_signals;
pub mod engine;
pub mod environment;
pub mod errno;
pub mod fork_word;
pub mod handler;
pub mod number_limit;
pub mod pages;
pub mod process;
pub mod real;
pub mod signals;
pub mod sockopt;
pub mod staging;
pub mod thread_words;
pub mod wait;
