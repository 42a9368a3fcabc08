//! What the control thread does for tools: it hands them over, and tells what it alone knows.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use super::admin::{Asker, ClientFact, Facts, FamilyFact, Trust};
use super::clients::Standing;
use super::fault::Fault;
use super::server::Server;
use super::socket;
use crate::config::{Idle, Progress};
use crate::errno::Errno;

impl Server {
    /// Hands the guest at `place` over to a thread that answers its query.
    pub(super) fn query(&mut self, place: usize, query: &str, riding: Option<OwnedFd>) {
        let Some(client) = self.clients.take_guest(place) else {
            return;
        };
        let own = rustix::process::geteuid().as_raw();
        let trust = match socket::peer(client.as_fd()) {
            Ok(peer) if peer.uid.as_raw() == own || peer.uid.is_root() => Trust::Full,
            _ => Trust::Numbers,
        };
        let asker = Asker::new(Arc::clone(&self.desk), self.lcores.mailboxes());
        if let Err((reason, socket)) = self.sessions.serve(client, query, riding, trust, asker) {
            let fault = Fault::new(reason, Errno::BUSY);
            let message = fault.message();
            // A tool that does not read learns nothing, and its socket ends here.
            let _ = socket::send(socket.as_fd(), &message, &[]);
        }
    }

    /// What only this thread knows, for whoever asks at the desk.
    pub(super) fn facts(&self) -> Facts {
        let config = self.config.as_ref();
        let clients = self.clients.iter().filter_map(|client| {
            let Standing::Attached { owner, cell, pid } = client.standing else {
                return None;
            };
            Some(ClientFact {
                owner,
                cell,
                pid: client.process.unwrap_or(pid),
            })
        });
        let families = self.families.iter().flatten().map(|family| FamilyFact {
            owner: family.owner,
            program: family.program.clone(),
            segments: Arc::clone(&family.segments),
            left: family.left_at.is_some(),
        });
        Facts {
            private: self.private,
            config: config.map(|config| config.file.clone()),
            port: config.map(|config| config.port.to_string()),
            addresses: config.map_or_else(Vec::new, |config| {
                let addresses = config.network.addresses.iter();
                addresses
                    .map(|(address, len)| format!("{address}/{len}"))
                    .collect()
            }),
            progress: match config.map(|config| config.run.progress) {
                Some(Progress::Inline) => "inline",
                _ => "dedicated",
            },
            idle: match config.map(|config| config.run.idle) {
                Some(Idle::Spin) => "spin",
                _ => "adaptive",
            },
            spin_us: config.map_or(0, |config| {
                u64::try_from(config.run.spin.as_micros()).unwrap_or(u64::MAX)
            }),
            open: self.running.as_ref().map(super::launch::Running::fact),
            clients: clients.collect(),
            families: families.collect(),
        }
    }
}
