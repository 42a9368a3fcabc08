//! The program's end of the channel: both mappings, the control socket, the lcores' eventfds.

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use core::time::Duration;

use super::object::Object;
use crate::channel::cell::{ProcCell, host_state, process as process_state};
use crate::channel::layout::{LCORES_MAX, PROCS};
use crate::channel::map::{Control, Receive};
use crate::channel::message::{HEAD_BYTES, Kind, Message, TEXT_BYTES};
use crate::channel::sync::Ordering as ChannelOrdering;
use crate::errno::{Errno, Result};
use crate::ffi::pages::{LastingRef, keep};
use crate::ffi::{descriptor, process};
use crate::readiness;

/// Hosts of which a process can have something at a time: the present one, and lost ones whose sockets are open still.
pub const LINKS: usize = LINKS_U32 as usize;
const LINKS_U32: u32 = 32;
/// Places are below this: tests make many links in one process.
pub const PLACES: usize = LINKS + if cfg!(test) { 120 } else { 0 };

static TABLE: [LastingRef<Link>; LINKS] = [const { LastingRef::none() }; LINKS];
/// Number of the present link + 1; 0 = none.
static PRESENT: AtomicU32 = AtomicU32::new(0);

/// What joins this process with one host. Inherited by a forked child, whose handler gives it a process
/// cell and a control socket of its own.
#[derive(Debug)]
pub struct Link {
    /// Control memory.
    pub control: Control,
    /// Receive memory.
    pub receive: Receive,
    process: AtomicU32,
    control_socket: AtomicI32,
    lcore_eventfds: [AtomicI32; LCORES_MAX as usize],
    /// Where the next accept begins to look.
    turn: AtomicU32,
    dead: AtomicBool,
    /// The host lived when this process, a forked child, got no share.
    disowned: AtomicBool,
    wiped: AtomicBool,
    /// Nothing in this process refers to it any more: its place is another link's.
    vacated: AtomicBool,
    /// When [`Link::look`] asked last, in nanoseconds of the coarse clock.
    looked: AtomicU64,
    number: u32,
    place: u32,
    /// Number of the link before + 1; 0 = none.
    before: u32,
    family: u64,
    /// The process that may use it: a child made without fork handlers must not touch its parent's cell.
    pid: AtomicU32,
}

/// What a link is made of.
#[derive(Debug)]
pub struct Parts {
    /// Control memory.
    pub control: Control,
    /// Receive memory.
    pub receive: Receive,
    /// This process's cell.
    pub process: u32,
    /// An internal descriptor.
    pub control_socket: i32,
    /// Internal descriptors, -1 where there is no such lcore.
    pub lcore_eventfds: [i32; LCORES_MAX as usize],
    /// Tells this family's control memory from another's: its inode number.
    pub family: u64,
    /// The memory in which the processes of the family agree, an internal descriptor of whoever makes use of it; only for a
    /// program that joins them.
    pub registry: Option<i32>,
}

/// The link to the present host, or None: not attached.
#[must_use]
pub fn link() -> Option<&'static Link> {
    // Acquire: pairs with `install`.
    numbered(PRESENT.load(Ordering::Acquire).checked_sub(1)?)
}

/// The link that a forked child has inherited.
pub(super) fn inherited() -> Option<&'static Link> {
    at(PRESENT.load(Ordering::Acquire).checked_sub(1)?)
}

/// The place of the link with number `number`, as long as that is its.
const fn place_of(number: u32) -> u32 {
    number % LINKS_U32
}

/// Whichever link has the place of number `number`.
fn at(number: u32) -> Option<&'static Link> {
    TABLE.get(place_of(number) as usize)?.get()
}

/// Every link of this process, the present one too.
pub fn all() -> impl Iterator<Item = &'static Link> {
    TABLE
        .iter()
        .filter_map(LastingRef::get)
        .filter(|link| link.is_ours())
}

/// Links to hosts that were lost before the last one was: no thread is about to sleep on what belongs to them.
pub fn long_lost() -> impl Iterator<Item = &'static Link> {
    let last = link().and_then(|link| link.before.checked_sub(1));
    all().filter(move |link| last.is_some_and(|last| link.number < last))
}

/// In a forked child: the links to hosts that died before are its own too.
pub(super) fn claim_dead() {
    for link in TABLE.iter().filter_map(LastingRef::get) {
        if link.is_dead() {
            link.claim();
        }
    }
}

/// The link with this number, which may be to a dead host. None in a child that was made by a raw clone: it holds nothing
/// (design D8).
#[must_use]
pub fn numbered(number: u32) -> Option<&'static Link> {
    at(number).filter(|link| link.number == number && link.is_ours())
}

/// As [`numbered`], by its place.
#[must_use]
#[inline]
pub fn placed(place: u32) -> Option<&'static Link> {
    let link = TABLE.get(place as usize)?.get()?;
    link.is_ours().then_some(link)
}

/// Makes `parts` the present link. Called under the attach lock.
///
/// # Errors
/// EMFILE when this process has sockets of [`LINKS`] hosts, ENOMEM.
pub fn install(parts: Parts) -> Result<&'static Link> {
    let before = PRESENT.load(Ordering::Acquire);
    let last = before.checked_sub(1).and_then(numbered);
    let objects = parts.control.layout().objects;
    let number = (before..)
        .take(LINKS)
        .find(|number| is_vacant(at(*number), objects))
        .ok_or(Errno::MFILE)?;
    let place = place_of(number);
    let link = keep(Link {
        control: parts.control,
        receive: parts.receive,
        process: AtomicU32::new(parts.process),
        control_socket: AtomicI32::new(parts.control_socket),
        lcore_eventfds: parts.lcore_eventfds.map(AtomicI32::new),
        turn: AtomicU32::new(0),
        dead: AtomicBool::new(false),
        disowned: AtomicBool::new(false),
        wiped: AtomicBool::new(false),
        vacated: AtomicBool::new(false),
        looked: AtomicU64::new(0),
        number,
        place,
        before,
        family: parts.family,
        pid: AtomicU32::new(crate::thread::process()),
    })?;
    if let Some(place) = TABLE.get(place as usize) {
        place.put(link);
    }
    PRESENT.store(number + 1, Ordering::Release);
    if let Some(old) = last.and_then(|last| numbered(last.before.checked_sub(1)?)) {
        old.forget_descriptors();
    }
    Ok(link)
}

/// Whether the place that `link` has can be that of a link to a host with so many objects: what is counted for each of them is as
/// long as it was first.
fn is_vacant(link: Option<&Link>, objects: u32) -> bool {
    link.is_none_or(|link| {
        // Acquire: pairs with `vacate`.
        link.vacated.load(Ordering::Acquire) && link.control.layout().objects >= objects
    })
}

/// Whether this process can have no further host for now.
#[must_use]
pub fn all_taken() -> bool {
    TABLE.iter().all(|place| !is_vacant(place.get(), 0))
}

/// So long after its sockets are closed a host that was killed may still seem to live.
const ENDS_WITHIN: Duration = Duration::from_millis(20);

/// [`Link::look`] asks the kernel at most once in this time.
const LOOK_NANOS: u64 = 20_000_000;

impl Link {
    /// A link of a test, with a number of its own.
    #[cfg(test)]
    pub(crate) fn for_test(parts: Parts) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let after = u32::try_from(LINKS).unwrap();
        let number = after + NEXT.fetch_add(1, Ordering::Relaxed);
        Self {
            control: parts.control,
            receive: parts.receive,
            process: AtomicU32::new(parts.process),
            control_socket: AtomicI32::new(parts.control_socket),
            lcore_eventfds: parts.lcore_eventfds.map(AtomicI32::new),
            turn: AtomicU32::new(0),
            dead: AtomicBool::new(false),
            disowned: AtomicBool::new(false),
            wiped: AtomicBool::new(false),
            vacated: AtomicBool::new(false),
            looked: AtomicU64::new(0),
            number,
            place: number,
            before: 0,
            family: parts.family,
            pid: AtomicU32::new(crate::thread::process()),
        }
    }

    /// Index of this process's cell; [`PROCS`], which is none, when it got no share.
    #[must_use]
    pub fn process(&self) -> u32 {
        self.process.load(Ordering::Relaxed)
    }

    /// Which family's memory it is, the same in parent and child.
    #[must_use]
    pub const fn family(&self) -> u64 {
        self.family
    }

    /// Which of the process's links it is: a later one has a higher number.
    #[must_use]
    pub const fn number(&self) -> u32 {
        self.number
    }

    /// Where the process keeps what belongs to it, below [`PLACES`]. A link of which nothing is left leaves it to another one.
    #[must_use]
    pub const fn place(&self) -> u32 {
        self.place
    }

    /// Whether this process is the one that may use it.
    fn is_ours(&self) -> bool {
        self.pid.load(Ordering::Relaxed) == crate::thread::process()
    }

    /// The control socket; its hang-up tells that the host is gone.
    #[must_use]
    pub fn control_socket(&self) -> i32 {
        self.control_socket.load(Ordering::Relaxed)
    }

    /// Makes this process the one that may use the link.
    fn claim(&self) {
        self.pid.store(crate::thread::process(), Ordering::Relaxed);
    }

    /// In a forked child that got no share: its sockets are reset, and nothing that it closes is its parent's.
    pub fn disown(&self) {
        self.renounce();
        self.claim();
        // The hang-up of the parent's socket must not wait for us.
        let parents = self.control_socket.swap(-1, Ordering::Relaxed);
        if parents >= 0 {
            descriptor::close(parents);
        }
    }

    /// What is shared with the others of the family is theirs, unless its host was dead before.
    fn renounce(&self) {
        if !self.is_dead() {
            self.disowned.store(true, Ordering::Relaxed);
        }
        self.mark_dead();
        self.process.store(PROCS, Ordering::Relaxed);
    }

    /// Whether the host, which has hung up, lives and serves others: it has refused the child that this process is. Where host and
    /// program do not see each other's processes nobody can tell; the host then counts as gone.
    fn is_refused(&self) -> bool {
        let number = self.process();
        let is_ours = |cell: &ProcCell| {
            cell.state.load(ChannelOrdering::Acquire) == process_state::LIVE
                && cell.pid.load(ChannelOrdering::Relaxed) == crate::thread::process()
        };
        // Whom it has served once it has not refused, and a cell of a dead host stays as it was.
        if self.control.process(number).is_none_or(is_ours) {
            return false;
        }
        let host = self
            .control
            .header()
            .host_pid
            .load(ChannelOrdering::Relaxed);
        !self.is_dead() && host != 0 && !process::ends_within(host, ENDS_WITHIN)
    }

    /// Whether this is a child that got no share. The host lives and serves others: what is shared with them says nothing of us.
    #[must_use]
    pub fn is_disowned(&self) -> bool {
        self.disowned.load(Ordering::Relaxed)
    }

    /// Gives a forked child its own cell and socket; returns the parent's socket, which the child must close.
    pub fn adopt(&self, process: u32, control_socket: i32) -> i32 {
        self.process.store(process, Ordering::Relaxed);
        self.claim();
        self.control_socket.swap(control_socket, Ordering::Relaxed)
    }

    /// Closes the descriptors of a link whose host died, and whose successor's died too. Not earlier: a thread that was
    /// about to sleep on them when its host died must still find them.
    fn forget_descriptors(&self) {
        for place in core::iter::once(&self.control_socket).chain(&self.lcore_eventfds) {
            let fd = place.swap(-1, Ordering::Relaxed);
            if fd >= 0 {
                descriptor::close(fd);
            }
        }
    }

    /// Lets go of the channel's memory when its host is gone and no descriptor of this process stands for anything in it. True for
    /// who does so first, and is to forget what is kept at its place, and then to [`Link::vacate`] that.
    #[must_use]
    pub fn forget_memory(&self) -> bool {
        self.mark_dead();
        let is_first = !self.wiped.swap(true, Ordering::AcqRel);
        if is_first {
            self.control.wipe();
            self.receive.wipe();
        }
        is_first
    }

    /// Nothing is kept at its place any more.
    pub fn vacate(&self) {
        // Release: what was forgotten was before.
        self.vacated.store(true, Ordering::Release);
    }

    /// Finds out whether the host is gone, for a caller that does not sleep. Asks the kernel now and then only.
    pub fn look(&self) {
        let clock = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
        let seconds = u64::try_from(clock.tv_sec).unwrap_or(0);
        let nanos = u64::try_from(clock.tv_nsec).unwrap_or(0);
        let now = seconds.saturating_mul(1_000_000_000).saturating_add(nanos);
        if now.wrapping_sub(self.looked.load(Ordering::Relaxed)) < LOOK_NANOS || self.is_dead() {
            return;
        }
        self.looked.store(now, Ordering::Relaxed);
        let Ok(socket) = descriptor::lend(self.control_socket()) else {
            return;
        };
        let none = rustix::event::PollFlags::empty();
        let mut fds = [rustix::event::PollFd::from_borrowed_fd(socket, none)];
        let now = rustix::time::Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // A poll that fails says nothing; the next look asks again.
        if rustix::event::poll(&mut fds, Some(&now)) == Ok(1) {
            self.lose();
        }
    }

    /// Lcores that serve this program.
    #[must_use]
    pub const fn lcores(&self) -> u32 {
        self.control.layout().lcores
    }

    /// A number that is another one at each call: what is shared among the lcores goes round.
    #[must_use]
    pub fn turn(&self) -> u32 {
        self.turn.fetch_add(1, Ordering::Relaxed)
    }

    /// Wakes an lcore.
    pub fn wake_lcore(&self, lcore: u32) {
        // An eventfd that cannot be written is full (the lcore will wake) or closed behind our back: the lcore then
        // finds the bell at its next turn.
        if let Some(eventfd) = self.lcore_eventfds.get(lcore as usize)
            && let Ok(fd) = descriptor::lend(eventfd.load(Ordering::Relaxed))
        {
            let _ = rustix::io::write(fd, &1_u64.to_ne_bytes());
        }
    }

    /// Rings the doorbell of `object`.
    pub fn ring(&self, object: u32) {
        if let Some(lcore) = readiness::ring_doorbell(&self.control, object) {
            self.wake_lcore(lcore);
        }
    }

    /// Rings the doorbell of the listener `object` at `lcore`.
    pub fn ring_at(&self, lcore: u32, object: u32) {
        if let Some(lcore) = readiness::ring_doorbell_at(&self.control, lcore, object) {
            self.wake_lcore(lcore);
        }
    }

    /// Asks the host to wake whoever sleeps on `epoll`.
    pub fn kick(&self, epoll: u32) {
        if let Some(lcore) = readiness::kick_epoll(&self.control, epoll) {
            self.wake_lcore(lcore);
        }
    }

    /// Whether the host is gone: every object is reset.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
            || self
                .control
                .header()
                .host_state
                .load(ChannelOrdering::Acquire)
                == host_state::DEAD
    }

    /// Remembers that the host is gone, and says nothing.
    pub fn mark_dead(&self) {
        // Release: why comes before.
        self.dead.store(true, Ordering::Release);
    }

    /// The control socket hung up: remembers that the host is gone, which the first process of the family tells; or that it has
    /// refused this process, a forked child.
    pub fn lose(&self) {
        if self.is_disowned() {
            return;
        }
        if self.is_refused() {
            // The socket stays open: another thread may be about to sleep on it.
            self.renounce();
            return crate::warn!(
                "fork: the child gets no share of the accelerated sockets: the host has refused it"
            );
        }
        // Another thread may have found out meanwhile that it is refused: what lies in the memory is not ours to change.
        if self.is_disowned() {
            return;
        }
        self.mark_dead();
        let pid = self
            .control
            .header()
            .host_pid
            .swap(0, ChannelOrdering::Relaxed);
        if pid != 0 {
            crate::error!(
                "the host (process {pid}) has gone: its connections are reset; its listeners and new sockets look for another one"
            );
        }
    }

    /// Tells the host the eventfd through which `slot` is woken.
    ///
    /// # Errors
    /// What sendmsg says; the slot must not be used then.
    pub fn register_waiter(&self, slot: u32, eventfd: i32) -> Result<()> {
        let message = Message::new(Kind::Waiter, slot, crate::thread::process());
        send(self.control_socket(), &message, Some(eventfd))
    }
}

/// The pipe through which an object signals, or none any more.
#[derive(Clone, Copy, Debug)]
pub struct Signals {
    /// Whose.
    pub object: Object,
    /// SIGURG; else SIGIO.
    pub urgent: bool,
    /// What has happened to it already counts.
    pub is_new: bool,
    /// The pipe.
    pub pipe: Option<i32>,
}

/// Sends one message, with a descriptor where one belongs to it.
///
/// # Errors
/// What sendmsg says.
pub fn send(socket: i32, message: &Message<'_>, descriptor: Option<i32>) -> Result<()> {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

    let mut buffer = [0; HEAD_BYTES + TEXT_BYTES];
    let bytes = message.emit(&mut buffer);
    let riding = [descriptor.map_or(Ok(None), |fd| descriptor::lend(fd).map(Some))?];
    let riding = match &riding {
        [Some(fd)] => core::slice::from_ref(fd),
        _ => &[],
    };
    let mut space = [core::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !riding.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(riding)) {
        return Err(Errno::NOBUFS);
    }
    let part = [std::io::IoSlice::new(bytes)];
    loop {
        let socket = descriptor::lend(socket)?;
        match sendmsg(socket, &part, &mut ancillary, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
            Ok(_) => return Ok(()),
        }
    }
}
