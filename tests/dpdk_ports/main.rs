//! T1: real DPDK ports through the plug-in, against the kernel's end of a veth pair and between processes.
//!
//! EAL starts once a process, so every case runs in a process of its own. Those that need root make their
//! own network namespaces, which end with the process; without root, or without DPDK, a case prints
//! `skipped:` and its reason.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod agreement;
mod closing;
mod kernel;
mod process;
mod roles;
mod vhost;
mod wire;

use std::os::fd::AsRawFd;
use std::time::Duration;

use knet::device::plugin::{PluginConfig, PluginDevice, PortSelector, vdev_for_netdev};
use knet::device::{BURST_MAX, Device, RxMeta, RxQueue, TxMeta, TxQueue};
use knet::time::{Instant, monotonic};

use kernel::Peer;
use process::in_own_process;

const PEER_IP: [u8; 4] = [10, 9, 0, 2];
const OUR_IP: [u8; 4] = [10, 9, 0, 1];

fn config(port: PortSelector) -> PluginConfig {
    let mut config = PluginConfig::new(port, format!("knet-test-{}", std::process::id()));
    config.library = Some(process::plugin());
    config.pool_mbufs = 2047;
    config.lcore_cpu = process::first_cpu();
    config
}

fn veth(vdev: String) -> (Peer, PluginConfig) {
    let peer = Peer::with_veth("kn0", "kn1", "10.9.0.2/24");
    (peer, config(PortSelector::Vdev(vdev)))
}

/// Both halves and a clock that ends.
struct Queues {
    receive: Box<dyn RxQueue>,
    transmit: Box<dyn TxQueue>,
    mac: [u8; 6],
}

impl Queues {
    fn of(device: &mut PluginDevice) -> Self {
        let (receive, transmit) = device.queue_pair(0).unwrap();
        Self {
            receive,
            transmit,
            mac: device.capabilities().mac,
        }
    }

    fn send(&mut self, frame: &[u8], meta: TxMeta) {
        self.transmit
            .alloc(frame.len())
            .expect("a free buffer")
            .copy_from_slice(frame);
        self.transmit.commit(frame.len(), meta);
        let mut done = 0;
        wait_until("the frame is sent", || {
            done += self.transmit.flush(Instant::ZERO);
            done > 0
        });
    }

    /// Receives until `wanted` says that it is done with.
    fn receive_until(&mut self, what: &str, mut wanted: impl FnMut(&mut [u8], RxMeta) -> bool) {
        let mut found = false;
        wait_until(what, || {
            self.receive.rx_burst(Instant::ZERO, &mut |frames| {
                for frame in frames {
                    found |= wanted(frame.bytes, frame.meta);
                }
            });
            found
        });
    }

    /// Resolves the peer's address over the wire.
    fn arp(&mut self) -> [u8; 6] {
        let request = wire::arp_request(self.mac, OUR_IP, PEER_IP);
        self.send(&request, TxMeta::default());
        let mut mac = None;
        self.receive_until("an ARP reply", |bytes, _| {
            mac = mac.or_else(|| wire::arp_reply_from(bytes, PEER_IP));
            mac.is_some()
        });
        mac.unwrap()
    }
}

/// Polls until `done`; ten seconds mean that it never happens.
fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let start = monotonic();
    while !done() {
        assert!(
            monotonic().since(start) < Duration::from_secs(10),
            "never happened: {what}"
        );
        std::thread::yield_now();
    }
}

#[test]
fn af_packet_exchanges_frames_with_the_kernel() {
    in_own_process("af_packet_exchanges_frames_with_the_kernel", true, || {
        let (peer, config) = veth(vdev_for_netdev("kn0"));
        let cpus = process::allowed_cpus();
        let mut device = PluginDevice::open(&config).unwrap();
        assert_eq!(
            process::allowed_cpus(),
            cpus,
            "EAL moved the calling thread"
        );

        let facts = device.capabilities().clone();
        assert_eq!(facts.description, "net_af_packet (kn0)");
        assert_eq!((facts.mtu, facts.tso_bytes), (1500, 0));
        assert_eq!(facts.mac, kernel::mac_of("kn0"));
        assert!(facts.trust_checksum && !facts.tx_checksum && !facts.rx_checksum);
        assert!(device.link_up());

        let mut queues = Queues::of(&mut device);
        assert_eq!(queues.arp(), peer.mac());
        answers_ping(&mut queues, &peer, 1400);
        wakes_a_sleeper(&mut queues, &peer);
        sends_bursts(&mut queues, &device, &peer);
        survives_link_loss(&mut queues, &device, &peer);
        tells_a_deleted_interface(&mut queues, &device);

        let again = PluginDevice::open(&config).unwrap_err().message;
        assert!(again.contains("only once"), "{again}");
        assert!(device.stats().rx_frames > 0 && device.stats().tx_frames > 100);
    });
}

/// The kernel pings through us: ARP and ICMP are answered from received frames.
fn answers_ping(queues: &mut Queues, peer: &Peer, bytes: usize) {
    let size = bytes.to_string();
    let arguments = [
        "-n", "-c", "3", "-i", "0.2", "-W", "5", "-s", &size, "10.9.0.1",
    ];
    let mut ping = peer.spawn("ping", &arguments);
    let mac = queues.mac;
    let mut replies = Vec::new();
    wait_until("ping ends", || {
        queues.receive.rx_burst(Instant::ZERO, &mut |frames| {
            replies.extend(
                frames
                    .iter()
                    .filter_map(|frame| wire::reply(frame.bytes, mac, OUR_IP)),
            );
        });
        for reply in replies.drain(..) {
            queues.send(&reply, TxMeta::default());
        }
        ping.try_wait().unwrap().is_some()
    });
    assert!(
        ping.wait().unwrap().success(),
        "no answer to a ping of {bytes} bytes"
    );
}

/// The wait descriptor is silent while nothing comes, and readable when something does.
fn wakes_a_sleeper(queues: &mut Queues, peer: &Peer) {
    queues.receive.arm(true);
    while queues.receive.rx_burst(Instant::ZERO, &mut |_| {}) > 0 {}
    let fd = queues
        .receive
        .wait_fd()
        .expect("a descriptor to wait for")
        .as_raw_fd();
    assert!(!process::readable(fd, 0), "readable without a frame");
    peer.run(|| kernel::send_udp("10.9.0.1:9", b"wake"));
    assert!(process::readable(fd, 10_000), "not woken by a frame");
    queues.receive.arm(false);
    queues.receive_until("the frame that woke", |bytes, _| {
        wire::ether_type(bytes) != 0
    });
}

/// 1 000 frames in bursts: each counted once by the kernel, in the order of sending.
fn sends_bursts(queues: &mut Queues, device: &PluginDevice, peer: &Peer) {
    let listener = peer.run(|| std::net::UdpSocket::bind("10.9.0.2:7000").unwrap());
    listener
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    let (mac, to) = (queues.mac, peer.mac());
    let before = device.stats().tx_frames;
    let mut next = 0_u32;
    for _ in 0..100 {
        let last = next + 10;
        while next < last {
            let frame = wire::udp(mac, to, OUR_IP, PEER_IP, 7000, &next.to_be_bytes());
            queues
                .transmit
                .alloc(frame.len())
                .unwrap()
                .copy_from_slice(&frame);
            queues.transmit.commit(frame.len(), TxMeta::default());
            next += 1;
        }
        let mut sent = 0;
        wait_until("a burst is sent", || {
            sent += queues.transmit.flush(Instant::ZERO);
            sent == 10
        });
        for expected in next - 10..next {
            let mut bytes = [0; 4];
            assert_eq!(listener.recv(&mut bytes).unwrap(), 4);
            assert_eq!(u32::from_be_bytes(bytes), expected);
        }
    }
    assert_eq!(device.stats().tx_frames - before, 1000);
    let stats = device.stats();
    assert_eq!(stats.tx_dropped, 0);
    // The driver's rings hold some of them, or it copies and holds none.
    assert!(
        stats.buffers_free > 0 && stats.buffers_free <= stats.buffers,
        "{stats:?}"
    );
    let one = stats.buffer_bytes / stats.buffers;
    assert!(
        one > 1_500 && stats.buffer_bytes_free == one * stats.buffers_free,
        "{stats:?}"
    );
}

/// The peer's end goes down and comes back: the link is told, and traffic flows again.
fn survives_link_loss(queues: &mut Queues, device: &PluginDevice, peer: &Peer) {
    peer.ip(&["link", "set", "kn1", "down"]);
    wait_until("the link is down", || !device.link_up());
    peer.ip(&["link", "set", "kn1", "up"]);
    wait_until("the link is up", || device.link_up());
    kernel::ip(&["link", "set", "kn0", "down"]);
    wait_until("our end is down", || !device.link_up());
    // More than the driver's ring holds: nothing blocks, however much is lost.
    let note = wire::note(b"lost");
    for _ in 0..1000 {
        if let Some(room) = queues.transmit.alloc(note.len()) {
            room.copy_from_slice(&note);
            queues.transmit.commit(note.len(), TxMeta::default());
        }
        queues.transmit.flush(Instant::ZERO);
    }
    kernel::ip(&["link", "set", "kn0", "up"]);
    wait_until("our end is up", || device.link_up());
    wait_until("the burst is empty", || {
        queues.transmit.flush(Instant::ZERO);
        queues.transmit.room() == BURST_MAX
    });
    queues.receive.arm(true);
    while queues.receive.rx_burst(Instant::ZERO, &mut |_| {}) > 0 {}
    let fd = queues.receive.wait_fd().unwrap().as_raw_fd();
    assert!(
        !process::readable(fd, 0),
        "the interface's error ends every sleep"
    );
    assert_eq!(queues.arp(), peer.mac());
}

/// The interface goes for good: the link is down, nothing blocks, no sleep ends for nothing.
fn tells_a_deleted_interface(queues: &mut Queues, device: &PluginDevice) {
    kernel::ip(&["link", "delete", "kn0"]);
    wait_until("the deleted interface is down", || !device.link_up());
    queues.send(&wire::note(b"lost"), TxMeta::default());
    queues.receive.arm(true);
    while queues.receive.rx_burst(Instant::ZERO, &mut |_| {}) > 0 {}
    assert!(
        !process::readable(queues.receive.wait_fd().unwrap().as_raw_fd(), 0),
        "sleep is impossible"
    );
}

#[test]
fn af_packet_gives_each_queue_its_own_descriptor() {
    in_own_process(
        "af_packet_gives_each_queue_its_own_descriptor",
        true,
        || {
            let (peer, mut config) = veth(vdev_for_netdev("kn0"));
            config.queues = 2;
            config.rx_ring_entries = 2048;
            let mut device = PluginDevice::open(&config).unwrap();
            let pairs = [0, 1].map(|index| device.queue_pair(index).unwrap());
            let descriptors =
                [0, 1].map(|index| pairs[index].0.wait_fd().expect("a descriptor").as_raw_fd());
            assert_ne!(descriptors[0], descriptors[1]);
            let mac = device.capabilities().mac;
            for (receive, transmit) in pairs {
                let mut queues = Queues {
                    receive,
                    transmit,
                    mac,
                };
                // The answer comes to one of the two; each can ask.
                queues.send(&wire::arp_request(mac, OUR_IP, PEER_IP), TxMeta::default());
            }
            wait_until("both requests reach the peer", || peer.received() >= 2);
        },
    );
}

#[test]
fn af_packet_carries_jumbo_frames() {
    in_own_process("af_packet_carries_jumbo_frames", true, || {
        let (peer, mut config) = veth(vdev_for_netdev("kn0"));
        kernel::ip(&["link", "set", "kn0", "mtu", "9000"]);
        peer.ip(&["link", "set", "kn1", "mtu", "9000"]);
        config.mtu = 9000;
        config.pool_mbufs = 1023;
        let mut device = PluginDevice::open(&config).unwrap();
        assert_eq!(device.capabilities().mtu, 9000);
        let mut queues = Queues::of(&mut device);
        answers_ping(&mut queues, &peer, 8900);
    });
}

#[test]
fn af_packet_tells_the_smaller_mtu_of_the_interface() {
    in_own_process(
        "af_packet_tells_the_smaller_mtu_of_the_interface",
        true,
        || {
            let (_peer, config) = veth(vdev_for_netdev("kn0"));
            kernel::ip(&["link", "set", "kn0", "mtu", "1400"]);
            let device = PluginDevice::open(&config).unwrap();
            assert_eq!(device.capabilities().mtu, 1400);
        },
    );
}

#[test]
fn af_xdp_exchanges_frames_with_the_kernel() {
    in_own_process("af_xdp_exchanges_frames_with_the_kernel", true, || {
        let (peer, config) = veth("net_af_xdp0,iface=kn0,busy_budget=0".to_owned());
        let mut device = match PluginDevice::open(&config) {
            Ok(device) => device,
            Err(error) if !kernel::has_xdp() => {
                return process::skip(&format!("this kernel has no AF_XDP: {error}"));
            }
            Err(error) => panic!("{error}"),
        };
        assert_eq!(device.capabilities().description, "net_af_xdp (kn0)");
        assert!(device.capabilities().trust_checksum);
        let mut queues = Queues::of(&mut device);
        assert_eq!(queues.arp(), peer.mac());
        answers_ping(&mut queues, &peer, 1400);
        wakes_a_sleeper(&mut queues, &peer);
    });
}

#[test]
fn a_missing_interface_is_one_clear_line() {
    in_own_process("a_missing_interface_is_one_clear_line", true, || {
        let config = config(PortSelector::Vdev(vdev_for_netdev("gone0")));
        let error = PluginDevice::open(&config).unwrap_err().message;
        assert!(
            error.starts_with("device net_af_packet0,iface=gone0"),
            "{error}"
        );
        assert!(
            error.contains("SIOCGIFINDEX"),
            "DPDK's own reason is missing: {error}"
        );
        assert!(!error.contains('\n'), "{error}");
        let again = PluginDevice::open(&config).unwrap_err().message;
        assert!(
            again.contains("only once"),
            "a second start after a failure: {again}"
        );
    });
}

#[test]
fn a_missing_card_is_one_clear_line() {
    in_own_process("a_missing_card_is_one_clear_line", false, || {
        let config = config(PortSelector::Bdf("0000:fe:1f.7".to_owned()));
        let error = PluginDevice::open(&config).unwrap_err().message;
        assert!(error.contains("0000:fe:1f.7"), "{error}");
        assert!(!error.contains('\n'), "{error}");
    });
}

#[test]
fn an_argument_that_eal_dislikes_is_one_clear_line() {
    in_own_process(
        "an_argument_that_eal_dislikes_is_one_clear_line",
        false,
        || {
            let mut config = config(PortSelector::Vdev("net_null0".to_owned()));
            config.eal_args = vec!["--no-such-wish".to_owned()];
            let error = PluginDevice::open(&config).unwrap_err().message;
            assert!(error.contains("EAL did not start"), "{error}");
            assert!(error.contains("no-such-wish"), "{error}");
            assert!(!error.contains('\n'), "{error}");
        },
    );
}

#[test]
fn a_file_size_limit_below_the_memory_is_one_clear_line() {
    in_own_process(
        "a_file_size_limit_below_the_memory_is_one_clear_line",
        false,
        || {
            use rustix::process::{Resource, Rlimit, setrlimit};
            let limit = Rlimit {
                current: Some(1 << 20),
                maximum: Some(1 << 20),
            };
            setrlimit(Resource::Fsize, limit).unwrap();
            let config = config(PortSelector::Vdev("net_null0".to_owned()));
            let error = PluginDevice::open(&config).unwrap_err().message;
            assert!(
                error.contains("RLIMIT_FSIZE") && error.contains("1048576"),
                "{error}"
            );
        },
    );
}

#[test]
fn more_buffers_than_memory_is_one_clear_line() {
    in_own_process("more_buffers_than_memory_is_one_clear_line", false, || {
        let mut config = config(PortSelector::Vdev("net_null0".to_owned()));
        config.eal_args = vec!["-m".to_owned(), "8".to_owned()];
        config.pool_mbufs = 65_535;
        let error = PluginDevice::open(&config).unwrap_err().message;
        assert!(error.contains("no memory for 65535 buffers"), "{error}");
    });
}
