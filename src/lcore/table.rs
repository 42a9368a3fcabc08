//! A value for each object index of a family, grown as indices are used.

/// Values by object index: the lower half (handed out by the program) and the upper half (by the host) grow apart.
#[derive(Debug)]
pub(super) struct Table<T> {
    low: Vec<T>,
    high: Vec<T>,
    half: u32,
}

impl<T: Default> Table<T> {
    /// A table for `objects` indices, all at their default.
    pub(super) const fn new(objects: u32) -> Self {
        Self {
            low: Vec::new(),
            high: Vec::new(),
            half: objects / 2,
        }
    }

    /// The value of `object`, or None when it was never touched or is out of range.
    pub(super) fn at(&self, object: u32) -> Option<&T> {
        match object.checked_sub(self.half) {
            None => self.low.get(object as usize),
            Some(place) => self.high.get(place as usize),
        }
    }

    /// The value of `object` to change; None when it is out of range. Allocates when the index is the largest so far.
    pub(super) fn at_mut(&mut self, object: u32) -> Option<&mut T> {
        let (half, place) = match object.checked_sub(self.half) {
            None => (&mut self.low, object),
            Some(place) => (&mut self.high, place),
        };
        if place >= self.half {
            return None;
        }
        let place = place as usize;
        if place >= half.len() {
            half.resize_with(place + 1, T::default);
        }
        half.get_mut(place)
    }

    /// Every index touched so far.
    pub(super) fn indices(&self) -> impl Iterator<Item = u32> + use<T> {
        let low = u32::try_from(self.low.len()).unwrap_or(self.half);
        let high = u32::try_from(self.high.len()).unwrap_or(self.half);
        (0..low).chain(self.half..self.half.saturating_add(high))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_halves_grow_and_end() {
        let mut table = Table::<u8>::new(16);
        assert!(table.at(3).is_none());
        *table.at_mut(3).unwrap() = 1;
        *table.at_mut(9).unwrap() = 2;
        assert_eq!((table.at(3), table.at(9)), (Some(&1), Some(&2)));
        assert!(table.at_mut(16).is_none() && table.at(7).is_none());
        assert_eq!(table.indices().collect::<Vec<_>>(), [0, 1, 2, 3, 8, 9]);
    }
}
