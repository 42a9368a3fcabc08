//! How many lcores a config asks for.

use super::{Config, Progress};

/// Lcores of a host at most.
pub const LCORES_MAX: u32 = 8;

impl Config {
    /// Lcores that serve: one for each CPU of `dpdk.core_list_global`. Inline progress has one loop: there it is one.
    #[must_use]
    pub fn lcores(&self) -> u32 {
        let named = self.dpdk.cores.as_ref().map_or(1, Vec::len);
        if self.run.progress == Progress::Inline {
            return 1;
        }
        u32::try_from(named)
            .unwrap_or(LCORES_MAX)
            .clamp(1, LCORES_MAX)
    }
}
