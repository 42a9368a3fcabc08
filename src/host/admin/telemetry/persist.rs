//! The file in which statistics outlive their host, as K-NET keeps them.
//!
//! `stats/knet-persist.json` in the run folder, written anew every second that brought something. At the start the file of
//! the host before is kept beside it under its date; the ten youngest stay.

use core::time::Duration;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode};
use serde_json::{Map, Value, json};

use super::calendar::Moment;
use super::statistics::{self, filled};
use super::{names, port};
use crate::host::admin::Asker;
use crate::host::admin::asker::Silent;
use crate::time::Instant;

/// How often it is written.
pub(super) const EVERY: Duration = Duration::from_secs(1);
/// Files of hosts before that are kept.
const KEPT: usize = 10;
const NAME: &str = "knet-persist.json";
const KEPT_PREFIX: &str = "knet_persist-";

/// The open file.
#[derive(Debug)]
pub(super) struct Persist {
    path: PathBuf,
    next: Instant,
    /// What was written last.
    written: String,
    /// Held while this host writes it.
    _lock: fs::File,
}

impl Persist {
    /// Takes the file; None when another host has it, or K-NET's run folder is not there or not ours: nobody asked then.
    pub(super) fn open() -> Option<Self> {
        let run = super::run_folder();
        if rustix::fs::access(&run, rustix::fs::Access::WRITE_OK).is_err() {
            return None;
        }
        match Self::at(&run.join("stats")) {
            Ok(made) => made,
            Err(error) => {
                crate::warn!(
                    "event=statistics_not_kept folder={} reason=\"{error}\"",
                    run.display()
                );
                None
            }
        }
    }

    fn at(folder: &Path) -> std::io::Result<Option<Self>> {
        if !folder.is_dir() {
            fs::DirBuilder::new().mode(0o750).create(folder)?;
        }
        let mut options = fs::OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o640);
        let lock = options.open(folder.join(".lock"))?;
        if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Ok(None);
        }
        let path = folder.join(NAME);
        if path.exists() {
            let kept = folder.join(format!("{KEPT_PREFIX}{}.json", Moment::now().compact()));
            fs::rename(&path, &kept)?;
            rustix::fs::chmod(&kept, Mode::from_raw_mode(0o440))?;
        }
        thin_out(folder)?;
        Ok(Some(Self {
            path,
            next: Instant::ZERO,
            written: String::new(),
            _lock: lock,
        }))
    }

    /// Whether it is time to write.
    pub(super) fn is_due(&mut self, now: Instant) -> bool {
        let due = now >= self.next;
        if due {
            self.next = now + EVERY;
        }
        due
    }

    /// Writes what is counted now, unless nothing came.
    pub(super) fn write(&mut self, asker: &Asker) {
        let text = match content(asker) {
            Ok(text) if text != self.written => text,
            Ok(_) => return,
            // Said by whoever asks for it; the next second is another try.
            Err(Silent(_)) => return,
        };
        let dated = text.replacen("@", &Moment::now().to_string(), 1);
        match replace(&self.path, dated.as_bytes()) {
            Ok(()) => self.written = text,
            Err(error) => {
                crate::warn!("event=statistics_not_kept reason=\"{error}\"");
                // A full disk may have room later; not every second.
                self.next = self.next + Duration::from_secs(60);
            }
        }
    }
}

/// A reader sees the old file or the new one, never half of one.
fn replace(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let fresh = path.with_extension("new");
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o640);
    options.open(&fresh)?.write_all(bytes)?;
    fs::rename(&fresh, path)
}

fn thin_out(folder: &Path) -> std::io::Result<()> {
    let mut kept: Vec<PathBuf> = fs::read_dir(folder)?
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .filter(|path| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| name.starts_with(KEPT_PREFIX))
        })
        .collect();
    kept.sort();
    let surplus = kept.len().saturating_sub(KEPT);
    kept.iter().take(surplus).try_for_each(fs::remove_file)
}

/// The file without its date, for which an `@` stands.
fn content(asker: &Asker) -> Result<String, Silent> {
    let facts = asker.facts()?;
    let counted = asker.counters()?;
    let values = statistics::values(&facts, &counted, asker)?;
    let group = |entries: &mut dyn Iterator<Item = (&'static str, u64)>| {
        // K-NET writes numbers with a fixed width, which no reader of JSON sees.
        entries
            .map(|(name, value)| (name.to_owned(), Value::from(value)))
            .collect::<Map<String, Value>>()
    };
    let connections = statistics::connections(None, &facts, asker)?;
    let statistics = json!({
        "pid": std::process::id(),
        "date": "@",
        "tcp": group(&mut filled(names::TCP, &values)),
        "conn": group(&mut connections.into_iter()),
        "pkts": group(&mut filled(names::PACKETS, &values)),
        "abn": group(&mut filled(names::ABNORMAL, &values)),
        "mem": group(&mut filled(names::MEMORY, &values)),
        "pbuf": group(&mut filled(names::BUFFERS, &values)),
    });
    let whole = json!({
        "/ethdev/xstats/port0": port::ethdev_xstats(&facts, &counted),
        "pstats0": statistics,
    });
    Ok(format!("{whole:#}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_of_the_host_before_is_kept_and_one_host_writes() {
        let folder = std::env::temp_dir().join(format!("knet-persist-{}", std::process::id()));
        for number in 10..25 {
            fs::create_dir_all(&folder).unwrap();
            fs::write(
                folder.join(format!("{KEPT_PREFIX}200001010000{number}.json")),
                "old",
            )
            .unwrap();
        }
        fs::write(folder.join(NAME), "before").unwrap();
        let first = Persist::at(&folder).unwrap().unwrap();
        assert!(
            Persist::at(&folder).unwrap().is_none(),
            "another host writes it"
        );
        let mut kept: Vec<_> = fs::read_dir(&folder)
            .unwrap()
            .flatten()
            .map(|entry| entry.path())
            .collect();
        kept.retain(|path| path.extension().is_some_and(|end| end == "json"));
        kept.sort();
        assert_eq!(kept.len(), KEPT);
        assert_eq!(fs::read_to_string(kept.last().unwrap()).unwrap(), "before");
        replace(&first.path, b"now").unwrap();
        assert_eq!(fs::read_to_string(&first.path).unwrap(), "now");
        fs::remove_dir_all(&folder).unwrap();
    }
}
