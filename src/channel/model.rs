//! Control memory as loom sees it: the same cells and maps, a handful of each, in memory that loom follows.
//!
//! Takes the place of the real mapping when the protocols are model-checked.

use super::bitmap::Bitmap;
use super::cell::{EpollCell, Header, Item, KickLine, ObjectCell, SlotCell, SpillItem};
use super::policy::PolicyPage;
use super::sync::{AtomicU32, AtomicU64};

/// Control memory with one leaf word of objects a map.
#[derive(Debug)]
pub struct Control {
    header: Header,
    objects: Vec<ObjectCell>,
    slots: Vec<SlotCell>,
    epolls: Vec<EpollCell>,
    doorbells: [AtomicU64; 2],
    ready: Vec<[AtomicU64; 2]>,
}

impl Control {
    /// So many of each.
    #[must_use]
    pub fn of(objects: usize, slots: usize, epolls: usize) -> Self {
        fn some<T: Default>(count: usize) -> Vec<T> {
            (0..count).map(|_| T::default()).collect()
        }
        let zero = || AtomicU32::new(0);
        Self {
            header: Header {
                magic: zero(),
                abi: zero(),
                size: zero(),
                objects: zero(),
                rx_ring_bytes: zero(),
                tx_ring_bytes: zero(),
                large_ring_bytes: zero(),
                host_pid: zero(),
                host_state: zero(),
                processes: zero(),
                lcores: zero(),
                lcores_asleep: Default::default(),
                kicks: KickLine::default(),
                policy: PolicyPage::default(),
                spill: core::array::from_fn(|_| SpillItem {
                    object: zero(),
                    generation: zero(),
                    item: Item::default(),
                }),
            },
            objects: some(objects),
            slots: some(slots),
            epolls: some(epolls),
            doorbells: Default::default(),
            ready: (0..epolls).map(|_| Default::default()).collect(),
        }
    }

    /// The header.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// A slot.
    #[must_use]
    pub fn slot(&self, index: u32) -> Option<&SlotCell> {
        self.slots.get(index as usize)
    }

    /// An epoll.
    #[must_use]
    pub fn epoll(&self, index: u32) -> Option<&EpollCell> {
        self.epolls.get(index as usize)
    }

    /// An object.
    #[must_use]
    pub fn object(&self, index: u32) -> Option<&ObjectCell> {
        self.objects.get(index as usize)
    }

    /// The lcore that an object belongs to: there is one.
    #[must_use]
    pub const fn lcore_of(&self, _object: u32) -> u32 {
        0
    }

    /// The doorbells, one an object.
    #[must_use]
    pub fn doorbells(&self, _lcore: u32) -> Option<Bitmap<'_>> {
        Bitmap::new(&self.doorbells, 1)
    }

    /// The objects that are ready in epoll `index`.
    #[must_use]
    pub fn ready(&self, index: u32) -> Option<Bitmap<'_>> {
        Bitmap::new(self.ready.get(index as usize)?, 1)
    }
}
