//! The CUDA driver's library, opened at run time: the few calls that the payload stage makes, declared by us.
//!
//! Nothing of CUDA is needed to build or to start. Codes are plain numbers, so that one of a newer driver is a number too. A call
//! of an optional group that the library lacks is a [`Fault`] like any other. May be called by any thread that rustix-level code may
//! run on; nothing here keeps a lock.
//!
//! # Safety
//! Names and signatures stand side by side in one table and are those of the driver's ABI (the `_v2` symbols of CUDA 12). The library
//! is never closed, so its functions stay. Handles are made below here alone (their fields are private) and are never destroyed:
//! the process's end does that, because a kernel that did not end in time may still be running. The driver writes only where
//! a pointer of a live local or of the caller's exclusive slice says; what a GPU does to registered memory is the business of
//! who registers it ([`Driver::register`]).

mod device;
mod graph;
mod lasting;
mod memory;
mod module;
mod registered;
mod stream;
mod table;

pub use device::attribute;
pub use graph::Gate;
pub use lasting::{Lasting, Lent};
pub use module::Part;
pub use registered::Registered;
pub use stream::NOT_READY;
pub use table::Driver;

use core::ffi::c_int;

/// What a call of the driver says; 0 is success.
pub type Code = i32;

/// A call that did not succeed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The call.
    pub call: &'static str,
    /// What it said; [`ABSENT`] when the library has no such call.
    pub code: Code,
    /// The driver's name for the code, if it has one.
    pub name: String,
}

impl core::fmt::Display for Fault {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match (self.code, self.name.as_str()) {
            (ABSENT, _) => write!(out, "the driver has no {}", self.call),
            (code, "") => write!(out, "{} says {code}", self.call),
            (code, name) => write!(out, "{} says {code} ({name})", self.call),
        }
    }
}

/// No code of the driver's.
pub const ABSENT: Code = -1;

macro_rules! handles {
    ($($(#[$about:meta])* $name:ident($inner:ty);)+) => {
        $($(#[$about])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub struct $name($inner);)+
    };
}

handles! {
    /// A GPU.
    Device(c_int);
    /// A context.
    Context(usize);
    /// Loaded code.
    Module(usize);
    /// A kernel of a module.
    Function(usize);
    /// A queue of work.
    Stream(usize);
    /// A graph that can be launched.
    Graph(usize);
}

/// A pointer that the GPU understands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DevicePointer(pub u64);

impl DevicePointer {
    /// `bytes` further on.
    #[must_use]
    pub const fn plus(self, bytes: usize) -> Self {
        Self(self.0 + bytes as u64)
    }
}

/// Blocks and threads of a launch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grid {
    /// Blocks.
    pub blocks: u32,
    /// Threads of a block.
    pub threads: u32,
}
