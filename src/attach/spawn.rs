//! Starts a private host that the program never sees as a child (design D1).
//!
//! Two raw clones with exit signal 0: the first child ends at once and is reaped by its id, the second becomes the
//! host. Neither runs fork handlers; `wait(-1)` and SIGCHLD of the program do not see them.
//!
//! # Safety
//! Between clone and exec the child makes raw calls only, on memory that is its own copy. The lists for exec are null
//! terminated and point to strings that outlive the call.

#![allow(unsafe_code)]

use core::ffi::{CStr, c_char};
use core::ptr;

use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::fault::reason;
use super::{link, pending};
use crate::channel::message::{Kind, Message};
use crate::errno::{Errno, Result};
use crate::ffi::{descriptor, environment, process};
use crate::rendezvous::Path;

/// The descriptor on which the host finds its first client.
const CONTROL_FD: i32 = 3;

/// Starts `host` for the program called `name`; returns our end of its control socket (internal).
///
/// # Errors
/// What socketpair, fcntl or clone say. That the binary cannot run is told on the socket.
pub(super) fn start(host: &Path, name: &CStr) -> Result<i32> {
    let (ours, theirs) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?;
    let theirs = descriptor::raw(theirs);
    pending::note(theirs);
    let ours = descriptor::internalize(ours);
    ours.into_iter().for_each(pending::note);
    let cloned = ours.and_then(|_| process::clone_silent());
    if cloned == Ok(0) {
        // The middle one: makes the host and ends, so that the host's parent is init.
        match process::clone_silent() {
            Ok(0) => become_host(host, name, theirs),
            Ok(_) => process::exit(0),
            Err(_) => process::exit(1),
        }
    }
    pending::close(theirs);
    match (ours, cloned) {
        (Ok(ours), Ok(child)) => {
            // ECHILD would mean that somebody else reaped it, which changes nothing.
            let _ = process::reap_silent(child);
            Ok(ours)
        }
        (Ok(ours), Err(error)) => {
            pending::close(ours);
            Err(error)
        }
        (Err(error), _) => Err(error),
    }
}

/// In the child: sheds everything of the program and executes the host.
fn become_host(host: &Path, name: &CStr, control: i32) -> ! {
    let status = match shed(control) {
        Ok(()) => {
            let error = exec(host.as_c_str(), name);
            let why = Told::new(format_args!(
                "cannot execute {host}: {}; kernel sockets are used",
                reason(error)
            ));
            // The program's Hello first: closing with it unread would reset the socket, and our words with it.
            hear(CONTROL_FD);
            // If nobody listens any more there is nobody to tell.
            let _ = link::send(CONTROL_FD, &why.message(), None);
            127
        }
        Err(_) => 126,
    };
    process::exit(status)
}

/// Waits for one message, or for the end of the program, and forgets it.
fn hear(socket: i32) {
    let Ok(socket) = descriptor::lend(socket) else {
        return;
    };
    let mut byte = [0; 1];
    let flags = rustix::net::RecvFlags::empty();
    // Whatever came of it, the answer is the same.
    let _ = rustix::net::recv(socket, &mut byte, flags);
}

struct Told {
    text: Path,
}

impl Told {
    fn new(text: core::fmt::Arguments<'_>) -> Self {
        let mut path = Path::empty();
        // A text that is too long is cut where it does not fit.
        let _ = core::fmt::Write::write_fmt(&mut path, text);
        Self { text: path }
    }

    fn message(&self) -> Message<'_> {
        Message {
            text: self
                .text
                .as_c_str()
                .to_str()
                .unwrap_or("cannot execute the host"),
            ..Message::new(Kind::Fault, 0, 0)
        }
    }
}

/// Leaves session, signals, descriptors and folder of the program.
fn shed(control: i32) -> Result<()> {
    // Fails only for a group leader, which a new child is not.
    let _ = rustix::process::setsid();
    process::reset_signals();
    // Out of the way of 0 to 3 first.
    let high = descriptor::raw(rustix::io::fcntl_dupfd_cloexec(
        descriptor::lend(control)?,
        10,
    )?);
    let null = descriptor::raw(rustix::fs::open(c"/dev/null", OFlags::RDWR, Mode::empty())?);
    for fd in 0..3 {
        process::duplicate_onto(null, fd)?;
    }
    process::duplicate_onto(high, CONTROL_FD)?;
    process::close_from(CONTROL_FD + 1);
    rustix::process::chdir(c"/")
}

fn exec(host: &CStr, name: &CStr) -> Errno {
    let arguments: [*const c_char; 7] = [
        host.as_ptr(),
        c"--private".as_ptr(),
        c"--control-fd".as_ptr(),
        c"3".as_ptr(),
        c"--program".as_ptr(),
        name.as_ptr(),
        ptr::null(),
    ];
    let mut count = 0;
    environment::for_each(|_| {
        count += 1;
        true
    });
    environment::for_each_kept(|_| count += 1);
    let bytes = (count + 1) * size_of::<*const c_char>();
    let protection = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
    // SAFETY: a new private mapping at an address of the kernel's choice aliases nothing.
    let list = unsafe {
        rustix::mm::mmap_anonymous(
            ptr::null_mut(),
            bytes,
            protection,
            rustix::mm::MapFlags::PRIVATE,
        )
    };
    let list = match list {
        Ok(list) => list.cast::<*const c_char>(),
        Err(error) => return error,
    };
    let mut kept = 0;
    let mut keep = |entry: &CStr| {
        if kept < count {
            // SAFETY: kept < count, and the list has count + 1 places.
            let place = unsafe { list.add(kept) };
            // SAFETY: inside the mapping, which is ours alone; aligned for pointers.
            unsafe { place.write(entry.as_ptr()) };
            kept += 1;
        }
    };
    environment::for_each(|entry| {
        let text = entry.to_bytes();
        let loads = text.starts_with(b"LD_PRELOAD=") || text.starts_with(b"LD_AUDIT=");
        if !loads && !environment::is_kept(entry) {
            keep(entry);
        }
        true
    });
    // The host's folder is another one, and the program may have cleared its environment.
    environment::for_each_kept(keep);
    // SAFETY: both lists end with a null (fresh mappings are zero) and point to terminated strings.
    unsafe { process::execute(host, arguments.as_ptr(), list) }
}
