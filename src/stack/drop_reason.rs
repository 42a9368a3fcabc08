//! Why a received frame is dropped; each reason has a counter.

use super::counters::StackCounters;
use super::frame::Ipv4Fault;
use crate::telemetry::OwnCounter;

macro_rules! drop_reasons {
    ($($(#[$doc:meta])* $variant:ident => $counter:ident,)+) => {
        /// Why a frame is dropped.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum DropReason { $($(#[$doc])* $variant,)+ }

        impl DropReason {
            /// Every reason.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// The name of its counter.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => stringify!($counter),)+ }
            }

            /// Its counter.
            #[must_use]
            pub const fn counter(self, counters: &StackCounters) -> &OwnCounter {
                match self { $(Self::$variant => &counters.$counter,)+ }
            }
        }
    };
}

drop_reasons! {
    /// Shorter than its Ethernet header.
    EthernetTruncated => rx_dropped_ethernet_truncated,
    /// The port found a checksum wrong.
    PortChecksum => rx_dropped_port_checksum,
    /// Sent to another station.
    OtherMac => rx_dropped_other_mac,
    /// From a group MAC address.
    SourceMac => rx_dropped_source_mac,
    /// On a VLAN that is not ours.
    OtherVlan => rx_dropped_other_vlan,
    /// Neither IPv4 nor ARP.
    EtherType => rx_dropped_ether_type,
    /// An IPv4 header is cut off.
    Ipv4Truncated => rx_dropped_ipv4_truncated,
    /// The IP version is not 4.
    Ipv4Version => rx_dropped_ipv4_version,
    /// The IPv4 header length is below 20.
    Ipv4HeaderLength => rx_dropped_ipv4_header_length,
    /// The IPv4 total length fits neither header nor frame.
    Ipv4TotalLength => rx_dropped_ipv4_total_length,
    /// The IPv4 header checksum is wrong.
    Ipv4Checksum => rx_dropped_ipv4_checksum,
    /// IPv4 options are malformed.
    Ipv4Options => rx_dropped_ipv4_options,
    /// A source route.
    SourceRoute => rx_dropped_ipv4_source_route,
    /// A fragment.
    Fragment => rx_dropped_ipv4_fragment,
    /// From an address that nobody can be answered at.
    Source => rx_dropped_ipv4_source,
    /// From our own address, but not from our own loop.
    SourceOurs => rx_dropped_ipv4_source_ours,
    /// To an address that is not ours.
    OtherAddress => rx_dropped_ipv4_other_address,
    /// To a multicast group.
    Multicast => rx_dropped_ipv4_multicast,
    /// To our unicast address in a group frame.
    LinkBroadcast => rx_dropped_link_broadcast,
    /// Source and destination endpoint are the same.
    Land => rx_dropped_land,
    /// A protocol that we do not speak.
    Protocol => rx_dropped_protocol,
    /// TCP to a broadcast or multicast address.
    TcpBroadcast => rx_dropped_tcp_broadcast,
    /// The TCP header is cut off or its offset is wrong.
    TcpTruncated => rx_dropped_tcp_truncated,
    /// The TCP checksum is wrong.
    TcpChecksum => rx_dropped_tcp_checksum,
    /// A TCP option has an illegal length.
    TcpOptions => rx_dropped_tcp_options,
    /// No TCP flag is set.
    TcpFlagsNone => rx_dropped_tcp_flags_none,
    /// Every TCP flag is set.
    TcpFlagsAll => rx_dropped_tcp_flags_all,
    /// SYN and FIN.
    TcpFlagsSynFin => rx_dropped_tcp_flags_syn_fin,
    /// SYN and RST.
    TcpFlagsSynRst => rx_dropped_tcp_flags_syn_rst,
    /// A TCP or UDP port is 0.
    PortZero => rx_dropped_port_zero,
    /// The UDP header is cut off or its length is wrong.
    UdpTruncated => rx_dropped_udp_truncated,
    /// The UDP checksum is wrong.
    UdpChecksum => rx_dropped_udp_checksum,
    /// The ICMP header is cut off.
    IcmpTruncated => rx_dropped_icmp_truncated,
    /// The ICMP checksum is wrong.
    IcmpChecksum => rx_dropped_icmp_checksum,
}

impl From<Ipv4Fault> for DropReason {
    fn from(fault: Ipv4Fault) -> Self {
        match fault {
            Ipv4Fault::Truncated => Self::Ipv4Truncated,
            Ipv4Fault::Version => Self::Ipv4Version,
            Ipv4Fault::HeaderLength => Self::Ipv4HeaderLength,
            Ipv4Fault::TotalLength => Self::Ipv4TotalLength,
        }
    }
}
