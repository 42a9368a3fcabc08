//! What the program side needs of a config: the host writes it to a read-only page (design D14).

use core::net::Ipv4Addr;

use super::settings::{Accelerate, Buffers, Config, OnError, OnHostLost, Progress};

/// The program side's share of a config.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Policy {
    /// Our addresses with their prefix lengths.
    pub addresses: Vec<(Ipv4Addr, u8)>,
    /// Which programs, ports and addresses are accelerated.
    pub accelerate: Accelerate,
    /// First and last port that connect() takes.
    pub ephemeral_ports: (u16, u16),
    /// When the stack cannot serve.
    pub on_error: OnError,
    /// New sockets while the host is gone.
    pub on_host_lost: OnHostLost,
    /// Who drives the loop.
    pub progress: Progress,
    /// Bytes of socket buffers.
    pub buffers: Buffers,
    /// Connections at most.
    pub max_connections: u32,
}

impl From<&Config> for Policy {
    fn from(config: &Config) -> Self {
        Self {
            addresses: config.network.addresses.clone(),
            accelerate: config.accelerate.clone(),
            ephemeral_ports: config.tcp.ephemeral_ports,
            on_error: config.on_error,
            on_host_lost: config.on_host_lost,
            progress: config.run.progress,
            buffers: config.buffers,
            max_connections: config.tcp.max_connections,
        }
    }
}

impl Policy {
    /// Whether `address` is one of ours and accelerated.
    #[must_use]
    pub fn covers_address(&self, address: Ipv4Addr) -> bool {
        let listed = &self.accelerate.addresses;
        self.addresses.iter().any(|(ours, _)| *ours == address)
            && (listed.is_empty() || listed.contains(&address))
    }

    /// Whether `port` is accelerated.
    #[must_use]
    pub fn covers_port(&self, port: u16) -> bool {
        self.accelerate.ports.is_empty() || self.accelerate.ports.contains(&port)
    }

    /// Whether the program at `path` (absolute) is accelerated.
    #[must_use]
    pub fn covers_program(&self, path: &str) -> bool {
        let name = path.rsplit('/').next().unwrap_or(path);
        let listed = &self.accelerate.programs;
        listed.is_empty()
            || listed
                .iter()
                .any(|program| program == path || program == name)
    }
}
