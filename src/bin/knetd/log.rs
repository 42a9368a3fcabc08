//! Where the host's lines go: stderr for a system host, a file or the system log for a private one.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::{self, Thread};

use knet::ffi::signals;
use knet::telemetry::flood::WINDOW;
use knet::telemetry::{Level, log};
use knet::time::monotonic;
use tracing_subscriber::fmt::writer::BoxMakeWriter;

/// Opens the log. Whatever fails, the host runs: a private one then without a log.
pub(crate) fn open(private: bool) {
    let (writer, stamped) = match (std::env::var_os("KNET_LOG"), private) {
        (Some(path), _) => match append(&path) {
            Ok(file) => {
                // Once, at start.
                let _ = LOG.set(Mutex::new((PathBuf::from(path), file)));
                log::set_reopen(reopen);
                (BoxMakeWriter::new(Mutex::new(LogFile)), true)
            }
            Err(error) => {
                eprintln!("knetd: KNET_LOG {}: {error}", path.to_string_lossy());
                (BoxMakeWriter::new(io::stderr), true)
            }
        },
        (None, false) => (BoxMakeWriter::new(io::stderr), true),
        (None, true) => match SystemLog::connect(Path::new(SYSTEM_LOG)) {
            Ok(system) => (BoxMakeWriter::new(Mutex::new(system)), false),
            // No log daemon here (a container): stderr is /dev/null, and the program is told its faults.
            Err(_) => (BoxMakeWriter::new(io::stderr), true),
        },
    };
    let base = tracing_subscriber::fmt()
        .with_writer(writer)
        .with_ansi(false)
        .with_target(false)
        .with_max_level(tracing::Level::DEBUG);
    let set = if stamped {
        tracing::subscriber::set_global_default(base.finish())
    } else {
        tracing::subscriber::set_global_default(base.without_time().finish())
    };
    if let Err(error) = set {
        eprintln!("knetd: no log: {error}");
    }
    log::set_threshold(Level::Info);
    log::set_sink(line);
    summarise_floods();
    std::panic::set_hook(Box::new(|panic| {
        // One line: the lcore's own follows, and its programs learn it. A flow's panic is caught, and may come again.
        knet::error!("event=panic at=\"{panic}\"");
    }));
}

/// Who tells what was held back, and whether something was since it looked.
static TELLER: OnceLock<Thread> = OnceLock::new();
static HELD: AtomicBool = AtomicBool::new(false);

/// Starts what tells the numbers of lines that were held back. It sleeps while there are none.
fn summarise_floods() {
    // The signals are for the control thread, which asks for them later.
    let mask = signals::block();
    let started = thread::Builder::new()
        .name("knet-log".to_owned())
        .spawn(|| {
            loop {
                thread::park();
                // Nobody wakes it while this is set.
                while HELD.load(Ordering::Relaxed) {
                    thread::park_timeout(WINDOW);
                    HELD.store(false, Ordering::Relaxed);
                    if log::summarise(Some(monotonic())) {
                        HELD.store(true, Ordering::Relaxed);
                    }
                }
            }
        });
    signals::restore(&mask);
    match started {
        Ok(thread) => {
            // Once, at start.
            let _ = TELLER.set(thread.thread().clone());
            log::set_notice(|| {
                if !HELD.swap(true, Ordering::Relaxed)
                    && let Some(teller) = TELLER.get()
                {
                    teller.unpark();
                }
            });
        }
        // The next line of the same place tells it as well.
        Err(error) => knet::warn!("event=floods_not_summarised error=\"{error}\""),
    }
}

/// The log's file and its name, where the log is a file.
static LOG: OnceLock<Mutex<(PathBuf, File)>> = OnceLock::new();

/// Opens the log's file again under its name. When that cannot be done the old one is better than none.
fn reopen() {
    let Some(log) = LOG.get() else { return };
    let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
    match append(log.0.as_os_str()) {
        Ok(file) => log.1 = file,
        Err(error) => {
            // Nothing is left to tell when even this cannot be written.
            let path = log.0.display().to_string();
            let _ = writeln!(log.1, "KNET_LOG {path}: {error}");
        }
    }
}

/// Writes to [`LOG`].
struct LogFile;

impl Write for LogFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(log) = LOG.get() else {
            return Ok(bytes.len());
        };
        log.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .1
            .write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn append(path: &std::ffi::OsStr) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

fn line(level: Level, text: &str) {
    match level {
        Level::Error => tracing::error!("{text}"),
        Level::Warn => tracing::warn!("{text}"),
        Level::Info => tracing::info!("{text}"),
        Level::Debug => tracing::debug!("{text}"),
    }
}

/// The log daemon's socket, one datagram a line (RFC 3164 section 4.1).
struct SystemLog {
    path: PathBuf,
    socket: UnixDatagram,
}

impl SystemLog {
    fn connect(path: &Path) -> io::Result<Self> {
        Ok(Self {
            path: path.to_owned(),
            socket: connected(path)?,
        })
    }

    fn send(&mut self, datagram: &[u8]) {
        if self.socket.send(datagram).is_ok() {
            return;
        }
        // A daemon that was restarted listens at a new socket. A line that nobody takes now is lost, as with syslog(3).
        if let Ok(socket) = connected(&self.path) {
            self.socket = socket;
            let _ = self.socket.send(datagram);
        }
    }
}

fn connected(path: &Path) -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    socket.connect(path)?;
    // The loop never waits for a log.
    socket.set_nonblocking(true)?;
    Ok(socket)
}

const SYSTEM_LOG: &str = "/dev/log";

/// Facility daemon and the severity of the level that a line begins with.
fn priority(line: &[u8]) -> u32 {
    const DAEMON: u32 = 3 << 3;
    let is = |level: &str| line.starts_with(level.as_bytes());
    DAEMON
        | if is("ERROR") {
            3
        } else if is("WARN") {
            4
        } else if is("INFO") {
            6
        } else {
            7
        }
}

impl Write for SystemLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let line = bytes.trim_ascii();
        let head = format!("<{}>knetd[{}]: ", priority(line), std::process::id());
        let mut datagram = head.into_bytes();
        datagram.extend_from_slice(line);
        self.send(&datagram);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restarted_log_daemon_is_found_again() {
        let path = std::env::temp_dir().join(format!("knetd-log-{}", std::process::id()));
        let daemon = UnixDatagram::bind(&path).unwrap();
        let mut log = SystemLog::connect(&path).unwrap();
        let heard = |daemon: &UnixDatagram| {
            let mut line = [0; 100];
            let count = daemon.recv(&mut line).unwrap();
            String::from_utf8(line[..count].to_vec()).unwrap()
        };
        log.write_all(b"one\n").unwrap();
        assert!(heard(&daemon).ends_with("]: one"));
        log.write_all(b" WARN event=two\n").unwrap();
        let line = heard(&daemon);
        assert!(
            line.starts_with("<28>knetd[") && line.ends_with("]: WARN event=two"),
            "{line}"
        );
        drop(daemon);
        std::fs::remove_file(&path).unwrap();
        log.write_all(b"lost\n").unwrap();
        let daemon = UnixDatagram::bind(&path).unwrap();
        daemon.set_nonblocking(true).unwrap();
        log.write_all(b"two\n").unwrap();
        assert!(heard(&daemon).ends_with("]: two"));
        std::fs::remove_file(&path).unwrap();
    }
}
