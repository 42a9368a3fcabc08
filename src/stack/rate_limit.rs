//! How often something may be sent that anybody can provoke: ICMP errors (RFC 1812 section
//! 4.3.2.8), challenge ACKs (RFC 5961 section 7), resets.

use core::time::Duration;

use crate::time::Instant;

/// A token bucket, kept as the time at which it would be full again.
#[derive(Clone, Copy, Debug)]
pub struct RateLimit {
    interval: Duration,
    burst: u32,
    full_at: Instant,
}

impl RateLimit {
    /// Lets `per_second` pass on average and `burst` at once (both at least one). Begins full.
    #[must_use]
    pub fn new(per_second: u32, burst: u32) -> Self {
        let interval = Duration::from_secs(1) / per_second.max(1);
        Self {
            interval,
            burst: burst.max(1),
            full_at: Instant::ZERO,
        }
    }

    /// Whether one may pass now; counts it if so.
    pub fn allow(&mut self, now: Instant) -> bool {
        let full_at = self.full_at.max(now) + self.interval;
        if full_at.since(now) > self.interval * self.burst {
            return false;
        }
        self.full_at = full_at;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_then_the_rate_holds() {
        let mut limit = RateLimit::new(1_000, 50);
        let start = Instant::from_millis(77);
        let passed = |limit: &mut RateLimit, now| (0..100).filter(|_| limit.allow(now)).count();
        assert_eq!(passed(&mut limit, start), 50);
        assert_eq!(passed(&mut limit, start + Duration::from_micros(999)), 0);
        assert_eq!(passed(&mut limit, start + Duration::from_millis(3)), 3);
        assert_eq!(passed(&mut limit, start + Duration::from_secs(9)), 50);
    }

    #[test]
    fn a_limit_of_nothing_still_lets_one_pass_a_second() {
        let mut limit = RateLimit::new(0, 0);
        assert!(limit.allow(Instant::ZERO));
        assert!(!limit.allow(Instant::from_millis(999)));
        assert!(limit.allow(Instant::from_millis(1_000)));
    }
}
