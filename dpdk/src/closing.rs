//! Stops and closes a port on EAL's interrupt thread.
//!
//! virtio_user lets EAL watch the socket to its peer and reads the peer's answers from that socket itself, so whatever it asks
//! the peer also wakes EAL's thread for the driver's handler. A stop during the handler does not take it back, and says nothing; the
//! close then frees what it uses and ends the descriptor, at which EAL aborts the process. On that thread no handler runs beside it.

use core::ffi::c_void;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use dpdk_sys as sys;

/// Until when EAL's thread begins. One that does not is taken for gone, and the port is closed where the caller is.
const LIMIT: Duration = Duration::from_secs(10);

struct Closing {
    port: u16,
    is_closed: Mutex<bool>,
    told: Condvar,
}

impl Closing {
    fn run(&self) {
        // SAFETY: the port is started, and this happens once: the alarm fires once, and is cancelled before its caller does it.
        unsafe { sys::rte_eth_dev_stop(self.port) };
        // SAFETY: the same; the port is stopped.
        unsafe { sys::rte_eth_dev_close(self.port) };
        *self
            .is_closed
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = true;
        self.told.notify_one();
    }

    /// Waits for it within the limit.
    fn wait(&self) {
        let guard = self
            .is_closed
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let _guard = self
            .told
            .wait_timeout_while(guard, LIMIT, |is_closed| !*is_closed);
    }

    fn is_closed(&self) -> bool {
        *self
            .is_closed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

unsafe extern "C" fn on_alarm(closing: *mut c_void) {
    // SAFETY: `close` keeps it until the alarm is through or cancelled.
    unsafe { &*closing.cast::<Closing>() }.run();
}

/// Stops and closes the port, which is started, and waits until that is done.
pub(crate) fn close(port: u16) {
    let closing = Closing {
        port,
        is_closed: Mutex::new(false),
        told: Condvar::new(),
    };
    let argument: *mut c_void = (&raw const closing).cast_mut().cast();
    // SAFETY: the argument lives until the alarm is cancelled, below, and is only read.
    if unsafe { sys::rte_eal_alarm_set(1, Some(on_alarm), argument) } == 0 {
        closing.wait();
        // SAFETY: the same pair. It waits for a callback that runs; behind it nobody uses the argument.
        unsafe { sys::rte_eal_alarm_cancel(Some(on_alarm), argument) };
    }
    if !closing.is_closed() {
        closing.run();
    }
}
