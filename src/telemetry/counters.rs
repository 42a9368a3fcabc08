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

/// A number that only grows and that one thread at a time raises, an lcore; anybody may read it. Without the locked add of a
/// [`Counter`], which costs some twenty cycles, several times a frame.
#[derive(Debug, Default)]
pub struct OwnCounter(AtomicU64);

impl OwnCounter {
    /// A counter at zero.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Raises the counter by one.
    #[inline]
    pub fn raise(&self) {
        self.add(1);
    }

    /// Raises the counter by `count`. Relaxed: a counter orders nothing.
    #[inline]
    pub fn add(&self, count: u64) {
        self.0
            .store(self.value().wrapping_add(count), Ordering::Relaxed);
    }

    /// The present value.
    #[must_use]
    #[inline]
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Declares a struct of [`Counter`]s (or, with `of OwnCounter` behind its name, of those) of one layer, with `new()` and `for_each(name, value)`.
///
/// Names are `noun_pastverb_reason`, for example `rx_dropped_bad_checksum`.
#[macro_export]
macro_rules! counters {
    ($(#[$doc:meta])* pub struct $name:ident { $($rest:tt)+ }) => {
        $crate::counters! { $(#[$doc])* pub struct $name of Counter { $($rest)+ } }
    };
    ($(#[$doc:meta])* pub struct $name:ident of $kind:ident { $($(#[$field_doc:meta])* $field:ident,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Default)]
        pub struct $name { $($(#[$field_doc])* pub $field: $crate::telemetry::$kind,)+ }

        impl $name {
            /// All counters at zero.
            #[must_use]
            pub const fn new() -> Self {
                Self { $($field: $crate::telemetry::$kind::new(),)+ }
            }

            /// Calls `visit` with each counter's name and present value, in order of declaration.
            pub fn for_each(&self, mut visit: impl FnMut(&'static str, u64)) {
                $(visit(stringify!($field), self.$field.value());)+
            }
        }

        // What unit tests raise is noted: see tests/counters.rs.
        #[cfg(test)]
        impl $name {
            #[allow(dead_code, reason = "statics are never dropped")]
            #[cfg_attr(loom, allow(dead_code, reason = "whoever has counters is not modelled"))]
pub(crate) fn note_raised(&self) {
                self.for_each(|name, value| {
                    if value > 0 {
                        $crate::telemetry::counters::note_raised(name);
                    }
                });
            }
        }

        #[cfg(test)]
        impl Drop for $name {
            fn drop(&mut self) {
                self.note_raised();
            }
        }
    };
}

/// Appends the name of a counter that a unit test has raised to the file that `KNET_TEST_COUNTERS` names, once.
#[cfg(test)]
pub(crate) fn note_raised(name: &'static str) {
    use std::collections::BTreeSet;
    use std::io::Write;
    use std::sync::{Mutex, PoisonError};
    static SEEN: Mutex<BTreeSet<&str>> = Mutex::new(BTreeSet::new());
    let Some(path) = std::env::var_os("KNET_TEST_COUNTERS") else {
        return;
    };
    let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    if seen.insert(name) {
        let file = std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(path);
        // A test that ends in a panic drops counters too: nothing here may panic.
        if let Ok(mut file) = file {
            let _ = writeln!(file, "{name}");
        }
    }
}
