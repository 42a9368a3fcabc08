//! What every payload kernel is, whoever runs it.

use super::chunk::Chunk;

/// What a kernel keeps from one chunk of a flow's direction to the next. All zero at the beginning of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct KernelState(pub [u64; 2]);

/// What a kernel found in a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Finding {
    /// The first thing looked for that was found: its number in the rules file, counted from 0.
    pub matched: Option<u32>,
    /// The kernel could not do its work: the bytes must not go on.
    pub failed: bool,
}

impl Finding {
    /// Nothing.
    pub const NOTHING: Self = Self {
        matched: None,
        failed: false,
    };
}

/// Code that looks at payload, and may change it without changing its length.
pub trait PayloadKernel: Send {
    /// Its name in the config.
    fn name(&self) -> &'static str;

    /// Works on `chunk` with what it kept of the same direction of the same flow. Bounded by the chunk's length, never
    /// blocks.
    fn run(&mut self, chunk: &mut Chunk<'_>, state: &mut KernelState) -> Finding;

    /// Calls `visit` with what it counts of itself.
    fn report(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        let _ = visit;
    }
}
