//! What runs when the object is loaded, and around fork.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::attach;
use crate::fd;
use crate::ffi::{environment, number_limit, process, real};
use crate::waiter;

/// The process that forks, so that its child knows whose eventfds it has inherited.
static PARENT: AtomicU32 = AtomicU32::new(0);

/// The constructor: resolves the originals and asks to be told of forks. It reads no file and makes nothing (design D5), except in a
/// program that was executed by one with accelerated sockets.
pub extern "C" fn load() {
    real::resolve();
    environment::remember();
    // A refusal (out of memory) leaves the page that is wiped on fork, which notices later.
    let _ = process::on_fork(before_fork, in_parent, in_child);
    // A program that executed this one may have left its sockets; no other one pays more than a look at the environment.
    fd::handover::unpack();
}

extern "C" fn before_fork() {
    PARENT.store(crate::thread::process(), Ordering::Relaxed);
    fd::epoll::join_all();
    fd::hold_for_child();
    attach::fork::prepare();
}

extern "C" fn in_parent() {
    attach::fork::parent();
}

extern "C" fn in_child() {
    number_limit::child();
    waiter::forget_parents_eventfds(PARENT.load(Ordering::Relaxed));
    attach::fork::child();
    fd::adopt_after_fork(PARENT.load(Ordering::Relaxed));
}
