//! A port is driven by one host at a time: flock(2) on a file in the run folder.

use core::time::Duration;
use std::io::{Read, Seek, Write};
use std::os::fd::AsFd;

use rustix::fs::{FlockOperation, Mode, OFlags};

use crate::config::{PortChoice, Vdev};
use crate::errno::Errno;
use crate::ffi::descriptor;
use crate::{rendezvous, time};

/// The lock of a port, held until it is dropped.
#[derive(Debug)]
pub(super) struct PortLock {
    _file: Option<std::fs::File>,
}

/// The name by which a port is locked; None where the device itself keeps a third one out.
fn name(port: &PortChoice, namespace: u64) -> Option<String> {
    match port {
        PortChoice::Bdf(bdf) => Some(bdf.to_string()),
        PortChoice::Netdev(name) => Some(format!("{namespace}-{name}")),
        // Two hosts share the path: each is an end of it.
        PortChoice::Vdev(Vdev::KnetUnix(_) | Vdev::KnetPair(_)) => None,
        PortChoice::Vdev(Vdev::Eal(text)) => {
            let interface = text.split(',').find_map(|part| part.strip_prefix("iface="));
            Some(match interface {
                Some(name) => format!("{namespace}-{name}"),
                None => text.clone(),
            })
        }
    }
}

impl PortLock {
    /// Takes the lock of `port`. A private host that holds it and has no client left ends in our favour: its program was
    /// restarted with another config.
    ///
    /// # Errors
    /// One line: who drives the port, or why the file cannot be made.
    pub(super) fn take(port: &PortChoice, private: bool) -> Result<Self, String> {
        let fault = |what: &str, errno: Errno| format!("port {port}: {what}: {errno}");
        let namespace = rendezvous::network_namespace()
            .map_err(|errno| fault("network namespace unknown", errno))?;
        let Some(name) = name(port, namespace) else {
            return Ok(Self { _file: None });
        };
        let folder =
            rendezvous::run_folder().map_err(|errno| fault("no run folder for its lock", errno))?;
        let path = rendezvous::port_lock(&folder, &name)
            .map_err(|errno| fault("name too long for its lock", errno))?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let fd = rustix::fs::open(path.as_c_str(), flags, Mode::RUSR | Mode::WUSR)
            .map(descriptor::settle)
            .map_err(|errno| fault(&format!("lock {path} cannot be opened"), errno))?;
        let mut file = std::fs::File::from(fd);
        let lock = || rustix::fs::flock(file.as_fd(), FlockOperation::NonBlockingLockExclusive);
        match lock() {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let holder = Holder::read(&file);
                if !holder.gives_way(lock) {
                    return Err(format!(
                        "port {port} is driven by another host (process {}); stop it, or give this program \
                         the same config and user",
                        holder
                            .process
                            .map_or_else(|| "unknown".to_owned(), |process| process.to_string())
                    ));
                }
            }
            Err(errno) => return Err(fault("cannot be locked", errno)),
        }
        let kind = if private { PRIVATE } else { "system" };
        let number = format!("{} {kind}\n", std::process::id());
        let written = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| file.write_all(number.as_bytes()));
        if let Err(error) = written {
            crate::warn!("event=lock_without_process error=\"{error}\"");
        }
        Ok(Self { _file: Some(file) })
    }
}

/// Marks a private host in a lock file.
const PRIVATE: &str = "private";
/// How long a host without clients may take to end.
const GIVE_WAY: Duration = Duration::from_secs(2);
/// Between two looks at the lock meanwhile.
const PAUSE: rustix::event::Timespec = rustix::event::Timespec {
    tv_sec: 0,
    tv_nsec: 10_000_000,
};

/// Who holds a lock, as the file says.
struct Holder {
    process: Option<u32>,
    private: bool,
}

impl Holder {
    fn read(file: &std::fs::File) -> Self {
        let mut text = String::new();
        // Without the text nobody is asked to end, and the line names nobody.
        let _ = file.take(32).read_to_string(&mut text);
        let mut words = text.split_whitespace();
        Self {
            process: words.next().and_then(|word| word.parse().ok()),
            private: words.next() == Some(PRIVATE),
        }
    }

    /// Asks a private host to end, which it does unless it has clients, and waits for the lock.
    fn gives_way(&self, lock: impl Fn() -> Result<(), Errno>) -> bool {
        let process = self.process.filter(|_| self.private);
        let Some(process) = process
            .and_then(|process| i32::try_from(process).ok())
            .and_then(rustix::process::Pid::from_raw)
        else {
            return false;
        };
        // It holds the lock, so the number is its own, unless it has not written it yet or counts processes in another
        // PID namespace: whoever else has that number is not asked.
        if !is_host(process) {
            return false;
        }
        // A failure means that it has just ended, or is another user's.
        let _ = rustix::process::kill_process(process, rustix::process::Signal::TERM);
        let end = time::monotonic() + GIVE_WAY;
        while time::monotonic() < end {
            if lock().is_ok() {
                return true;
            }
            // A pause; EINTR only shortens it.
            let _ = rustix::event::poll(&mut [], Some(&PAUSE));
        }
        false
    }
}

/// Whether a process has the name of a host (`runtime::host` gives it one that begins like this).
fn is_host(process: rustix::process::Pid) -> bool {
    std::fs::read(format!("/proc/{}/comm", process.as_raw_pid()))
        .is_ok_and(|name| name.starts_with(b"knetd"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stranger_with_the_number_of_a_host_is_not_asked_to_end() {
        let mut stranger = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let holder = Holder {
            process: Some(stranger.id()),
            private: true,
        };
        // A signal would come before the lock is asked for.
        let gave_way = holder.gives_way(|| Ok(()));
        let ended = stranger.try_wait().unwrap();
        stranger.kill().unwrap();
        let status = stranger.wait().unwrap();
        assert!(!gave_way && ended.is_none());
        assert_eq!(
            std::os::unix::process::ExitStatusExt::signal(&status),
            Some(9),
            "not SIGTERM"
        );
    }

    #[test]
    fn one_interface_has_one_name_however_it_is_reached() {
        let eal = |text: &str| PortChoice::Vdev(Vdev::Eal(text.to_owned()));
        let netdev = name(&PortChoice::Netdev("veth0".to_owned()), 7);
        assert_eq!(netdev.as_deref(), Some("7-veth0"));
        assert_eq!(
            name(&eal("net_af_packet0,iface=veth0,qdisc_bypass=1"), 7),
            netdev
        );
        assert_eq!(
            name(&eal("net_vhost0,iface=/x"), 7).as_deref(),
            Some("7-/x")
        );
    }
}
