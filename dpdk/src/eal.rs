//! EAL: started once, its log caught, the calling thread left where it was.

use core::ffi::{CStr, c_char, c_int};
use std::ffi::CString;

use dpdk_sys as sys;
use dpdk_sys::abi::StartArgs;

use crate::table::Failure;

/// Starts EAL with the host's argument vector.
pub(crate) fn start(args: &StartArgs) -> Result<(), Failure> {
    let mut argv = arguments(args)?;
    let argc = c_int::try_from(argv.len()).map_err(|_| Failure::new(-1, "too many arguments"))?;
    argv.push(core::ptr::null_mut());
    let affinity = Affinity::save();
    // SAFETY: `argv` holds `argc` strings that are never freed (EAL keeps pointers to them) and a null.
    let rc = unsafe { sys::rte_eal_init(argc, argv.as_mut_ptr()) };
    affinity.restore();
    if rc < 0 {
        let errno = errno();
        return Err(Failure::new(-errno, describe("EAL did not start", errno)));
    }
    Ok(())
}

/// What DPDK's libraries print goes into the log while this lives.
pub(crate) struct Diverted(bool);

impl Drop for Diverted {
    fn drop(&mut self) {
        if self.0 {
            // SAFETY: undoes `knet_output_divert`, on the same thread.
            unsafe { sys::knet_output_restore() };
        }
    }
}

/// Catches DPDK's log from here on, and in a process of our own what is printed until the end of the start.
pub(crate) fn open_log(own_process: bool) -> Result<Diverted, Failure> {
    // SAFETY: no other thread uses DPDK yet.
    let rc = unsafe { sys::knet_log_open() };
    if rc != 0 {
        return Err(Failure::new(rc, "no memory for DPDK's log"));
    }
    Ok(divert(own_process))
}

/// Catches what is printed, where nobody else prints.
pub(crate) fn divert(own_process: bool) -> Diverted {
    if own_process {
        // SAFETY: the host says that nobody else prints here.
        unsafe { sys::knet_output_divert() };
    }
    Diverted(own_process)
}

/// Undoes `start`, as far as DPDK can.
pub(crate) fn stop() {
    // SAFETY: the port is closed and no burst call runs any more.
    unsafe { sys::rte_eal_cleanup() };
}

/// EAL's copy of the arguments; leaked, once a process.
fn arguments(args: &StartArgs) -> Result<Vec<*mut c_char>, Failure> {
    let mut argv = Vec::new();
    for index in 0..args.eal_argc as usize {
        // SAFETY: the host promises `eal_argc` entries at `eal_argv`.
        let entry = unsafe { args.eal_argv.add(index) };
        // SAFETY: the same.
        let text = unsafe { *entry };
        let text = string(text).ok_or_else(|| Failure::new(-22, "an EAL argument is null"))?;
        argv.push(CString::from(text).into_raw());
    }
    Ok(argv)
}

/// A string of the host, borrowed.
pub(crate) fn string<'a>(text: *const c_char) -> Option<&'a CStr> {
    if text.is_null() {
        return None;
    }
    // SAFETY: the host's strings end with NUL and live for the call.
    Some(unsafe { CStr::from_ptr(text) })
}

/// `rte_errno` of this thread.
pub(crate) fn errno() -> i32 {
    // SAFETY: reads a thread-local of EAL.
    unsafe { sys::knet_errno() }
}

/// `what: strerror (the last lines of DPDK's log)`.
pub(crate) fn describe(what: &str, errno: i32) -> String {
    // SAFETY: gives a string in a thread-local buffer that lives until the next call on this thread.
    let reason = string(unsafe { sys::rte_strerror(errno.saturating_abs()) });
    let reason = reason.map_or_else(String::new, |text| text.to_string_lossy().into_owned());
    let lines = log_end();
    if lines.is_empty() {
        format!("{what}: {reason}")
    } else {
        format!("{what}: {reason} ({lines})")
    }
}

/// The last lines that DPDK logged, joined.
fn log_end() -> String {
    let mut text = [0_u8; 700];
    // SAFETY: writes at most the length given.
    let used = unsafe { sys::knet_log_tail(text.as_mut_ptr().cast(), text.len()) };
    let text = String::from_utf8_lossy(text.get(..used).unwrap_or(&[]));
    let lines: Vec<&str> = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    let first = lines.len().saturating_sub(LOG_LINES);
    lines.get(first..).unwrap_or(&[]).join("; ")
}

/// Lines of DPDK's log that go into a message: the cause stands a line or two before the consequence.
const LOG_LINES: usize = 4;

/// The numbers of the packet sockets that are open now.
pub(crate) fn packet_sockets() -> Vec<c_int> {
    let mut found = [0; PACKET_SOCKETS_MAX as usize];
    // SAFETY: writes at most the length given.
    let count = unsafe { sys::knet_packet_sockets(found.as_mut_ptr(), PACKET_SOCKETS_MAX) };
    found.get(..count as usize).unwrap_or(&[]).to_vec()
}

/// Packet sockets looked for at most: one a queue, and some of the program's own.
const PACKET_SOCKETS_MAX: u32 = 256;

/// The CPUs the calling thread may use: EAL pins it to its first lcore.
struct Affinity {
    mask: [u64; 128],
    known: bool,
}

impl Affinity {
    fn save() -> Self {
        let mut mask = [0; 128];
        // SAFETY: writes at most the length given.
        let rc = unsafe { sys::knet_affinity_save(mask.as_mut_ptr().cast(), size_of_val(&mask)) };
        Self {
            mask,
            known: rc == 0,
        }
    }

    fn restore(self) {
        if self.known {
            // SAFETY: reads the mask that `save` filled.
            unsafe {
                sys::knet_affinity_restore(self.mask.as_ptr().cast(), size_of_val(&self.mask))
            };
        }
    }
}
