//! A port is driven by one host at a time: flock(2) on a file in the run folder.

use std::io::{Read, Write};
use std::os::fd::AsFd;

use rustix::fs::{FlockOperation, Mode, OFlags};

use crate::config::{PortChoice, Vdev};
use crate::errno::Errno;
use crate::rendezvous;

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
    /// Takes the lock of `port`.
    ///
    /// # Errors
    /// One line: who drives the port, or why the file cannot be made.
    pub(super) fn take(port: &PortChoice) -> Result<Self, String> {
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
            .map_err(|errno| fault(&format!("lock {path} cannot be opened"), errno))?;
        let mut file = std::fs::File::from(fd);
        match rustix::fs::flock(file.as_fd(), FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let mut holder = String::new();
                // The number is a hint for people; without it the line is still true.
                let _ = (&file).take(16).read_to_string(&mut holder);
                return Err(format!(
                    "port {port} is driven by another host (process {}); stop it, or give this program \
                     the same config and user",
                    if holder.trim().is_empty() {
                        "unknown"
                    } else {
                        holder.trim()
                    }
                ));
            }
            Err(errno) => return Err(fault("cannot be locked", errno)),
        }
        let number = format!("{}\n", std::process::id());
        let written = file
            .set_len(0)
            .and_then(|()| file.write_all(number.as_bytes()));
        if let Err(error) = written {
            crate::warn!("port lock holds no process id error={error}");
        }
        Ok(Self { _file: Some(file) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
