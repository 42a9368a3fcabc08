//! What a port is to do, decided from its abilities and the host's wishes.

use dpdk_sys as sys;
use dpdk_sys::abi::{
    OFFLOAD_LRO, OFFLOAD_RX_CHECKSUM, OFFLOAD_TSO, OFFLOAD_TX_CHECKSUM, StartArgs,
};

use crate::table::Failure;

/// What was decided from the port's abilities and the host's wishes.
pub(super) struct Plan {
    pub(super) mtu: u16,
    /// The MTU is the kernel interface's, and the driver refuses to hear of it (af_packet, jumbo).
    pub(super) mtu_by_kernel: bool,
    pub(super) rx_offloads: u64,
    pub(super) tx_offloads: u64,
    /// Whether super-frames can be sent is the peer's to say.
    pub(super) peer_decides: bool,
    pub(super) interrupts: bool,
}

/// Decides, or says which wish the port cannot have.
pub(super) fn plan(
    args: &StartArgs,
    info: &sys::rte_eth_dev_info,
    own_socket: bool,
    driver: &str,
    title: &str,
) -> Result<Plan, Failure> {
    let mtu = u16::try_from(args.mtu)
        .map_err(|_| Failure::new(-22, format!("{title}: an MTU of {} is too large", args.mtu)))?;
    let most = largest_mtu(info);
    let above = mtu > most;
    let mtu_by_kernel = above && driver == "net_af_packet";
    if above && !mtu_by_kernel {
        return Err(Failure::new(
            -22,
            format!(
                "{title}: an MTU of {mtu} is above the port's {}",
                info.max_mtu
            ),
        ));
    }
    // SAFETY: constants.
    let rx_checksum = unsafe { sys::knet_rx_checksum_offloads };
    // SAFETY: the same.
    let lro = unsafe { sys::knet_rx_lro_offloads };
    // SAFETY: the same.
    let scatter = unsafe { sys::knet_rx_scatter_offload };
    // SAFETY: the same.
    let tcp = unsafe { sys::knet_tx_tcp_offload };
    // SAFETY: the same.
    let ipv4 = unsafe { sys::knet_tx_ipv4_offload };
    // SAFETY: the same.
    let tso = unsafe { sys::knet_tx_tso_offload };
    // SAFETY: the same.
    let fast_free = unsafe { sys::knet_tx_fast_free_offload };

    let wish = |bit: u32| args.offloads & bit != 0;
    let mut rx = 0;
    let mut tx = 0;
    if wish(OFFLOAD_RX_CHECKSUM) {
        rx |= info.rx_offload_capa & rx_checksum;
    }
    if wish(OFFLOAD_LRO) && args.large_mbufs != 0 {
        rx |= info.rx_offload_capa & lro;
    }
    if rx & lro != 0 || args.mbuf_room < args.mtu + FRAME_OVERHEAD {
        rx |= info.rx_offload_capa & scatter;
    }
    // The IPv4 header alone is nothing: the C file does it where the port cannot.
    if wish(OFFLOAD_TX_CHECKSUM) && info.tx_offload_capa & tcp != 0 {
        tx |= info.tx_offload_capa & (tcp | ipv4);
        if wish(OFFLOAD_TSO) && args.large_mbufs != 0 {
            tx |= info.tx_offload_capa & tso;
        }
    }
    // Only where all buffers of a queue come from one pool.
    if args.large_mbufs == 0 {
        tx |= info.tx_offload_capa & fast_free;
    }
    let peer_decides =
        driver == "net_vhost" && tx & tcp != 0 && wish(OFFLOAD_TSO) && args.large_mbufs != 0;
    Ok(Plan {
        mtu,
        mtu_by_kernel,
        peer_decides,
        rx_offloads: rx,
        tx_offloads: tx,
        interrupts: !own_socket,
    })
}

/// The largest MTU that the driver takes. One that names none (af_packet) still bounds the frame.
fn largest_mtu(info: &sys::rte_eth_dev_info) -> u16 {
    if info.max_mtu != 0 && info.max_mtu != u16::MAX {
        return info.max_mtu;
    }
    match info.max_rx_pktlen {
        0 | u32::MAX => u16::MAX,
        frame => u16::try_from(frame.saturating_sub(14 + 4)).unwrap_or(u16::MAX),
    }
}

/// Ethernet header, VLAN tag and FCS.
const FRAME_OVERHEAD: u32 = 14 + 4 + 4;
