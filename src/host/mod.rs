//! The host's control side: who is attached, to what memory, and how long the host lives.
//!
//! Owns the listening and control sockets, the families' memory until their end, the policy page, the open
//! port and the life cycle. May use `lcore`, `stack`, `device`, `channel`, `config`, `preflight`, `rendezvous`, `telemetry`
//! and `base`. Runs on the control thread, the first of the process, which may block and allocate; it speaks with
//! the lcores through their mailboxes only. Invariant: whatever a client sends, sends too late or never sends, the other
//! clients and the lcore go on.

mod admin;
mod attach;
mod clients;
mod ending;
mod family;
mod fault;
mod group;
mod heirs;
mod launch;
mod lcores;
mod life;
mod listener;
mod open;
mod policy;
mod port;
mod port_lock;
mod query;
mod server;
mod socket;
mod status;
mod talk;
#[cfg(test)]
mod tests;
mod watch;
mod way_back;

pub use server::{End, HandOver, Server, ServerConfig};
