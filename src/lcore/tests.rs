//! The host's half of the contract, driven turn by turn in virtual time by programs that only write cells.

mod aloft;
mod broken;
mod connect;
mod ending;
mod held;
mod idle_time;
mod info;
mod lab;
mod listener;
mod memory;
mod monkey;
mod offers;
mod packets;
mod payload;
mod process;
#[path = "../../tests/support/program.rs"]
pub(crate) mod program;
mod several;
mod summons;
mod transfer;
mod watch;

use core::time::Duration;
use std::sync::Arc;

pub(crate) use broken::broken;
pub(crate) use lab::stack_config;
use lab::{ENDPOINT, Lab, OWNER, SERVER};

use super::{Mail, Share};
use crate::channel::cell::{flag, kind, shut};
use crate::channel::layout::Layout;
use crate::channel::sync::Ordering;
use crate::device::fault::FaultConfig;
use crate::errno::Errno;
use crate::readiness::event;

/// An errno as it stands in a cell.
fn number(errno: Errno) -> u32 {
    errno.raw_os_error().unsigned_abs()
}

/// The generation of an object of the client's program.
fn generation(lab: &Lab, object: u32) -> u32 {
    let host = &lab.client.program.cell(object).host;
    host.generation.load(Ordering::Relaxed)
}
