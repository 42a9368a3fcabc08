//! Outgoing connections, after connect(2).

use core::net::SocketAddrV4;

use super::options::Options;
use super::state;
use super::wish::{self, Wish, ask_first, claim};
use crate::attach::{Link, Object};
use crate::channel::cell::kind;
use crate::channel::sync::Ordering;
use crate::errno::{Errno, Result};
use crate::readiness;

/// Begins to connect to `remote`, from `local` where given; the handshake goes on by itself.
///
/// # Errors
/// The host's refusal (EADDRINUSE, EADDRNOTAVAIL, ENETUNREACH), ENFILE, ENOMEM, ENETDOWN.
pub fn start(
    link: &Link,
    local: Option<SocketAddrV4>,
    remote: SocketAddrV4,
    options: &Options,
) -> Result<Object> {
    let object = claim(link, options, true)?;
    ask_first(link, object, Wish::Connect { local, remote })
}

/// Begins again after a failed attempt: the same object, so that copies of its number and its registrations in epolls stay.
///
/// # Errors
/// As [`start`]; EINVAL when it was connected once, EBADF.
pub fn start_again(
    link: &Link,
    object: Object,
    local: Option<SocketAddrV4>,
    remote: SocketAddrV4,
) -> Result<()> {
    let cell = state::cell(link, object)?;
    cell.write.shut.store(0, Ordering::SeqCst);
    cell.wish.told.store(0, Ordering::Release);
    // Of the attempt before: nobody asks for it any more (tcp_connect_init).
    let _ = state::take_error(cell);
    let asked = wish::ask(link, object, Wish::Connect { local, remote });
    if asked.is_err() {
        cell.wish.told.store(1, Ordering::Release);
        // connect() tells it itself.
        let _ = state::take_error(cell);
    }
    asked
}

/// How far a connection attempt is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// The handshake goes on: a second connect() says EALREADY.
    Going,
    /// Connected, now or once: a second connect() says EISCONN.
    Connected,
    /// Failed; SO_ERROR tells why. The socket may try again, with a new object.
    Failed,
}

/// How far the attempt is.
///
/// # Errors
/// EBADF for a handle that is no more.
pub fn progress(link: &Link, object: Object) -> Result<Progress> {
    let cell = state::cell(link, object)?;
    let what = cell.host.kind.load(Ordering::Acquire);
    Ok(match what {
        kind::STREAM => Progress::Connected,
        kind::CONNECTING if !link.is_dead() && !readiness::is_disconnected(cell, what) => {
            Progress::Going
        }
        _ => Progress::Failed,
    })
}

/// Notes that a call tells how the attempt ended; false when one has told it before.
///
/// # Errors
/// EBADF for a handle that is no more.
pub fn tell(link: &Link, object: Object) -> Result<bool> {
    let cell = state::cell(link, object)?;
    Ok(cell.wish.told.swap(1, Ordering::AcqRel) == 0)
}

/// Waits for the end of the handshake, at most SO_SNDTIMEO, and tells it.
///
/// # Errors
/// EINPROGRESS at the time-out, EINTR (the attempt goes on), and what SO_ERROR says: ECONNREFUSED, ETIMEDOUT,
/// ECONNRESET, EHOSTUNREACH; ECONNABORTED when somebody has taken it.
pub fn wait(link: &Link, object: Object) -> Result<()> {
    let cell = state::cell(link, object)?;
    let deadline = state::deadline(&cell.read.sndtimeo_us);
    loop {
        match progress(link, object)? {
            Progress::Connected => {
                tell(link, object)?;
                return Ok(());
            }
            Progress::Failed => {
                tell(link, object)?;
                return Err(state::take_error(cell).unwrap_or(Errno::CONNABORTED));
            }
            Progress::Going => {}
        }
        let mut ended = || progress(link, object) != Ok(Progress::Going);
        match state::until(link, object, None, deadline, &mut ended) {
            Err(Errno::AGAIN) => return Err(Errno::INPROGRESS),
            other => other?,
        }
    }
}
