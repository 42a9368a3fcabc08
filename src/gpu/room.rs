//! How many rings may stay on a GPU at once.
//!
//! In every mode but `launch` a ring keeps its stream occupied: by a kernel that polls, or by a wait for the next batch. Streams
//! beyond the driver's hardware queues share one, and would hold up each other for ever. Kernels that poll must be on the
//! multiprocessors all together, or the last one never begins. So rules that find no room stay on the CPU, on every lcore alike.

use super::accelerator::Accelerator;
use crate::config::payload::{Gpu, Mode};
use crate::ffi::cuda::{Fault, attribute};

/// What a GPU has room for, and what was given of it.
#[derive(Debug)]
pub(super) struct Room {
    mode: Mode,
    lcores: usize,
    /// Rules that have theirs.
    rules: usize,
    queues: usize,
    /// Blocks of a ring's kernel that stays.
    blocks: usize,
    multiprocessors: usize,
    /// Blocks of a multiprocessor, of the kernel of which the fewest fit.
    fewest: usize,
}

impl Room {
    /// All of a GPU's, for the rules of so many lcores.
    ///
    /// # Errors
    /// The driver's.
    pub(super) fn new(gpu: &Accelerator, config: &Gpu, lcores: usize) -> Result<Self, Fault> {
        let multiprocessors = gpu
            .driver
            .attribute(gpu.device, attribute::MULTIPROCESSORS)?;
        let asked = std::env::var(QUEUES).ok();
        Ok(Self {
            mode: config.mode,
            lcores,
            rules: 0,
            queues: queues(asked.as_deref()),
            blocks: config.batches.blocks as usize,
            multiprocessors: usize::try_from(multiprocessors).unwrap_or(0),
            fewest: usize::MAX,
        })
    }

    /// Gives one more rule a ring at each lcore. Of its kernel `fit` blocks are on a multiprocessor at once; it matters in mode
    /// persistent only.
    ///
    /// # Errors
    /// One line: what there is too little of.
    pub(super) fn take(&mut self, fit: usize) -> Result<(), String> {
        if self.mode == Mode::Launch {
            return Ok(());
        }
        let rings = (self.rules + 1) * self.lcores;
        if rings > self.queues {
            return Err(format!(
                "{rings} rings would wait on the GPU, and the driver has {} hardware queues ({QUEUES}, {QUEUES_MAX} at most)",
                self.queues
            ));
        }
        if self.mode == Mode::Persistent {
            let fewest = self.fewest.min(fit);
            // A multiprocessor without room for one more block has that many at least, whatever kernels they are of: so wherever the
            // GPU puts them, all of them find a place.
            let (wanted, has) = (rings * self.blocks, self.multiprocessors * fewest);
            if wanted > has {
                return Err(format!(
                    "{wanted} blocks would stay on the GPU, and {has} are sure to fit (persistent_blocks)"
                ));
            }
            self.fewest = fewest;
        }
        self.rules += 1;
        Ok(())
    }
}

/// Hardware queues that the driver takes for a context when this variable of the environment says `asked`.
fn queues(asked: Option<&str>) -> usize {
    let number = asked.and_then(|text| text.trim().parse::<usize>().ok());
    match number {
        None | Some(0) => QUEUES_USUAL,
        Some(number) => number.min(QUEUES_MAX),
    }
}

const QUEUES: &str = "CUDA_DEVICE_MAX_CONNECTIONS";
/// The driver's own default, and its limit.
const QUEUES_USUAL: usize = 8;
const QUEUES_MAX: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    fn room(mode: Mode, lcores: usize) -> Room {
        Room {
            mode,
            lcores,
            rules: 0,
            queues: 8,
            blocks: 4,
            multiprocessors: 10,
            fewest: usize::MAX,
        }
    }

    /// Rules that find room, of kernels of which so many blocks fit.
    fn taken(mut room: Room, fit: &[usize]) -> Vec<bool> {
        fit.iter().map(|fit| room.take(*fit).is_ok()).collect()
    }

    #[test]
    fn no_more_rings_wait_than_there_are_queues() {
        for mode in [Mode::Memops, Mode::Graph, Mode::Persistent] {
            assert_eq!(taken(room(mode, 3), &[8; 3]), [true, true, false]);
            assert_eq!(taken(room(mode, 9), &[8; 1]), [false]);
            assert_eq!(taken(room(mode, 1), &[8; 9])[7..], [true, false]);
        }
        assert_eq!(taken(room(Mode::Launch, 9), &[0; 9]), [true; 9]);
    }

    #[test]
    fn kernels_that_stay_fit_wherever_their_blocks_are_put() {
        let persistent = |lcores, fit: &[usize]| taken(room(Mode::Persistent, lcores), fit);
        // 4 blocks a ring: 10 in all fit of the second kernel, which with the first one's are 8.
        assert_eq!(persistent(1, &[8, 1]), [true, true]);
        assert_eq!(persistent(1, &[8, 1, 8]), [true, true, false]);
        // Who does not fit takes nothing from the next.
        assert_eq!(persistent(1, &[8, 8, 1, 8]), [true, true, false, true]);
        assert_eq!(persistent(1, &[0]), [false]);
        assert_eq!(persistent(2, &[1, 2]), [true, false]);
    }

    #[test]
    fn as_many_queues_are_counted_on_as_the_driver_makes() {
        for (asked, wanted) in [
            (None, 8),
            (Some(""), 8),
            (Some("many"), 8),
            (Some("0"), 8),
            (Some("1"), 1),
            (Some(" 20 "), 20),
            (Some("100"), 32),
        ] {
            assert_eq!(queues(asked), wanted, "{asked:?}");
        }
    }
}
