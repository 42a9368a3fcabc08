//! Epolls and what they watch: `epoll_stat`.

use serde_json::{Value, json};

use super::rows::rows;
use super::whose::{is_served, object_of};
use crate::channel::cell::process;
use crate::channel::layout::{EPOLLS, PROCS};
use crate::channel::sync::Ordering;
use crate::host::admin::asker::Silent;
use crate::host::admin::{Asker, Facts, FamilyFact};

/// Epolls in use that the process has: family, index, number.
pub(super) fn epolls(facts: &Facts, pid: Option<u64>) -> Vec<(&FamilyFact, u32, u64)> {
    let mut found = Vec::new();
    for family in &facts.families {
        let control = &family.segments.control;
        let holds = |epoll: u32| {
            (0..PROCS).any(|cell| {
                let is_whose = match pid {
                    Some(pid) if pid != u64::from(std::process::id()) => {
                        facts.clients.iter().any(|client| {
                            client.owner == family.owner
                                && client.cell == cell
                                && u64::from(client.pid) == pid
                        })
                    }
                    _ => true,
                };
                is_whose
                    && control.process(cell).is_some_and(|it| {
                        it.state.load(Ordering::Relaxed) == process::LIVE && it.epolls.has(epoll)
                    })
            })
        };
        for epoll in 0..EPOLLS {
            let Some(cell) = control.epoll(epoll) else {
                continue;
            };
            if cell.used.load(Ordering::Relaxed) == 0 || !holds(epoll) {
                continue;
            }
            let number = cell
                .fd
                .load(Ordering::Relaxed)
                .checked_sub(1)
                .unwrap_or(epoll);
            found.push((family, epoll, u64::from(number)));
        }
    }
    found.sort_by_key(|(.., number)| *number);
    found
}

pub(super) fn epoll_stat(numbers: &[u64], facts: &Facts, asker: &Asker) -> Result<Value, Silent> {
    let (pid, first, count, first_socket, sockets) = match *numbers {
        [pid, first, count, first_socket, sockets] if is_served(facts, pid) => {
            (pid, first, count, first_socket, sockets)
        }
        _ => return Ok(Value::Null),
    };
    let mut objects = Vec::new();
    asker.each_listener(&mut |view| {
        objects.push((view.owner, object_of(view)));
        true
    })?;
    asker.each_flow(&mut |view| {
        objects.push((view.owner, view.facts.ring));
        true
    })?;
    let found = epolls(facts, Some(pid))
        .into_iter()
        .filter(|(.., number)| *number >= first)
        .map(|(family, epoll, number)| {
            let objects = objects
                .iter()
                .filter(|(owner, _)| *owner == family.owner)
                .map(|(_, object)| *object);
            let details = interests(family, epoll, objects)
                .into_iter()
                .filter(|(fd, _)| *fd >= first_socket);
            let row = json!({
                "pid": pid,
                "tid": "-",
                "osFd": number,
                "innerFd": epoll,
                "details": rows("fd_", details, sockets),
            });
            (number, row)
        });
    Ok(rows("epoll_", found, count))
}

/// What an epoll watches among `objects`: number and row.
fn interests(
    family: &FamilyFact,
    epoll: u32,
    objects: impl Iterator<Item = u32>,
) -> Vec<(u64, Value)> {
    let control = &family.segments.control;
    let generation = control
        .epoll(epoll)
        .map_or(0, |cell| cell.generation.load(Ordering::Relaxed));
    let wanted = (epoll + 1) | (generation & 0xffff) << 16;
    let layout = family.segments.layout();
    let mut found = Vec::new();
    for object in objects {
        let Some(cell) = control.object(object) else {
            continue;
        };
        let ready = crate::readiness::bits(cell, layout.tx_bytes(object));
        let spilled = control.header().spill.iter().filter(|spilled| {
            cell.read.spilled.load(Ordering::Relaxed) != 0
                && spilled.object.load(Ordering::Relaxed) == object
        });
        let items = cell
            .items
            .iter()
            .chain(spilled.map(|spilled| &spilled.item));
        for it in items.filter(|it| it.epoll.load(Ordering::Relaxed) == wanted) {
            let events = it.events.load(Ordering::Relaxed);
            let row = json!({
                "expectEvents": events,
                "readyEvents": ready & events,
                "notifiedEvents": 0,
                "shoted": u32::from(events == 0),
            });
            found.push((u64::from(it.fd.load(Ordering::Relaxed)), row));
        }
    }
    found.sort_by_key(|(fd, _)| *fd);
    found
}
