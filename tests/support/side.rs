//! A host with an attached program whose device is open: two of them make a wire with both ends.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;

use knet::channel::cell::kind;

use crate::knetd::{Attached, Folder, Knetd, until};
use crate::program::Program;

pub(crate) const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
pub(crate) const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
pub(crate) const ENDPOINT: SocketAddrV4 = SocketAddrV4::new(SERVER, 6_379);

/// A host, and what a program of it has of it.
pub(crate) struct Side {
    pub(crate) knetd: Knetd,
    pub(crate) attached: Attached,
    pub(crate) conf: PathBuf,
}

impl Side {
    pub(crate) fn start(folder: &Folder, name: &str, address: Ipv4Addr, common: &str) -> Self {
        Self::with(folder, name, folder.config(name, address, common))
    }

    /// With a config that is written.
    pub(crate) fn with(folder: &Folder, name: &str, conf: PathBuf) -> Self {
        let (knetd, control) = Knetd::private(folder, name);
        Self {
            knetd,
            attached: Attached::over(control, &conf),
            conf,
        }
    }
}

impl std::ops::Deref for Side {
    type Target = Program;

    fn deref(&self) -> &Self::Target {
        &self.attached.program
    }
}

/// A listener of the server's program.
#[track_caller]
pub(crate) fn listen(server: &Side) -> u32 {
    let listener = server.claim();
    server.listen(listener, ENDPOINT, 16);
    server.attached.wake();
    until("listen is answered", || server.answer(listener).is_some());
    assert_eq!(server.answer(listener), Some(0));
    listener
}

/// A connection to `listener`: the client's object and the server's.
#[track_caller]
pub(crate) fn connect(client: &Side, server: &Side, listener: u32) -> (u32, u32) {
    let out = client.claim();
    client.connect(out, ENDPOINT);
    client.attached.wake();
    until("it is connected", || {
        client.kind(out) != kind::FREE && client.kind(out) != kind::CONNECTING
    });
    assert_eq!(client.kind(out), kind::STREAM);
    until("it waits for accept", || server.bits(listener) != 0);
    (out, server.accept(listener).unwrap())
}
