//! What became different, joined so that a flow stands at most once between two drains.

use super::api::Change;

/// Changes in order, not yet taken.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    list: Vec<Option<Change>>,
}

/// Where a flow's change stands in the list. Kept in the flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct ChangeMark {
    /// Place in the list, plus one; 0 = none.
    place: u32,
    /// The lcore was told of the flow.
    known: bool,
}

impl ChangeMark {
    /// The mark of a flow that the lcore made itself.
    pub(crate) const KNOWN: Self = Self {
        place: 0,
        known: true,
    };
}

impl Changes {
    /// A flow waits for accept.
    pub(crate) fn accepted(&mut self, mark: &mut ChangeMark, change: Change) {
        self.put(mark, change);
        mark.known = true;
    }

    /// The facts of a flow changed. Nothing is added while a change of the flow stands, or before it was told of.
    pub(crate) fn flow(&mut self, mark: &mut ChangeMark, change: Change) {
        if mark.known && !self.stands(*mark) {
            self.put(mark, change);
        }
    }

    /// A flow is over. One whose accept was never taken disappears without a word.
    pub(crate) fn gone(&mut self, mark: &mut ChangeMark, change: Change) {
        let standing = self
            .stands(*mark)
            .then(|| self.list.get_mut(mark.place as usize - 1))
            .flatten();
        match standing {
            Some(place) => {
                *place = if matches!(place, Some(Change::Accepted { .. })) {
                    None
                } else {
                    Some(change)
                };
            }
            None if mark.known => self.list.push(Some(change)),
            None => {}
        }
        *mark = ChangeMark::default();
    }

    fn stands(&self, mark: ChangeMark) -> bool {
        mark.place != 0
    }

    fn put(&mut self, mark: &mut ChangeMark, change: Change) {
        self.list.push(Some(change));
        mark.place = u32::try_from(self.list.len()).unwrap_or(0);
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Hands all changes out. `forget` is called for each, so that the flow's mark is cleared.
    pub(crate) fn take(&mut self, into: &mut Vec<Change>, mut forget: impl FnMut(&Change)) {
        for change in self.list.drain(..).flatten() {
            forget(&change);
            into.push(change);
        }
    }
}

/// Clears the place of a mark after a drain.
pub(crate) fn forget(mark: &mut ChangeMark) {
    mark.place = 0;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{FlowId, ListenerId};

    const FLOW: FlowId = FlowId {
        index: 3,
        generation: 1,
    };
    const CHANGED: Change = Change::Flow {
        flow: FLOW,
        token: 9,
    };
    const GONE: Change = Change::Gone {
        flow: FLOW,
        token: 9,
    };
    const ACCEPTED: Change = Change::Accepted {
        listener: ListenerId {
            index: 0,
            generation: 0,
        },
        token: 5,
        flow: FLOW,
    };

    fn drain(changes: &mut Changes) -> Vec<Change> {
        let mut taken = Vec::new();
        changes.take(&mut taken, |_| {});
        taken
    }

    #[test]
    fn a_flow_stands_once_and_its_end_replaces_its_change() {
        let mut changes = Changes::default();
        let mut mark = ChangeMark::KNOWN;
        changes.flow(&mut mark, CHANGED);
        changes.flow(&mut mark, CHANGED);
        changes.gone(&mut mark, GONE);
        assert_eq!(drain(&mut changes), [GONE]);
    }

    #[test]
    fn a_flow_that_was_never_told_of_ends_in_silence() {
        let mut changes = Changes::default();
        let mut mark = ChangeMark::default();
        changes.flow(&mut mark, CHANGED);
        changes.accepted(&mut mark, ACCEPTED);
        changes.flow(&mut mark, CHANGED);
        changes.gone(&mut mark, GONE);
        assert_eq!(drain(&mut changes), []);
    }

    #[test]
    fn an_accepted_flow_is_told_of_again_after_a_drain() {
        let mut changes = Changes::default();
        let mut mark = ChangeMark::default();
        changes.accepted(&mut mark, ACCEPTED);
        assert_eq!(drain(&mut changes), [ACCEPTED]);
        forget(&mut mark);
        changes.flow(&mut mark, CHANGED);
        assert_eq!(drain(&mut changes), [CHANGED]);
        forget(&mut mark);
        changes.gone(&mut mark, GONE);
        assert_eq!(drain(&mut changes), [GONE]);
    }
}
