//! What every payload kernel is, whoever runs it.

use super::chunk::Chunk;
use super::ring::{PacketResult, verdict};
use super::user::UserCode;

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
    /// What a user's function wants done.
    pub asked: Asked,
}

/// What a user's function may ask for beyond a match.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Asked {
    /// Nothing.
    #[default]
    Nothing,
    /// The segment is dropped.
    Drop,
    /// Both ends are reset.
    Reset,
    /// A log line with this number.
    Mark(u32),
    /// A copy.
    Mirror,
}

impl Finding {
    /// Nothing.
    pub const NOTHING: Self = Self {
        matched: None,
        failed: false,
        figure: 0,
        aux: 0,
        asked: Asked::Nothing,
    };

    /// Whether it says anything at all.
    #[must_use]
    pub fn is_news(&self) -> bool {
        self.failed || self.matched.is_some() || self.asked != Asked::Nothing
    }

    /// What a GPU would have written.
    #[must_use]
    pub fn as_result(&self, state: &KernelState) -> PacketResult {
        PacketResult {
            verdict: match (self.failed, self.matched, self.asked) {
                (true, _, _) => verdict::FAILED,
                (false, Some(_), _) => verdict::MATCH,
                (false, None, Asked::Nothing) => verdict::PASS,
                (false, None, Asked::Drop) => verdict::DROP,
                (false, None, Asked::Reset) => verdict::RESET,
                (false, None, Asked::Mark(_)) => verdict::MARK,
                (false, None, Asked::Mirror) => verdict::MIRROR,
            },
            value: match self.asked {
                Asked::Mark(mark) => mark,
                _ => self.matched.unwrap_or(self.figure),
            },
            aux: self.aux,
            state: state.0,
        }
    }

    /// What a GPU wrote; `may_ask` is said of a user's function. A verdict that nobody gives is a failure.
    #[must_use]
    pub fn of_result(result: &PacketResult, may_ask: bool) -> Self {
        let asked = match result.verdict {
            verdict::DROP if may_ask => Asked::Drop,
            verdict::RESET if may_ask => Asked::Reset,
            verdict::MARK if may_ask => Asked::Mark(result.value),
            verdict::MIRROR if may_ask => Asked::Mirror,
            _ => Asked::Nothing,
        };
        let found = result.verdict == verdict::MATCH;
        let passed = result.verdict == verdict::PASS || asked != Asked::Nothing;
        Self {
            matched: found.then_some(result.value),
            failed: !found && !passed,
            figure: if found { 0 } else { result.value },
            aux: result.aux,
            asked,
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

    /// The function that the GPU version calls; None: it is one of those that we ship, and a CPU can run it as well.
    fn code(&self) -> Option<&UserCode> {
        None
    }

    /// Whether its payload must not pass where it cannot be run; only for a kernel with [`Self::code`].
    fn refuses_the_cpu(&self) -> bool {
        false
    }

    /// Counts what a GPU found in `bytes` bytes, as if it had been found here.
    fn settle(&mut self, bytes: usize, finding: &Finding) {
        let _ = (bytes, finding);
    }

    /// Calls `visit` with what it counts of itself.
    fn report(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        let _ = visit;
    }
}
