//! Where the host's lines go: stderr for a system host, a file or the system log for a private one.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::net::UnixDatagram;
use std::sync::Mutex;

use knet::telemetry::{Level, log};
use tracing_subscriber::fmt::writer::BoxMakeWriter;

/// Opens the log. Whatever fails, the host runs: a private one then without a log.
pub(crate) fn open(private: bool) {
    let (writer, stamped) = match (std::env::var_os("KNET_LOG"), private) {
        (Some(path), _) => match append(&path) {
            Ok(file) => (BoxMakeWriter::new(Mutex::new(file)), true),
            Err(error) => {
                eprintln!("knetd: KNET_LOG {}: {error}", path.to_string_lossy());
                (BoxMakeWriter::new(io::stderr), true)
            }
        },
        (None, false) => (BoxMakeWriter::new(io::stderr), true),
        (None, true) => match SystemLog::connect() {
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
    std::panic::set_hook(Box::new(|panic| {
        // One line: the lcore's own follows, and its programs learn it.
        knet::error!("event=panic at=\"{panic}\"");
    }));
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
struct SystemLog(UnixDatagram);

impl SystemLog {
    fn connect() -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        socket.connect("/dev/log")?;
        // The loop never waits for a log.
        socket.set_nonblocking(true)?;
        Ok(Self(socket))
    }
}

/// Facility daemon, severity info; the text says the level.
const PRIORITY: u32 = 3 << 3 | 6;

impl Write for SystemLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut datagram = format!("<{PRIORITY}>knetd[{}]: ", std::process::id()).into_bytes();
        datagram.extend_from_slice(bytes.trim_ascii());
        // A full or restarted daemon loses the line, as syslog(3) does.
        let _ = self.0.send(&datagram);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
