//! The lcores of a host as the control thread sees them: a mailbox and a status each.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use crate::channel::sync::Ordering;
use crate::errno::Result;
use crate::ffi::end_signals;
use crate::lcore::{LcoreStatus, Mail, Mailbox};
use crate::stack::Owner;

/// One of them.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) status: Arc<LcoreStatus>,
    /// The wake-up that it was writing at the last look.
    writing: Option<(u64, u32)>,
}

/// All of them, the first one first. There is one at least.
#[derive(Debug)]
pub(super) struct Lcores {
    first: Seat,
    others: Vec<Seat>,
}

impl Lcores {
    /// One lcore.
    ///
    /// # Errors
    /// EMFILE.
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            first: Seat::with(Mailbox::new()?),
            others: Vec::new(),
        })
    }

    /// Makes it `count` lcores: the config is known, and nobody has been told of any.
    ///
    /// # Errors
    /// EMFILE.
    pub(super) fn grow(&mut self, count: u32) -> Result<()> {
        while self.count() < count {
            let mailbox = self.first.mailbox.beside()?;
            self.others.push(Seat::with(mailbox));
        }
        Ok(())
    }

    /// How many there are.
    pub(super) fn count(&self) -> u32 {
        u32::try_from(self.others.len() + 1).unwrap_or(u32::MAX)
    }

    /// The first one.
    pub(super) const fn first(&self) -> &Seat {
        &self.first
    }

    /// All of them.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = &Seat> {
        core::iter::once(&self.first).chain(&self.others)
    }

    /// Says something to all of them. The first one hears it last, because what it tells the others of a family must find
    /// them told by us.
    pub(super) fn say(&self, mail: impl Fn() -> Mail) {
        for seat in self.iter().rev() {
            seat.mailbox.post(mail());
        }
    }

    /// What the programs of a family get to wake them.
    pub(super) fn bells(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.iter().map(|seat| seat.mailbox.bell().as_fd())
    }

    /// Every mailbox.
    pub(super) fn mailboxes(&self) -> Vec<Arc<Mailbox>> {
        self.iter().map(|seat| Arc::clone(&seat.mailbox)).collect()
    }

    /// Families that have ended at some lcore since the last call, once for each.
    pub(super) fn take_ended(&self) -> Vec<Owner> {
        self.iter()
            .flat_map(|seat| seat.status.take_ended())
            .collect()
    }

    /// Flows of all stacks, those in TIME-WAIT among them.
    pub(super) fn flows(&self) -> usize {
        let flows = |seat: &Seat| seat.status.flows.load(Ordering::Relaxed);
        self.iter().map(flows).sum()
    }

    /// Of them, those that can still carry bytes or wait for a FIN.
    pub(super) fn live_flows(&self) -> usize {
        let flows = |seat: &Seat| seat.status.live_flows.load(Ordering::Relaxed);
        self.iter().map(flows).sum()
    }

    /// Ends the writes of eventfds that have not ended since the last call.
    pub(super) fn free_held_up(&mut self) {
        for seat in core::iter::once(&mut self.first).chain(&mut self.others) {
            let writing = seat.status.held_up();
            if let Some((_, thread)) = writing.filter(|_| writing == seat.writing) {
                end_signals::interrupt(thread);
            }
            seat.writing = writing;
        }
    }
}

impl Seat {
    fn with(mailbox: Mailbox) -> Self {
        Self {
            mailbox: Arc::new(mailbox),
            status: Arc::new(LcoreStatus::default()),
            writing: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_hear_it_and_news_of_any_is_seen_at_the_first() {
        let mut lcores = Lcores::new().unwrap();
        lcores.grow(3).unwrap();
        lcores.grow(3).unwrap();
        assert_eq!((lcores.count(), lcores.bells().count()), (3, 3));
        lcores.say(|| Mail::Neighbour);
        for seat in lcores.iter() {
            seat.status.flows.store(2, Ordering::Relaxed);
            seat.status.live_flows.store(1, Ordering::Relaxed);
        }
        assert_eq!((lcores.flows(), lcores.live_flows()), (6, 3));
        assert!(lcores.take_ended().is_empty());
    }
}
