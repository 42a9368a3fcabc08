//! What the control thread and the other lcores say to an lcore.

use std::sync::Arc;

use super::family::Family;
use super::mailbox::Mail;
use super::object::FAMILIES_MAX;
use super::segments::Segments;
use super::worker::Lcore;
use crate::capture::{self, Closed, Recorder};
use crate::channel::sync::Ordering;
use crate::stack::Owner;
use crate::time::Instant;

impl Lcore {
    /// Tells a family on which CPU its connections are served.
    fn tell_cpu(&self, segments: &Segments) {
        let lines = &segments.control.header().lcores_asleep;
        if let (Some(line), Some(cpu)) = (lines.get(self.me as usize), self.cpu) {
            line.cpu.store(cpu.0 + 1, Ordering::Relaxed);
        }
    }

    pub(super) fn open(&mut self, now: Instant, mail: Mail) {
        match mail {
            Mail::Attach {
                owner,
                user,
                segments,
            } => {
                let place = owner.0 as usize;
                if owner.0 >= FAMILIES_MAX {
                    return crate::error!("families_max={FAMILIES_MAX} family={place} refused");
                }
                if place >= self.families.len() {
                    self.families.resize_with(place + 1, || None);
                }
                self.memory.attach(owner, Arc::clone(&segments));
                self.tell_cpu(&segments);
                if let Some(family) = self.families.get_mut(place) {
                    *family = Some(Family::new(owner, user, self.me, segments));
                }
            }
            Mail::Process { owner, cell } => {
                self.with(owner.0 as usize, |family, _| family.add_process(cell));
            }
            Mail::Waiter {
                owner,
                slot,
                eventfd,
            } => {
                let status = Arc::clone(&self.status);
                self.with(owner.0 as usize, |family, _| {
                    family.add_waiter(slot, eventfd, &status);
                });
            }
            Mail::Signals {
                owner,
                object,
                generation,
                is_new,
                urgent,
                pipe,
            } => {
                self.with(owner.0 as usize, |family, shared| {
                    if family.is_muted() {
                        return;
                    }
                    let mut work = family.work(now, shared);
                    work.set_signals((object, generation), urgent, pipe);
                    if is_new {
                        work.make_up(object, urgent);
                    }
                });
            }
            Mail::ProcessGone { owner, cell, pid } => {
                self.with(owner.0 as usize, |family, shared| {
                    family.process_gone(now, shared, cell, pid);
                });
            }
            Mail::Detach { owner } => {
                self.with(owner.0 as usize, |family, shared| {
                    family.detach(now, shared);
                });
            }
            Mail::Abandon { owner } => {
                self.with(owner.0 as usize, |family, shared| {
                    family.work(now, shared).abandon();
                });
            }
            Mail::GiveUp { owner } => {
                self.with(owner.0 as usize, |family, shared| {
                    family.work(now, shared).give_up();
                });
            }
            Mail::Desert { owner } => {
                let place = owner.0 as usize;
                self.with(place, |family, shared| family.work(now, shared).abandon());
                // Its memory stays: the stack has rings of it.
                if let Some(family) = self.families.get_mut(place) {
                    *family = None;
                }
            }
            Mail::Listen {
                owner,
                object,
                request,
                waiting,
            } => {
                let place = owner.0 as usize;
                let done = self.with(place, |family, shared| {
                    family
                        .work(now, shared)
                        .listen_too(object, &request, waiting);
                });
                self.has_part(done, owner, object);
            }
            Mail::Options {
                owner,
                object,
                options,
            } => {
                self.with(owner.0 as usize, |family, shared| {
                    family
                        .work(now, shared)
                        .listener_options_too(object, &options);
                });
            }
            Mail::Unlisten { owner, object } => {
                let done = self.with(owner.0 as usize, |family, shared| {
                    family.work(now, shared).unlisten_too(object);
                });
                self.has_part(done, owner, object);
            }
            Mail::Done { owner, object } => {
                self.with(owner.0 as usize, |family, shared| {
                    family.work(now, shared).one_is_done(object);
                });
            }
            Mail::Broken { owner, object } => {
                self.with(owner.0 as usize, |family, shared| {
                    family.work(now, shared).broken_queue(object);
                });
            }
            Mail::Released { owner, objects } => {
                self.with(owner.0 as usize, |family, shared| {
                    let mut work = family.work(now, shared);
                    for object in objects {
                        work.bell_of_gone(object);
                    }
                });
            }
            Mail::Share { share } => self.memory.share_out(share),
            Mail::Report { to } => {
                // Nobody waits any more: then nobody wants it.
                let _ = to.try_send(self.report());
            }
            Mail::Look { at, to } => {
                // As for a report.
                let _ = to.try_send(self.look(now, at));
            }
            Mail::Capture { recorder } => self.capture(recorder),
            Mail::Watch { watch } => self.watches.push(*watch),
            Mail::Mtu { mtu } => self.stack.set_port_mtu(mtu),
            Mail::Neighbour => self.idle.share(),
            Mail::Stop => self.stopped = true,
        }
    }

    /// Where the family has ended here, its part of a listener is `done` all the same: nobody shall wait for us.
    fn has_part(&self, done: Option<()>, owner: Owner, object: u32) {
        if let (None, Some(peers)) = (done, &self.peers) {
            peers.tell_first(Mail::Done { owner, object });
        }
    }

    /// Puts a tap in front of the port, or takes it away. Between bursts no buffer is lent.
    fn capture(&mut self, recorder: Option<Box<Recorder>>) {
        let rx = core::mem::replace(&mut self.rx, Box::new(Closed));
        let tx = core::mem::replace(&mut self.tx, Box::new(Closed));
        let plain = capture::untap((rx, tx));
        (self.rx, self.tx) = match recorder {
            Some(recorder) => capture::tap(plain, *recorder),
            None => plain,
        };
    }
}
