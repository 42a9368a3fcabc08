//! What the stack counts.

crate::counters! {
    /// Counters of one stack; every frame that is not used raises exactly one of the `rx_dropped_` ones.
    pub struct StackCounters {
        /// Shorter than its Ethernet header.
        rx_dropped_ethernet_truncated,
        /// The port found a checksum wrong.
        rx_dropped_port_checksum,
        /// Sent to another station.
        rx_dropped_other_mac,
        /// From a group MAC address.
        rx_dropped_source_mac,
        /// On a VLAN that is not ours.
        rx_dropped_other_vlan,
        /// Neither IPv4 nor ARP.
        rx_dropped_ether_type,
        /// An IPv4 header is cut off.
        rx_dropped_ipv4_truncated,
        /// The IP version is not 4.
        rx_dropped_ipv4_version,
        /// The IPv4 header length is below 20.
        rx_dropped_ipv4_header_length,
        /// The IPv4 total length fits neither header nor frame.
        rx_dropped_ipv4_total_length,
        /// The IPv4 header checksum is wrong.
        rx_dropped_ipv4_checksum,
        /// IPv4 options are malformed.
        rx_dropped_ipv4_options,
        /// A source route (RFC 7126 section 4.3: drop).
        rx_dropped_ipv4_source_route,
        /// A fragment.
        rx_dropped_ipv4_fragment,
        /// From a broadcast, multicast, loopback, reserved or zero address.
        rx_dropped_ipv4_source,
        /// From our own address, but not from our own loop.
        rx_dropped_ipv4_source_ours,
        /// To an address that is not ours.
        rx_dropped_ipv4_other_address,
        /// To a multicast group.
        rx_dropped_ipv4_multicast,
        /// To our unicast address in a group frame (RFC 1122 section 3.3.6).
        rx_dropped_link_broadcast,
        /// Source and destination endpoint are the same.
        rx_dropped_land,
        /// A protocol that we do not speak.
        rx_dropped_protocol,
        /// TCP to a broadcast or multicast address (RFC 9293 section 3.9.2.3).
        rx_dropped_tcp_broadcast,
        /// The TCP header is cut off or its offset is wrong.
        rx_dropped_tcp_truncated,
        /// The TCP checksum is wrong.
        rx_dropped_tcp_checksum,
        /// A TCP option has an illegal length.
        rx_dropped_tcp_options,
        /// No TCP flag is set.
        rx_dropped_tcp_flags_none,
        /// Every TCP flag is set.
        rx_dropped_tcp_flags_all,
        /// SYN and FIN.
        rx_dropped_tcp_flags_syn_fin,
        /// SYN and RST.
        rx_dropped_tcp_flags_syn_rst,
        /// A TCP or UDP port is 0.
        rx_dropped_port_zero,
        /// The UDP header is cut off or its length is wrong.
        rx_dropped_udp_truncated,
        /// The UDP checksum is wrong.
        rx_dropped_udp_checksum,
        /// The ICMP header is cut off.
        rx_dropped_icmp_truncated,
        /// The ICMP checksum is wrong.
        rx_dropped_icmp_checksum,
    }
}
