//! A seeded source of test data, so that a failing run can be run again.

/// SplitMix64: tiny, and good enough for test data.
#[derive(Debug)]
pub(crate) struct Seeded {
    state: u64,
}

impl Seeded {
    /// Starts from `seed`, and prints it (shown when the test fails).
    pub(crate) fn new(seed: u64) -> Self {
        println!("seed {seed}");
        Self { state: seed }
    }

    /// 64 random bits.
    pub(crate) fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`, which is not 0.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.bits() % u64::try_from(limit).unwrap()).unwrap()
    }

    /// A random byte.
    pub(crate) fn byte(&mut self) -> u8 {
        self.bits().to_be_bytes()[0]
    }

    /// A random 16-bit word.
    pub(crate) fn word(&mut self) -> u16 {
        u16::from_be_bytes([self.byte(), self.byte()])
    }

    /// A random 32-bit word.
    pub(crate) fn double(&mut self) -> u32 {
        (u32::from(self.word()) << 16) | u32::from(self.word())
    }
}
