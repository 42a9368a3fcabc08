//! Counters: one relaxed add to raise, one relaxed load to read.

use core::sync::atomic::{AtomicU64, Ordering};

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// A counter at zero.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Raises the counter by one.
    pub fn raise(&self) {
        self.add(1);
    }

    /// Raises the counter by `count`. Relaxed: a counter orders nothing.
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// The present value.
    #[must_use]
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Declares a struct of [`Counter`]s of one layer, with `new()` and `for_each(name, value)`.
///
/// Names are `noun_pastverb_reason`, for example `rx_dropped_bad_checksum`.
#[macro_export]
macro_rules! counters {
    ($(#[$doc:meta])* pub struct $name:ident { $($(#[$field_doc:meta])* $field:ident,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Default)]
        pub struct $name { $($(#[$field_doc])* pub $field: $crate::telemetry::Counter,)+ }

        impl $name {
            /// All counters at zero.
            #[must_use]
            pub const fn new() -> Self {
                Self { $($field: $crate::telemetry::Counter::new(),)+ }
            }

            /// Calls `visit` with each counter's name and present value, in order of declaration.
            pub fn for_each(&self, mut visit: impl FnMut(&'static str, u64)) {
                $(visit(stringify!($field), self.$field.value());)+
            }
        }
    };
}
