//! The interposed calls: the C face of everything above.
//!
//! Owns what a C caller sees: arguments, errno, SIGPIPE. May use `fd`, `iomux`, `socket`, `attach`, `ffi`, `base`,
//! `telemetry`. Any program thread, also in a signal handler. Invariant: a call about a number that is not ours is
//! libc's, untouched; a wait holds nothing, so that a cancelled thread may unwind through it.
//!
//! Each call takes the same steps: look up what the number stands for, convert the arguments, call the object,
//! convert back.

mod control;
mod cvt;
pub mod descriptor;
pub mod engine;
pub mod epoll_ctl;
pub mod epoll_wait;
pub mod exec;
pub mod init;
mod message;
pub mod open;
pub mod option;
pub mod poll;
pub mod positional;
pub mod process;
pub mod receive;
pub mod select;
pub mod send;
pub mod sendfile;
pub mod socket;
pub mod splice;
pub mod stdio;
