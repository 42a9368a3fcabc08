//! The table's entries: they check what they are given, catch panics, and hold the one started port.

use core::sync::atomic::{AtomicBool, Ordering};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

use dpdk_sys as sys;
use dpdk_sys::abi::{
    ABI, Chunk, ErrorText, PortFacts, Queue, StartArgs, Stats, TABLE_BYTES, Table,
};

use crate::eal;
use crate::port::Port;

pub(crate) const TABLE: Table = Table {
    abi: ABI,
    size: TABLE_BYTES,
    start,
    queue,
    thread_enter,
    thread_leave,
    thread_borrow: sys::knet_thread_borrow,
    thread_return: sys::knet_thread_return,
    rx_burst: sys::knet_rx_burst,
    free: sys::knet_rx_free,
    tx_alloc: sys::knet_tx_alloc,
    tx_burst: sys::knet_tx_burst,
    tx_cuts: sys::knet_tx_cuts,
    wait_fd: sys::knet_wait_fd,
    arm: sys::knet_arm,
    stats,
    link_up,
    stop,
    memory,
};

/// The port that `start` opened.
static PORT: Mutex<Option<Port>> = Mutex::new(None);

/// `start` was called. EAL cannot be initialised twice in a process, not even after a failure.
static STARTED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// This thread was made known by `thread_enter`, and did not come from EAL.
    static REGISTERED: Cell<bool> = const { Cell::new(false) };
}

/// A failed start: a negative errno and the reason.
pub(crate) struct Failure {
    pub(crate) errno: i32,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(errno: i32, message: impl Into<String>) -> Self {
        Self {
            errno: if errno < 0 { errno } else { -EIO },
            message: message.into(),
        }
    }
}

const EIO: i32 = 5;
const EINVAL: i32 = 22;
const EALREADY: i32 = 114;

unsafe extern "C" fn start(
    args: *const StartArgs,
    facts: *mut PortFacts,
    error: *mut ErrorText,
) -> i32 {
    let result = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: the host's arguments live for the call, or are null.
        let args = unsafe { args.as_ref() };
        // SAFETY: the same.
        let facts = unsafe { facts.as_mut() };
        let (Some(args), Some(facts)) = (args, facts) else {
            return Err(Failure::new(-EINVAL, "the host gave no arguments"));
        };
        start_once(args, facts)
    }));
    let failure = match result {
        Ok(Ok(())) => return 0,
        Ok(Err(failure)) => failure,
        Err(_) => Failure::new(-EIO, "the plug-in panicked while it started; this is a bug"),
    };
    // SAFETY: the host gives a buffer of its own, or null.
    if let Some(error) = unsafe { error.as_mut() } {
        crate::report(error, &failure.message);
    }
    failure.errno
}

fn start_once(args: &StartArgs, facts: &mut PortFacts) -> Result<(), Failure> {
    // Pairs with nothing: only the first caller passes, whoever it is.
    if STARTED.swap(true, Ordering::Relaxed) {
        return Err(Failure::new(
            -EALREADY,
            "DPDK was started in this process before, and can be started only once; start a new host",
        ));
    }
    let before = eal::packet_sockets();
    let _diverted = eal::open_log(args.own_process != 0)?;
    eal::start(args)?;
    let port = Port::open(args, &before, facts)?;
    *PORT.lock().unwrap_or_else(PoisonError::into_inner) = Some(port);
    Ok(())
}

unsafe extern "C" fn queue(index: u32) -> *mut Queue {
    catch_unwind(|| {
        let port = PORT.lock().unwrap_or_else(PoisonError::into_inner);
        port.as_ref()
            .and_then(|port| port.queue(index))
            .unwrap_or(core::ptr::null_mut())
    })
    .unwrap_or(core::ptr::null_mut())
}

unsafe extern "C" fn thread_enter() -> i32 {
    catch_unwind(|| {
        // SAFETY: reads a thread-local of EAL.
        if unsafe { sys::knet_has_lcore() } != 0 {
            return 0;
        }
        // SAFETY: EAL is up; a thread without an lcore may register.
        if unsafe { sys::rte_thread_register() } != 0 {
            return -eal::errno();
        }
        REGISTERED.set(true);
        0
    })
    .unwrap_or(-EIO)
}

unsafe extern "C" fn thread_leave() {
    // A thread that is ending has no thread-locals left; then EAL's own clean-up is enough.
    let _ = catch_unwind(|| {
        if REGISTERED
            .try_with(|registered| registered.replace(false))
            .unwrap_or(false)
        {
            // SAFETY: this thread registered itself and holds no burst.
            unsafe { sys::rte_thread_unregister() };
        }
    });
}

unsafe extern "C" fn stats(out: *mut Stats) {
    let _ = catch_unwind(AssertUnwindSafe(|| {
        let port = PORT.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the host gives a place of its own, or null.
        if let (Some(port), Some(out)) = (port.as_ref(), unsafe { out.as_mut() }) {
            *out = port.stats();
        }
    }));
}

unsafe extern "C" fn link_up() -> i32 {
    catch_unwind(|| {
        let port = PORT.lock().unwrap_or_else(PoisonError::into_inner);
        i32::from(port.as_ref().is_some_and(Port::link_up))
    })
    .unwrap_or(0)
}

unsafe extern "C" fn stop() {
    let _ = catch_unwind(|| {
        let port = PORT.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(port) = port
            && port.close()
        {
            eal::stop();
        }
    });
}

unsafe extern "C" fn memory(chunks: *mut Chunk, room: u32) -> u32 {
    catch_unwind(AssertUnwindSafe(|| {
        let mut port = PORT.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(port) = port.as_mut().filter(|_| !chunks.is_null()) else {
            return 0;
        };
        // SAFETY: the host gives `room` places of its own.
        let chunks = unsafe { core::slice::from_raw_parts_mut(chunks, room as usize) };
        port.lend_memory(chunks)
    }))
    .unwrap_or(0)
}
