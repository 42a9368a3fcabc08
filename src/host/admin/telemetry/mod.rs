//! Statistics for programs: DPDK's telemetry socket with K-NET's commands, OpenMetrics, and a file that is kept.
//!
//! Owns the two sockets and the file, the names on them (`names`), and one thread that accepts and writes; each client has
//! a thread of its own. May use what `admin` may use. Invariant: whatever a client does, the host goes on; what cannot be
//! opened is one line in the log.

mod calendar;
mod client;
mod commands;
mod epolls;
mod listener;
mod memory;
mod metrics;
mod names;
mod persist;
mod port;
mod rows;
mod sockets;
mod statistics;
mod whose;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::event::{EventfdFlags, PollFd, PollFlags};

use self::listener::Listener;
use self::persist::Persist;
use super::{Asker, Place};
use crate::config::{Config, MetricsAt};
use crate::errno::Errno;
use crate::ffi::descriptor;
use crate::host::server::timespec;
use crate::{rendezvous, time};

/// What serves statistics; its end is that of the sockets.
#[derive(Debug)]
pub(in crate::host) struct Telemetry {
    stop: OwnedFd,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Telemetry {
    /// Begins to serve what `config` asks for; None when that is nothing, or nothing could be opened.
    pub(in crate::host) fn start(config: &Config, asker: &Asker) -> Option<Self> {
        let dpdk = config.dpdk.telemetry.then(Listener::dpdk).and_then(told);
        let metrics = config.metrics.as_ref().map(|at| match at {
            MetricsAt::Unix(path) => Listener::unix(path),
            MetricsAt::Loopback(endpoint) => Listener::loopback(*endpoint),
        });
        let metrics = metrics.and_then(told);
        let persist = config.dpdk.telemetry.then(Persist::open).flatten();
        if dpdk.is_none() && metrics.is_none() && persist.is_none() {
            return None;
        }
        let stop = told(
            rustix::event::eventfd(0, EventfdFlags::CLOEXEC)
                .map(descriptor::settle)
                .map_err(|errno| format!("no descriptor: {errno}")),
        )?;
        let thread = Serving {
            stop: told(
                stop.try_clone()
                    .map_err(|error| format!("no descriptor: {error}")),
            )?,
            dpdk,
            metrics,
            persist,
            asker: asker.clone(),
            clients: Arc::default(),
        };
        let thread = std::thread::Builder::new()
            .name("knet-telemetry".to_owned())
            .spawn(move || thread.run())
            .map_err(|error| format!("no thread: {error}"));
        Some(Self {
            stop,
            thread: Some(told(thread)?),
        })
    }
}

impl Drop for Telemetry {
    fn drop(&mut self) {
        // An eventfd that was never written takes this.
        let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // It panics nowhere that we know of; the host ends in any case.
            let _ = thread.join();
        }
    }
}

/// Logs why something is not served.
fn told<T>(made: Result<T, String>) -> Option<T> {
    made.map_err(|reason| crate::warn!("event=no_telemetry reason=\"{reason}\""))
        .ok()
}

struct Serving {
    stop: OwnedFd,
    dpdk: Option<Listener>,
    metrics: Option<Listener>,
    persist: Option<Persist>,
    asker: Asker,
    clients: Arc<AtomicUsize>,
}

impl Serving {
    fn run(mut self) {
        loop {
            let limit = self.persist.as_ref().map(|_| timespec(persist::EVERY));
            let source = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
            let mut sources = vec![source(self.stop.as_fd())];
            sources.extend(
                [&self.dpdk, &self.metrics]
                    .into_iter()
                    .flatten()
                    .map(|listener| source(listener.as_fd())),
            );
            match rustix::event::poll(&mut sources, limit.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return crate::warn!("event=telemetry_ended errno={errno}"),
            }
            if sources
                .first()
                .is_some_and(|stop| !stop.revents().is_empty())
            {
                return;
            }
            if let Some(socket) = self.dpdk.as_ref().and_then(Listener::accept) {
                self.serve(socket, client::dpdk);
            }
            if let Some(socket) = self.metrics.as_ref().and_then(Listener::accept) {
                self.serve(socket, metrics::serve);
            }
            if let Some(persist) = &mut self.persist
                && persist.is_due(time::monotonic())
            {
                persist.write(&self.asker);
            }
        }
    }

    fn serve(&self, socket: OwnedFd, with: fn(&OwnedFd, &OwnedFd, &Asker)) {
        let place = Place(Arc::clone(&self.clients));
        // As many as DPDK admits.
        if self.clients.fetch_add(1, Ordering::Relaxed) >= CLIENTS_MAX {
            return;
        }
        let asker = self.asker.clone();
        let stop = match self.stop.try_clone() {
            Ok(stop) => stop,
            Err(error) => return crate::warn!("event=client_not_served reason=\"{error}\""),
        };
        let started = std::thread::Builder::new()
            .name("knet-telemetry".to_owned())
            .spawn(move || {
                let _place = place;
                with(&socket, &stop, &asker);
            });
        if let Err(error) = started {
            crate::warn!("event=client_not_served reason=\"{error}\"");
        }
    }
}

/// Clients at a time.
const CLIENTS_MAX: usize = 10;

/// The folder of files that are kept: the run folder of a test or a trial, else K-NET's.
fn run_folder() -> std::path::PathBuf {
    rendezvous::named_folder().map_or_else(
        || std::path::PathBuf::from("/etc/knet/run"),
        |folder| std::path::PathBuf::from(folder.to_string()),
    )
}
