//! epoll_wait of a forked child that got no share of the accelerated sockets: the kernel's half of the epoll, which is its parent's
//! too, and nothing of ours. It writes nothing that is shared.

use core::time::Duration;

use crate::errno::Result;
use crate::ffi::wait::{self, EpollEvent, PollFd, SignalMask};
use crate::iomux::nested::strip;
use crate::time::monotonic;

/// How long the wait rests when its parent's herald, which is the parent's to settle, is all that there is; twice as long each time.
const FIRST_REST: Duration = Duration::from_millis(1);
/// The longest rest.
const LONGEST_REST: Duration = Duration::from_millis(16);

/// What a look found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    /// Events of the program's descriptors.
    pub(super) count: usize,
    /// The herald was among them.
    herald: bool,
}

/// Looks without waiting.
///
/// # Errors
/// As the kernel says.
pub(super) fn look(kernel_epfd: i32, events: &mut [EpollEvent]) -> Result<Found> {
    let mut herald = false;
    // Where there is room for one the herald stands in the place of what is behind it.
    for _ in 0..2 {
        let found = wait::epoll_wait(kernel_epfd, events, 0)?;
        let count = strip(events.get_mut(..found).unwrap_or(&mut []));
        herald |= count < found;
        if count > 0 || found == 0 {
            return Ok(Found { count, herald });
        }
    }
    Ok(Found { count: 0, herald })
}

/// As epoll_pwait2(2).
///
/// # Errors
/// As the kernel says.
pub(super) fn wait(
    kernel_epfd: i32,
    events: &mut [EpollEvent],
    timeout: Option<Duration>,
    sigmask: Option<SignalMask>,
) -> Result<usize> {
    let end = timeout.map(|timeout| monotonic() + timeout);
    let left = || end.map(|end| end.since(monotonic()));
    let mut rest = FIRST_REST;
    loop {
        let mut fds = [PollFd {
            fd: kernel_epfd,
            events: 1,
            revents: 0,
        }];
        wait::ppoll(&mut fds, left(), sigmask)?;
        let found = look(kernel_epfd, events)?;
        let is_over = end.is_some_and(|end| monotonic() >= end);
        if found.count > 0 || is_over {
            return Ok(found.count);
        }
        if found.herald {
            let rest_now = left().map_or(rest, |left| left.min(rest));
            wait::ppoll(&mut [], Some(rest_now), sigmask)?;
            rest = (rest * 2).min(LONGEST_REST);
        }
    }
}
