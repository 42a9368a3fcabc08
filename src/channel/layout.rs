//! Where things lie in control and receive memory.

use core::mem::size_of;
use core::ops::Range;

use super::accept_ring;
use super::cell::{AnswerCell, EpollCell, Header, ObjectCell, ProcCell, SlotCell};

/// Sleeping threads of a family that can be woken by name.
pub const SLOTS: u32 = 256;
/// Epoll instances of a family that can watch accelerated sockets.
pub const EPOLLS: u32 = 256;
/// Processes of a family that can hold objects at the same time.
pub const PROCS: u32 = 256;
/// Objects of a family at least and at most.
pub const OBJECTS_MIN: u32 = 4_096;
/// See [`OBJECTS_MIN`].
pub const OBJECTS_MAX: u32 = 1 << 21;
/// Objects of each share of each half, the first ones, that may have larger rings than the others. Few, because a page of page tables
/// serves no more than one or two of those rings, in both processes.
pub const LARGE_OBJECTS: u32 = COMMON_OBJECTS + ASKED_OBJECTS;
/// Those of them, the first ones, that whoever comes has.
pub const COMMON_OBJECTS: u32 = 64;
/// The others: for connections whose program has asked for more than a usual ring holds (SO_RCVBUF, SO_SNDBUF).
pub const ASKED_OBJECTS: u32 = 64;
/// The unit in which a program maps ring memory.
pub const PIECE_BYTES: u64 = 64 << 20;
/// Lcores that serve a family at most.
#[cfg(not(loom))]
pub const LCORES_MAX: u32 = 8;
/// One, because loom follows every atomic.
#[cfg(loom)]
pub const LCORES_MAX: u32 = 1;
/// A page.
pub const PAGE_BYTES: u64 = 4_096;

/// The layout of one family's memory, derived from four numbers that the host chooses.
///
/// The lower half of the object indices is handed out by the program (listeners, outgoing flows), the upper half by
/// the host (accepted flows). Each half is cut into equal shares, one an lcore: an object belongs to the lcore in whose share
/// its index lies, for good. Listeners lie in the share of the first lcore.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Object cells; a power of two.
    pub objects: u32,
    /// Bytes of a receive ring; a power of two.
    pub rx_ring_bytes: u32,
    /// Bytes of a transmit ring; a power of two.
    pub tx_ring_bytes: u32,
    /// Lcores that serve the family.
    pub lcores: u32,
    /// Bytes of both rings of the first [`LARGE_OBJECTS`] objects of each share, where the others have less; 0 = they are as the
    /// others.
    pub large_ring_bytes: u32,
}

impl Layout {
    /// A layout for `flows` connections at most.
    #[must_use]
    pub fn for_flows(flows: u32, rx_ring_bytes: u32, tx_ring_bytes: u32) -> Self {
        let objects = flows.saturating_mul(2).clamp(OBJECTS_MIN, OBJECTS_MAX);
        Self {
            objects: objects
                .checked_next_power_of_two()
                .unwrap_or(OBJECTS_MAX)
                .min(OBJECTS_MAX),
            rx_ring_bytes: ring(rx_ring_bytes),
            tx_ring_bytes: ring(tx_ring_bytes),
            lcores: 1,
            large_ring_bytes: 0,
        }
    }

    /// The layout for a family that `lcores` lcores serve. The shares are equal and connections are not spread quite evenly, so
    /// that there are more indices than connections.
    #[must_use]
    pub fn with_lcores(self, lcores: u32) -> Self {
        let lcores = lcores.clamp(1, LCORES_MAX);
        let more = if lcores > 1 { 2 } else { 1 };
        Self {
            objects: self.objects.saturating_mul(more).min(OBJECTS_MAX),
            lcores,
            ..self
        }
    }

    /// The same with rings of `bytes` for the first objects of each half.
    #[must_use]
    pub fn with_large_rings(self, bytes: u32) -> Self {
        Self {
            large_ring_bytes: ring(bytes),
            ..self
        }
    }

    /// Whether the numbers are ones that [`Layout::for_flows`] can make (the program checks the header with it).
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.objects.is_power_of_two()
            && (OBJECTS_MIN..=OBJECTS_MAX).contains(&self.objects)
            && self.rx_ring_bytes == ring(self.rx_ring_bytes)
            && self.tx_ring_bytes == ring(self.tx_ring_bytes)
            && (1..=LCORES_MAX).contains(&self.lcores)
            && (self.large_ring_bytes == 0 || self.large_ring_bytes == ring(self.large_ring_bytes))
    }

    /// Object indices of each half that belong to one lcore; a power of two, more than [`LARGE_OBJECTS`].
    #[must_use]
    pub const fn share(&self) -> u32 {
        1 << self.share_bits()
    }

    /// The logarithm of [`Layout::share`]: all that goes into it are powers of two, and each call of a program asks for it.
    const fn share_bits(&self) -> u32 {
        let all = self.objects.trailing_zeros();
        all - 1 - self.lcores.next_power_of_two().trailing_zeros()
    }

    /// The place of `object` in its share.
    const fn place(&self, object: u32) -> u32 {
        object & (self.share() - 1)
    }

    /// The indices of a share in the order in which they are handed out: those with larger rings for everybody, those for who asks,
    /// and the usual ones. Where there are no larger rings all of them are usual.
    #[must_use]
    pub const fn classes(&self, share: &Range<u32>) -> Classes {
        if self.large_ring_bytes == 0 {
            return Classes {
                common: share.start..share.start,
                asked: share.start..share.start,
                usual: share.start..share.end,
            };
        }
        let common = share.start + COMMON_OBJECTS;
        let asked = share.start + LARGE_OBJECTS;
        Classes {
            common: share.start..common,
            asked: common..asked,
            usual: asked..share.end,
        }
    }

    /// Whether `object` is one of those with larger rings that are kept for who asks.
    #[must_use]
    pub const fn is_asked_for(&self, object: u32) -> bool {
        self.is_large(object) && self.place(object) >= COMMON_OBJECTS
    }

    /// Whether buffers as the kernel reports them (SO_RCVBUF, SO_SNDBUF: twice what bytes take, 0 = nobody asked) are more than
    /// usual rings hold, and there are larger ones.
    #[must_use]
    pub const fn asks_for_more(&self, receive: u32, send: u32) -> bool {
        (receive / 2 > self.rx_ring_bytes && self.large_ring_bytes > self.rx_ring_bytes)
            || (send / 2 > self.tx_ring_bytes && self.large_ring_bytes > self.tx_ring_bytes)
    }

    /// The lcore that an object belongs to. Indices of nobody's share say a number that is no lcore.
    #[must_use]
    pub const fn lcore_of(&self, object: u32) -> u32 {
        (object & (self.objects / 2 - 1)) >> self.share_bits()
    }

    /// The indices of `lcore` that the program hands out.
    #[must_use]
    pub const fn program_share(&self, lcore: u32) -> Range<u32> {
        let first = lcore * self.share();
        first..first + self.share()
    }

    /// The indices of `lcore` that the host hands out.
    #[must_use]
    pub const fn host_share(&self, lcore: u32) -> Range<u32> {
        let first = self.first_host_object() + lcore * self.share();
        first..first + self.share()
    }

    /// Entries of each accept queue of a listener.
    #[must_use]
    pub const fn accept_entries(&self) -> u32 {
        accept_ring::entries(self.rx_ring_bytes, self.lcores)
    }

    /// Whether `object` is one of those with larger rings.
    #[must_use]
    pub const fn is_large(&self, object: u32) -> bool {
        self.large_ring_bytes != 0 && self.place(object) < LARGE_OBJECTS
    }

    /// Bytes of the receive ring of `object`.
    #[must_use]
    pub const fn rx_bytes(&self, object: u32) -> u32 {
        if self.is_large(object) && self.large_ring_bytes > self.rx_ring_bytes {
            self.large_ring_bytes
        } else {
            self.rx_ring_bytes
        }
    }

    /// Bytes of the transmit ring of `object`.
    #[must_use]
    pub const fn tx_bytes(&self, object: u32) -> u32 {
        if self.is_large(object) && self.large_ring_bytes > self.tx_ring_bytes {
            self.large_ring_bytes
        } else {
            self.tx_ring_bytes
        }
    }

    /// The place of `object`, which has larger rings, among those.
    const fn large_place(&self, object: u32) -> u64 {
        ((object >> self.share_bits()) * LARGE_OBJECTS + self.place(object)) as u64
    }

    /// Where the larger rings begin that lie behind usual ones of `bytes` from offset `at` on.
    const fn large_at(&self, at: u64, bytes: u32) -> u64 {
        piece_up(at + bytes as u64 * self.objects as u64)
    }

    /// Bytes of all larger rings of a kind.
    const fn large_bytes(&self) -> u64 {
        let shares = 2 * self.lcores.next_power_of_two();
        self.large_ring_bytes as u64 * LARGE_OBJECTS as u64 * shares as u64
    }

    /// First object index that the host hands out.
    #[must_use]
    pub const fn first_host_object(&self) -> u32 {
        self.objects / 2
    }

    /// Leaf words of a bitmap over all objects.
    #[must_use]
    pub const fn object_words(&self) -> usize {
        self.objects as usize / 64
    }

    /// Leaf and summary words of a two-level bitmap over all objects.
    #[must_use]
    pub const fn map_words(&self) -> usize {
        self.object_words() + self.object_words().div_ceil(64)
    }

    const fn map_bytes(&self) -> u64 {
        page_up(self.map_words() as u64 * 8)
    }

    /// Offset of the slot cells.
    #[must_use]
    pub const fn slots_at(&self) -> u64 {
        page_up(size_of::<Header>() as u64)
    }

    /// Offset of the epoll cells.
    #[must_use]
    pub const fn epolls_at(&self) -> u64 {
        page_up(self.slots_at() + SLOTS as u64 * size_of::<SlotCell>() as u64)
    }

    /// Offset of the process cells.
    #[must_use]
    pub const fn procs_at(&self) -> u64 {
        page_up(self.epolls_at() + EPOLLS as u64 * size_of::<EpollCell>() as u64)
    }

    /// Offset of the doorbell bitmap of an lcore.
    #[must_use]
    pub const fn doorbells_at(&self, lcore: u32) -> u64 {
        page_up(self.procs_at() + PROCS as u64 * size_of::<ProcCell>() as u64)
            + self.map_bytes() * lcore as u64
    }

    /// Offset of the bitmap of object indices that the program has handed out.
    #[must_use]
    pub const fn taken_at(&self) -> u64 {
        self.doorbells_at(LCORES_MAX)
    }

    /// Offset of the ready bitmap of an epoll.
    #[must_use]
    pub const fn ready_at(&self, epoll: u32) -> u64 {
        self.taken_at() + self.map_bytes() * (1 + epoll as u64)
    }

    /// Offset of the bitmap of objects that a process holds.
    #[must_use]
    pub const fn held_at(&self, process: u32) -> u64 {
        self.ready_at(EPOLLS) + self.map_bytes() * process as u64
    }

    /// Offset of the object cells.
    #[must_use]
    pub const fn objects_at(&self) -> u64 {
        self.held_at(PROCS)
    }

    /// Offset of the answer cells: one an object, and no memory behind those of whom nobody asks.
    #[must_use]
    pub const fn answers_at(&self) -> u64 {
        page_up(self.objects_at() + self.objects as u64 * size_of::<ObjectCell>() as u64)
    }

    /// Bytes of the tables: everything in control memory before the transmit rings.
    #[must_use]
    pub const fn table_bytes(&self) -> u64 {
        piece_up(self.answers_at() + self.objects as u64 * size_of::<AnswerCell>() as u64)
    }

    /// Offset of an object's transmit ring in control memory.
    #[must_use]
    pub const fn tx_ring_at(&self, object: u32) -> u64 {
        let (bytes, usual) = (self.tx_bytes(object), self.tx_ring_bytes);
        if bytes > usual {
            self.large_at(self.table_bytes(), usual) + bytes as u64 * self.large_place(object)
        } else {
            self.table_bytes() + usual as u64 * object as u64
        }
    }

    /// Bytes of control memory.
    #[must_use]
    pub const fn control_bytes(&self) -> u64 {
        piece_up(self.large_at(self.table_bytes(), self.tx_ring_bytes) + self.large_bytes())
    }

    /// Offset of an object's receive ring in receive memory.
    #[must_use]
    pub const fn rx_ring_at(&self, object: u32) -> u64 {
        let (bytes, usual) = (self.rx_bytes(object), self.rx_ring_bytes);
        if bytes > usual {
            self.large_at(0, usual) + bytes as u64 * self.large_place(object)
        } else {
            usual as u64 * object as u64
        }
    }

    /// Bytes of receive memory.
    #[must_use]
    pub const fn receive_bytes(&self) -> u64 {
        piece_up(self.large_at(0, self.rx_ring_bytes) + self.large_bytes())
    }
}

/// See [`Layout::classes`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Classes {
    /// Larger rings, for everybody.
    pub common: Range<u32>,
    /// Larger rings, for connections that ask for them.
    pub asked: Range<u32>,
    /// Usual rings.
    pub usual: Range<u32>,
}

/// A ring size: a power of two from 4 KiB to 64 MiB.
fn ring(bytes: u32) -> u32 {
    bytes.clamp(4_096, 64 << 20).next_power_of_two()
}

const fn page_up(bytes: u64) -> u64 {
    bytes.div_ceil(PAGE_BYTES) * PAGE_BYTES
}

const fn piece_up(bytes: u64) -> u64 {
    bytes.div_ceil(PIECE_BYTES) * PIECE_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_overlap_and_rings_never_cross_a_piece() {
        for flows in [1, 4_096, 60_000, 1_000_000, u32::MAX] {
            let layout = Layout::for_flows(flows, 256 << 10, 64 << 10);
            assert!(layout.is_valid());
            let marks = [
                0,
                layout.slots_at(),
                layout.epolls_at(),
                layout.procs_at(),
                layout.doorbells_at(0),
                layout.doorbells_at(LCORES_MAX - 1),
                layout.taken_at(),
                layout.ready_at(0),
                layout.ready_at(EPOLLS - 1),
                layout.held_at(0),
                layout.held_at(PROCS - 1),
                layout.objects_at(),
                layout.table_bytes(),
            ];
            assert!(marks.is_sorted());
            // A mapping computes both from the first ones and one distance.
            let far = layout.ready_at(1) - layout.ready_at(0);
            assert_eq!(layout.ready_at(9), layout.ready_at(0) + 9 * far);
            assert_eq!(layout.doorbells_at(3), layout.doorbells_at(0) + 3 * far);
            let share = layout.share();
            assert!(share.is_power_of_two() && share >= 64);
            for object in [0, 1, layout.objects - 1] {
                let ring = layout.tx_ring_at(object);
                assert_eq!(
                    ring / PIECE_BYTES,
                    (ring + u64::from(layout.tx_ring_bytes) - 1) / PIECE_BYTES
                );
            }
        }
    }

    #[test]
    fn every_lcore_has_a_share_of_both_halves() {
        for lcores in 1..=LCORES_MAX {
            let layout = Layout::for_flows(10_000, 1 << 18, 1 << 16).with_lcores(lcores);
            assert!(layout.is_valid());
            let half = layout.first_host_object();
            let mut ends = (0, half);
            for lcore in 0..lcores {
                let (low, high) = (layout.program_share(lcore), layout.host_share(lcore));
                assert_eq!((low.start, high.start), ends);
                ends = (low.end, high.end);
                assert_eq!(low.start % 64, 0);
                for object in [low.start, low.end - 1, high.start, high.end - 1] {
                    assert_eq!(layout.lcore_of(object), lcore);
                }
            }
            assert!(ends.0 <= half && ends.1 <= layout.objects);
        }
    }

    #[test]
    fn classes_cover_a_share_and_those_for_who_asks_are_large() {
        let usual = Layout::for_flows(1, 256 << 10, 128 << 10).with_lcores(LCORES_MAX);
        let layout = usual.with_large_rings(2 << 20);
        for share in [layout.program_share(0), layout.host_share(LCORES_MAX - 1)] {
            let classes = layout.classes(&share);
            assert_eq!(
                (classes.common.start, classes.usual.end),
                (share.start, share.end)
            );
            assert_eq!(classes.common.end, classes.asked.start);
            assert_eq!(classes.asked.end, classes.usual.start);
            assert!(!classes.usual.is_empty());
            let asked = |object| layout.is_asked_for(object);
            assert!(asked(classes.asked.start) && asked(classes.asked.end - 1));
            assert!(!asked(classes.common.end - 1) && !asked(classes.usual.start));
            assert!(layout.is_large(classes.common.start) && !layout.is_large(classes.usual.start));
        }
        assert!(!layout.asks_for_more(0, 0), "nobody asked");
        assert!(
            !layout.asks_for_more(512 << 10, 256 << 10),
            "usual rings do"
        );
        assert!(layout.asks_for_more((512 << 10) + 2, 0) && layout.asks_for_more(0, 512 << 10));
        assert!(!usual.asks_for_more(u32::MAX, u32::MAX), "there are none");
        let share = usual.host_share(0);
        assert_eq!(usual.classes(&share).usual, share);
    }

    #[test]
    fn larger_rings_are_whole_and_nobody_elses() {
        for flows in [1, 60_000, u32::MAX] {
            for large in [0, 64 << 10, 2 << 20, 64 << 20] {
                let usual = Layout::for_flows(flows, 256 << 10, 128 << 10);
                let layout = usual.with_large_rings(large);
                let layout = if large == 0 { usual } else { layout };
                assert!(layout.is_valid());
                let half = layout.first_host_object();
                let some = [0, 1, LARGE_OBJECTS - 1, LARGE_OBJECTS, half - 1];
                let objects: Vec<u32> = some.iter().flat_map(|at| [*at, half + at]).collect();
                let spans = |at: &dyn Fn(u32) -> u64, bytes: &dyn Fn(u32) -> u32| {
                    let mut spans: Vec<(u64, u64)> = objects
                        .iter()
                        .map(|object| (at(*object), at(*object) + u64::from(bytes(*object))))
                        .collect();
                    spans.sort_unstable();
                    assert!(spans.windows(2).all(|pair| pair[0].1 <= pair[1].0));
                    for (begin, end) in &spans {
                        assert_eq!(begin / PIECE_BYTES, (end - 1) / PIECE_BYTES);
                    }
                    spans.last().unwrap().1
                };
                let end = spans(&|object| layout.rx_ring_at(object), &|object| {
                    layout.rx_bytes(object)
                });
                assert!(end <= layout.receive_bytes());
                let end = spans(&|object| layout.tx_ring_at(object), &|object| {
                    layout.tx_bytes(object)
                });
                assert!(end <= layout.control_bytes());
                let most = large.max(256 << 10);
                assert_eq!(layout.rx_bytes(half + LARGE_OBJECTS - 1), most);
                assert_eq!(layout.rx_bytes(half + LARGE_OBJECTS), 256 << 10);
            }
        }
    }

    #[test]
    fn a_forged_layout_is_refused() {
        let good = Layout::for_flows(10, 1 << 18, 1 << 16);
        assert!(
            !Layout {
                objects: 5_000,
                ..good
            }
            .is_valid()
        );
        assert!(
            !Layout {
                objects: 1 << 30,
                ..good
            }
            .is_valid()
        );
        assert!(
            !Layout {
                rx_ring_bytes: 100,
                ..good
            }
            .is_valid()
        );
        for lcores in [0, LCORES_MAX + 1] {
            assert!(!Layout { lcores, ..good }.is_valid());
        }
    }
}
