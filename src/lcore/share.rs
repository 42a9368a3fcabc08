//! How much of what all families share one of them may have.

/// What there is to share among the families of a system's host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    /// Connections.
    pub flows: u32,
    /// Bytes of memory behind rings.
    pub ring_bytes: u64,
}

impl Share {
    /// What one of `lcores` lcores has to share out, each of which shares for itself.
    #[must_use]
    pub fn part(self, lcores: u32) -> Self {
        let lcores = lcores.max(1);
        Self {
            flows: self.flows / lcores,
            ring_bytes: self.ring_bytes / u64::from(lcores),
        }
    }
}

/// A family may have so many times what it would leave free (Choudhury and Hahne, "Dynamic queue length thresholds for
/// shared-memory packet switches", 1998). Alone it gets 4/5 of everything, two get 4/9 each, and whoever comes last finds
/// something, without a quota that must be set for each.
const TIMES_FREE: u64 = 4;

/// Whether a family that has `has` may have `more`, when all together have `used` of `total`.
pub(super) const fn may_have(has: u64, more: u64, used: u64, total: u64) -> bool {
    let left = total.saturating_sub(used.saturating_add(more));
    has.saturating_add(more) <= left.saturating_mul(TIMES_FREE)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Families that take as much as they get, one after the other.
    fn greedy(count: usize, total: u64) -> Vec<u64> {
        let mut has = vec![0_u64; count];
        for family in 0..count {
            while may_have(has[family], 1, has.iter().sum(), total) {
                has[family] += 1;
            }
        }
        has
    }

    #[test]
    fn nobody_gets_all_and_the_last_one_gets_something() {
        assert_eq!(greedy(1, 1_000), [800]);
        let has = greedy(3, 1_000);
        assert_eq!(has, [800, 160, 32]);
        // When the first gives back what is above its share, the others rise.
        assert!(may_have(has[1], 1, 400 + has[1] + has[2], 1_000));
        assert!(!may_have(400, 1, 999, 1_000));
        assert!(!may_have(0, 1, u64::MAX, 1_000));
    }
}
