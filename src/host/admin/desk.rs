//! Where the control thread is asked for what it alone knows.

use std::os::fd::OwnedFd;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::EventfdFlags;

use crate::device::PortStats;
use crate::errno::{Errno, Result};
use crate::ffi::descriptor;
use crate::lcore::Segments;
use crate::stack::Owner;

/// The open port.
#[derive(Clone, Debug)]
pub(in crate::host) struct PortFact {
    /// Driver and name, for people.
    pub(in crate::host) device: String,
    /// The link is up.
    pub(in crate::host) up: bool,
    /// The largest IP packet in bytes.
    pub(in crate::host) mtu: usize,
    /// The port's own address.
    pub(in crate::host) mac: [u8; 6],
    /// What it counts.
    pub(in crate::host) stats: PortStats,
    /// The lcores, the first one first.
    pub(in crate::host) lcores: Vec<LcoreFact>,
}

/// Where an lcore runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::host) struct LcoreFact {
    /// Its CPU.
    pub(in crate::host) cpu: u32,
    /// Others run on that CPU.
    pub(in crate::host) shared: bool,
}

/// A process that is attached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::host) struct ClientFact {
    /// Its family.
    pub(in crate::host) owner: Owner,
    /// Its process cell.
    pub(in crate::host) cell: u32,
    /// Its number as the host sees it, else as it sees itself.
    pub(in crate::host) pid: u32,
}

/// A program family.
#[derive(Clone, Debug)]
pub(in crate::host) struct FamilyFact {
    /// Its number.
    pub(in crate::host) owner: Owner,
    /// The program that began it.
    pub(in crate::host) program: String,
    /// Its memory.
    pub(in crate::host) segments: Arc<Segments>,
    /// No process of it is left.
    pub(in crate::host) left: bool,
}

/// What the control thread knows.
#[derive(Clone, Debug, Default)]
pub(in crate::host) struct Facts {
    /// Started by a program.
    pub(in crate::host) private: bool,
    /// Path of the config.
    pub(in crate::host) config: Option<String>,
    /// What the config says the port is.
    pub(in crate::host) port: Option<String>,
    /// Our addresses, `a.b.c.d/n`.
    pub(in crate::host) addresses: Vec<String>,
    /// `dedicated` or `inline`.
    pub(in crate::host) progress: &'static str,
    /// `spin` or `adaptive`.
    pub(in crate::host) idle: &'static str,
    /// Polling before sleep, in microseconds.
    pub(in crate::host) spin_us: u64,
    /// The open port.
    pub(in crate::host) open: Option<PortFact>,
    /// Attached processes.
    pub(in crate::host) clients: Vec<ClientFact>,
    /// Program families.
    pub(in crate::host) families: Vec<FamilyFact>,
}

impl Facts {
    /// Bytes of the channel that have pages.
    pub(in crate::host) fn channel_bytes(&self) -> u64 {
        let families = self.families.iter();
        families
            .map(|family| family.segments.resident_bytes())
            .sum()
    }
}

/// The desk.
#[derive(Debug)]
pub(in crate::host) struct Desk {
    /// None: closed.
    asks: Mutex<Option<Vec<SyncSender<Facts>>>>,
    bell: OwnedFd,
}

impl Desk {
    /// A desk where nobody asks.
    ///
    /// # Errors
    /// EMFILE.
    pub(in crate::host) fn new() -> Result<Self> {
        Ok(Self {
            asks: Mutex::new(Some(Vec::new())),
            bell: descriptor::settle(rustix::event::eventfd(
                0,
                EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK,
            )?),
        })
    }

    /// Readable when somebody asks.
    pub(in crate::host) const fn bell(&self) -> &OwnedFd {
        &self.bell
    }

    /// Asks. Whoever asks at a closed desk learns it at once, because the sender is dropped.
    pub(super) fn ask(&self, to: SyncSender<Facts>) {
        let mut asks = self.asks.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(asks) = &mut *asks else {
            return;
        };
        asks.push(to);
        match rustix::io::write(&self.bell, &1u64.to_ne_bytes()) {
            // EAGAIN: it rings already.
            Ok(_) | Err(Errno::AGAIN) => {}
            Err(errno) => crate::warn!("event=desk_not_rung errno={errno}"),
        }
    }

    /// Nobody is told any more: the control thread ends.
    pub(in crate::host) fn close(&self) {
        *self.asks.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Tells everybody who asked.
    pub(in crate::host) fn tell(&self, facts: impl FnOnce() -> Facts) {
        let mut count = [0; 8];
        // EAGAIN: somebody asked and was told before the bell was looked at.
        let _ = rustix::io::read(&self.bell, &mut count);
        let mut asks = self.asks.lock().unwrap_or_else(PoisonError::into_inner);
        let asks = asks.as_mut().map(core::mem::take).unwrap_or_default();
        if asks.is_empty() {
            return;
        }
        let facts = facts();
        for to in asks {
            // Nobody waits any more: then nobody wants it.
            let _ = to.try_send(facts.clone());
        }
    }
}
