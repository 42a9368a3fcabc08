//! A value for each object index of a family that an lcore has to do with, grown as indices are used.

use core::ops::Range;

use crate::channel::layout::Layout;
use crate::readiness::FIRST_LCORE;

/// Values by object index. The lcore's shares of both halves (the program's and the host's) grow apart; beside them the first
/// lcore's share of the program's half, where the listeners lie that all lcores serve.
#[derive(Debug)]
pub(super) struct Table<T> {
    host: Part<T>,
    program: Part<T>,
    listeners: Part<T>,
}

#[derive(Debug)]
struct Part<T> {
    range: Range<u32>,
    values: Vec<T>,
}

impl<T> Part<T> {
    const fn new(range: Range<u32>) -> Self {
        Self {
            range,
            values: Vec::new(),
        }
    }

    fn place(&self, object: u32) -> Option<usize> {
        let place = object.wrapping_sub(self.range.start);
        (place < self.range.end - self.range.start).then_some(place as usize)
    }

    fn indices(&self) -> Range<u32> {
        let len = u32::try_from(self.values.len()).unwrap_or(u32::MAX);
        self.range.start..self.range.start.saturating_add(len).min(self.range.end)
    }
}

impl<T: Default> Table<T> {
    /// A table for the indices of `lcore`, all at their default.
    pub(super) const fn new(layout: Layout, lcore: u32) -> Self {
        let listeners = if lcore == FIRST_LCORE {
            0..0
        } else {
            layout.program_share(FIRST_LCORE)
        };
        Self {
            host: Part::new(layout.host_share(lcore)),
            program: Part::new(layout.program_share(lcore)),
            listeners: Part::new(listeners),
        }
    }

    /// The value of `object`, or None when it was never touched or is none of ours.
    pub(super) fn at(&self, object: u32) -> Option<&T> {
        if let Some(place) = self.host.place(object) {
            return self.host.values.get(place);
        }
        if let Some(place) = self.program.place(object) {
            return self.program.values.get(place);
        }
        self.listeners.values.get(self.listeners.place(object)?)
    }

    /// The value of `object` to change; None when it is none of ours. Allocates when the index is the largest so far.
    pub(super) fn at_mut(&mut self, object: u32) -> Option<&mut T> {
        let (part, place) = if let Some(place) = self.host.place(object) {
            (&mut self.host, place)
        } else if let Some(place) = self.program.place(object) {
            (&mut self.program, place)
        } else {
            let place = self.listeners.place(object)?;
            (&mut self.listeners, place)
        };
        if place >= part.values.len() {
            part.values.resize_with(place + 1, T::default);
        }
        part.values.get_mut(place)
    }

    /// Every index touched so far.
    pub(super) fn indices(&self) -> impl Iterator<Item = u32> + use<T> {
        let (program, host) = (self.program.indices(), self.host.indices());
        self.listeners.indices().chain(program).chain(host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_shares_grow_and_end() {
        let layout = Layout::for_flows(1, 4_096, 4_096);
        let half = layout.first_host_object();
        let mut table = Table::<u8>::new(layout, 0);
        assert!(table.at(3).is_none());
        *table.at_mut(3).unwrap() = 1;
        *table.at_mut(half + 1).unwrap() = 2;
        assert_eq!((table.at(3), table.at(half + 1)), (Some(&1), Some(&2)));
        assert!(table.at_mut(layout.objects).is_none() && table.at(7).is_none());
        assert_eq!(
            table.indices().collect::<Vec<_>>(),
            [0, 1, 2, 3, half, half + 1]
        );
    }

    #[test]
    fn an_lcore_has_its_shares_and_the_listeners() {
        let layout = Layout::for_flows(1, 4_096, 4_096).with_lcores(4);
        let mut table = Table::<u8>::new(layout, 2);
        let (program, host) = (layout.program_share(2), layout.host_share(2));
        for object in [0, program.start, host.end - 1] {
            *table.at_mut(object).unwrap() = 1;
            assert_eq!(table.at(object), Some(&1));
        }
        for object in [program.start - 1, program.end, host.start - 1, host.end] {
            assert!(table.at_mut(object).is_none() && table.at(object).is_none());
        }
        assert_eq!(
            table.indices().count(),
            2 + usize::try_from(host.end - host.start).unwrap()
        );
    }
}
