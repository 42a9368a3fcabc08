//! The kernels that come with the library, by what they need.

use super::bench::Bench;
use super::chacha20::Cipher;
use super::crc32c::Crc32c;
use super::kernel::PayloadKernel;
use super::pattern::{self, Pattern};
use super::stats::Stats;

/// A kernel to be built.
#[derive(Clone, Debug)]
pub enum Builtin {
    /// `pattern`, with the contents of a rules file.
    Pattern(Vec<u8>),
    /// `stats`
    Stats,
    /// `chacha20`, with its key.
    Chacha20([u8; 32]),
    /// `crc32c`
    Crc32c,
    /// `macswap`, which swaps a frame's addresses: of the benchmark only, as the two below.
    Macswap,
    /// `peek`, which reads everything.
    Peek,
    /// `poke`, which reads and writes everything.
    Poke,
    /// `user` with the function of docs/examples/count_zeros.cu.
    CountZeros,
}

impl Builtin {
    /// Builds the CPU version. May take a second for many rules.
    ///
    /// # Errors
    /// Every fault of the rules file, in one line.
    pub fn build(&self) -> Result<Box<dyn PayloadKernel>, String> {
        Ok(match self {
            Self::Pattern(file) => {
                let rules = pattern::parse(file).map_err(|faults| faults.join(", "))?;
                Box::new(Pattern::new(rules)?)
            }
            Self::Stats => Box::new(Stats::default()),
            Self::Chacha20(key) => Box::new(Cipher::new(*key)),
            Self::Crc32c => Box::new(Crc32c::default()),
            Self::Macswap => Box::new(Bench::Macswap),
            Self::Peek => Box::new(Bench::Peek),
            Self::Poke => Box::new(Bench::Poke),
            Self::CountZeros => Box::new(Bench::CountZeros),
        })
    }
}
