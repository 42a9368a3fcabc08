//! One connection as it happens: a line for each turn of the loop that changed something of it.
//!
//! The tool ends it by closing its half of the control socket, or the connection's end does.

use core::net::SocketAddrV4;
use core::time::Duration;
use std::sync::mpsc::RecvTimeoutError;

use serde_json::{Value, json};

use super::Asker;
use super::answer::Answer;
use super::asker::Silent;
use super::capture::epoch;
use super::sockets::{self, Holders};
use crate::lcore::{Sight, Watch};
use crate::stack::demux::FlowKey;

/// How often a quiet trace looks whether it goes on.
const LOOK: Duration = Duration::from_millis(100);
/// Sights that leave in one go.
const BATCH: usize = 64;

/// Serves a trace to its end.
pub(super) fn run(answer: &mut Answer, query: &Value, asker: &Asker) -> Result<(), Silent> {
    let endpoint = |name: &str| -> Option<SocketAddrV4> { query.get(name)?.as_str()?.parse().ok() };
    let (Some(local), Some(remote)) = (endpoint("local"), endpoint("peer")) else {
        return Err(Silent("local and peer are wanted, as ADDRESS:PORT"));
    };
    let facts = asker.facts()?;
    if facts.open.is_none() || asker.flow(local, remote)?.is_none() {
        return Err(Silent("there is no such connection"));
    }
    let (watch, watcher) = Watch::new(FlowKey { local, remote });
    asker.watch(&watch);
    drop(watch);
    let holders = Holders::of(&facts);
    let epoch = epoch();
    loop {
        match watcher.sights.recv_timeout(LOOK) {
            Ok(sight) => {
                let mut over = false;
                // As many as came meanwhile leave together.
                let more = watcher.sights.try_iter().take(BATCH);
                for sight in core::iter::once(sight).chain(more) {
                    answer.line(&told(&sight, epoch, &holders).to_string());
                    over |= sight.view.is_none();
                }
                if !answer.flush() || over {
                    break;
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        // A busy connection is never quiet.
        if answer.hung_up() {
            break;
        }
    }
    answer.line(&json!({"lost": watcher.lost()}).to_string());
    Ok(())
}

fn told(sight: &Sight, epoch: u64, holders: &Holders<'_>) -> Value {
    json!({
        "at_ns": epoch.saturating_add(sight.at.nanos()),
        "sent": sight.sent,
        "socket": sight.view.map(|view| sockets::flow(&view, holders)),
    })
}
