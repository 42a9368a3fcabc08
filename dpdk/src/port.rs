//! The port: found by name, configured for what it has, its queues and its pools.

use core::ffi::{CStr, c_int};
use core::ptr;

use dpdk_sys as sys;
use dpdk_sys::abi::{
    Chunk, OFFLOAD_LRO, OFFLOAD_RX_CHECKSUM, OFFLOAD_TSO, OFFLOAD_TX_CHECKSUM, PortFacts, Queue,
    QueueStats, RSS_KEY_BYTES, StartArgs, Stats, TRUST_CHECKSUM,
};

use crate::table::Failure;
use crate::{closing, eal};

use plan::{Plan, plan};

mod plan;
mod pool;

/// A started port.
pub(crate) struct Port {
    id: u16,
    queues: Vec<*mut Queue>,
    pool: *mut sys::rte_mempool,
    large: *mut sys::rte_mempool,
    /// For received frames, where they are to lie in large buffers.
    received: *mut sys::rte_mempool,
    own_process: bool,
    /// Somebody else may read the frames' memory until the process ends.
    is_lent: bool,
}

// SAFETY: the pointers are to DPDK's shared memory and to queue records; the table hands a queue to one
// lcore only, the rest of a port is called under the table's lock.
unsafe impl Send for Port {}

impl Port {
    /// Opens and starts the port that `args` names. `before` are the packet sockets open before EAL.
    pub(crate) fn open(
        args: &StartArgs,
        before: &[c_int],
        facts: &mut PortFacts,
    ) -> Result<Self, Failure> {
        let name =
            eal::string(args.port_name).ok_or_else(|| Failure::new(-22, "no port is named"))?;
        let id = find(name)?;
        let info = info(id)?;
        let driver = eal::string(info.driver_name)
            .unwrap_or(c"unknown driver")
            .to_string_lossy();
        let title = title(&driver, name, &info);
        let queues = queue_count(args, &info, &title)?;
        // SAFETY: the port is valid.
        let socket = unsafe { sys::rte_eth_dev_socket_id(id) };
        let copies = driver == "net_af_packet";
        let pools = |name, count: u32, room| {
            if count == 0 {
                return Ok(ptr::null_mut());
            }
            // Not all of them in the caches of some lcores.
            let cache = (count / u32::from(queues) / 4).min(256);
            pool::make(name, (count, cache), room, socket, copies)
        };
        let pool = pools(c"knet_frames", args.pool_mbufs, args.mbuf_room)?;
        let large = pools(c"knet_large", args.large_mbufs, args.large_room)?;
        // Of its own: a ring that cannot be filled again, because what is sent holds the buffers, would be deaf to the
        // acknowledgements that it is held for.
        let received = pools(c"knet_received", args.rx_large_mbufs, args.large_room)?;
        let mut port = Self {
            id,
            queues: Vec::new(),
            pool,
            large,
            received,
            own_process: args.own_process != 0,
            is_lent: false,
        };
        let own_socket = driver == "net_af_packet" || driver == "net_af_xdp";
        let mut plan = plan(args, &info, own_socket, &driver, &title)?;
        if plan.peer_decides {
            // Before the port is configured: its peer may come at once.
            // SAFETY: the port is valid, the name is the driver's own.
            let rc = unsafe { sys::knet_peer_watch(id, info.driver_name) };
            plan.peer_decides = rc == 0;
        }
        if let Err(failure) = port.start(args, queues, &info, &plan, &title) {
            // Some drivers refuse receive interrupts instead of ignoring the wish.
            if !plan.interrupts {
                return Err(failure);
            }
            plan.interrupts = false;
            port.start(args, queues, &info, &plan, &title)?;
        }
        if plan.peer_decides {
            // SAFETY: the port is started.
            unsafe { sys::knet_peer_ask() };
        }
        port.make_queues(queues, &plan)?;
        port.find_wakeups(before, own_socket, plan.interrupts);
        *facts = port.facts(args, &info, &plan, own_socket, &title);
        Ok(port)
    }

    fn start(
        &self,
        args: &StartArgs,
        queues: u16,
        info: &sys::rte_eth_dev_info,
        plan: &Plan,
        title: &str,
    ) -> Result<(), Failure> {
        // SAFETY: plain data, all zero is its default.
        let mut conf: sys::rte_eth_conf = unsafe { core::mem::zeroed() };
        conf.rxmode.offloads = plan.rx_offloads;
        conf.txmode.offloads = plan.tx_offloads;
        if plan.mtu != DEFAULT_MTU && !plan.mtu_by_kernel {
            conf.rxmode.mtu = u32::from(plan.mtu);
        }
        // SAFETY: a constant.
        if plan.rx_offloads & unsafe { sys::knet_rx_lro_offloads } != 0 {
            conf.rxmode.max_lro_pkt_size = args.large_room.min(info.max_lro_pkt_size);
        }
        if queues > 1 {
            // SAFETY: a constant.
            let fields = info.flow_type_rss_offloads & unsafe { sys::knet_rss_fields };
            if fields != 0 {
                // SAFETY: a constant.
                conf.rxmode.mq_mode = unsafe { sys::knet_rss_mode };
                conf.rx_adv_conf.rss_conf.rss_hf = fields;
                if takes_key(info) {
                    // The driver copies it and does not write there.
                    conf.rx_adv_conf.rss_conf.rss_key = args.rss_key.as_ptr().cast_mut();
                    conf.rx_adv_conf.rss_conf.rss_key_len = info.hash_key_size;
                }
            }
        }
        conf.intr_conf.set_rxq(u32::from(plan.interrupts));
        // SAFETY: the port is valid and stopped, the configuration lives for the call.
        let rc = unsafe { sys::rte_eth_dev_configure(self.id, queues, queues, &raw const conf) };
        check(rc, title, "the configuration was refused")?;
        self.set_up_queues(args, queues, info, title)?;
        self.set_mtu(plan, title)?;
        self.set_mac(args, title)?;
        // SAFETY: the port is configured and its queues are set up.
        let rc = unsafe { sys::rte_eth_dev_start(self.id) };
        check(rc, title, "did not start")?;
        // Multicast (NDP) is a wish: a port that cannot filter receives it anyway.
        // SAFETY: the port is valid.
        unsafe { sys::rte_eth_allmulticast_enable(self.id) };
        Ok(())
    }

    fn set_up_queues(
        &self,
        args: &StartArgs,
        queues: u16,
        info: &sys::rte_eth_dev_info,
        title: &str,
    ) -> Result<(), Failure> {
        let mut rx_entries = u16::try_from(args.rx_ring_entries).unwrap_or(u16::MAX);
        let mut tx_entries = u16::try_from(args.tx_ring_entries).unwrap_or(u16::MAX);
        let (rx, tx) = (&raw mut rx_entries, &raw mut tx_entries);
        // SAFETY: the port is configured, both numbers are ours.
        let rc = unsafe { sys::rte_eth_dev_adjust_nb_rx_tx_desc(self.id, rx, tx) };
        check(rc, title, "the ring sizes were refused")?;
        // SAFETY: the port is valid.
        let socket = unsafe { sys::rte_eth_dev_socket_id(self.id) };
        let socket = u32::try_from(socket).unwrap_or(ANY_SOCKET);
        for queue in 0..queues {
            // SAFETY: configured with this many queues; null means the driver's defaults.
            let rc = unsafe {
                sys::rte_eth_rx_queue_setup(
                    self.id,
                    queue,
                    rx_entries,
                    socket,
                    ptr::null(),
                    if self.received.is_null() {
                        self.pool
                    } else {
                        self.received
                    },
                )
            };
            check(rc, title, "a receive queue was refused")?;
            let set_up = |conf: *const sys::rte_eth_txconf| {
                // SAFETY: the same; `conf` is null or lives for the call.
                unsafe { sys::rte_eth_tx_queue_setup(self.id, queue, tx_entries, socket, conf) }
            };
            let mut rc = -EINVAL;
            if frees_late(info) {
                let mut conf = info.default_txconf;
                conf.tx_free_thresh = tx_entries.min(VIRTIO_RING).saturating_sub(4);
                rc = set_up(&raw const conf);
            }
            // A ring shorter than that keeps what the driver thinks best.
            if rc != 0 {
                rc = set_up(ptr::null());
            }
            check(rc, title, "a transmit queue was refused")?;
        }
        Ok(())
    }

    /// Sets the MTU only where it differs: some drivers change the kernel's interface with it.
    fn set_mtu(&self, plan: &Plan, title: &str) -> Result<(), Failure> {
        let mut now = 0;
        // SAFETY: the port is valid, the number is ours.
        let rc = unsafe { sys::rte_eth_dev_get_mtu(self.id, &raw mut now) };
        if plan.mtu_by_kernel || (rc == 0 && now == plan.mtu) {
            return Ok(());
        }
        // SAFETY: the port is valid and stopped.
        let rc = unsafe { sys::rte_eth_dev_set_mtu(self.id, plan.mtu) };
        check(rc, title, &format!("an MTU of {} was refused", plan.mtu))
    }

    fn set_mac(&self, args: &StartArgs, title: &str) -> Result<(), Failure> {
        if args.mac_set == 0 || self.mac() == args.mac {
            return Ok(());
        }
        let mut address = sys::rte_ether_addr {
            addr_bytes: args.mac,
        };
        // SAFETY: the port is valid, the address lives for the call.
        let rc = unsafe { sys::rte_eth_dev_default_mac_addr_set(self.id, &raw mut address) };
        check(rc, title, "the MAC address was refused")
    }

    fn make_queues(&mut self, queues: u16, plan: &Plan) -> Result<(), Failure> {
        for index in 0..queues {
            // SAFETY: the port has this queue, the pools live as long as the port.
            let queue = unsafe {
                sys::knet_queue_new(
                    self.id,
                    index,
                    self.pool,
                    self.large,
                    plan.tx_offloads,
                    plan.peer_decides,
                )
            };
            if queue.is_null() {
                return Err(Failure::new(-12, "no memory for a queue"));
            }
            self.queues.push(queue);
        }
        Ok(())
    }

    /// Gives each queue what a sleeper can wait on: the driver's own socket, or the port's interrupt.
    fn find_wakeups(&self, before: &[c_int], own_socket: bool, interrupts: bool) {
        if own_socket {
            // One socket a queue, opened in order, so numbered in order.
            let mut opened = eal::packet_sockets();
            opened.retain(|fd| !before.contains(fd));
            if opened.len() >= self.queues.len() {
                for (queue, fd) in self.queues.iter().zip(opened) {
                    // SAFETY: the queue is ours and not in use yet.
                    unsafe { sys::knet_queue_use_socket(*queue, fd) };
                }
            }
        } else if interrupts {
            for queue in &self.queues {
                // None yet is no error: vhost gets its descriptor from the peer, later.
                // SAFETY: the same.
                unsafe { sys::knet_queue_use_interrupt(*queue) };
            }
        }
    }

    fn facts(
        &self,
        args: &StartArgs,
        info: &sys::rte_eth_dev_info,
        plan: &Plan,
        own_socket: bool,
        title: &str,
    ) -> PortFacts {
        let mut facts = PortFacts::EMPTY;
        facts.queues = u32::try_from(self.queues.len()).unwrap_or(0);
        facts.rss_entries = self.spread(info);
        facts.mac = self.mac();
        facts.mtu = u32::from(plan.mtu);
        if info.if_index != 0 {
            // SAFETY: asks the kernel, touches no memory of ours.
            let kernel = unsafe { sys::knet_interface_mtu(info.if_index) };
            facts.mtu = facts.mtu.min(u32::try_from(kernel).unwrap_or(facts.mtu));
        }
        // SAFETY: constants.
        let rx_checksum = unsafe { sys::knet_rx_checksum_offloads };
        // SAFETY: the same.
        let lro = unsafe { sys::knet_rx_lro_offloads };
        // SAFETY: the same.
        let tx_checksum = unsafe { sys::knet_tx_tcp_offload };
        // SAFETY: the same.
        let tso = unsafe { sys::knet_tx_tso_offload };
        let mut set = |holds: bool, bit: u32| facts.offloads |= if holds { bit } else { 0 };
        set(plan.rx_offloads & rx_checksum != 0, OFFLOAD_RX_CHECKSUM);
        set(plan.rx_offloads & lro != 0, OFFLOAD_LRO);
        set(plan.tx_offloads & tx_checksum != 0, OFFLOAD_TX_CHECKSUM);
        let cuts = plan.tx_offloads & tso != 0 || plan.peer_decides;
        set(cuts, OFFLOAD_TSO);
        set(own_socket, TRUST_CHECKSUM);
        if cuts {
            facts.tso_bytes = args.large_room;
        }
        let more = if plan.peer_decides {
            ", super-frames while its peer takes them"
        } else {
            ""
        };
        let room = facts.description.len() - 1;
        let text = title.bytes().chain(more.bytes()).take(room);
        for (to, from) in facts.description.iter_mut().zip(text) {
            *to = from;
        }
        facts
    }

    /// Deals the entries of the port's indirection table out to the queues; how many there are, 0 when the port does not spread
    /// as it was told.
    fn spread(&self, info: &sys::rte_eth_dev_info) -> u16 {
        let queues = u16::try_from(self.queues.len()).unwrap_or(0);
        // SAFETY: a constant.
        let fields = info.flow_type_rss_offloads & unsafe { sys::knet_rss_fields };
        if queues < 2 || fields == 0 || !takes_key(info) || !info.reta_size.is_power_of_two() {
            return 0;
        }
        // SAFETY: the port is started, and has so many queues.
        let rc = unsafe { sys::knet_spread(self.id, info.reta_size, queues) };
        if rc == 0 { info.reta_size } else { 0 }
    }

    fn mac(&self) -> [u8; 6] {
        let mut address = sys::rte_ether_addr { addr_bytes: [0; 6] };
        // SAFETY: the port is valid, the address is ours; it stays zero when the call fails.
        unsafe { sys::rte_eth_macaddr_get(self.id, &raw mut address) };
        address.addr_bytes
    }

    /// The queue pair with this index.
    pub(crate) fn queue(&self, index: u32) -> Option<*mut Queue> {
        self.queues.get(index as usize).copied()
    }

    /// Counters of the driver and of the C file.
    pub(crate) fn stats(&self) -> Stats {
        // SAFETY: plain data.
        let mut driver: sys::rte_eth_stats = unsafe { core::mem::zeroed() };
        // SAFETY: the port is valid, the record is ours; it stays zero when the call fails.
        unsafe { sys::rte_eth_stats_get(self.id, &raw mut driver) };
        let mut out = Stats {
            rx_frames: driver.ipackets,
            tx_frames: driver.opackets,
            rx_missed: driver.imissed.saturating_add(driver.rx_nombuf),
            rx_errors: driver.ierrors,
            tx_errors: driver.oerrors,
            ..Stats::default()
        };
        for pool in [self.pool, self.large, self.received] {
            pool::add(&mut out, pool);
        }
        for queue in &self.queues {
            let mut one = QueueStats::default();
            // SAFETY: the queue lives as long as the port; its counters are read atomically.
            unsafe { sys::knet_queue_stats(*queue, &raw mut one) };
            out.dropped.rx_dropped_chained += one.rx_dropped_chained;
            out.dropped.tx_dropped_refused += one.tx_dropped_refused;
            out.dropped.tx_dropped_malformed += one.tx_dropped_malformed;
        }
        out
    }

    /// Whether the link is up.
    pub(crate) fn link_up(&self) -> bool {
        // SAFETY: the port is valid.
        unsafe { sys::knet_link_up(self.id) == 1 }
    }

    /// Fills `chunks` with where the frames lie, and says how many chunks there are. Their memory stays from then on.
    pub(crate) fn lend_memory(&mut self, chunks: &mut [Chunk]) -> u32 {
        self.is_lent = true;
        let room = u32::try_from(chunks.len()).unwrap_or(u32::MAX);
        let mut count = 0;
        for pool in [self.pool, self.large, self.received] {
            // SAFETY: null, or a pool of the port's; there are `room` places, of which `count` are taken.
            count = unsafe { sys::knet_pool_chunks(pool, chunks.as_mut_ptr(), room, count) };
        }
        count
    }

    /// Stops and closes the port and frees its memory, if that was not lent; says whether EAL may be stopped as well. The caller
    /// promises that no burst call runs.
    pub(crate) fn close(self) -> bool {
        let _diverted = eal::divert(self.own_process);
        // SAFETY: the port is valid; nothing happens where no peer is watched.
        unsafe { sys::knet_peer_unwatch() };
        closing::close(self.id);
        for queue in &self.queues {
            // SAFETY: made by `knet_queue_new`, freed once.
            unsafe { sys::knet_queue_free(*queue) };
        }
        if self.is_lent {
            return false;
        }
        // SAFETY: the closed port holds no buffer of the pool any more.
        unsafe { sys::rte_mempool_free(self.pool) };
        // SAFETY: the same; null is allowed.
        unsafe { sys::rte_mempool_free(self.large) };
        // SAFETY: the same.
        unsafe { sys::rte_mempool_free(self.received) };
        true
    }
}

/// Whether the driver (virtio, as a card or a process) leaves sent buffers in its ring until 32 places are left: large ones run out
/// before that, and each is used again when it has left the caches.
fn frees_late(info: &sys::rte_eth_dev_info) -> bool {
    eal::string(info.driver_name).is_some_and(|name| name.to_bytes().starts_with(b"net_virtio"))
}

/// Entries of a ring of virtio unless it is told otherwise.
const VIRTIO_RING: u16 = 256;
const EINVAL: c_int = 22;

/// The MTU that every driver has without being told.
const DEFAULT_MTU: u16 = 1500;

/// SOCKET_ID_ANY as the queue calls take it.
const ANY_SOCKET: u32 = u32::MAX;

fn check(rc: c_int, title: &str, what: &str) -> Result<(), Failure> {
    if rc == 0 {
        Ok(())
    } else {
        Err(Failure::new(
            rc,
            eal::describe(&format!("{title}: {what}"), rc),
        ))
    }
}

fn find(name: &CStr) -> Result<u16, Failure> {
    let mut id = 0;
    // SAFETY: the string ends with NUL, the number is ours.
    let rc = unsafe { sys::rte_eth_dev_get_port_by_name(name.as_ptr(), &raw mut id) };
    if rc == 0 {
        return Ok(id);
    }
    // A card with several ports names them otherwise; the one that was probed is meant.
    // SAFETY: EAL is up.
    if unsafe { sys::rte_eth_dev_count_avail() } == 1 {
        // SAFETY: the same.
        return Ok(unsafe { sys::rte_eth_find_next(0) });
    }
    let what = format!("DPDK found no port {}", name.to_string_lossy());
    Err(Failure::new(-19, eal::describe(&what, 19)))
}

fn info(id: u16) -> Result<sys::rte_eth_dev_info, Failure> {
    // SAFETY: plain data.
    let mut info: sys::rte_eth_dev_info = unsafe { core::mem::zeroed() };
    // SAFETY: the port is valid, the record is ours.
    let rc = unsafe { sys::rte_eth_dev_info_get(id, &raw mut info) };
    check(rc, "port", "tells nothing about itself")?;
    Ok(info)
}

/// `driver (name)`, with the kernel's name where there is one.
fn title(driver: &str, name: &CStr, info: &sys::rte_eth_dev_info) -> String {
    let mut kernel = [0_u8; 16];
    if info.if_index != 0 {
        // SAFETY: writes at most IF_NAMESIZE (16) bytes.
        let rc = unsafe { sys::knet_interface_name(info.if_index, kernel.as_mut_ptr().cast()) };
        if let (0, Ok(kernel)) = (rc, CStr::from_bytes_until_nul(&kernel)) {
            return format!("{driver} ({})", kernel.to_string_lossy());
        }
    }
    format!("{driver} ({})", name.to_string_lossy())
}

fn queue_count(
    args: &StartArgs,
    info: &sys::rte_eth_dev_info,
    title: &str,
) -> Result<u16, Failure> {
    let most = info.max_rx_queues.min(info.max_tx_queues);
    match u16::try_from(args.queues) {
        Ok(queues) if queues >= 1 && queues <= most => Ok(queues),
        // Some of several would be left without a queue: then they share one.
        Ok(queues) if queues > most && most >= 1 => Ok(1),
        _ => Err(Failure::new(
            -22,
            format!("{title}: {} queues, the port has {most}", args.queues),
        )),
    }
}

/// Whether the port takes a key for spreading that we have enough bytes of. The hash of an IPv4 flow uses 16.
fn takes_key(info: &sys::rte_eth_dev_info) -> bool {
    (16..=RSS_KEY_BYTES).contains(&usize::from(info.hash_key_size))
}
