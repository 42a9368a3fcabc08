//! All flows of a stack: one hot line a flow, the cold part apart, and the hash that finds them.
//!
//! The hash is keyed, so that a peer cannot choose collisions. Lookup, insert and remove are O(1).

#[cfg(test)]
use core::net::{Ipv4Addr, SocketAddrV4};

use super::demux::FlowKey;
use super::flow::Engine;
use super::flow_parts::{Cold, FlagWord, Flags, Hot, Phase};
use super::tracker::Track;
use crate::id::FlowId;
use crate::prefetch;

/// The table.
#[derive(Debug)]
pub(crate) struct FlowTable {
    hot: Vec<Hot>,
    cold: Vec<Cold>,
    free: Vec<u32>,
    limit: usize,
    /// Upper half: hash; lower half: index plus one, 0 = empty. A power of two, at most half full.
    slots: Vec<u64>,
    secret: [u8; 16],
    live: usize,
}

impl FlowTable {
    /// Memory of a flow, slots of the hash included when the limit is a power of two.
    pub(crate) const BYTES_PER_FLOW: usize =
        size_of::<Hot>() + size_of::<Cold>() + 2 * size_of::<u64>() + Engine::SOCKET_BYTES;

    /// Makes a table for `limit` flows at most. Memory is touched as flows are made.
    pub(crate) fn new(limit: usize, secret: [u8; 16]) -> Self {
        let limit = limit.clamp(1, FLOWS_MAX);
        let hot = Vec::with_capacity(limit);
        let cold = Vec::with_capacity(limit);
        // From zeroed pages, which nothing has touched yet.
        let slots = vec![0; (limit * 2).next_power_of_two()];
        huge(&hot);
        huge(&cold);
        huge(&slots);
        Self {
            hot,
            cold,
            free: Vec::new(),
            limit,
            slots,
            secret,
            live: 0,
        }
    }

    /// Both parts of a flow.
    pub(crate) fn parts(&mut self, index: u32) -> Option<(&mut Hot, &mut Cold)> {
        Some((
            self.hot.get_mut(index as usize)?,
            self.cold.get_mut(index as usize)?,
        ))
    }

    /// Both parts of a flow, to look at.
    pub(crate) fn look(&self, index: u32) -> Option<(&Hot, &Cold)> {
        Some((
            self.hot.get(index as usize)?,
            self.cold.get(index as usize)?,
        ))
    }

    /// The hot part of a flow.
    pub(crate) fn hot(&self, index: u32) -> Option<&Hot> {
        self.hot.get(index as usize)
    }

    /// The index behind an id that is still good.
    pub(crate) fn resolve(&self, id: FlowId) -> Option<u32> {
        let hot = self.hot(id.index)?;
        (hot.generation == id.generation && hot.phase != Phase::Free).then_some(id.index)
    }

    /// Whether a flow is in a phase.
    pub(crate) fn is_in(&self, id: FlowId, phase: Phase) -> bool {
        self.resolve(id)
            .and_then(|index| self.hot(index))
            .is_some_and(|hot| hot.phase == phase)
    }

    /// The id of a flow.
    pub(crate) fn id(&self, index: u32) -> FlowId {
        FlowId {
            index,
            generation: self.hot(index).map_or(0, |hot| hot.generation),
        }
    }

    /// Every index in use or free lies below.
    pub(crate) fn indices(&self) -> u32 {
        u32::try_from(self.hot.len()).unwrap_or(u32::MAX)
    }

    /// Flows that exist.
    pub(crate) fn live(&self) -> usize {
        self.live
    }

    /// Places of the table, some of which are free.
    pub(crate) fn places(&self) -> usize {
        self.hot.len()
    }

    /// Whether no further flow can be made.
    pub(crate) fn is_full(&self) -> bool {
        self.live >= self.limit
    }

    /// All flows that exist.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Hot, &Cold)> {
        (0_u32..)
            .zip(self.hot.iter().zip(&self.cold))
            .filter(|(_, (hot, _))| hot.phase != Phase::Free)
            .map(|(index, (hot, cold))| (index, hot, cold))
    }

    /// Takes a free index for `key` and puts it into the hash. None when the table is full.
    pub(crate) fn insert(&mut self, key: FlowKey, engine: Engine, phase: Phase) -> Option<u32> {
        if self.is_full() {
            return None;
        }
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                let index = u32::try_from(self.hot.len()).ok()?;
                self.hot.push(Hot {
                    key,
                    generation: 0,
                    engine: Engine::vacant(),
                    track: Track::default(),
                    phase: Phase::Free,
                    flags: FlagWord::default(),
                    waits: false,
                });
                self.cold.push(Cold::vacant());
                index
            }
        };
        let (hot, cold) = self.parts(index)?;
        hot.key = key;
        hot.engine = engine;
        hot.track = Track::default();
        hot.phase = phase;
        hot.flags = FlagWord::default();
        hot.waits = false;
        *cold = Cold::vacant();
        self.live += 1;
        self.link(index, key);
        Some(index)
    }

    /// Frees an index. The engine is dropped, and with it the last hold on the ring.
    pub(crate) fn remove(&mut self, index: u32) {
        self.detach(index);
        if let Some(hot) = self.hot.get_mut(index as usize)
            && hot.phase != Phase::Free
        {
            hot.engine.clear();
            hot.phase = Phase::Free;
            hot.generation = hot.generation.wrapping_add(1);
            self.live -= 1;
            self.free.push(index);
        }
    }

    /// Takes a flow out of the hash, so that its endpoints are free. Does nothing the second time.
    pub(crate) fn detach(&mut self, index: u32) {
        let Some(hot) = self.hot.get_mut(index as usize) else {
            return;
        };
        if hot.flags.has(Flags::DETACHED) || hot.phase == Phase::Free {
            return;
        }
        hot.flags.set(Flags::DETACHED);
        let key = hot.key;
        self.unlink(index, key);
    }

    /// The hash of a connection; its slot is being fetched.
    pub(crate) fn prefetch_slot(&self, key: FlowKey) -> u32 {
        let hash = self.hash(key);
        if let Some(slot) = self.slots.get(hash as usize & self.mask()) {
            prefetch::value(slot);
        }
        hash
    }

    /// Fetches both parts of the flow at `index`.
    pub(crate) fn prefetch_at(&self, index: u32) {
        if let (Some(hot), Some(cold)) =
            (self.hot.get(index as usize), self.cold.get(index as usize))
        {
            prefetch::value(hot);
            prefetch::value(cold);
        }
    }

    /// Fetches both parts of the flow that probably has this hash, and returns its index.
    pub(crate) fn prefetch_parts(&self, hash: u32) -> Option<u32> {
        let mut at = hash as usize & self.mask();
        loop {
            let (other, index) = split(*self.slots.get(at)?)?;
            if other == hash {
                prefetch::value(self.hot.get(index as usize)?);
                prefetch::value(self.cold.get(index as usize)?);
                return Some(index);
            }
            at = (at + 1) & self.mask();
        }
    }

    fn hash(&self, key: FlowKey) -> u32 {
        let hash = key.keyed_hash(&self.secret);
        u32::try_from(hash >> 32).unwrap_or(0)
    }

    fn mask(&self) -> usize {
        self.slots.len() - 1
    }

    /// The flow of a connection.
    pub(crate) fn lookup(&self, key: FlowKey) -> Option<u32> {
        self.find(key, self.hash(key))
    }

    /// The flow of a connection whose hash is known.
    pub(crate) fn find(&self, key: FlowKey, hash: u32) -> Option<u32> {
        let mut at = hash as usize & self.mask();
        loop {
            let (other, index) = split(*self.slots.get(at)?)?;
            if other == hash && self.hot(index).is_some_and(|hot| hot.key == key) {
                return Some(index);
            }
            at = (at + 1) & self.mask();
        }
    }

    fn link(&mut self, index: u32, key: FlowKey) {
        let hash = self.hash(key);
        let mask = self.mask();
        let mut at = hash as usize & mask;
        // At most half full, so there is an empty slot.
        while let Some(slot) = self.slots.get_mut(at) {
            if *slot == 0 {
                *slot = u64::from(hash) << 32 | u64::from(index + 1);
                return;
            }
            at = (at + 1) & mask;
        }
    }

    /// Removes a slot and moves the ones behind it up, so that no tombstones pile up.
    fn unlink(&mut self, index: u32, key: FlowKey) {
        let mask = self.mask();
        let mut hole = self.hash(key) as usize & mask;
        loop {
            match self.slots.get(hole).and_then(|slot| split(*slot)) {
                Some((_, other)) if other == index => break,
                Some(_) => hole = (hole + 1) & mask,
                None => return,
            }
        }
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let Some(slot) = self.slots.get(at).copied() else {
                return;
            };
            let Some((hash, _)) = split(slot) else { break };
            let home = hash as usize & mask;
            // The entry may fill the hole unless its home lies behind the hole.
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(hole) & mask) {
                if let Some(place) = self.slots.get_mut(hole) {
                    *place = slot;
                }
                hole = at;
            }
        }
        if let Some(place) = self.slots.get_mut(hole) {
            *place = 0;
        }
    }
}

/// Hash and index of a slot, None when it is empty.
fn split(slot: u64) -> Option<(u32, u32)> {
    let index = u32::try_from(slot & 0xffff_ffff).ok()?.checked_sub(1)?;
    Some((u32::try_from(slot >> 32).ok()?, index))
}

/// Asks for huge pages behind a table that is not touched yet.
fn huge<T>(table: &Vec<T>) {
    prefetch::huge(table.as_ptr().addr(), table.capacity() * size_of::<T>());
}
/// Indices must fit the timer wheel and the slots.
const FLOWS_MAX: usize = 1 << 24;

/// A key made of plain numbers, for tests.
#[cfg(test)]
pub(crate) fn key(local: u16, remote: u32) -> FlowKey {
    let [_, a, b, c] = (remote >> 8).to_be_bytes();
    FlowKey {
        local: SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), local),
        remote: SocketAddrV4::new(
            Ipv4Addr::new(10, a, b, c),
            u16::try_from(remote & 0xff).unwrap_or(0) + 1,
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::seeded::Seeded;

    #[test]
    fn the_table_agrees_with_a_map_under_churn() {
        let mut random = Seeded::new(11);
        let mut table = FlowTable::new(300, [7; 16]);
        let mut model: HashMap<FlowKey, FlowId> = HashMap::new();
        for _ in 0..60_000 {
            let key = key(80, u32::try_from(random.below(700)).unwrap());
            match model.get(&key).copied() {
                Some(id) if random.below(2) == 0 => {
                    table.remove(id.index);
                    assert_eq!(table.resolve(id), None);
                    model.remove(&key);
                }
                Some(id) => assert_eq!(table.lookup(key), Some(id.index)),
                None => {
                    assert_eq!(table.lookup(key), None);
                    let made = table.insert(key, Engine::vacant(), Phase::Owned);
                    assert_eq!(made.is_none(), model.len() == 300);
                    if let Some(index) = made {
                        model.insert(key, table.id(index));
                    }
                }
            }
            assert_eq!(table.live(), model.len());
        }
        for (key, id) in &model {
            assert_eq!(table.lookup(*key), Some(id.index));
            assert_eq!(table.resolve(*id), Some(id.index));
        }
        assert_eq!(table.iter().count(), model.len());
    }

    #[test]
    fn a_generation_begins_again_and_the_one_before_stays_stale() {
        let mut table = FlowTable::new(4, [0; 16]);
        let index = table
            .insert(key(80, 1), Engine::vacant(), Phase::Owned)
            .unwrap();
        table.parts(index).unwrap().0.generation = u32::MAX;
        let old = table.id(index);
        table.remove(index);
        let again = table.insert(key(80, 2), Engine::vacant(), Phase::Owned);
        assert_eq!(again, Some(index));
        assert_eq!(table.id(index).generation, 0);
        assert_eq!(table.resolve(old), None);
        assert_eq!(table.resolve(table.id(index)), Some(index));
    }

    #[test]
    fn a_detached_flow_is_not_found_and_its_endpoints_are_free() {
        let mut table = FlowTable::new(4, [0; 16]);
        let old = table
            .insert(key(80, 1), Engine::vacant(), Phase::Owned)
            .unwrap();
        table.detach(old);
        table.detach(old);
        assert_eq!(table.lookup(key(80, 1)), None);
        let new = table
            .insert(key(80, 1), Engine::vacant(), Phase::Owned)
            .unwrap();
        table.remove(old);
        assert_eq!(table.lookup(key(80, 1)), Some(new));
    }
}
