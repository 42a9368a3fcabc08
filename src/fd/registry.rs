//! What a family of processes must agree on before it is attached: undecided sockets and epolls.
//!
//! One shared mapping, made at the first TCP socket or epoll and inherited by every child (design D10), and by a program that is
//! executed ([`super::handover`]). A record lists the processes that hold it; one that dies without a word is found when the
//! records run out.
//!
//! # Safety
//! The mapping holds one zeroed `Region` (or one that another process of the family uses), which consists of atomics only, and
//! is never unmapped.

#![allow(unsafe_code)]

use core::ptr;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};

use self::epoll::EpollRecord;
use self::socket::SocketRecord;
use crate::channel::map::{sealed, sealed_size};
use crate::errno::{Errno, Result};
use crate::ffi::number_limit::with_room;
use crate::ffi::{descriptor, process};

mod epoll;
mod holders;
mod socket;

pub use self::epoll::{
    EPOLLS, Left, adopt_epoll, copy_epoll, count_kernel_items, count_nestings, end_epoll,
    has_epoll, hold_epoll_for_child, hold_epoll_for_heir, is_nested, new_epoll, note_polled,
    release_epoll, retain_epoll,
};
pub use self::socket::{
    Decision, INTERESTS, Registration, SOCKETS, adopt_socket, begin_routing, copy_socket, decision,
    end_routing, hold_socket_for_child, hold_socket_for_heir, is_fresh, is_single, new_socket,
    note_nodelay, register, release_socket, retain_socket, take_over_routing, take_registrations,
    touch, touched, unregister,
};

/// What lies in the shared memory.
#[repr(C)]
#[derive(Debug)]
pub struct Region {
    /// 1 + the highest socket record ever used, so that pages behind it stay untouched.
    sockets_end: AtomicU32,
    sockets: [SocketRecord; SOCKETS],
    epolls: [EpollRecord; EPOLLS],
}

impl Region {
    /// The socket records that were ever used.
    fn used_sockets(&self) -> impl Iterator<Item = &SocketRecord> {
        let end = self.sockets_end.load(Ordering::Acquire) as usize;
        self.sockets.iter().take(end)
    }
}

static REGION: AtomicPtr<Region> = AtomicPtr::new(ptr::null_mut());
/// The memory behind it, an internal descriptor; -1 = it has none that could be handed over.
static MEMORY: AtomicI32 = AtomicI32::new(-1);

/// Makes the region. False when there is no memory: nothing is accelerated then.
pub fn ensure() -> bool {
    if !REGION.load(Ordering::Acquire).is_null() {
        return true;
    }
    let memory = memory().unwrap_or(-1);
    match map(memory) {
        Ok(map) => {
            place(map, memory);
            true
        }
        Err(_) => {
            descriptor::close(memory);
            false
        }
    }
}

/// Memory that a program which is executed can map too.
fn memory() -> Result<i32> {
    with_room(|| descriptor::internalize(sealed(c"knet-registry", size_of::<Region>() as u64)?))
}

/// Maps the region that lies in `memory`, which somebody else has made.
fn map_foreign(memory: i32) -> Result<ptr::NonNull<Region>> {
    if sealed_size(descriptor::lend(memory)?)? != size_of::<Region>() as u64 {
        return Err(Errno::PROTO);
    }
    map(memory)
}

/// Maps the region: of `memory`, or without (-1) one that only forked children share.
fn map(memory: i32) -> Result<ptr::NonNull<Region>> {
    let bytes = size_of::<Region>();
    let protection = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
    let flags = rustix::mm::MapFlags::SHARED | rustix::mm::MapFlags::NORESERVE;
    let nowhere = ptr::null_mut();
    let mapped = match descriptor::lend(memory) {
        // SAFETY: a new mapping at an address of the kernel's choice aliases nothing.
        Ok(memory) => unsafe { rustix::mm::mmap(nowhere, bytes, protection, flags, memory, 0) },
        // SAFETY: as above.
        Err(_) => unsafe { rustix::mm::mmap_anonymous(nowhere, bytes, protection, flags) },
    };
    ptr::NonNull::new(mapped?.cast()).ok_or(Errno::NOMEM)
}

/// Makes `map` the region, unless another thread was quicker.
fn place(map: ptr::NonNull<Region>, memory: i32) {
    if REGION
        .compare_exchange(
            ptr::null_mut(),
            map.as_ptr(),
            Ordering::AcqRel,
            Ordering::Acquire,
        )
        .is_err()
    {
        // SAFETY: nobody has seen this mapping.
        let _ = unsafe { rustix::mm::munmap(map.as_ptr().cast(), size_of::<Region>()) };
        descriptor::close(memory);
        return;
    }
    MEMORY.store(memory, Ordering::Release);
}

/// The region's memory as a descriptor, or None.
#[must_use]
pub fn shared_memory() -> Option<i32> {
    let memory = MEMORY.load(Ordering::Acquire);
    (memory >= 0).then_some(memory)
}

/// Takes the region over from the program that executed this one, whose process this is. `memory` is an internal descriptor.
/// What that program held must be adopted; [`leave_rest`] lets go of all else.
///
/// # Errors
/// EPROTO when it is no region, EBUSY when there is one, ENOMEM.
pub fn take_over(memory: i32) -> Result<()> {
    let map = map_foreign(memory)?;
    if !REGION.load(Ordering::Acquire).is_null() {
        return Err(Errno::BUSY);
    }
    place(map, memory);
    Ok(())
}

/// Whether `memory` is that of the present region.
///
/// # Errors
/// EBADF.
pub fn is_present(memory: i32) -> Result<bool> {
    let Some(mine) = shared_memory() else {
        return Ok(false);
    };
    let [mine, theirs] = [mine, memory].map(|fd| descriptor::lend(fd).and_then(rustix::fs::fstat));
    Ok(mine?.st_ino == theirs?.st_ino)
}

/// Makes another family's region this process's, in place of its own if it has one, which is returned. `memory` is an internal
/// descriptor.
///
/// # Errors
/// EPROTO when it is no region, ENOMEM.
pub fn change_to(memory: i32) -> Result<Option<&'static Region>> {
    let map = map_foreign(memory)?;
    let old = region();
    // The old one stays mapped: a signal handler may be looking at it.
    REGION.store(map.as_ptr(), Ordering::Release);
    descriptor::close(MEMORY.swap(memory, Ordering::AcqRel));
    Ok(old)
}

/// This process holds nothing in `old` any more.
pub fn leave(old: &Region) {
    socket::leave(old);
    epoll::leave(old);
}

/// After [`take_over`] and what was adopted: this process, which is also listed as `heir`, holds nothing else.
pub fn leave_rest(heir: u32) {
    if let Some(region) = region() {
        socket::leave_rest(region, heir);
        epoll::leave_rest(region, heir);
    }
}

/// Spawned programs so far.
static HEIRS: AtomicU32 = AtomicU32::new(0);

/// As whom the records list a program that a child of this process is about to execute, until [`change_holder`].
#[must_use]
pub fn next_heir() -> u32 {
    holders::heir(process::pid(), HEIRS.fetch_add(1, Ordering::Relaxed))
}

/// Whatever the records list as `from` they list as process `to`; 0 = not any more.
pub fn change_holder(from: u32, to: u32) {
    if let Some(region) = region() {
        socket::change_holder(region, from, to);
        epoll::change_holder(region, from, to);
    }
}

fn region() -> Option<&'static Region> {
    let place = REGION.load(Ordering::Acquire);
    // SAFETY: null or the mapping of `ensure`, which is page aligned, zeroed, large enough and never unmapped.
    unsafe { place.as_ref() }
}

/// In a forked child, before [`adopt_socket`] and [`adopt_epoll`]: what other threads of the parent were doing to the counts
/// is never finished here, so they are made anew.
pub fn forget_counts() {
    socket::forget_counts();
    epoll::forget_counts();
}

fn clear(counts: &[AtomicU32]) {
    for count in counts {
        // Untouched pages stay so.
        if count.load(Ordering::Relaxed) != 0 {
            count.store(0, Ordering::Relaxed);
        }
    }
}
