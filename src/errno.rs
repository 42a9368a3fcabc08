//! Error numbers, exactly as a program sees them.

pub use rustix::io::Errno;

/// The result of anything that can fail with an errno.
pub type Result<T> = core::result::Result<T, Errno>;
