//! Signals: a byte in the program's pipe for each thing that happens to a socket that asks.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use rustix::pipe::{PipeFlags, pipe_with};

use super::lab::{Lab, OWNER};
use crate::channel::sync::Ordering;
use crate::lcore::Mail;
use crate::readiness::event;

pub(super) fn pipe() -> OwnedFd {
    let (end, _other) = pipe_with(PipeFlags::NONBLOCK).unwrap();
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&end));
    rustix::fs::open(path, OFlags::RDWR | OFlags::NONBLOCK, Mode::empty()).unwrap()
}

/// Bytes that were written since the last call.
pub(super) fn rung(pipe: &OwnedFd) -> usize {
    rustix::io::read(pipe, &mut [0; 8_192]).unwrap_or(0)
}

fn ask(lab: &mut Lab, object: u32, generation: u32, pipe: Option<&OwnedFd>) {
    lab.server.mailbox.post(Mail::Signals {
        owner: OWNER,
        object,
        generation,
        is_new: false,
        urgent: false,
        pipe: pipe.map(|pipe| Arc::new(pipe.try_clone().unwrap())),
    });
    lab.turns(2);
}

#[test]
fn who_asks_is_signalled_until_he_asks_no_more() {
    let (mut lab, out, into) = Lab::connected();
    let pipe = pipe();
    let generation = |lab: &Lab| {
        let host = &lab.server.program.cell(into).host;
        host.generation.load(Ordering::Relaxed)
    };
    let now = generation(&lab);
    let say = |lab: &mut Lab| {
        lab.client.program.send(out, b"word");
        lab.server_told(into, event::IN);
        lab.turns(2);
        lab.server.program.recv(into, 100);
    };
    say(&mut lab);
    assert_eq!(rung(&pipe), 0);
    // Another one that had the index before.
    ask(&mut lab, into, now.wrapping_sub(1), Some(&pipe));
    say(&mut lab);
    assert_eq!(rung(&pipe), 0);
    ask(&mut lab, into, now, Some(&pipe));
    say(&mut lab);
    assert_eq!(rung(&pipe), 1);
    assert_eq!(lab.server.status.counters.signals_sent.value(), 1);
    // A full pipe, which nobody reads, is no end. Only a part of it is read: there may come more as fast.
    let mut full = 0;
    while let Ok(count) = rustix::io::write(&pipe, &[0; 512]) {
        full += count;
    }
    assert!(full > 16_384);
    say(&mut lab);
    let mut left = 0;
    loop {
        match rung(&pipe) {
            0 => break,
            count => left += count,
        }
    }
    assert_eq!(left, full - 4_096 + 1);
    ask(&mut lab, into, now, None);
    say(&mut lab);
    assert_eq!(rung(&pipe), 0);
}
