//! The handle of an accelerated socket inside the program.

use super::link::Link;
use crate::channel::cell::ObjectCell;
use crate::channel::sync::Ordering;

/// An object of a family: its index, and the generation that tells reuse.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Object {
    /// Index of the object's cell.
    pub index: u32,
    /// The cell's generation when the handle was made.
    pub generation: u32,
}

impl Object {
    /// The handle of what lies at `index` now, or None beyond the table.
    #[must_use]
    pub fn at(link: &Link, index: u32) -> Option<Self> {
        let cell = link.control.object(index)?;
        Some(Self {
            index,
            generation: cell.host.generation.load(Ordering::Acquire),
        })
    }

    /// The object's cell, or None when the index was given to another object.
    #[must_use]
    pub fn cell(self, link: &Link) -> Option<&ObjectCell> {
        let cell = link.control.object(self.index)?;
        // Acquire: pairs with the host's raise when it frees the index.
        (cell.host.generation.load(Ordering::Acquire) == self.generation).then_some(cell)
    }
}
