//! Whose something is: which process may be meant, and what belongs to it.

use crate::channel::sync::Ordering;
use crate::host::admin::{Facts, FamilyFact};
use crate::stack::ListenerView;

/// Whether the process id is one of the host's: its own, or a program's.
pub(super) fn is_served(facts: &Facts, pid: u64) -> bool {
    pid == u64::from(std::process::id())
        || facts
            .clients
            .iter()
            .any(|client| u64::from(client.pid) == pid)
}

/// Whether a flow or listener of `owner` belongs to the process.
pub(super) fn is_of(facts: &Facts, owner: crate::stack::Owner, pid: Option<u64>) -> bool {
    match pid {
        Some(pid) if pid != u64::from(std::process::id()) => facts
            .clients
            .iter()
            .any(|client| client.owner == owner && u64::from(client.pid) == pid),
        _ => true,
    }
}

/// A socket of a program: which family, which object, its number.
pub(super) struct Numbered<'a> {
    pub(super) fd: u64,
    pub(super) object: u32,
    pub(super) family: &'a FamilyFact,
}

/// Where a program's socket lies, if the process has it.
pub(super) fn numbered(
    facts: &Facts,
    owner: crate::stack::Owner,
    object: u32,
    pid: Option<u64>,
) -> Option<Numbered<'_>> {
    let family = facts.families.iter().find(|family| family.owner == owner)?;
    let control = &family.segments.control;
    let fd = control
        .object(object)?
        .read
        .fd
        .load(Ordering::Relaxed)
        .checked_sub(1)?;
    let holds = |cell: u32| control.held(cell).is_some_and(|held| held.has(object));
    let mut holders = facts
        .clients
        .iter()
        .filter(|client| client.owner == owner && holds(client.cell));
    let held = match pid {
        Some(pid) if pid != u64::from(std::process::id()) => {
            holders.any(|client| u64::from(client.pid) == pid)
        }
        _ => holders.next().is_some(),
    };
    held.then_some(Numbered {
        fd: u64::from(fd),
        object,
        family,
    })
}

pub(super) fn object_of(view: &ListenerView) -> u32 {
    crate::lcore::Token::unpack(view.token).object
}
