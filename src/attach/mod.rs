//! How a program finds, starts and leaves its host.
//!
//! Owns the hand-shake and this process's end of the channel. May use `base`, `telemetry`, `channel`, `readiness`,
//! `rendezvous`, `thread`, `ffi`. Runs in the program's own calls, also in a signal handler. Invariant: it never
//! allocates, never parses the config, and whatever goes wrong ends in one line on descriptor 2 and kernel sockets.

// A fault is made at most a few times in a process's life and must live on the stack: nothing here may allocate.
#![allow(clippy::result_large_err, clippy::large_enum_variant)]

mod config_file;
mod door;
mod fault;
pub mod fork;
mod handshake;
pub mod image;
pub mod inside;
pub mod link;
mod lock;
pub mod object;
pub mod parcel;
mod pending;
mod place;
mod spawn;
pub mod transit;

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use core::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags};

use self::config_file::ConfigFile;
use self::fault::Fault;
use self::handshake::Answer;
pub use self::link::{Link, Signals, link};
use self::lock::Lock;
pub use self::object::Object;
use crate::channel::cell::host_state;
use crate::channel::policy::policy_flag;
use crate::channel::sync::Ordering as ChannelOrdering;
use crate::errno::{Errno, Result};
use crate::ffi::descriptor;
use crate::ffi::number_limit::room_for_several;
use crate::rendezvous::{self, HostNames, Path};
use crate::thread;
use crate::time::{Instant, monotonic};

/// One thread at a time speaks with a host.
static ATTACH: Lock = Lock::new();
/// Held for the moment in which a link is put in its place, and over a fork: a child never finds half a link.
static PLACING: Lock = Lock::new();
/// See [`stage`].
static STAGE: AtomicU32 = AtomicU32::new(stage::UNTRIED);
/// When a lost host may be looked for again, in nanoseconds of the monotonic clock.
static NEXT_TRY: AtomicU64 = AtomicU64::new(0);

mod stage {
    /// No socket has needed a host yet.
    pub(super) const UNTRIED: u32 = 0;
    /// Attached, perhaps to a host that died since.
    pub(super) const ATTACHED: u32 = 1;
    /// Kernel sockets from now on; the reason was told.
    pub(super) const KERNEL: u32 = 2;
    /// Refused from now on, as the config says (`on_error: "fail"`).
    pub(super) const REFUSED: u32 = 3;
}

/// Number of the lost link + 1 whose replacement's fault was told; 0 = none.
static TOLD: AtomicU32 = AtomicU32::new(0);

/// A lost host is looked for at most once in this time.
const RETRY_S: u64 = 1;
/// How long a program waits for another one that is starting the same host.
const START_S: u64 = 20;
/// Hosts that may go away under our hands before we give up.
const ATTEMPTS: u32 = 3;

/// Where a program stands with its host.
#[derive(Clone, Copy, Debug)]
pub enum Standing {
    /// Attached.
    Attached(&'static Link),
    /// The kernel serves.
    Kernel,
    /// Nobody serves: the config says to refuse.
    Refused,
}

/// Whether sockets that are made now are ours to look after: a host may serve them, or they must be refused.
#[must_use]
pub fn may_accelerate() -> bool {
    STAGE.load(Ordering::Acquire) != stage::KERNEL
}

/// Attaches at the first call that needs it. Async-signal-safe; a handler that interrupts its own thread's attach gets
/// [`Standing::Kernel`].
pub fn ensure() -> Standing {
    if let Some(standing) = known() {
        return standing;
    }
    loop {
        let standing = {
            let Some(_inside) = ATTACH.enter() else {
                return Standing::Kernel;
            };
            known().map_or_else(try_now, Some)
        };
        // None: `on_host_lost: "wait"`. Nothing is held meanwhile.
        if let Some(standing) = standing {
            return standing;
        }
        pause();
    }
}

/// As [`ensure`], for a caller that does not wait for a host that cannot be had now.
pub fn ensure_now() -> Standing {
    if let Some(standing) = known() {
        return standing;
    }
    let Some(_inside) = ATTACH.enter() else {
        return Standing::Kernel;
    };
    known().or_else(try_now).unwrap_or(Standing::Kernel)
}

/// Attaches, the first time or to the host that takes a lost one's place. None = it is to be waited for.
fn try_now() -> Option<Standing> {
    let lost = link();
    let waits = lost.is_some_and(|lost| {
        let policy = &lost.control.header().policy;
        policy.has(policy_flag::ON_HOST_LOST_WAIT)
    });
    let otherwise = || (!waits).then_some(Standing::Kernel);
    let now = monotonic();
    if lost.is_some() && now < Instant::from_nanos(NEXT_TRY.load(Ordering::Relaxed)) {
        return otherwise();
    }
    let next = now + Duration::from_secs(RETRY_S);
    NEXT_TRY.store(next.nanos(), Ordering::Relaxed);
    match attach() {
        Ok(link) => {
            STAGE.store(stage::ATTACHED, Ordering::Release);
            // Only a host that cannot be had is waited for.
            NEXT_TRY.store(0, Ordering::Relaxed);
            if link
                .control
                .header()
                .policy
                .has(policy_flag::PROGRAM_EXCLUDED)
            {
                STAGE.store(stage::KERNEL, Ordering::Release);
                return Some(Standing::Kernel);
            }
            Some(Standing::Attached(link))
        }
        Err(fault) if lost.is_some() => {
            tell_lost(&fault);
            otherwise()
        }
        Err(fault) => Some(settle(&fault)),
    }
}

/// Tells, once for each host, why no other one takes its place.
fn tell_lost(fault: &Fault) {
    let number = link().map_or(0, |link| link.number() + 1);
    if TOLD.swap(number, Ordering::Relaxed) != number {
        fault.tell();
    }
}

/// What is decided already; None when somebody must attach.
fn known() -> Option<Standing> {
    match STAGE.load(Ordering::Acquire) {
        stage::KERNEL => Some(Standing::Kernel),
        stage::REFUSED => Some(Standing::Refused),
        stage::ATTACHED => link()
            .filter(|link| {
                link.look();
                !link.is_dead()
            })
            .map(Standing::Attached),
        _ => None,
    }
}

/// Tells the fault once and decides for good.
fn settle(fault: &Fault) -> Standing {
    fault.tell();
    if fault.refuse {
        STAGE.store(stage::REFUSED, Ordering::Release);
        Standing::Refused
    } else {
        STAGE.store(stage::KERNEL, Ordering::Release);
        Standing::Kernel
    }
}

/// Makes sure that the host's device is open and its lcore runs.
pub fn open_device(link: &'static Link) -> Standing {
    let running = || {
        link.control
            .header()
            .host_state
            .load(ChannelOrdering::Acquire)
            == host_state::RUNNING
    };
    if running() {
        return Standing::Attached(link);
    }
    let Some(_inside) = ATTACH.enter() else {
        return Standing::Kernel;
    };
    if running() {
        return Standing::Attached(link);
    }
    let fault = match handshake::open_device(link.control_socket()) {
        Answer::Done(()) => return Standing::Attached(link),
        Answer::Fault(fault) => fault,
        Answer::Lost(error) => handshake::lost(error),
        Answer::Inline => handshake::lost(Errno::PROTO),
    };
    link.mark_dead();
    if link.number() == 0 {
        return settle(&fault);
    }
    // There was a host, and there will be one again.
    tell_lost(&fault);
    let next = monotonic() + Duration::from_secs(RETRY_S);
    NEXT_TRY.store(next.nanos(), Ordering::Relaxed);
    Standing::Kernel
}

/// The herald of `epoll`, made by another process of the family, as an internal descriptor; the host has it.
///
/// # Errors
/// ENOENT when the host has not heard of it yet, EAGAIN in a handler that interrupted this thread's talk with the host, what
/// sendmsg and recvmsg say.
pub fn herald(link: &Link, epoll: u32) -> Result<i32> {
    let _inside = ATTACH.enter().ok_or(Errno::AGAIN)?;
    handshake::herald(link.control_socket(), epoll)
}

/// Tells the host where the signals of an object go. Returns once that is on its way to the lcore, but for a handler that
/// interrupted this thread's talk with the host.
///
/// # Errors
/// What sendmsg and recvmsg say.
pub fn register_signals(link: &Link, signals: Signals) -> Result<()> {
    let inside = ATTACH.enter();
    handshake::signals(link.control_socket(), signals, inside.is_some())
}

/// Finds or starts the host and shakes hands.
fn attach() -> core::result::Result<&'static Link, Fault> {
    thread::remember_process();
    let _room = room_for_several();
    let config = match config_file::open() {
        Ok(config) => config,
        // It may have been hidden since (chroot), and the host of the system has its own.
        Err(_) if follows_system() => ConfigFile::unread(),
        Err(fault) => return Err(fault),
    };
    config.fd.into_iter().for_each(pending::note);
    let attached = if link::all_taken() {
        Err(Fault::new(format_args!(
            "this process has sockets of {} lost hosts; kernel sockets are used until it closes those of one",
            link::LINKS
        )))
    } else {
        attach_with(&config)
    };
    config.fd.into_iter().for_each(pending::close);
    // Whatever came of it, this way is not needed any more.
    door::take().into_iter().for_each(descriptor::close);
    attached
}

fn attach_with(config: &ConfigFile) -> core::result::Result<&'static Link, Fault> {
    // A private host would take the port from the one that is being started again.
    let follows_system = follows_system();
    if config.fd.is_none() || follows_system {
        // Only a host of the system can read it for us.
        let system = system_socket()?;
        return match system.map(|socket| finish(socket, config)) {
            Some(Answer::Done(link)) => Ok(link),
            Some(Answer::Fault(fault)) => Err(fault),
            Some(Answer::Lost(error)) => Err(handshake::lost(error)),
            Some(Answer::Inline) => Err(handshake::lost(Errno::PROTO)),
            None if follows_system => Err(handshake::lost(Errno::CONNREFUSED)),
            None => Err(Fault::closed_to_us(config.path)),
        };
    }
    let folder = rendezvous::run_folder()
        .map_err(|e| Fault::step("run folder", c"(KNET_RUN_DIR names one)", e))?;
    let namespace =
        rendezvous::network_namespace().map_err(|e| Fault::step("network namespace", c"", e))?;
    let names = rendezvous::host_names(&folder, namespace, config.hash)
        .map_err(|e| Fault::step("run folder", folder.as_c_str(), e))?;
    if let Some(link) = served_by_system(&names, config)? {
        return Ok(link);
    }
    let mut last = Errno::CONNRESET;
    for _ in 0..ATTEMPTS {
        let found = find(&names)?;
        match finish(found.socket, config) {
            Answer::Done(link) => return Ok(link),
            Answer::Fault(fault) => return Err(fault),
            // A host that was just ending: look again.
            Answer::Lost(error) => last = error,
            // `found` still holds the start lock.
            Answer::Inline => return attach_inside(config),
        }
    }
    Err(handshake::lost(last))
}

/// Attaches to the host of the system when it serves this config and no private host runs.
fn served_by_system(
    names: &HostNames,
    config: &ConfigFile,
) -> core::result::Result<Option<&'static Link>, Fault> {
    if rustix::fs::stat(names.socket.as_c_str()).is_ok() {
        return Ok(None);
    }
    let Some(socket) = system_socket()? else {
        return Ok(None);
    };
    match finish(socket, config) {
        Answer::Done(link) => Ok(Some(link)),
        // It has another config: a private host will say what is wrong with ours, if anything is.
        Answer::Fault(_) | Answer::Lost(_) | Answer::Inline => Ok(None),
    }
}

/// Whether the host that was lost was the system's.
fn follows_system() -> bool {
    link().is_some_and(|lost| lost.control.header().policy.has(policy_flag::SYSTEM_HOST))
}

fn system_socket() -> core::result::Result<Option<i32>, Fault> {
    let fault = |error| Fault::step("host", rendezvous::SYSTEM_SOCKET, error);
    let path = Path::new(rendezvous::SYSTEM_SOCKET.to_bytes()).map_err(fault)?;
    let found = match handshake::connect(&path) {
        Err(Errno::ACCESS | Errno::PERM) => None,
        other => other.map_err(fault)?,
    };
    let door = door::take();
    match (found, door) {
        (Some(socket), door) => {
            door.into_iter().for_each(descriptor::close);
            Ok(Some(socket))
        }
        (None, Some(door)) => Ok(Some(door)),
        (None, None) if follows_system() => handshake::connect_by_name().map_err(fault),
        (None, None) => Ok(None),
    }
}

/// The process is about to give up rights that may be needed to reach the host of the system.
pub fn before_rights_go() {
    if STAGE.load(Ordering::Acquire) == stage::UNTRIED {
        door::open();
    }
}

/// Says Hello; on success the socket belongs to the new link, else it is closed.
fn finish(socket: i32, config: &ConfigFile) -> Answer<&'static Link> {
    pending::note(socket);
    install(socket, handshake::hello(socket, config))
}

/// Makes a link of what the host at `socket` has answered.
fn install(socket: i32, answer: Answer<link::Parts>) -> Answer<&'static Link> {
    let answer = match answer {
        Answer::Done(parts) => {
            let _placing = PLACING.enter();
            match link::install(parts) {
                Ok(link) => {
                    pending::forget(socket);
                    return Answer::Done(link);
                }
                Err(error) => Answer::Lost(error),
            }
        }
        Answer::Fault(fault) => Answer::Fault(fault),
        Answer::Lost(error) => Answer::Lost(error),
        Answer::Inline => Answer::Inline,
    };
    pending::close(socket);
    answer
}

/// Becomes a member of the family whose process cell `control` stands for, an internal descriptor; it is closed when that
/// cannot be. What an executed program and the receiver of a foreign socket do first.
///
/// `take` gets the memory in which the family agrees when this process has not inherited it, an internal descriptor, before
/// anything can be done with the link; the link is dead when it fails.
///
/// # Errors
/// EBUSY when this process is attached already; else what was said, on descriptor 2.
pub fn resume(control: i32, take: impl FnOnce(Option<i32>) -> Result<()>) -> Result<&'static Link> {
    let Some(_inside) = ATTACH.enter() else {
        descriptor::close(control);
        return Err(Errno::AGAIN);
    };
    if STAGE.load(Ordering::Acquire) != stage::UNTRIED {
        descriptor::close(control);
        return Err(Errno::BUSY);
    }
    thread::remember_process();
    pending::note(control);
    let answer = match handshake::resume(control) {
        Answer::Done(parts) => match take(parts.registry) {
            Ok(()) => Answer::Done(parts),
            Err(error) => Answer::Lost(error),
        },
        other => other,
    };
    match install(control, answer) {
        Answer::Done(link) => {
            STAGE.store(stage::ATTACHED, Ordering::Release);
            Ok(link)
        }
        Answer::Fault(fault) => {
            fault.tell();
            Err(Errno::PERM)
        }
        Answer::Lost(error) => {
            crate::error!(
                "the sockets that were handed over are lost: {}",
                fault::reason(error)
            );
            Err(error)
        }
        Answer::Inline => Err(Errno::PROTO),
    }
}

/// Whether this process may still become a member of another program's family: no socket has needed a host.
#[must_use]
pub fn may_resume() -> bool {
    STAGE.load(Ordering::Acquire) == stage::UNTRIED
}

/// Starts the host inside this process, whose threads drive it, and attaches to it as to any other.
fn attach_inside(config: &ConfigFile) -> core::result::Result<&'static Link, Fault> {
    let cannot = |error| Fault::step("cannot run the stack inside this program", c"", error);
    let socket = inside::start().map_err(cannot)?;
    match finish(socket, config) {
        Answer::Done(link) => Ok(link),
        Answer::Fault(fault) => Err(fault),
        Answer::Lost(error) => Err(handshake::lost(error)),
        Answer::Inline => Err(handshake::lost(Errno::PROTO)),
    }
}

/// A host's socket, and the start lock that is held until the hand-shake is over.
struct Found {
    socket: i32,
    lock: Option<i32>,
}

impl Drop for Found {
    fn drop(&mut self) {
        self.lock.into_iter().for_each(pending::close);
    }
}

/// Connects to the private host, or starts it. Who loses the start race connects to the winner's.
fn find(names: &HostNames) -> core::result::Result<Found, Fault> {
    let socket_fault = |error| Fault::step("host socket", names.socket.as_c_str(), error);
    if let Some(socket) = handshake::connect(&names.socket).map_err(socket_fault)? {
        return Ok(Found { socket, lock: None });
    }
    let lock =
        lock_start(names).map_err(|e| Fault::step("start lock", names.lock.as_c_str(), e))?;
    let mut found = Found {
        socket: -1,
        lock: Some(lock),
    };
    if let Some(socket) = handshake::connect(&names.socket).map_err(socket_fault)? {
        found.socket = socket;
        return Ok(found);
    }
    let host = place::host()?;
    let program = place::program();
    let name = Path::new(place::name_of(program.as_bytes())).unwrap_or_else(|_| Path::empty());
    found.socket = spawn::start(&host, name.as_c_str())
        .map_err(|e| Fault::step("cannot start host", host.as_c_str(), e))?;
    Ok(found)
}

fn lock_start(names: &HostNames) -> Result<i32> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let lock = descriptor::raw(rustix::fs::open(
        names.lock.as_c_str(),
        flags,
        Mode::RUSR | Mode::WUSR,
    )?);
    pending::note(lock);
    let end = monotonic() + Duration::from_secs(START_S);
    loop {
        let file = descriptor::lend(lock)?;
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(lock),
            Err(Errno::AGAIN | Errno::INTR) if monotonic() < end => pause(),
            Err(error) => {
                pending::close(lock);
                return Err(if error == Errno::AGAIN {
                    Errno::TIMEDOUT
                } else {
                    error
                });
            }
        }
    }
}

/// The absolute path of the preloaded object.
#[must_use]
pub fn frame() -> Option<Path> {
    place::frame().ok()
}

/// The absolute path of the preloaded object, where it is UTF-8.
#[must_use]
pub fn frame_path() -> Option<String> {
    let path = place::frame().ok()?;
    core::str::from_utf8(path.as_bytes())
        .ok()
        .map(str::to_owned)
}

/// Two milliseconds, or less when a signal comes; for the rare waits on another thread or process.
pub fn pause() {
    let slice = rustix::time::Timespec {
        tv_sec: 0,
        tv_nsec: 2_000_000,
    };
    // Neither end of the wait matters: the caller looks again.
    let _ = rustix::event::poll(&mut [], Some(&slice));
}
