//! Arguments, buffers and limits that a configuration leads to.

use super::*;

fn vdev(text: &str) -> PluginConfig {
    PluginConfig::new(PortSelector::Vdev(text.to_owned()), "knet-1".to_owned())
}

#[test]
fn without_hugepages_a_vdev_needs_no_pci_and_no_shared_files() {
    let config = vdev("net_af_packet0,iface=v0");
    assert_eq!(
        eal_args(&config, false),
        [
            "knet",
            "--lcores",
            "0@0",
            "--file-prefix=knet-1",
            "--log-level=warning",
            "--no-telemetry",
            "--no-huge",
            "--no-shconf",
            "-m",
            "40",
            "--no-pci",
            "--vdev=net_af_packet0,iface=v0"
        ]
    );
    assert_eq!(config.port_name(), "net_af_packet0");
}

#[test]
fn with_hugepages_a_card_is_allowed_by_its_address() {
    let port = PortSelector::Bdf("0000:04:00.0".to_owned());
    let mut config = PluginConfig::new(port, "knet-2".to_owned());
    config.lcore_cpu = 5;
    config.telemetry = true;
    config.external_driver = Some("-dlibrte_net_hinic3.so".to_owned());
    config.socket_mem = Some("1024".to_owned());
    config.socket_limit = Some("2048".to_owned());
    config.base_virtaddr = Some("0x100000000".to_owned());
    assert_eq!(
        eal_args(&config, true),
        [
            "knet",
            "--lcores",
            "0@5",
            "--file-prefix=knet-2",
            "--log-level=warning",
            "--in-memory",
            "--socket-mem=1024",
            "--socket-limit=2048",
            "--base-virtaddr=0x100000000",
            "-d",
            "librte_net_hinic3.so",
            "-a",
            "0000:04:00.0"
        ]
    );
}

#[test]
fn in_memory_and_no_huge_are_never_given_together() {
    for wish in ["--no-huge", "--in-memory"] {
        for hugepages in [false, true] {
            let mut config = vdev("net_null0");
            config.eal_args = vec![wish.to_owned()];
            let args = eal_args(&config, hugepages);
            let given = ["--no-huge", "--in-memory"]
                .map(|name| args.iter().filter(|arg| *arg == name).count());
            assert_eq!(given.iter().sum::<usize>(), 1, "{args:?}");
            assert!(args.iter().any(|arg| arg == wish), "{args:?}");
        }
    }
}

#[test]
fn cores_of_the_operator_replace_ours() {
    for wish in [["-l", "3"], ["--lcores=0@3", "-v"]] {
        let mut config = vdev("net_null0");
        config.eal_args = wish.map(str::to_owned).to_vec();
        let args = eal_args(&config, false);
        assert!(!args.iter().any(|arg| arg == "0@0"), "{args:?}");
    }
}

#[test]
fn a_vhost_peer_gets_few_memory_regions_and_all_queues() {
    let mut config = vdev("net_vhost0,iface=/s");
    config.queues = 2;
    let args = eal_args(&config, true);
    assert!(args.iter().any(|arg| arg == "--single-file-segments"));
    assert!(
        args.iter()
            .any(|arg| arg == "--vdev=net_vhost0,iface=/s,queues=2")
    );
}

#[test]
fn a_large_mtu_makes_af_packet_ring_frames_and_buffers_larger() {
    let mut config = vdev("net_af_packet0,iface=v0");
    config.mtu = 9000;
    let args = eal_args(&config, false);
    assert_eq!(
        args.last().map(String::as_str),
        Some("--vdev=net_af_packet0,iface=v0,framesz=10240,blocksz=20480")
    );
    assert_eq!(config.mbuf_room(), 10240);
    config.port = PortSelector::Vdev("net_af_packet0,iface=v0,framesz=16384,blocksz=65536".into());
    assert_eq!(config.mbuf_room(), 16384);
}

#[test]
fn super_frames_are_received_into_buffers_of_their_own_where_a_peer_sends_some() {
    let facts = |text: &str, tso, lro| {
        let mut config = vdev(text);
        (config.want_tso, config.want_lro) = (tso, lro);
        (config.rx_large_mbufs(), config.rx_entries())
    };
    let ring = vdev("net_vhost0").rx_ring_entries;
    for port in ["net_vhost0,iface=/s", "net_virtio_user0,path=/s"] {
        assert_eq!(facts(port, false, false), (0, ring));
    }
    assert_eq!(
        facts("net_vhost0,iface=/s", true, false),
        (RX_LARGE_MBUFS, ring)
    );
    // Without LRO its peer must not send any.
    assert_eq!(facts("net_virtio_user0,path=/s", true, false), (0, ring));
    assert_eq!(
        facts("net_virtio_user0,path=/s", false, true),
        (RX_LARGE_MBUFS, RX_LARGE_ENTRIES)
    );
    assert_eq!(facts("net_af_packet0,iface=v0", true, true), (0, ring));
    // Enough for the ring, a burst in hand and what a cache of a quarter and a half keeps back.
    assert!(RX_LARGE_ENTRIES as usize + 32 + RX_LARGE_MBUFS * 3 / 8 <= RX_LARGE_MBUFS);
}

#[test]
fn what_a_peer_copies_is_cut_shorter_than_what_a_card_fetches() {
    for mtu in [1500, 9000] {
        assert!(COPIED_SUPER_BYTES > 2 * mtu);
    }
    assert_eq!(
        vdev("net_vhost0,iface=/s").super_bytes(),
        COPIED_SUPER_BYTES
    );
    let card = PortSelector::Bdf("0000:04:00.0".to_owned());
    let card = PluginConfig::new(card, "knet-1".to_owned());
    assert_eq!(card.super_bytes(), LARGE_ROOM);
}

#[test]
fn no_more_is_kept_than_the_pool_of_the_frames_can_spare() {
    let shares = |port: &str, tso: bool, lro: bool| {
        let mut config = vdev(port);
        (config.want_tso, config.want_lro, config.queues) = (tso, lro, 2);
        let shares = config.shares(lro);
        (shares.received, shares.sent, shares.sent_large)
    };
    let usual = vdev("net_vhost0").pool_mbufs as usize / KEPT_SHARE / 2;
    let card = "net_af_packet0,iface=v0";
    assert_eq!(shares(card, false, false), (usual, usual, 0));
    let large = LARGE_MBUFS / LARGE_KEPT_SHARE;
    assert_eq!(shares(card, true, false), (usual, usual, large));
    assert_eq!(shares(card, true, true), (large, usual, large));
    let peer = RX_LARGE_MBUFS / KEPT_SHARE;
    let vhost = "net_vhost0,iface=/s";
    assert_eq!(shares(vhost, true, false), (peer, usual, large));
}

#[test]
fn a_buffer_holds_a_frame_and_the_drivers_own_header() {
    let mut config = vdev("net_virtio_user0,path=/s");
    assert_eq!(config.mbuf_room(), DEFAULT_ROOM);
    config.mtu = 9000;
    // virtio_user refuses 9000 + 18 + 12 bytes in less.
    assert!(config.mbuf_room() >= 9030);
}

#[test]
fn long_rings_reach_af_packet_by_its_own_argument() {
    let mut config = vdev("net_af_packet0,iface=v0");
    config.rx_ring_entries = 1024;
    let args = eal_args(&config, false);
    assert_eq!(
        args.last().map(String::as_str),
        Some("--vdev=net_af_packet0,iface=v0,framecnt=1024")
    );
}

#[test]
fn memory_follows_the_number_and_size_of_buffers() {
    let mut config = vdev("net_null0");
    config.pool_mbufs = 20480;
    assert_eq!(config.memory_mb(), 88);
    config.want_tso = true;
    assert_eq!(config.memory_mb(), 98);
    let mut xdp = vdev("net_af_xdp0,iface=v0");
    xdp.pool_mbufs = 1;
    assert_eq!((xdp.mbufs(), xdp.memory_mb()), (4096, 24));
    config.pool_mbufs = u32::MAX;
    config.mtu = usize::MAX / 2;
    assert!(config.memory_mb() > 1 << 40);
}
