//! From descriptor number to object: the table, what is agreed before attaching, and where a socket goes.
//!
//! Owns the meaning of every number that the program uses. May use `attach`, `socket`, `iomux`, `base`, `ffi`. Any
//! program thread, also in a signal handler. Invariant: a number never reaches an object that it does not stand for:
//! whoever takes an entry out of the table releases it, exactly once.

pub mod registry;
pub mod table;
pub mod twin;
