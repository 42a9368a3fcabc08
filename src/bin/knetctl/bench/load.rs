//! The two ends of a measurement: who asks and takes the time, and who answers.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use knet::time::{Instant, monotonic};

use crate::print;

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) connections: u16,
    pub(super) bytes: usize,
    pub(super) duration: Duration,
}

/// What came of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Measured {
    pub(super) target: SocketAddrV4,
    pub(super) round_trips: u64,
    pub(super) per_second: u64,
    pub(super) p50_ns: u64,
    pub(super) p99_ns: u64,
    pub(super) max_ns: u64,
    /// Bytes that came back in a second on one connection.
    pub(super) bulk_per_second: u64,
}

/// Bytes of one read or write in bulk.
const CHUNK: usize = 65_536;
/// An answer that has not come within this never does.
const PATIENCE: Duration = Duration::from_secs(10);

/// Answers every connection with what it says, until the process is ended.
pub(super) fn serve(at: SocketAddrV4) -> Result<(), String> {
    let listener = TcpListener::bind(at).map_err(|error| format!("{at}: {error}"))?;
    let bound = listener.local_addr().map_err(|error| error.to_string())?;
    // Whoever started this waits for the line; nobody else needs it.
    let _ = print::line(&format!("answers at {bound}"));
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == ErrorKind::ConnectionAborted => continue,
            Err(error) => return Err(format!("accept: {error}")),
        };
        let answering = thread::Builder::new().spawn(move || echo(stream));
        answering.map_err(|error| format!("no thread: {error}"))?;
    }
}

fn echo(mut stream: TcpStream) {
    // A small answer does not wait for the one before it.
    let _ = stream.set_nodelay(true);
    let mut buffer = vec![0; CHUNK];
    while let Ok(count) = stream.read(&mut buffer) {
        let said = buffer.get(..count).unwrap_or_default();
        // The peer's end, or the peer is gone: it measures, and tells.
        if said.is_empty() || stream.write_all(said).is_err() {
            return;
        }
    }
}

/// Measures both.
pub(super) fn measure(target: SocketAddrV4, load: &Load) -> Result<Measured, String> {
    let mut spans = round_trips(target, load)?;
    spans.sort_unstable();
    let at = |thousandth: usize| {
        let place = (spans.len() * thousandth / 1_000).min(spans.len().saturating_sub(1));
        spans.get(place).copied().unwrap_or(0)
    };
    let count = spans.len() as u64;
    Ok(Measured {
        target,
        round_trips: count,
        per_second: per_second(count, load.duration),
        p50_ns: at(500),
        p99_ns: at(990),
        max_ns: at(1_000),
        bulk_per_second: bulk(target, load)?,
    })
}

fn per_second(count: u64, duration: Duration) -> u64 {
    let nanos = duration.as_nanos().max(1);
    u64::try_from(u128::from(count) * 1_000_000_000 / nanos).unwrap_or(u64::MAX)
}

fn connected(target: SocketAddrV4) -> Result<TcpStream, String> {
    let say = |error: std::io::Error| format!("{target}: {error}");
    let stream = TcpStream::connect_timeout(&SocketAddr::V4(target), PATIENCE).map_err(say)?;
    stream.set_nodelay(true).map_err(say)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(say)?;
    Ok(stream)
}

/// How long each round trip took, in nanoseconds.
fn round_trips(target: SocketAddrV4, load: &Load) -> Result<Vec<u64>, String> {
    let streams: Result<Vec<TcpStream>, String> =
        (0..load.connections).map(|_| connected(target)).collect();
    let end = monotonic() + load.duration;
    let asking: Vec<_> = streams?
        .into_iter()
        .map(|stream| {
            let bytes = load.bytes;
            thread::spawn(move || ask(stream, bytes, end))
        })
        .collect();
    let mut spans = Vec::new();
    for one in asking {
        let asked = one.join().map_err(|_| "a thread panicked".to_owned())?;
        spans.extend(asked.map_err(|error| format!("{target}: {error}"))?);
    }
    Ok(spans)
}

fn ask(mut stream: TcpStream, bytes: usize, end: Instant) -> std::io::Result<Vec<u64>> {
    let question = vec![b'q'; bytes];
    let mut answer = vec![0; bytes];
    let mut spans = Vec::new();
    let mut before = monotonic();
    while before < end {
        stream.write_all(&question)?;
        stream.read_exact(&mut answer)?;
        let now = monotonic();
        spans.push(u64::try_from(now.since(before).as_nanos()).unwrap_or(u64::MAX));
        before = now;
    }
    Ok(spans)
}

/// Bytes a second that went out and came back on one connection.
fn bulk(target: SocketAddrV4, load: &Load) -> Result<u64, String> {
    let say = |error: std::io::Error| format!("{target}: {error}");
    let mut reader = connected(target)?;
    let mut writer = reader.try_clone().map_err(say)?;
    let began = monotonic();
    let end = began + load.duration;
    let writing = thread::spawn(move || {
        let chunk = vec![b'b'; CHUNK];
        while monotonic() < end {
            writer.write_all(&chunk)?;
        }
        writer.shutdown(Shutdown::Write)
    });
    let mut buffer = vec![0; CHUNK];
    let mut back = 0;
    loop {
        match reader.read(&mut buffer).map_err(say)? {
            0 => break,
            count => back += count as u64,
        }
    }
    let written = writing.join().map_err(|_| "a thread panicked".to_owned())?;
    written.map_err(say)?;
    // What was on its way at the end came back as well, and took its time.
    Ok(per_second(back, monotonic().since(began)))
}
