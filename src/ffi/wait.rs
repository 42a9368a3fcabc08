//! Waits: libc's own, because a wait must be a cancellation point (pthreads(7)).
//!
//! # Safety
//! Slices carry their own length; `C-unwind` lets a cancelled thread unwind through us, and we hold nothing.

#![allow(unsafe_code)]

use core::time::Duration;

use super::errno::last as errno;
use super::real;
use crate::errno::Result;

/// An entry of poll(2), as the kernel lays it out.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PollFd {
    /// The descriptor; negative = skipped.
    pub fd: i32,
    /// Events asked for.
    pub events: i16,
    /// Events found.
    pub revents: i16,
}

/// An event of epoll_wait(2), as the kernel lays it out.
#[cfg_attr(target_arch = "x86_64", repr(C, packed))]
#[cfg_attr(not(target_arch = "x86_64"), repr(C))]
#[derive(Clone, Copy, Debug, Default)]
pub struct EpollEvent {
    /// Event bits and flags.
    pub events: u32,
    /// The program's data.
    pub data: u64,
}

/// A signal mask as the kernel takes it: bit `n` is signal `n + 1`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SignalMask(pub u64);

const _: () = assert!(size_of::<PollFd>() == size_of::<libc::pollfd>());
const _: () = assert!(size_of::<EpollEvent>() == size_of::<libc::epoll_event>());

/// A span as libc takes it; spans beyond its range become its largest.
fn timespec(span: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: libc::time_t::try_from(span.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::from(span.subsec_nanos()),
    }
}

/// ppoll(2) of libc. Returns the number of entries with events.
///
/// # Errors
/// EINTR, EINVAL, ENOMEM as the kernel says.
pub fn ppoll(
    fds: &mut [PollFd],
    timeout: Option<Duration>,
    mask: Option<SignalMask>,
) -> Result<usize> {
    let time = timeout.map(timespec);
    let time = time.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
    // libc reads only the first eight bytes, but its type is larger.
    let mut wide = [0_u64; 16];
    if let Some(first) = wide.first_mut() {
        *first = mask.unwrap_or_default().0;
    }
    let mask = mask.map_or(core::ptr::null(), |_| {
        wide.as_ptr().cast::<libc::sigset_t>()
    });
    // SAFETY: `fds` is a slice of the same layout; time and mask live on this frame.
    let count = unsafe {
        real::ppoll(
            fds.as_mut_ptr().cast(),
            fds.len() as libc::nfds_t,
            time,
            mask,
        )
    };
    usize::try_from(count).map_err(|_| errno())
}

/// epoll_wait(2) of libc, in milliseconds; 0 looks and returns.
///
/// # Errors
/// EBADF, EINVAL (also for no room), EINTR as the kernel says.
pub fn epoll_wait(epfd: i32, events: &mut [EpollEvent], timeout_ms: i32) -> Result<usize> {
    let room = i32::try_from(events.len()).unwrap_or(i32::MAX);
    // SAFETY: `events` is a slice of the same layout and at least `room` long.
    let count = unsafe { real::epoll_wait(epfd, events.as_mut_ptr().cast(), room, timeout_ms) };
    usize::try_from(count).map_err(|_| errno())
}

/// epoll_ctl(2) of libc; `event` None passes a null pointer.
///
/// # Errors
/// As the kernel says.
pub fn epoll_ctl(epfd: i32, operation: i32, fd: i32, event: Option<EpollEvent>) -> Result<()> {
    let mut event = event;
    let place = event.as_mut().map_or(core::ptr::null_mut(), |event| {
        core::ptr::from_mut(event).cast()
    });
    // SAFETY: null or a pointer to an event on this frame.
    let result = unsafe { real::epoll_ctl(epfd, operation, fd, place) };
    if result < 0 { Err(errno()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errno::Errno;

    #[test]
    fn a_look_at_nothing_returns_at_once() {
        real::resolve();
        assert_eq!(ppoll(&mut [], Some(Duration::ZERO), None), Ok(0));
        assert_eq!(
            epoll_wait(-1, &mut [EpollEvent::default()], 0),
            Err(Errno::BADF)
        );
        assert_eq!(epoll_ctl(-1, 2, 0, None), Err(Errno::BADF));
    }
}
