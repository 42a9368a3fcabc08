//! A capture for a tool: pcapng into the socket that it sent along.
//!
//! The tool ends it by closing its half of the control socket; it then gets what is left, and the counts.

use core::sync::atomic::AtomicBool;
use core::time::Duration;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::event::{PollFd, PollFlags};
use rustix::fs::FileType;
use rustix::net::SendFlags;
use serde_json::{Value, json};

use super::answer::Answer;
use super::asker::Silent;
use super::{Asker, Session, Trust};
use crate::capture::pcapng::{self, About};
use crate::capture::{self, Filter, Nothing, Readers, Wanted};
use crate::errno::{Errno, Result};
use crate::host::server::timespec;
use crate::time::monotonic;

/// How often a quiet capture looks whether it goes on.
const LOOK: Duration = Duration::from_millis(100);
/// How long chunks may gather: a small part of the time in which the fastest port fills all of them.
const REST: Duration = Duration::from_millis(3);
/// How long the end of a capture may take: for the lcore to let go, and for the tool to take what is left.
const LAST_FRAMES: Duration = Duration::from_secs(5);

/// Says when a capture is over, whatever ends it.
struct Running<'a> {
    asker: &'a Asker,
    capturing: Arc<AtomicBool>,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.asker.capture(Vec::new());
        self.capturing.store(false, Ordering::Release);
    }
}

/// Serves a capture to its end.
pub(super) fn run(answer: &mut Answer, query: &Value, session: Session) {
    if session.trust != Trust::Full {
        return answer
            .refuse("captures show payloads: only root and the host's own user may ask for them");
    }
    let Some(to) = session.riding else {
        return answer.refuse("no descriptor came with the query");
    };
    let text = query
        .get("filter")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let number = |name: &str| {
        query
            .get(name)
            .and_then(Value::as_u64)
            .filter(|number| *number > 0)
    };
    let filter = match Filter::parse(text) {
        Ok(filter) => filter,
        Err(fault) => return answer.refuse(&format!("filter: {fault}")),
    };
    let to = match stream(to) {
        Ok(to) => to,
        Err(errno) => {
            return answer.refuse(&format!("the descriptor is no socket: {errno}"));
        }
    };
    let facts = match session.asker.facts() {
        Ok(facts) => facts,
        Err(Silent(reason)) => return answer.refuse(reason),
    };
    let Some(open) = &facts.open else {
        return answer.refuse("the device is not open: no program has listened or connected yet");
    };
    if session.capturing.swap(true, Ordering::AcqRel) {
        return answer.refuse("another capture runs on this host");
    }
    let running = Running {
        asker: &session.asker,
        capturing: session.capturing,
    };
    let snap = number("snap")
        .and_then(|snap| usize::try_from(snap).ok())
        .unwrap_or(usize::MAX);
    let wanted = Wanted {
        filter,
        snap,
        epoch: epoch(),
    };
    let (recorders, mut reader) = capture::channels(&wanted, session.asker.lcores());
    let mut out = Vec::new();
    pcapng::begin(
        &mut out,
        &About {
            name: facts.port.as_deref().unwrap_or("port"),
            description: &open.device,
            filter: text,
            snap,
        },
    );
    session.asker.capture(recorders);
    let written = pump(
        answer,
        &session.asker,
        &to,
        &mut reader,
        out,
        number("count"),
    );
    drop(running);
    let (count, lost) = written;
    drop(to);
    let [seen, admitted, dropped] = reader.counts();
    answer.line(
        &json!({
            "written": count,
            "seen": seen,
            "admitted": admitted,
            "dropped": dropped,
            "lost_writer": lost.map(|errno| errno.to_string()),
        })
        .to_string(),
    );
    answer.end();
}

/// Nanoseconds since 1970 at the start of the monotonic clock.
pub(super) fn epoch() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(now.tv_nsec).unwrap_or(0);
    (seconds * 1_000_000_000 + nanos).saturating_sub(monotonic().nanos())
}

/// Makes sure that a descriptor from a tool is a socket: what is sent there neither waits nor raises a signal.
fn stream(fd: OwnedFd) -> Result<OwnedFd> {
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode);
    if kind == FileType::Socket {
        Ok(fd)
    } else {
        Err(Errno::NOTSOCK)
    }
}

/// Moves frames until the tool ends it, takes nothing any more, or has `limit` of them. How many, and what stopped it.
fn pump(
    answer: &Answer,
    asker: &Asker,
    to: &OwnedFd,
    reader: &mut Readers,
    mut out: Vec<u8>,
    limit: Option<u64>,
) -> (u64, Option<Errno>) {
    let limit = limit.unwrap_or(u64::MAX);
    let mut count = 0;
    let mut ending = false;
    if let Err(errno) = write(Some(answer), to, &out) {
        return (count, Some(errno));
    }
    loop {
        if !ending && (count >= limit || answer.hung_up()) {
            // The recorder hands over what it has when the lcore lets it go.
            asker.capture(Vec::new());
            ending = true;
        }
        let patience = if ending { LAST_FRAMES } else { LOOK };
        // In the end the tool has a moment for what is left.
        let watched = (!ending).then_some(answer);
        let mut lost = None;
        let read = reader.read(patience, &mut |chunk| {
            let (mut bytes, mut frames) = chunk.blocks();
            if frames > limit - count {
                frames = limit - count;
                bytes = chunk.first(frames);
            }
            if lost.is_none() {
                count += frames;
                lost = write(watched, to, bytes).err();
            }
        });
        if lost.is_some() {
            return (count, lost);
        }
        match read {
            Err(Nothing::Yet) if !ending => {}
            Err(Nothing::Yet | Nothing::More) => break,
            // The lcore need not wake anybody while this rests, and the tool wakes for more at once.
            Ok(_) if !ending => std::thread::park_timeout(REST),
            Ok(_) => {}
        }
    }
    out.clear();
    let now = epoch().saturating_add(monotonic().nanos());
    pcapng::end(&mut out, now, reader.counts());
    (count, write(None, to, &out).err())
}

/// Writes all of `bytes`, as slowly as the tool takes them; meanwhile frames for which no buffer is free are lost and
/// counted. A tool that wants the end, or is not watched because it said so, has a moment for them.
fn write(watched: Option<&Answer>, to: &OwnedFd, bytes: &[u8]) -> Result<()> {
    let mut watched = watched;
    let mut rest = bytes;
    while !rest.is_empty() {
        match rustix::net::send(to, rest, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Ok(count) => rest = rest.get(count..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                let mut wait = vec![PollFd::from_borrowed_fd(to.as_fd(), PollFlags::OUT)];
                wait.extend(
                    watched.map(|answer| PollFd::from_borrowed_fd(answer.socket(), PollFlags::IN)),
                );
                let limit = watched.is_none().then(|| timespec(LAST_FRAMES));
                match rustix::event::poll(&mut wait, limit.as_ref()) {
                    Ok(0) => return Err(Errno::TIMEDOUT),
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(errno) => return Err(errno),
                }
                if wait.get(1).is_some_and(|tool| !tool.revents().is_empty()) {
                    watched = None;
                }
            }
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}
