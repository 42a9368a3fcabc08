//! What the host tells tools: a query on its socket is answered by a thread of its own.
//!
//! Owns the queries (`session`), what the control thread contributes to them (`desk`), and how lcore and control
//! thread are asked (`asker`). May use what `host` may use. A tool's thread blocks on that tool alone; it asks the
//! lcore through its mailbox for one slice at a time, each as much as a turn can afford, and the control thread at its
//! desk. Invariant: a tool that is slow, gone or hostile costs one thread out of a few, and neither the lcore nor the
//! control thread ever waits for it.
//!
//! ```text
//! tool -> host    Query {"query": "status"}        host -> tool    Answer* text; the last has a = 1
//! ```
//! The parts of an answer, put together, are lines of JSON: the host's own first, then one an entry.

mod answer;
mod asker;
mod capture;
mod desk;
mod session;
mod sockets;
mod telemetry;
mod trace;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

pub(super) use asker::Asker;
pub(super) use desk::{ClientFact, Desk, Facts, FamilyFact, LcoreFact, PortFact};
pub(super) use telemetry::Telemetry;

use self::answer::Answer;

/// Who may ask for what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Trust {
    /// The host's own user, or root: everything, payloads too.
    Full,
    /// Somebody whom the socket's mode lets in.
    Numbers,
}

/// The tools that are being served.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    running: Arc<AtomicUsize>,
    capturing: Arc<AtomicBool>,
}

/// A tool, and what it may do.
#[derive(Debug)]
struct Session {
    trust: Trust,
    asker: Asker,
    /// Where it wants a stream.
    riding: Option<OwnedFd>,
    /// A capture runs.
    capturing: Arc<AtomicBool>,
}

/// One of [`SESSIONS_MAX`] places, given back when it is dropped.
#[derive(Debug)]
struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Sessions {
    /// Serves the tool at `socket` on a thread of its own.
    ///
    /// # Errors
    /// Why not, and its socket back.
    pub(super) fn serve(
        &self,
        socket: OwnedFd,
        query: &str,
        riding: Option<OwnedFd>,
        trust: Trust,
        asker: Asker,
    ) -> Result<(), (String, OwnedFd)> {
        let place = Place(Arc::clone(&self.running));
        if self.running.fetch_add(1, Ordering::Relaxed) >= SESSIONS_MAX {
            let text = format!("{SESSIONS_MAX} tools are being answered, ask again later");
            return Err((text, socket));
        }
        let query = query.to_owned();
        let session = Session {
            trust,
            asker,
            riding,
            capturing: Arc::clone(&self.capturing),
        };
        let started = std::thread::Builder::new()
            .name("knet-admin".to_owned())
            .spawn(move || {
                let _place = place;
                session::run(&mut Answer::new(socket), &query, session);
            });
        match started {
            Ok(_) => Ok(()),
            // The socket went with the closure, so that the tool sees the end of it.
            Err(error) => {
                crate::warn!("event=tool_not_answered reason=\"{error}\"");
                Ok(())
            }
        }
    }
}

/// Tools that are answered at a time.
const SESSIONS_MAX: usize = 8;
