//! The end of a process: what it held is let go, and what it left half done in the tables is repaired.

use super::family::{Family, Shared, Work};
use super::mailbox::Mail;
use super::segments::Segments;
use crate::channel::cell::{herald, process as process_state};
use crate::channel::layout::{EPOLLS, PROCS, SLOTS};
use crate::channel::map::Control;
use crate::channel::sync::Ordering;
use crate::time::Instant;

impl Family {
    /// Process cell `cell`, process `pid`, is gone.
    pub(super) fn process_gone(&mut self, now: Instant, shared: Shared<'_>, cell: u32, pid: u32) {
        self.remove_process(cell);
        if !self.is_first() {
            // It tells us what we have to let go of.
            return;
        }
        shared.counters.processes_gone.raise();
        let mut released = Vec::new();
        let mut epolls = Vec::new();
        {
            let control = &self.segments().control;
            repair(control);
            if let Some(it) = control.process(cell) {
                it.epolls.for_each(|epoll| epolls.push(epoll));
            }
            free_cell(control, cell, &mut released);
            // Forks that it had only prepared. A child that never spoke has no number and prepared none.
            for other in 0..if pid == 0 { 0 } else { PROCS } {
                let Some(it) = control.process(other) else {
                    continue;
                };
                if it.state.load(Ordering::SeqCst) == process_state::FORKING
                    && it.pid.load(Ordering::SeqCst) == pid
                    && !self.is_live(other)
                {
                    free_cell(control, other, &mut released);
                }
            }
        }
        for slot in 0..SLOTS {
            if pid != 0 && self.free_slot(slot, pid) {
                self.forget_waiter(slot);
            }
        }
        let mut work = self.work(now, shared);
        for &object in &released {
            if work.is_ours(object) {
                work.bell_of_gone(object);
            }
        }
        work.pass_released(&released);
        // It may have been woken and have died before it looked: somebody else is.
        for object in released {
            work.remind(object);
        }
        for epoll in epolls {
            work.wake_epoll(epoll);
        }
    }

    /// The last process is gone: everything is let go.
    pub(super) fn detach(&mut self, now: Instant, shared: Shared<'_>) {
        self.set_detached();
        let mut released = Vec::new();
        {
            let control = &self.segments().control;
            if self.is_first() {
                repair(control);
                for cell in 0..PROCS {
                    free_cell(control, cell, &mut released);
                }
            }
        }
        let objects = self.objects();
        let mut work = self.work(now, shared);
        for object in objects {
            work.bell(object);
        }
    }

    /// Frees the slot when a thread of `pid` has it.
    fn free_slot(&self, slot: u32, pid: u32) -> bool {
        let Some(cell) = self.segments().control.slot(slot) else {
            return false;
        };
        let user = cell.user.load(Ordering::SeqCst);
        if user >> 32 != u64::from(pid) {
            return false;
        }
        // A sibling that found the thread dead may have been quicker, and sleep already: nothing else of the cell is ours
        // to write. Who takes it next makes it new.
        cell.user
            .compare_exchange(user, 0, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }
}

impl Work<'_> {
    /// Tells the other lcores which objects of theirs a process has let go of by its end.
    fn pass_released(&self, released: &[u32]) {
        let Some(peers) = self.shared.peers.as_deref() else {
            return;
        };
        let control = &self.segments.control;
        for lcore in 0..control.layout().lcores {
            let is_theirs = |object: &u32| control.lcore_of(*object) == lcore;
            let objects: Vec<u32> = released.iter().copied().filter(is_theirs).collect();
            if lcore != self.shared.me && !objects.is_empty() {
                let owner = self.owner;
                peers.tell(lcore, Mail::Released { owner, objects });
            }
        }
    }
}

/// Makes every set bit findable: a killed process may have stopped between a bit and its summary.
fn repair(control: &Control) {
    for lcore in 0..control.layout().lcores {
        if let Some(bells) = control.doorbells(lcore) {
            bells.repair();
        }
    }
    for epoll in 0..EPOLLS {
        let used = control
            .epoll(epoll)
            .is_some_and(|it| it.used.load(Ordering::SeqCst) != 0);
        if used && let Some(ready) = control.ready(epoll) {
            ready.repair();
        }
    }
}

/// Frees the cell of a process that ended before an lcore served its family, and the indices that only it had claimed: there
/// is no object behind them.
pub fn release_process(segments: &Segments, cell: u32) {
    let control = &segments.control;
    let mut released = Vec::new();
    free_cell(control, cell, &mut released);
    for object in released {
        let is_held = (0..PROCS).any(|other| control.held(other).is_some_and(|it| it.has(object)));
        if let Some(taken) = control.taken()
            && !is_held
        {
            taken.clear(object);
        }
    }
}

/// Frees a process cell, gives its epolls back and appends what it held to `released`.
fn free_cell(control: &Control, cell: u32, released: &mut Vec<u32>) {
    let (Some(process), Some(held)) = (control.process(cell), control.held(cell)) else {
        return;
    };
    process.epolls.drain(|epoll| {
        let Some(it) = control.epoll(epoll) else {
            return;
        };
        let left = it
            .used
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |used| {
                used.checked_sub(1)
            });
        if left == Ok(1) {
            it.generation.fetch_add(1, Ordering::SeqCst);
            it.kernel_items.store(0, Ordering::SeqCst);
            it.cursor.store(0, Ordering::SeqCst);
            it.slots.clear();
            it.herald.store(herald::NONE, Ordering::SeqCst);
            if let Some(ready) = control.ready(epoll) {
                ready.clear_all();
            }
        }
    });
    held.repair();
    held.take(0, |object| {
        released.push(object);
        true
    });
    process.pid.store(0, Ordering::SeqCst);
    process.state.store(process_state::FREE, Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::layout::Layout;

    #[test]
    fn what_only_a_process_without_an_lcore_had_claimed_is_free_again() {
        let segments = Segments::create(Layout::for_flows(8, 4_096, 4_096)).unwrap();
        let control = &segments.control;
        let taken = control.taken().unwrap();
        let claim = |cells: &[u32]| {
            let index = taken.claim(0, 0..64).unwrap();
            for cell in cells {
                control.held(*cell).unwrap().set(index);
            }
            index
        };
        let (alone, shared) = (claim(&[0]), claim(&[0, 1]));
        release_process(&segments, 0);
        assert_eq!((taken.has(alone), taken.has(shared)), (false, true));
        release_process(&segments, 1);
        assert!(!taken.has(shared));
    }
}
