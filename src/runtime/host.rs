//! The host process: limits, signals, title, then the control loop.

use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::PathBuf;

use rustix::fd::OwnedFd;
use rustix::process::{Resource, Rlimit};

use crate::config;
use crate::ffi::end_signals::{self, EndSignals};
use crate::host::{End, Server, ServerConfig};

/// How this host was started.
#[derive(Debug)]
pub enum Start {
    /// `knetd --private --control-fd N --program NAME`.
    Private {
        /// Our end of the program's control socket.
        control: OwnedFd,
        /// The program's name, for people.
        program: String,
    },
    /// `knetd [--conf FILE] [--socket PATH]`.
    System {
        /// The config file.
        conf: PathBuf,
        /// Where to listen.
        socket: PathBuf,
    },
}

/// Runs a host to its end.
///
/// # Errors
/// One line for the operator.
pub fn run(start: Start) -> Result<End, String> {
    raise_limits();
    let signals = EndSignals::catch().map_err(|errno| format!("signals: {errno}"))?;
    end_signals::allow_interrupts().map_err(|errno| format!("signals: {errno}"))?;
    let server_config = match start {
        Start::Private { control, program } => {
            set_title(&program);
            ServerConfig::Private { control }
        }
        Start::System { conf, socket } => {
            set_title("system");
            let config = config::load_file(&conf).map_err(|faults| faults.to_string())?;
            if config.mode == config::Mode::Private {
                crate::warn!(
                    "config={} event=mode_0 action=\"programs start hosts of their own and do not come here\"",
                    config.file
                );
            }
            ServerConfig::System {
                config: Box::new(config),
                socket,
            }
        }
    };
    let mut server = Server::new(server_config, Some(signals))?;
    crate::info!("event=started version={}", crate::BUILD_VERSION);
    tell_service_manager("READY=1");
    let end = server
        .run()
        .map_err(|errno| format!("control loop: {errno}"))?;
    crate::info!("event=ended reason={end:?}");
    Ok(end)
}

/// Raises the soft limits that channel memory, descriptors and DMA memory run into; core size stays as it is.
fn raise_limits() {
    for resource in [
        Resource::Nofile,
        Resource::Fsize,
        Resource::Memlock,
        Resource::As,
        Resource::Data,
    ] {
        let limit = rustix::process::getrlimit(resource);
        let without = Rlimit {
            current: None,
            maximum: None,
        };
        if rustix::process::setrlimit(resource, without) == Ok(()) {
            continue;
        }
        // Nofile cannot be unlimited, and only root may raise the hard limit.
        let raised = Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        };
        if let Err(errno) = rustix::process::setrlimit(resource, raised) {
            crate::warn!("limit={resource:?} event=not_raised errno={errno}");
        }
    }
}

/// Tells a service manager that waits for it (sd_notify(3), `Type=notify`).
fn tell_service_manager(state: &str) {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    let told = notify_address(name.as_bytes()).and_then(|address| {
        let socket = UnixDatagram::unbound()?;
        socket.send_to_addr(state.as_bytes(), &address)
    });
    if let Err(error) = told {
        crate::warn!("event=service_manager_not_told error=\"{error}\"");
    }
}

/// A path, or a name in the abstract namespace behind an `@`.
fn notify_address(name: &[u8]) -> std::io::Result<SocketAddr> {
    match name.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(OsStr::from_bytes(name)),
    }
}

/// The process's name in ps and top: `knetd: NAME`, cut to 15 bytes by the kernel.
fn set_title(program: &str) {
    let name = program.rsplit('/').next().unwrap_or(program);
    let title = format!("knetd: {name}").replace('\0', "");
    let Ok(title) = std::ffi::CString::new(title) else {
        return;
    };
    if let Err(errno) = rustix::thread::set_name(&title) {
        crate::debug!("event=no_title errno={errno}");
    }
}
