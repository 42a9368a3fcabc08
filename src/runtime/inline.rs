//! The host inside a program: its control thread, and the loop that the program's own threads drive (design D7).

use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use core::time::Duration;
use std::os::fd::{AsRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use rustix::event::{EventfdFlags, Timespec};
use rustix::fs::{Mode, OFlags};

use crate::attach::{self, inside};
use crate::config::Config;
use crate::errno::{Errno, Result};
use crate::ffi::{descriptor, engine, environment};
use crate::file_limit;
use crate::host::{HandOver, Server, ServerConfig};
use crate::lcore::{self, Lcore};
use crate::progress::{self, Drive, Loop, Next, Rest, Settings, Turned};
use crate::telemetry::{Level, log};
use crate::thread;
use crate::time::{Instant, monotonic};

/// How far the control thread is.
static STAGE: AtomicU32 = AtomicU32::new(stage::NONE);
/// The socket for the control thread, between [`start`] and its first step.
static CONTROL: AtomicI32 = AtomicI32::new(-1);
/// Where the host's lines go; -1 = nowhere.
static LOG: AtomicI32 = AtomicI32::new(-1);
/// Written when the program is at its end; -1 = there is no host.
static END: AtomicI32 = AtomicI32::new(-1);
/// The process that the control thread belongs to.
static PROCESS: AtomicU32 = AtomicU32::new(0);

mod stage {
    pub(super) const NONE: u32 = 0;
    /// The thread is made.
    pub(super) const MADE: u32 = 1;
    /// The thread runs and asks for the loader's lock.
    pub(super) const ASKS: u32 = 2;
    /// The loader's lock was free: it will answer.
    pub(super) const RUNS: u32 = 3;
    /// Given up before that.
    pub(super) const ABANDONED: u32 = 4;
    /// It has ended.
    pub(super) const ENDED: u32 = 5;
}

/// A thread that has asked for the loader's lock and has not got it within this is waited for by somebody who holds it.
const LOADER_WAIT: Duration = Duration::from_millis(150);
/// What a thread may take to run at all: on a machine that is overcommitted it waits for its first time slice.
const START_WAIT: Duration = Duration::from_secs(5);
/// What exit(3) waits for the last bytes and the port at most.
const EXIT_WAIT: Duration = Duration::from_millis(400);
/// Turns without work before a nap of the one that drives the last bytes out.
const IDLE_TURNS: u32 = 16;
/// The nap.
const LAST_NAP: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 200_000,
};

/// More than any file of the host's has, besides the channel's memory and the log, which look themselves.
const FILE_BYTES: u64 = 16 << 20;

/// Lets programs that preload this object have a host inside. Called by the constructor; makes nothing.
pub fn offer() {
    inside::offer(start);
}

/// Starts the control thread, which serves the client at the other end of `control`.
fn start(control: OwnedFd) -> Result<()> {
    // Behind the program's limit not only we would end.
    file_limit::check(FILE_BYTES)?;
    let fresh = STAGE
        .compare_exchange(
            stage::NONE,
            stage::MADE,
            Ordering::AcqRel,
            Ordering::Relaxed,
        )
        .is_ok();
    if !fresh {
        return Err(Errno::ALREADY);
    }
    CONTROL.store(descriptor::raw(control), Ordering::Relaxed);
    PROCESS.store(thread::process(), Ordering::Relaxed);
    let started = engine::spawn(body);
    let began = monotonic();
    let mut asked = None;
    while started.is_ok() {
        let now = monotonic();
        let (at, end) = match STAGE.load(Ordering::Acquire) {
            stage::MADE => (stage::MADE, began + START_WAIT),
            stage::ASKS => (stage::ASKS, *asked.get_or_insert(now) + LOADER_WAIT),
            _ => break,
        };
        if now < end {
            attach::pause();
            continue;
        }
        let given_up =
            STAGE.compare_exchange(at, stage::ABANDONED, Ordering::AcqRel, Ordering::Relaxed);
        if given_up.is_ok() {
            return Err(Errno::BUSY);
        }
    }
    if started.is_err() {
        descriptor::close(CONTROL.swap(-1, Ordering::Relaxed));
        STAGE.store(stage::NONE, Ordering::Release);
    }
    started
}

/// The control thread.
fn body() {
    let asks = STAGE.compare_exchange(
        stage::MADE,
        stage::ASKS,
        Ordering::AcqRel,
        Ordering::Relaxed,
    );
    if asks.is_ok() {
        engine::pass_loader();
    }
    let goes = STAGE.compare_exchange(
        stage::ASKS,
        stage::RUNS,
        Ordering::AcqRel,
        Ordering::Relaxed,
    );
    let control = CONTROL.swap(-1, Ordering::Relaxed);
    if goes.is_err() {
        descriptor::close(control);
        return;
    }
    if let Err(errno) = rustix::thread::set_name(c"knet-control") {
        crate::debug!("event=no_title errno={errno}");
    }
    open_log();
    let served = catch_unwind(|| serve(control));
    if served.is_err() {
        crate::error!("inline host: event=panic action=\"every connection is lost\"");
    }
    progress::stop();
    STAGE.store(stage::ENDED, Ordering::Release);
}

fn serve(control: i32) {
    let Some(control) = descriptor::own(control) else {
        return;
    };
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    let end = match rustix::event::eventfd(0, flags).map(descriptor::settle) {
        Ok(end) => end,
        Err(errno) => return crate::error!("event=no_end_descriptor errno={errno}"),
    };
    END.store(end.as_raw_fd(), Ordering::Relaxed);
    let config = ServerConfig::Inline {
        control,
        plugin: plugin(),
        hand_over: HAND_OVER,
        is_ending: progress::is_ending,
        end,
    };
    let ended = Server::new(config, None).and_then(|mut server| {
        let ended = server
            .run()
            .map_err(|errno| format!("control loop: {errno}"));
        if progress::is_ending() {
            // The other threads of the program keep what they have until the kernel takes it.
            core::mem::forget(server);
        }
        ended
    });
    match ended {
        Ok(end) => crate::info!("event=ended reason={end:?}"),
        Err(line) => crate::error!("{line}"),
    }
    END.store(-1, Ordering::Relaxed);
}

/// The plug-in beside the preloaded object; None: the loader looks for it.
fn plugin() -> Option<PathBuf> {
    let frame = attach::frame_path()?;
    let path = PathBuf::from(frame).with_file_name(crate::preflight::install::PLUGIN);
    path.exists().then_some(path)
}

const HAND_OVER: HandOver = hand_over;

/// Puts the loop where the program's threads find it.
fn hand_over(lcore: Lcore, alive: OwnedFd, config: &Config) -> Result<()> {
    let settings = Settings {
        budget: config.run.budget,
        grace: config.run.inline_grace,
    };
    let mut driven = Driven {
        lcore: Some(lcore),
        _alive: Some(alive),
    };
    if let Some(lcore) = &mut driven.lcore {
        lcore.enter();
        lcore.announce();
        lcore.leave();
    }
    progress::install(Box::new(driven), settings)?;
    // Without it the last bytes may stay behind; nothing else depends on it.
    let _ = engine::at_exit(last);
    Ok(())
}

/// The loop as its drivers see it.
struct Driven {
    /// None once it has panicked.
    lcore: Option<Lcore>,
    /// Hangs up when the loop is over.
    _alive: Option<OwnedFd>,
}

impl Driven {
    /// Runs a step; a panic ends the loop, not the program.
    fn step<T>(&mut self, otherwise: T, step: impl FnOnce(&mut Lcore) -> T) -> T {
        let Some(lcore) = &mut self.lcore else {
            return otherwise;
        };
        match catch_unwind(AssertUnwindSafe(|| step(lcore))) {
            Ok(done) => done,
            Err(_) => {
                crate::error!("inline loop: event=panic action=\"every connection is lost\"");
                self.end();
                otherwise
            }
        }
    }

    fn end(&mut self) {
        progress::stop();
        if let Some(lcore) = self.lcore.take() {
            lcore.die();
            // What a panic left behind is looked at by nobody.
            core::mem::forget(lcore);
        }
        self._alive = None;
    }
}

impl Loop for Driven {
    fn enter(&mut self) {
        self.step((), Lcore::enter);
    }

    fn turn(&mut self, now: Instant) -> Turned {
        let over = (0, lcore::Next::Turn);
        let (work, next) = self.step(over, |lcore| lcore.drive(now));
        let next = match next {
            _ if self.lcore.as_ref().is_none_or(Lcore::is_stopped) => Next::Over,
            lcore::Next::Turn => Next::Turn,
            lcore::Next::Yield => Next::Yield,
            lcore::Next::Sleep => Next::Sleep,
        };
        Turned {
            worked: work > 0,
            next,
        }
    }

    fn errand(&mut self, now: Instant) {
        self.step((), |lcore| lcore.errand(now));
    }

    fn rest(&mut self, now: Instant) -> Option<Rest> {
        let (on, limit) = self.step(None, |lcore| lcore.begin_rest(now))?;
        Some(Rest {
            on,
            until: limit.map(|limit| now + limit),
        })
    }

    fn wake(&mut self) {
        self.step((), |lcore| lcore.end_rest(monotonic()));
    }

    fn hear(&mut self) {
        self.step((), |lcore| lcore.hear());
    }

    fn leave(&mut self) {
        self.step((), Lcore::leave);
    }
}

/// exit(3): what was sent goes out, with a FIN behind it, and the port is closed; all of it within a bound.
extern "C" fn last() {
    if PROCESS.load(Ordering::Relaxed) != thread::process() || !progress::is_here() {
        return;
    }
    progress::end();
    let Ok(fd) = descriptor::lend(END.load(Ordering::Relaxed)) else {
        return;
    };
    if rustix::io::write(fd, &1_u64.to_ne_bytes()).is_err() {
        return;
    }
    let end = monotonic() + EXIT_WAIT;
    while STAGE.load(Ordering::Acquire) != stage::ENDED && monotonic() < end {
        drive_on(end);
        // Others have the token meanwhile, the control thread for the very end.
        let _ = rustix::event::poll(&mut [], Some(&LAST_NAP));
    }
}

/// Turns as long as there is something to do, and lets the peer, who may run on this very CPU, do its part.
fn drive_on(end: Instant) {
    let mut drive = Drive::new();
    let mut idle = 0;
    while idle < IDLE_TURNS && drive.may_drive() && drive.begin() {
        let (now, turned) = drive.turn();
        if now >= end || turned.next == Next::Over {
            return;
        }
        idle = if turned.worked { 0 } else { idle + 1 };
        if !turned.worked {
            rustix::thread::sched_yield();
        }
    }
}

/// The host's lines go to the file that KNET_LOG names, the program's own to descriptor 2 as ever.
fn open_log() {
    if let Some(path) = environment::secure_value(b"KNET_LOG") {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o644);
        if let Ok(file) = rustix::fs::open(path, flags, mode) {
            let file = descriptor::settle(file);
            LOG.store(file.as_raw_fd(), Ordering::Relaxed);
            core::mem::forget(file);
        }
    }
    log::set_sink(line);
    log::set_threshold(Level::Info);
    std::panic::set_hook(Box::new(|panic| {
        crate::error!("event=panic at=\"{panic}\"")
    }));
}

/// Takes a line: async-signal-safe, as the program's own threads need it.
fn line(level: Level, text: &str) {
    let log = LOG.load(Ordering::Relaxed);
    let to = match (thread::is_ours(), descriptor::lend(log)) {
        (true, Ok(log)) => log,
        // Faults are told to the program, which says them once.
        (true, Err(_)) => return,
        (false, _) if level > Level::Warn => return,
        (false, _) => rustix::stdio::stderr(),
    };
    let mut whole = [0; 1_100];
    let parts = [b"knet: ", text.as_bytes(), b"\n"];
    let mut used = 0;
    for part in parts {
        let room = whole.get_mut(used..).unwrap_or(&mut []);
        let count = part.len().min(room.len());
        for (to, from) in room.iter_mut().zip(part) {
            *to = *from;
        }
        used += count;
    }
    let whole = whole.get(..used).unwrap_or(&[]);
    if file_limit::has_room(to, whole.len()) {
        // One call, so that lines stay whole. Nobody is left to tell when it fails.
        let _ = rustix::io::write(to, whole);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::cell::host_state;
    use crate::lcore::IdlePolicy;
    use crate::lcore::tests::broken;

    #[test]
    fn a_panic_in_a_turn_resets_the_sockets_and_leaves_the_program_alone() {
        let (lcore, segments) = broken(IdlePolicy::Adaptive);
        let lcore = Lcore::new(lcore);
        let (end, alive) = rustix::pipe::pipe().unwrap();
        let mut driven = Driven {
            lcore: Some(lcore),
            _alive: Some(alive),
        };
        driven.enter();
        let mut turned = driven.turn(monotonic());
        for _ in 0..3 {
            turned = driven.turn(monotonic());
        }
        assert_eq!(turned.next, Next::Over);
        assert_eq!(driven.rest(monotonic()), None);
        driven.wake();
        driven.leave();
        let state = &segments.control.header().host_state;
        assert_eq!(state.load(Ordering::Relaxed), host_state::DEAD);
        let mut nothing = [0; 1];
        assert_eq!(
            rustix::io::read(&end, &mut nothing),
            Ok(0),
            "the host hears of it"
        );
    }
}
