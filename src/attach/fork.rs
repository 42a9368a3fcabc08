//! Fork of an attached program: the child gets a process cell and a control socket of its own (design D8).
//!
//! The prepare step, in the parent, reserves a cell, copies the parent's holdings into it and sends the host one end of a
//! socket pair; the child keeps the only other end, whose hang-up is its death. A thread that is attaching meanwhile may take
//! as long as a host needs to start: it is waited for a little, so that the child shares the host, and not longer.

use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use core::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::link::{self, Link, link};
use super::{ATTACH, PLACING, pending, transit};
use crate::channel::cell::process as process_state;
use crate::channel::message::{Kind, Message, heir};
use crate::channel::sync::Ordering as ChannelOrdering;
use crate::errno::{Errno, Result};
use crate::ffi::number_limit::room_for_several;
use crate::ffi::{descriptor, process};
use crate::time::monotonic;
use crate::{progress, thread};

/// The child's end of the pair between prepare and the handlers behind fork; -1 = none.
static CHILD_SOCKET: AtomicI32 = AtomicI32::new(-1);
/// The child's cell.
static CHILD_CELL: AtomicU32 = AtomicU32::new(0);
/// 1 while prepare holds [`PLACING`].
static LOCKED: AtomicU32 = AtomicU32::new(0);
/// 1 while prepare keeps a host inside this process from opening descriptors.
static SETTLED: AtomicU32 = AtomicU32::new(0);
/// How long a fork waits for a thread that is attaching: a host that only has to be started answers sooner.
const ATTACH_TIME: Duration = Duration::from_millis(300);

/// Before fork, in the parent.
pub fn prepare() {
    if link().is_none_or(Link::is_dead) {
        // A child that is forked before it ends attaches on its own.
        drop(ATTACH.enter_until(Some(monotonic() + ATTACH_TIME)));
    }
    if let Some(inside) = PLACING.enter() {
        inside.keep();
        LOCKED.store(1, Ordering::Relaxed);
    }
    let Some(link) = link().filter(|link| !link.is_dead()) else {
        return;
    };
    match reserve(link, fill, heir::CHILD, None) {
        Ok((cell, socket)) => {
            CHILD_CELL.store(cell, Ordering::Relaxed);
            CHILD_SOCKET.store(socket, Ordering::Relaxed);
        }
        // Nobody has looked since the host went.
        Err(Errno::PIPE | Errno::CONNRESET) => link.lose(),
        // The child finds no socket and holds nothing; its sockets are reset.
        Err(error) => crate::warn!(
            "fork: the child gets no share of the accelerated sockets errno={}",
            error.raw_os_error()
        ),
    }
    // Behind the message, which the host must be able to take.
    if progress::is_here() && descriptor::hold_settling() {
        SETTLED.store(1, Ordering::Relaxed);
    }
}

/// Behind fork, in the parent (also when fork failed: the pair's hang-up then frees the cell).
pub fn parent() {
    release();
    let socket = CHILD_SOCKET.swap(-1, Ordering::Relaxed);
    if socket >= 0 {
        descriptor::close(socket);
    }
    unlock();
}

/// Behind fork, in the child.
pub fn child() {
    pending::close_parents();
    release();
    // What a host inside the parent has open: with it our own socket's other end, whose hang-up is to tell us its death.
    descriptor::close_hosts();
    let socket = CHILD_SOCKET.swap(-1, Ordering::Relaxed);
    if let Some(link) = link::inherited() {
        if socket >= 0 {
            settle(link, CHILD_CELL.load(Ordering::Relaxed), socket);
        } else {
            link.disown();
        }
    }
    link::claim_dead();
    unlock();
}

fn release() {
    if SETTLED.swap(0, Ordering::Relaxed) == 1 {
        descriptor::release_settling();
    }
}

fn unlock() {
    if LOCKED.swap(0, Ordering::Relaxed) == 1 {
        PLACING.leave();
    }
}

/// Takes a free cell for a child (or what comes after this process in another way, see [`heir`]), lets `fill` give it what it
/// holds, and tells the host. The cell, and the socket that speaks for it, on which `greeting` waits: an internal descriptor,
/// unless this is a child that shares our memory and not our descriptors.
pub(super) fn reserve(
    link: &Link,
    fill: impl FnOnce(&Link, u32) -> Result<()>,
    heir: &str,
    greeting: Option<&Message<'_>>,
) -> Result<(u32, i32)> {
    let taken = link.control.take_process(process_state::FORKING);
    let number = taken.ok_or(Errno::AGAIN)?;
    let sent = fill(link, number).and_then(|()| introduce(link, number, heir, greeting));
    if sent.is_err()
        && let Some(cell) = link.control.process(number)
    {
        give_up(link, number);
        cell.state
            .store(process_state::FREE, ChannelOrdering::Release);
    }
    sent.map(|socket| (number, socket))
}

/// Who gets a process cell that is reserved before an exec.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Heir {
    /// The program that this process executes.
    Executed,
    /// The program that a child of it executes.
    Spawned,
}

/// Reserves a cell for a program that is about to be executed; `fill` says what it holds.
///
/// # Errors
/// EAGAIN when the family has no process cell left, EMFILE, what sendmsg says.
pub fn reserve_for(
    link: &Link,
    heir: Heir,
    fill: impl FnOnce(u32) -> Result<()>,
) -> Result<(u32, i32)> {
    let text = match heir {
        Heir::Executed => heir::EXECUTED,
        Heir::Spawned => heir::SPAWNED,
    };
    let fill = |link: &Link, number: u32| {
        let cell = link.control.process(number).ok_or(Errno::PROTO)?;
        cell.pid.store(thread::process(), ChannelOrdering::Relaxed);
        fill(number)
    };
    reserve(link, fill, text, None)
}

/// Process cell `number` holds an epoll.
pub fn hold_epoll(link: &Link, number: u32, epoll: u32) {
    if let Some(cell) = link.control.process(number)
        && cell.epolls.add(epoll)
        && let Some(epoll) = link.control.epoll(epoll)
    {
        epoll.used.fetch_add(1, ChannelOrdering::AcqRel);
    }
}

fn fill(link: &Link, number: u32) -> Result<()> {
    let mine = link.process();
    let parent = link.control.process(mine).ok_or(Errno::PROTO)?;
    let cell = link.control.process(number).ok_or(Errno::PROTO)?;
    cell.pid.store(thread::process(), ChannelOrdering::Relaxed);
    parent
        .epolls
        .for_each(|epoll| hold_epoll(link, number, epoll));
    let held = link.control.held(mine).ok_or(Errno::PROTO)?;
    let theirs = link.control.held(number).ok_or(Errno::PROTO)?;
    held.copy_to(&theirs);
    Ok(())
}

/// Undoes `fill`.
fn give_up(link: &Link, number: u32) {
    if let Some(held) = link.control.held(number) {
        held.clear_all();
    }
    if let Some(cell) = link.control.process(number) {
        cell.epolls.drain(|epoll| {
            if let Some(epoll) = link.control.epoll(epoll) {
                epoll.used.fetch_sub(1, ChannelOrdering::AcqRel);
            }
        });
    }
}

fn introduce(link: &Link, number: u32, heir: &str, greeting: Option<&Message<'_>>) -> Result<i32> {
    let _room = room_for_several();
    let (childs, hosts) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?;
    // Who takes a socket over that came in a message must be known.
    let credentials = rustix::net::sockopt::set_socket_passcred(&hosts, true);
    let hosts = descriptor::raw(hosts);
    let childs = if process::pid() == thread::process() {
        descriptor::internalize(childs)
    } else {
        descriptor::lift(childs)
    };
    let childs = credentials.and(childs);
    let message = Message {
        text: heir,
        ..Message::new(Kind::Fork, number, 0)
    };
    let sent = childs.and_then(|_| {
        transit::greet(hosts, greeting)?;
        link::send(link.control_socket(), &message, Some(hosts))
    });
    descriptor::close(hosts);
    match (childs, sent) {
        (Ok(socket), Ok(())) => Ok(socket),
        (Ok(socket), Err(error)) => {
            descriptor::close(socket);
            Err(error)
        }
        (Err(error), _) => Err(error),
    }
}

/// Takes possession of the cell, in the child.
fn settle(link: &Link, number: u32, socket: i32) {
    let parents = link.adopt(number, socket);
    // Ours is the only other end of the parent's socket: its hang-up must not wait for us.
    descriptor::close(parents);
    // The host, which may not have seen Fork yet, makes the cell LIVE when it sees Child.
    let message = Message::new(Kind::Child, number, thread::process());
    if link::send(socket, &message, None).is_err() {
        link.lose();
    }
}
