//! Freed rings that keep their memory for the next connection.
//!
//! The first touch of a page costs the kernel more than the stack takes for the bytes in it. So the rings of a connection that is
//! gone stay as they are for a while, and whoever takes their index next finds them whole. Indices are taken the warmest first,
//! so that the oldest are those that a crowd left behind: they go first, with time or when there are too many bytes.

use core::time::Duration;

use super::table::Table;
use crate::channel::layout::Layout;
use crate::time::Instant;

/// Indices that nobody uses and whose rings have memory, in the order in which they were given back.
#[derive(Debug)]
pub(super) struct Kept {
    links: Table<Link>,
    oldest: Option<u32>,
    youngest: Option<u32>,
    bytes: u64,
}

/// The neighbours of an index in the list.
#[derive(Clone, Copy, Debug, Default)]
struct Link {
    /// Bytes behind its rings; 0 = it is not in the list.
    bytes: u64,
    since: Option<Instant>,
    older: Option<u32>,
    younger: Option<u32>,
}

impl Kept {
    /// An empty list for the indices of `lcore`.
    pub(super) const fn new(layout: Layout, lcore: u32) -> Self {
        Self {
            links: Table::new(layout, lcore),
            oldest: None,
            youngest: None,
            bytes: 0,
        }
    }

    /// Bytes behind all of them.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Puts `object`, whose rings have `bytes` bytes, behind all others.
    pub(super) fn push(&mut self, now: Instant, object: u32, bytes: u64) {
        self.remove(object);
        let older = self.youngest;
        let Some(link) = self.links.at_mut(object).filter(|_| bytes > 0) else {
            return;
        };
        *link = Link {
            bytes,
            since: Some(now),
            older,
            younger: None,
        };
        self.bytes += bytes;
        self.youngest = Some(object);
        match older.and_then(|older| self.links.at_mut(older)) {
            Some(link) => link.younger = Some(object),
            None => self.oldest = Some(object),
        }
    }

    /// Somebody takes `object`, with the memory of its rings.
    pub(super) fn remove(&mut self, object: u32) {
        let Some(link) = self.links.at(object).copied().filter(|it| it.bytes > 0) else {
            return;
        };
        match link.older.and_then(|older| self.links.at_mut(older)) {
            Some(older) => older.younger = link.younger,
            None => self.oldest = link.younger,
        }
        match link.younger.and_then(|younger| self.links.at_mut(younger)) {
            Some(younger) => younger.older = link.older,
            None => self.youngest = link.older,
        }
        if let Some(link) = self.links.at_mut(object) {
            *link = Link::default();
        }
        self.bytes = self.bytes.saturating_sub(link.bytes);
    }

    /// The one that has waited longest.
    pub(super) const fn oldest(&self) -> Option<u32> {
        self.oldest
    }

    /// When the one that has waited longest has done so for long enough.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let oldest = self.links.at(self.oldest?)?;
        Some(oldest.since? + KEPT_FOR)
    }
}

/// How long memory waits for the next connection: half as long as that of an open one that says nothing.
pub(super) const KEPT_FOR: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    fn order(kept: &Kept) -> Vec<u32> {
        let next = |object: &u32| kept.links.at(*object).and_then(|link| link.younger);
        core::iter::successors(kept.oldest, next).collect()
    }

    #[test]
    fn they_stand_in_the_order_of_their_return_and_leave_from_anywhere() {
        let layout = Layout::for_flows(16, 4_096, 4_096);
        let half = layout.first_host_object();
        let mut kept = Kept::new(layout, 0);
        let at = |seconds: u64| Instant::from_micros(seconds * 1_000_000);
        let objects = [half + 2, 3, half, half + 1];
        for (second, object) in (1..).zip(objects) {
            kept.push(at(second), object, second * 100);
        }
        assert_eq!((order(&kept), kept.bytes()), (objects.to_vec(), 1_000));
        assert_eq!(kept.next_due(), Some(at(1) + KEPT_FOR));
        // From the middle, from the front; one that is not there.
        for (object, left) in [(half, 700), (half + 2, 600), (half + 2, 600), (9, 600)] {
            kept.remove(object);
            assert_eq!(kept.bytes(), left);
        }
        assert_eq!(order(&kept), [3, half + 1]);
        assert_eq!(kept.next_due(), Some(at(2) + KEPT_FOR));
        // Given back again it is the youngest; without memory it is none of ours.
        kept.push(at(9), 3, 50);
        kept.push(at(9), 7, 0);
        assert_eq!((order(&kept), kept.bytes()), (vec![half + 1, 3], 450));
        for object in order(&kept) {
            kept.remove(object);
        }
        assert_eq!((kept.oldest(), kept.youngest), (None, None));
        assert_eq!((kept.bytes(), kept.next_due()), (0, None));
    }
}
