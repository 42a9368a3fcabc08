//! Network ports as PCI functions: what is there, and the steps that give one to DPDK and back.
//!
//! Everything is read below a root folder, so that a tree of a test stands for a machine, and every change is a list of
//! [`Step`]s that somebody else takes: nothing is changed here.

mod hugepages;
mod list;
mod plan;
mod step;
#[cfg(test)]
mod tests;

pub use hugepages::{Pages, Pool};
pub use list::{Interface, Port, lacking, ports};
pub use plan::{Bind, Refusal, bind, unbind};
pub use step::Step;
