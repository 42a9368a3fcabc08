//! What the stack counts.

crate::counters! {
    /// Counters of one stack; every frame that demultiplexing refuses raises exactly one of the `rx_dropped_` ones.
    pub struct StackCounters of OwnCounter {
        /// Frames received from the port.
        rx_frames,
        /// Bytes of those, from the MAC addresses on.
        rx_bytes,
        /// Frames received from ourselves.
        rx_frames_looped,
        /// TCP segments that passed the checks of the demultiplexer.
        rx_tcp_segments,
        /// Of those, segments that were joined with their neighbours before they were looked at.
        rx_segments_joined,
        /// Segments that the guard dropped without an answer.
        rx_segments_ignored,
        /// Segments that reached beyond the advertised window and were cut.
        rx_segments_trimmed,
        /// First segments sent again because the peer has what lies behind them, or said so when it was asked.
        segments_mended,
        /// Peers that were asked what they have, because they did not acknowledge it in time.
        peers_asked,
        /// Retransmission time-outs of flows.
        time_outs,
        /// What time shows to be lost and is mended later, because too many flows lose at once.
        mends_put_off,
        /// Segments wholly beyond the advertised window.
        rx_segments_beyond_window,
        /// Resets for connections that do not exist.
        rx_resets_ignored,
        /// ARP packets received.
        rx_arp_packets,
        /// ARP packets in which another station claims one of our addresses.
        arp_duplicates,
        /// UDP datagrams received; nobody listens for them yet.
        rx_datagrams,
        /// ICMP messages received.
        rx_icmp_messages,
        /// Frames given to the port or the loop.
        tx_frames,
        /// Bytes of those, from the MAC addresses on.
        tx_bytes,
        /// Frames lost because the port had no buffer.
        tx_dropped_no_buffer,
        /// Calls of transmit that ended because the port was full.
        transmits_stopped_no_room,
        /// Marks of urgent data that peers have set.
        urgent_marks,
        /// SYNs that made a half-open flow.
        syns_received,
        /// SYNs dropped because too many handshakes run.
        syn_dropped_backlog_full,
        /// SYNs dropped because too many connections wait for accept.
        syn_dropped_accept_queue_full,
        /// SYNs dropped because the flow table is full.
        syn_dropped_flow_table_full,
        /// SYNs dropped because there is no memory for a receive ring.
        syn_dropped_no_memory,
        /// Handshakes not completed because too many connections wait for accept.
        ack_dropped_accept_queue_full,
        /// Acknowledgements that would have completed a handshake which waits for bytes (TCP_DEFER_ACCEPT).
        acks_deferred,
        /// SYN-ACKs sent again because the SYN came again.
        syn_acks_sent_again,
        /// Flows that were established through a listener.
        flows_accepted,
        /// Flows begun by connect.
        flows_connecting,
        /// Of them, those whose port was chosen by their program so that another lcore receives for them.
        flows_guest,
        /// Connects that came to a connection.
        flows_connected,
        /// SYNs sent again at once, because the peer took the first one for part of a connection before.
        syns_hastened,
        /// Flows freed.
        flows_freed,
        /// Flows that went to TIME-WAIT.
        flows_time_wait,
        /// Connects refused by a reset.
        flows_refused,
        /// Connections in TIME-WAIT given up early because the table was full.
        time_wait_dropped_full,
        /// Flows reset by the peer.
        flows_reset_by_peer,
        /// Half-open flows reset by the peer.
        flows_reset_half_open,
        /// Flows reset because the program let go of them hard or with unread bytes.
        flows_reset_by_close,
        /// Flows reset because data came after the program had let go.
        flows_reset_data_after_close,
        /// Flows given up because nothing was acknowledged any more.
        flows_timed_out,
        /// Flows given up because keep-alive probes were not answered.
        flows_timed_out_keepalive,
        /// Flows without a program that took too long to end.
        flows_timed_out_orphan,
        /// Connects given up after the last SYN.
        flows_timed_out_syn,
        /// Half-open flows given up in favour of a new one because too many handshakes run.
        flows_gave_way_half_open,
        /// Half-open flows given up after the last SYN-ACK.
        flows_timed_out_half_open,
        /// Connects refused or ended by an ICMP error.
        flows_ended_icmp,
        /// Connects ended because the next hop does not answer ARP.
        flows_ended_no_neighbor,
        /// Flows whose path has a smaller MTU than thought.
        flows_mtu_lowered,
        /// Flows dropped because smoltcp panicked.
        flows_dropped_panic,
        /// Challenge ACKs (RFC 5961).
        challenge_acks_sent,
        /// Challenge ACKs not sent because of the limit.
        challenge_acks_limited,
        /// ACKs for connections in TIME-WAIT.
        time_wait_acks_sent,
        /// Connections in TIME-WAIT replaced by a new SYN.
        time_wait_replaced,
        /// Connections in TIME-WAIT that the peer has reset.
        time_wait_reset,
        /// Resets for segments without a connection.
        resets_sent_no_flow,
        /// Such resets not sent because of the limit.
        resets_limited,
        /// Keep-alive probes.
        keepalive_probes_sent,
        /// Frames that the port cuts into segments.
        tx_super_frames,
        /// Idle flows whose memory was given back.
        flows_rested,
        /// Times that memory for a larger window was refused.
        ring_growth_refused,
        /// Echo replies.
        icmp_echoes_sent,
        /// Destination unreachable messages.
        icmp_errors_sent,
        /// Such messages not sent because of the limit.
        icmp_errors_limited,
        /// ICMP errors that belong to none of our segments.
        icmp_errors_ignored,
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
