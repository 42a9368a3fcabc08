//! What every payload kernel is, whoever runs it.

use super::chunk::Chunk;
use super::ring::{PacketResult, verdict};

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
    /// A figure of the kernel's own: `value` of `cuda/knet_ring.h` where nothing is looked for.
    pub figure: u32,
    /// Another one: `aux` there.
    pub aux: u64,
}

impl Finding {
    /// Nothing.
    pub const NOTHING: Self = Self {
        matched: None,
        failed: false,
        figure: 0,
        aux: 0,
    };

    /// What a GPU would have written.
    #[must_use]
    pub fn as_result(&self, state: &KernelState) -> PacketResult {
        PacketResult {
            verdict: match (self.failed, self.matched) {
                (true, _) => verdict::FAILED,
                (false, Some(_)) => verdict::MATCH,
                (false, None) => verdict::PASS,
            },
            value: self.matched.unwrap_or(self.figure),
            aux: self.aux,
            state: state.0,
        }
    }

    /// What a GPU wrote; a verdict that no built-in kernel gives is a failure.
    #[must_use]
    pub fn of_result(result: &PacketResult) -> Self {
        let found = result.verdict == verdict::MATCH;
        Self {
            matched: found.then_some(result.value),
            failed: !found && result.verdict != verdict::PASS,
            figure: if found { 0 } else { result.value },
            aux: result.aux,
        }
    }
}

/// Code that looks at payload, and may change it without changing its length.
pub trait PayloadKernel: Send {
    /// Its name in the config.
    fn name(&self) -> &'static str;

    /// Works on `chunk` with what it kept of the same direction of the same flow. Bounded by the chunk's length, never
    /// blocks.
    fn run(&mut self, chunk: &mut Chunk<'_>, state: &mut KernelState) -> Finding;

    /// The parameters of its GPU version as `cuda/knet_ring.h` lays them out. From this call on what it keeps has the
    /// GPU's form, so that either can go on where the other stopped.
    ///
    /// # Errors
    /// One line: a GPU cannot run it.
    fn device_params(&mut self) -> Result<Vec<u8>, String>;

    /// Counts what a GPU found in `bytes` bytes, as if it had been found here.
    fn settle(&mut self, bytes: usize, finding: &Finding) {
        let _ = (bytes, finding);
    }

    /// Calls `visit` with what it counts of itself.
    fn report(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        let _ = visit;
    }
}
