//! Several lcores on one port with one queue pair, in virtual time on one thread. At the other end of the wire is one lcore.

mod crew;
mod ending;
mod flow;
mod frame;
mod listener;
mod payload;

use core::net::SocketAddrV4;
use core::time::Duration;
use std::collections::BTreeSet;

use crew::Crew;

use super::lab::{CLIENT, ENDPOINT, OWNER, SERVER};
use super::program::Program;
use crate::channel::cell::kind;
use crate::channel::sync::Ordering;
use crate::device::fault::FaultConfig;
use crate::device::pair::pair;
use crate::gpu::Pipeline;
use crate::readiness::event;
use crate::time::Instant;

struct Lab {
    now: Instant,
    server: Crew,
    client: Crew,
}

impl Lab {
    /// A server with `lcores` lcores.
    fn new(lcores: u32) -> Self {
        Self::staged((0..lcores).map(|_| Pipeline::default()).collect())
    }

    /// A server with an lcore for each payload stage.
    fn staged(pipelines: Vec<Pipeline>) -> Self {
        let (a, b) = pair(FaultConfig::none(), FaultConfig::none(), 1_500);
        let mut lab = Self {
            now: Instant::from_millis(1),
            server: Crew::staged(SERVER, a, pipelines),
            client: Crew::new(CLIENT, b, 1),
        };
        lab.server.lcores[0].announce();
        lab.client.lcores[0].announce();
        lab.turn();
        lab
    }

    /// The server's program, or the client's.
    fn program(&self, server: bool) -> &Program {
        let crew = if server { &self.server } else { &self.client };
        &crew.program
    }

    fn turn(&mut self) {
        let work = self.server.turn(self.now) + self.client.turn(self.now);
        self.pass(work);
    }

    fn pass(&mut self, work: usize) {
        let passed = if work == 0 { 1_000 } else { 20 };
        self.now = self.now + Duration::from_micros(passed);
    }

    #[track_caller]
    fn until(&mut self, seconds: u64, mut done: impl FnMut(&Self) -> bool) {
        let end = self.now + Duration::from_secs(seconds);
        while !done(self) {
            assert!(self.now < end, "nothing came of it in {seconds} s");
            self.turn();
        }
    }

    /// Turns until `objects` of the server's program, or of the client's, are connected.
    #[track_caller]
    fn until_up(&mut self, server: bool, objects: &[u32]) {
        self.until(20, |lab| {
            let program = lab.program(server);
            let is_up = |object: &u32| program.kind(*object) == kind::STREAM;
            objects.iter().all(is_up)
        });
    }

    #[track_caller]
    fn listen_at(&mut self, local: SocketAddrV4, backlog: u32, options: u32) -> u32 {
        let program = &self.server.program;
        let listener = program.claim();
        let bits = &program.cell(listener).option.bits;
        bits.store(options, Ordering::Relaxed);
        program.listen(listener, local, backlog);
        self.until(1, |lab| lab.server.program.answer(listener).is_some());
        assert_eq!(self.server.program.answer(listener), Some(0));
        listener
    }

    #[track_caller]
    fn listen(&mut self, backlog: u32) -> u32 {
        self.listen_at(ENDPOINT, backlog, 0)
    }

    /// Begins `count` connects of the client's program.
    fn begin(&self, count: usize) -> Vec<u32> {
        (0..count)
            .map(|_| {
                let out = self.client.program.claim();
                self.client.program.connect(out, ENDPOINT);
                out
            })
            .collect()
    }

    /// Connects and accepts `count` connections, as they come: the client's and the server's objects.
    #[track_caller]
    fn connect(&mut self, listener: u32, count: usize) -> (Vec<u32>, Vec<u32>) {
        let out = self.begin(count);
        let mut into = Vec::new();
        let end = self.now + Duration::from_secs(10);
        while into.len() < count {
            assert!(self.now < end, "{} of {count} accepted", into.len());
            self.turn();
            while let Some(object) = self.server.program.accept(listener) {
                into.push(object);
            }
        }
        let client = &self.client.program;
        assert!(out.iter().all(|out| client.kind(*out) == kind::STREAM));
        (out, into)
    }
}

/// Sends from each of `from`, which are connections to those of `to` in some order, and reads it there.
#[track_caller]
fn carries(lab: &mut Lab, to_server: bool, from: &[u32], to: &[u32]) {
    let sender = lab.program(!to_server);
    for object in from {
        assert_eq!(sender.send(*object, &object.to_ne_bytes()), 4);
    }
    lab.until(5, |lab| {
        let receiver = lab.program(to_server);
        let ready = |object: &u32| receiver.bits(*object) & event::IN != 0;
        to.iter().all(ready)
    });
    let receiver = lab.program(to_server);
    let seen: BTreeSet<_> = to
        .iter()
        .map(|object| receiver.recv(*object, 100))
        .collect();
    let sent: BTreeSet<_> = from
        .iter()
        .map(|object| object.to_ne_bytes().to_vec())
        .collect();
    assert_eq!(seen, sent);
}
