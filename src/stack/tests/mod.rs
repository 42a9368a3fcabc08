//! Traces over a tiny wire, and whole stacks against each other in virtual time.

mod bulk;
mod closing;
mod congestion;
mod connect;
mod endings;
mod guard;
mod handshake;
mod hostile;
mod join;
mod last_word;
mod load;
mod loss;
mod options;
mod pair;
mod peer;
mod restart;
mod silence;
mod storm;
mod sweep;
mod untrue;
mod urgent;
mod window;
mod years;

use core::net::Ipv4Addr;
use core::ops::Range;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;

use super::{FlowMemory, Interface4, Owner, PortWalk, RxRing, SendBuffer, StackConfig};
use crate::device::{TxMeta, TxQueue};
use crate::time::Instant;

/// The address of a host of the tests.
pub(crate) fn address(host: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, host)
}

/// Its MAC address.
pub(crate) fn mac(host: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, host]
}

/// The config of a host on the test wire.
pub(crate) fn config(host: u8) -> StackConfig {
    StackConfig {
        mac: mac(host),
        mtu: 1500,
        vlan: None,
        addresses: vec![Interface4 {
            address: address(host),
            prefix_len: 24,
        }],
        gateway: Some(address(254)),
        routes: Vec::new(),
        rx_checksum_offload: false,
        tx_checksum_offload: false,
        tso_bytes: 0,
        trust_checksum: false,
        max_flows: 4096,
        max_neighbors: 64,
        msl: Duration::from_secs(30),
        fin_timeout: Duration::from_secs(60),
        synack_retries: 5,
        syn_retries: 6,
        user_timeout: Duration::from_secs(924),
        orphan_timeout: Duration::from_secs(120),
        ephemeral_ports: (49_152, 65_535),
        tx_buffer_bytes: 64 << 10,
        walk: PortWalk::default(),
        secret: [host; 16],
    }
}

/// Seeds of a test that draws what happens: `usual` of them, or as many as the variable `name` says, from KNET_TEST_SEED on.
pub(crate) fn seeds(name: &str, usual: u64) -> Range<u64> {
    let number =
        |name: &str, usual| std::env::var(name).map_or(usual, |text| text.parse().unwrap());
    let first = number("KNET_TEST_SEED", 1);
    first..first + number(name, usual)
}

/// What no test writes, so that an untouched byte is seen.
const UNTOUCHED: u8 = 0xa5;

/// One ring that was handed out: where it lies and how much of it has memory.
#[derive(Clone, Debug)]
pub(crate) struct Ring {
    address: usize,
    capacity: usize,
    pub(crate) backed: usize,
    /// Pages that have memory beside those, by their offset.
    pub(crate) parts: BTreeSet<usize>,
}

/// Rings in leaked memory. They are read as the program reads them: by somebody else, here the kernel.
#[derive(Debug)]
pub(crate) struct Memory {
    view: File,
    pub(crate) rings: BTreeMap<u32, Ring>,
    pub(crate) returned: Vec<u32>,
    /// Rings that can still be had.
    pub(crate) rings_left: usize,
    /// Whether `back` gives memory.
    pub(crate) gives: bool,
    /// Whether `rest` takes it.
    pub(crate) rests: bool,
    /// Whether send buffers are lent, and which are out.
    pub(crate) lends: bool,
    pub(crate) lent: BTreeSet<u32>,
    next: u32,
}

impl Memory {
    pub(crate) fn new() -> Self {
        let view = OpenOptions::new()
            .read(true)
            .write(true)
            .open("/proc/self/mem")
            .unwrap();
        Self {
            view,
            rings: BTreeMap::new(),
            returned: Vec::new(),
            rings_left: usize::MAX,
            gives: true,
            rests: false,
            lends: false,
            lent: BTreeSet::new(),
            next: 0,
        }
    }

    /// Reads stream offsets `from..from + into.len()` of ring `id` by the position rule.
    pub(crate) fn read(&self, id: u32, from: u64, into: &mut [u8]) {
        let ring = &self.rings[&id];
        let place = usize::try_from(from % ring.capacity as u64).unwrap();
        let first = into.len().min(ring.capacity - place);
        let (head, tail) = into.split_at_mut(first);
        self.view
            .read_exact_at(head, (ring.address + place) as u64)
            .unwrap();
        self.view.read_exact_at(tail, ring.address as u64).unwrap();
    }

    /// Fails when a byte without memory behind it was written.
    pub(crate) fn check_untouched(&self) {
        for (id, ring) in &self.rings {
            for place in (ring.backed..ring.capacity).step_by(4096) {
                if ring.parts.contains(&(place & !4095)) {
                    continue;
                }
                let mut rest = vec![0; (ring.capacity - place).min(4096 - place % 4096)];
                self.view
                    .read_exact_at(&mut rest, (ring.address + place) as u64)
                    .unwrap();
                assert!(
                    rest.iter().all(|byte| *byte == UNTOUCHED),
                    "ring {id} was written at {place}, where it has no memory"
                );
            }
        }
    }
}

impl FlowMemory for Memory {
    fn take(&mut self, _: Owner, capacity: usize) -> Option<RxRing> {
        self.rings_left = self.rings_left.checked_sub(1)?;
        let bytes = vec![UNTOUCHED; capacity].leak();
        let id = self.next;
        self.next += 1;
        self.rings.insert(
            id,
            Ring {
                address: bytes.as_ptr().addr(),
                capacity,
                backed: 4096,
                parts: BTreeSet::new(),
            },
        );
        Some(RxRing {
            bytes,
            backed: 4096,
            id,
        })
    }

    fn back(&mut self, _: Owner, id: u32, bytes: usize) -> bool {
        let ring = self.rings.get_mut(&id).unwrap();
        if self.gives {
            ring.backed = bytes;
        }
        self.gives
    }

    fn rest(&mut self, _: Owner, id: u32) -> bool {
        if !self.rests {
            return false;
        }
        let ring = self.rings.get_mut(&id).unwrap();
        let nothing = vec![UNTOUCHED; ring.capacity];
        self.view
            .write_all_at(&nothing, ring.address as u64)
            .unwrap();
        ring.backed = 0;
        ring.parts.clear();
        true
    }

    fn back_part(&mut self, _: Owner, id: u32, from: usize, bytes: usize) -> bool {
        let ring = self.rings.get_mut(&id).unwrap();
        if self.gives {
            assert!(from.is_multiple_of(4096) && from < ring.capacity);
            let pages = (from..from + bytes).step_by(4096);
            ring.parts.extend(pages.map(|page| page % ring.capacity));
        }
        self.gives
    }

    fn take_send(&mut self, _: Owner, bytes: usize) -> Option<SendBuffer> {
        if !self.lends {
            return None;
        }
        let id = self.next;
        self.next += 1;
        self.lent.insert(id);
        Some(SendBuffer {
            bytes: vec![0; bytes].leak(),
            id,
        })
    }

    fn give_back_send(&mut self, _: Owner, id: u32) {
        assert!(
            self.lent.remove(&id),
            "send buffer {id} was given back twice"
        );
    }

    fn give_back(&mut self, _: Owner, ring: RxRing) {
        assert!(
            self.rings.remove(&ring.id).is_some(),
            "ring {} was given back twice",
            ring.id
        );
        self.returned.push(ring.id);
    }
}

/// A port that keeps what it is given.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) slots: usize,
    pub(crate) stuck: bool,
    lent: Vec<u8>,
    burst: Vec<Vec<u8>>,
    pub(crate) sent: Vec<Vec<u8>>,
    /// Checksums that were left to the port are filled in.
    pub(crate) fills: bool,
    /// Frames that were cut into segments.
    pub(crate) super_frames: usize,
}

/// What a port makes of a TCP super-frame: segments of `bytes` payload each, with both checksums.
fn cut(frame: &[u8], bytes: usize) -> Vec<Vec<u8>> {
    let headers = 34 + usize::from(frame[46] >> 4) * 4;
    let seq = u32::from_be_bytes(core::array::from_fn(|at| frame[38 + at]));
    let parts: Vec<&[u8]> = frame[headers..].chunks(bytes).collect();
    let mut offset = 0_u32;
    let mut made = Vec::new();
    for (number, part) in parts.iter().enumerate() {
        let mut segment = [&frame[..headers], part].concat();
        let total = u16::try_from(segment.len() - 14).unwrap();
        segment[16..18].copy_from_slice(&total.to_be_bytes());
        segment[38..42].copy_from_slice(&seq.wrapping_add(offset).to_be_bytes());
        if number + 1 < parts.len() {
            // FIN and PSH belong to the last one.
            segment[47] &= !0x09;
        }
        super::interface::seal(&mut segment[14..], false).unwrap();
        offset += u32::try_from(part.len()).unwrap();
        made.push(segment);
    }
    made
}

impl Port {
    pub(crate) fn new(slots: usize) -> Self {
        Self {
            slots,
            stuck: false,
            lent: Vec::new(),
            burst: Vec::new(),
            sent: Vec::new(),
            fills: false,
            super_frames: 0,
        }
    }

    /// What was sent since the last call, flushed or not.
    pub(crate) fn take(&mut self) -> Vec<Vec<u8>> {
        self.flush(Instant::ZERO);
        core::mem::take(&mut self.sent)
    }
}

impl TxQueue for Port {
    fn alloc(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.room() == 0 {
            return None;
        }
        self.lent.clear();
        self.lent.resize(len, 0xee);
        Some(&mut self.lent)
    }

    fn commit(&mut self, len: usize, meta: TxMeta) {
        assert!(self.room() > 0 && len <= self.lent.len());
        let mut frame = self.lent[..len].to_vec();
        if meta.checksum_offload && self.fills {
            super::interface::seal(&mut frame[14..], false).unwrap();
        }
        if meta.segment_bytes == 0 {
            return self.burst.push(frame);
        }
        self.super_frames += 1;
        self.burst
            .extend(cut(&frame, usize::from(meta.segment_bytes)));
    }

    fn flush(&mut self, _: Instant) -> usize {
        if self.stuck {
            return 0;
        }
        let count = self.burst.len();
        self.sent.append(&mut self.burst);
        count
    }

    fn room(&self) -> usize {
        self.slots.saturating_sub(self.burst.len())
    }
}
