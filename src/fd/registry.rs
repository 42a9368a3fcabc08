//! What a family of processes must agree on before it is attached: undecided sockets and epolls.
//!
//! One anonymous shared mapping, made at the first TCP socket or epoll and inherited by every child (design D10). A record
//! lists the processes that hold it; one that dies without a word is found when the records run out.
//!
//! # Safety
//! The mapping holds one zeroed `Region`, which consists of atomics only, and is never unmapped.

#![allow(unsafe_code)]
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use self::epoll::EpollRecord;
use self::socket::SocketRecord;

mod epoll;
mod holders;
mod socket;

pub use self::epoll::{
    EPOLLS, Left, adopt_epoll, count_kernel_items, count_nestings, end_epoll, has_epoll, is_nested,
    new_epoll, note_polled, release_epoll, retain_epoll,
};
pub use self::socket::{
    Decision, INTERESTS, Registration, SOCKETS, adopt_socket, begin_routing, decision, end_routing,
    new_socket, register, release_socket, retain_socket, take_over_routing, take_registrations,
    unregister,
};

#[repr(C)]
#[derive(Debug)]
struct Region {
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

/// Makes the region. False when there is no memory: nothing is accelerated then.
pub fn ensure() -> bool {
    if !REGION.load(Ordering::Acquire).is_null() {
        return true;
    }
    let bytes = size_of::<Region>();
    let protection = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
    let flags = rustix::mm::MapFlags::SHARED | rustix::mm::MapFlags::NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice aliases nothing.
    let Ok(map) =
        (unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), bytes, protection, flags) })
    else {
        return false;
    };
    if REGION
        .compare_exchange(
            ptr::null_mut(),
            map.cast(),
            Ordering::AcqRel,
            Ordering::Acquire,
        )
        .is_err()
    {
        // SAFETY: nobody has seen this mapping.
        let _ = unsafe { rustix::mm::munmap(map, bytes) };
    }
    true
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
