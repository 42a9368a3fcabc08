//! The way of a packet between smoltcp and the port: one frame in, frames out, nothing kept.
//!
//! smoltcp runs on `Medium::Ip` with its checksums off; the Ethernet header, the tag, the window clamp and
//! the checksums are put on here, in the port's own buffer.

use core::num::{NonZeroU16, NonZeroUsize};

use smoltcp::iface::Config;
pub(crate) use smoltcp::iface::Interface;
use smoltcp::phy::{
    ChecksumCapabilities, Device, DeviceCapabilities, Medium, PacketMeta, RxToken, TxToken,
};
use smoltcp::wire::HardwareAddress;

use super::ceiling::Ceiling;
use super::checksum;
use super::counters::StackCounters;
use super::frame::{ETHERTYPE_IPV4, EthernetHeader, PROTOCOL_TCP, put_word};
use super::loopback::Loopback;
use super::tracker::{Meter, Track};
use super::urgent;
use crate::device::{TxMeta, TxQueue};
use crate::time::Instant;

/// What is the same for every frame that we send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Station {
    /// Our MAC address.
    pub(crate) mac: [u8; 6],
    /// 802.1Q tag.
    pub(crate) vlan: Option<u16>,
    /// The port fills in checksums.
    pub(crate) offload: bool,
    /// Bytes of the largest IP packet that the port cuts into segments; 0 = it does not.
    pub(crate) super_bytes: usize,
}

impl Station {
    /// The Ethernet header of a frame to `destination`.
    pub(crate) fn header(&self, destination: [u8; 6], ether_type: u16) -> EthernetHeader {
        EthernetHeader {
            destination,
            source: self.mac,
            vlan: self.vlan,
            ether_type,
        }
    }

    /// Bytes of that header.
    pub(crate) fn header_bytes(&self) -> usize {
        EthernetHeader::bytes_for(self.vlan)
    }
}

/// Where frames leave: the port's burst, or the loop back to ourselves.
pub(crate) struct Outlet<'a> {
    /// The port's transmit half.
    pub(crate) tx: &'a mut dyn TxQueue,
    /// Frames to our own addresses.
    pub(crate) looped: &'a mut Loopback,
    /// What is the same for every frame.
    pub(crate) station: Station,
    /// Counters of the stack.
    pub(crate) counters: &'a StackCounters,
    /// Buffers that must stay free for replies to received frames.
    pub(crate) reserve: usize,
}

impl Outlet<'_> {
    /// Whether a segment can be sent without touching the reserve.
    pub(crate) fn has_room(&self, looped: bool) -> bool {
        if looped {
            self.looped.room() > 0
        } else {
            self.tx.room() > self.reserve
        }
    }

    fn queue(&mut self, looped: bool) -> &mut dyn TxQueue {
        if looped { self.looped } else { self.tx }
    }

    /// Whether a buffer for a super-frame can be had now. It is lent again to whatever frame comes next.
    pub(crate) fn has_super_room(&mut self) -> bool {
        let bytes = self.station.header_bytes() + self.station.super_bytes;
        self.tx.alloc(bytes).is_some()
    }

    /// Sends a frame of at most `bytes` bytes that `fill` writes with the checksums that `offload` leaves to it; it
    /// returns the length, or None for nothing. False when nothing was sent; a missing buffer is counted.
    pub(crate) fn send(
        &mut self,
        looped: bool,
        bytes: usize,
        offload: bool,
        fill: impl FnOnce(&mut [u8]) -> Option<usize>,
    ) -> bool {
        let counters = self.counters;
        let queue = self.queue(looped);
        let Some(buffer) = queue.alloc(bytes) else {
            counters.tx_dropped_no_buffer.raise();
            return false;
        };
        let Some(length) = fill(buffer) else {
            return false;
        };
        queue.commit(
            length,
            TxMeta {
                checksum_offload: offload,
                segment_bytes: 0,
            },
        );
        counters.tx_frames.raise();
        counters.tx_bytes.add(length as u64);
        true
    }
}

/// One flow's view of the wire for one call into smoltcp.
pub(crate) struct Wire<'a, 'b> {
    /// The IP packet to feed.
    pub(crate) packet: Option<&'a [u8]>,
    /// Where segments leave.
    pub(crate) outlet: &'a mut Outlet<'b>,
    /// The flow's sequence numbers.
    pub(crate) track: &'a mut Track,
    /// The rest of its bookkeeping.
    pub(crate) meter: &'a mut Meter,
    /// How far SO_RCVBUF lets the window open.
    pub(crate) ceiling: Ceiling,
    /// MAC address of the next hop.
    pub(crate) mac: [u8; 6],
    /// The peer is one of our own addresses.
    pub(crate) looped: bool,
    /// Time of the call.
    pub(crate) now: Instant,
    /// The sequence number behind the urgent byte that the flow sends.
    pub(crate) urgent: Option<u32>,
    /// Segments sent by the call.
    pub(crate) sent: usize,
    /// The frame that is being written is to be cut into segments with this much payload; 0 = it is not.
    pub(crate) segment_bytes: u16,
    /// Makes the call panic.
    #[cfg(test)]
    pub(crate) poisoned: bool,
}

impl Wire<'_, '_> {
    fn send<R>(&mut self, length: usize, fill: impl FnOnce(&mut [u8]) -> R) -> R {
        let station = self.outlet.station;
        let start = station.header_bytes();
        let counters = self.outlet.counters;
        let queue = self.outlet.queue(self.looped);
        // smoltcp's closure must run, with or without a buffer, because its result is wanted.
        let Some((header, packet)) = queue
            .alloc(start + length)
            .and_then(|frame| frame.split_at_mut_checked(start))
        else {
            counters.tx_dropped_no_buffer.raise();
            return fill(&mut vec![0; length]);
        };
        let result = fill(packet);
        let offload = station.offload && !self.looped;
        let finished = station
            .header(self.mac, ETHERTYPE_IPV4)
            .emit(header)
            .and_then(|_| {
                self.meter
                    .on_sent(self.track, self.ceiling, packet, self.now)
            })
            .and_then(|()| match self.urgent {
                Some(end) => urgent::point(packet, end),
                None => Some(()),
            })
            .and_then(|()| seal(packet, offload));
        if finished.is_some() {
            queue.commit(
                start + length,
                TxMeta {
                    checksum_offload: offload,
                    segment_bytes: self.segment_bytes,
                },
            );
            counters.tx_frames.raise();
            if self.segment_bytes != 0 {
                counters.tx_super_frames.raise();
            }
            counters.tx_bytes.add((start + length) as u64);
            self.sent += 1;
        }
        result
    }
}

/// Puts both checksums on a TCP packet without IP options, or what the port needs to do it.
pub(crate) fn seal(packet: &mut [u8], offload: bool) -> Option<()> {
    let length = u16::try_from(packet.len().checked_sub(20)?).ok()?;
    put_word(packet, 10, 0)?;
    put_word(packet, 36, 0)?;
    let source = core::net::Ipv4Addr::from(*packet.get(12..16)?.first_chunk()?);
    let destination = core::net::Ipv4Addr::from(*packet.get(16..20)?.first_chunk()?);
    let pseudo = checksum::pseudo_header(source, destination, PROTOCOL_TCP, length);
    if offload {
        return put_word(packet, 36, pseudo);
    }
    let header = checksum::checksum(packet.get(..20)?);
    put_word(packet, 10, header)?;
    let segment = !checksum::add(pseudo, checksum::sum(packet.get(20..)?));
    put_word(packet, 36, segment)
}

/// The packet of a [`Wire`], taken by smoltcp.
pub(crate) struct Received<'a>(&'a [u8]);

impl RxToken for Received<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, read: F) -> R {
        read(self.0)
    }
}

/// Leave to send one packet through a [`Wire`].
pub(crate) struct Sending<'t, 'a, 'b>(&'t mut Wire<'a, 'b>);

impl TxToken for Sending<'_, '_, '_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, fill: F) -> R {
        self.0.send(length, fill)
    }

    fn set_meta(&mut self, meta: PacketMeta) {
        self.0.segment_bytes = meta.segmentation_offload_size.map_or(0, NonZeroU16::get);
    }
}

impl<'a, 'b> Device for Wire<'a, 'b> {
    type RxToken<'t>
        = Received<'t>
    where
        Self: 't;
    type TxToken<'t>
        = Sending<'t, 'a, 'b>
    where
        Self: 't;

    fn receive(
        &mut self,
        _: smoltcp::time::Instant,
    ) -> Option<(Received<'_>, Sending<'_, 'a, 'b>)> {
        let packet = self.packet.take()?;
        Some((Received(packet), Sending(self)))
    }

    fn transmit(&mut self, _: smoltcp::time::Instant) -> Option<Sending<'_, 'a, 'b>> {
        self.outlet.has_room(self.looped).then_some(Sending(self))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        capabilities(usize::from(u16::MAX), 0)
    }
}

/// Interfaces of one stack, one for each MTU that a path may have (RFC 1191 section 7.1).
pub(crate) struct Interfaces {
    classes: Vec<(usize, Interface)>,
    /// The same, for a call that may write a super-frame; empty when the port cannot cut one.
    cutting: Vec<Interface>,
}

impl core::fmt::Debug for Interfaces {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        out.debug_list()
            .entries(self.classes.iter().map(|(mtu, _)| mtu))
            .finish()
    }
}

impl Interfaces {
    /// Makes the class of the port's own MTU and the smaller plateaus.
    pub(crate) fn new(mtu: usize, super_bytes: usize) -> Self {
        let smaller = PLATEAUS.iter().copied().filter(|plateau| *plateau < mtu);
        let classes: Vec<(usize, Interface)> = core::iter::once(mtu)
            .chain(smaller)
            .map(|mtu| (mtu, interface(mtu, 0, Instant::ZERO)))
            .collect();
        let cutting = classes
            .iter()
            .filter(|_| super_bytes > 0)
            .map(|(mtu, _)| {
                make(
                    Nowhere {
                        mtu: *mtu,
                        super_bytes,
                    },
                    0,
                    Instant::ZERO,
                )
            })
            .collect();
        Self { classes, cutting }
    }

    /// The interface of a class for a call that may write a super-frame.
    pub(crate) fn cutting(&mut self, class: u8) -> Option<&mut Interface> {
        self.cutting.get_mut(usize::from(class))
    }

    /// The class for a path of `mtu` bytes: the largest not above it, or the smallest there is.
    pub(crate) fn class_for(&self, mtu: usize) -> u8 {
        let found = self.classes.iter().position(|(class, _)| *class <= mtu);
        u8::try_from(found.unwrap_or_else(|| self.classes.len().saturating_sub(1))).unwrap_or(0)
    }

    /// The MTU of a class.
    pub(crate) fn mtu(&self, class: u8) -> usize {
        self.classes
            .get(usize::from(class))
            .map_or(PLATEAU_MIN, |(mtu, _)| *mtu)
    }

    /// The interface of a class. An unknown class is the port's own.
    pub(crate) fn of(&mut self, class: u8) -> Option<&mut Interface> {
        let class = if usize::from(class) < self.classes.len() {
            usize::from(class)
        } else {
            0
        };
        self.classes.get_mut(class).map(|(_, interface)| interface)
    }
}

/// Makes an interface. Its next sequence number is decided by `seed`, so one made for a single SYN gives that flow
/// the RFC 6528 number we want.
pub(crate) fn interface(mtu: usize, seed: u64, now: Instant) -> Interface {
    make(
        Nowhere {
            mtu,
            super_bytes: 0,
        },
        seed,
        now,
    )
}

fn make(mut device: Nowhere, seed: u64, now: Instant) -> Interface {
    let mut config = Config::new(HardwareAddress::Ip);
    config.random_seed = seed;
    let mut interface = Interface::new(config, &mut device, to_engine_time(now));
    // Which addresses are ours was asked in the demultiplexer.
    interface.set_any_ip(true);
    interface
}

/// smoltcp's time of `now`.
pub(crate) fn to_engine_time(now: Instant) -> smoltcp::time::Instant {
    smoltcp::time::Instant::from_micros(i64::try_from(now.micros()).unwrap_or(i64::MAX))
}

fn capabilities(mtu: usize, super_bytes: usize) -> DeviceCapabilities {
    let mut capabilities = DeviceCapabilities::default();
    capabilities.medium = Medium::Ip;
    capabilities.max_transmission_unit = mtu;
    capabilities.checksum = ChecksumCapabilities::ignored();
    // Never for IPv6: smoltcp 0.14 loses such frames.
    capabilities.segmentation.tcpv4 = NonZeroUsize::new(super_bytes);
    capabilities
}

/// A device that only has capabilities: an interface reads them when it is made.
struct Nowhere {
    mtu: usize,
    super_bytes: usize,
}

impl Device for Nowhere {
    type RxToken<'t> = Received<'t>;
    type TxToken<'t> = Nothing;

    fn receive(&mut self, _: smoltcp::time::Instant) -> Option<(Received<'_>, Nothing)> {
        None
    }

    fn transmit(&mut self, _: smoltcp::time::Instant) -> Option<Nothing> {
        None
    }

    fn capabilities(&self) -> DeviceCapabilities {
        capabilities(self.mtu, self.super_bytes)
    }
}

enum Nothing {}

impl TxToken for Nothing {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, _: usize, _: F) -> R {
        match self {}
    }
}

/// Path MTUs that occur (RFC 1191 table 7-1, less the rare ones), largest first.
const PLATEAUS: [usize; 6] = [8166, 4352, 1492, 1280, 1006, PLATEAU_MIN];
/// Every IPv4 host accepts this much (RFC 1122 section 3.3.2).
const PLATEAU_MIN: usize = 576;
