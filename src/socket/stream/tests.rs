//! Streams against a host that only writes cells.

#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // small numbers

mod marks;
mod receiving;
mod sending;

use core::time::Duration;
use std::sync::atomic::AtomicUsize;

use super::*;
use crate::channel::owner::Taken;
use crate::socket::close::{self, How};
use crate::socket::fake::{Fake, RING};
use crate::time::monotonic;

const PEEK: RecvFlags = RecvFlags {
    peek: true,
    waitall: false,
    dontwait: false,
    trunc: false,
    cut: false,
};

fn get(fake: &Fake, object: Object, room: usize, flags: RecvFlags) -> Result<Vec<u8>> {
    recv_now(fake.link, object, room, flags, true)
}

fn recv_now(
    link: &Link,
    object: Object,
    room: usize,
    flags: RecvFlags,
    nonblocking: bool,
) -> Result<Vec<u8>> {
    let mut bytes = vec![0; room];
    let count = recv(
        link,
        object,
        &mut [IoSliceMut::new(&mut bytes)],
        flags,
        nonblocking,
    )?;
    bytes.truncate(count);
    Ok(bytes)
}

fn wait_for(link: &Link, object: Object, room: usize, flags: RecvFlags) -> Result<Vec<u8>> {
    recv_now(link, object, room, flags, false)
}

fn put(link: &Link, object: Object, bytes: &[u8], nonblocking: bool) -> Result<usize> {
    let flags = SendFlags {
        nonblocking,
        ..SendFlags::default()
    };
    send(link, object, &[IoSlice::new(bytes)], flags)
}

fn none() -> RecvFlags {
    RecvFlags::default()
}
