//! Every judgement on a machine that was made up for it.

use core::net::Ipv4Addr;
use std::path::PathBuf;

use super::*;
use crate::config;
use crate::gpu::Placement;
use crate::id::CpuId;

fn config(keys: &str, more: &str) -> Config {
    let text = format!("{{\"interface\": {{\"ip\": \"192.168.1.58\", {keys}}}, {more}}}");
    config::load_bytes("test", text.as_bytes()).unwrap_or_else(|faults| panic!("{faults}"))
}

fn cpus(count: u32) -> Vec<CpuId> {
    (0..count).map(CpuId).collect()
}

/// Eight CPUs, plenty of everything, eth0 with the default route and eth1 free.
fn machine() -> Machine {
    let link = |index, name: &str| Link {
        index,
        name: name.to_owned(),
        up: true,
        loopback: name == "lo",
        mtu: 1500,
        mac: Some([2, 0, 0, 0, 0, 1]),
    };
    Machine {
        pci: Some(Pci {
            present: true,
            driver: Some("vfio-pci".to_owned()),
            iommu: true,
            ..Pci::default()
        }),
        net: Some(Ok(Net {
            links: vec![link(1, "lo"), link(2, "eth0"), link(3, "eth1")],
            addresses: vec![
                (1, Ipv4Addr::LOCALHOST, 8),
                (2, Ipv4Addr::new(10, 0, 0, 5), 24),
            ],
            default_routes: vec![2],
        })),
        online_cpus: cpus(8),
        allowed_cpus: cpus(8),
        cpuset_cpus: Some(cpus(8)),
        memory_available: Some(8 << 30),
        hugepages_free: vec![1 << 30],
        limits: Limits::default(),
        capabilities: u64::MAX,
        frame: Some(PathBuf::from("/usr/lib64/libknet_frame.so")),
        host: Some(PathBuf::from("/usr/bin/knetd")),
        plugin: Some(PathBuf::from("/usr/bin/libknet_dpdk.so")),
        socket_folder_writable: true,
        system_host: false,
        payload: None,
    }
}

const BDF: &str = r#""bdf_nums": ["0000:04:00.0"]"#;

fn lines(config: &Config, machine: &Machine, severity: Severity) -> Vec<String> {
    check(config, machine)
        .iter()
        .filter(|finding| finding.severity == severity)
        .map(ToString::to_string)
        .collect()
}

/// Exactly one finding of this severity, which contains all of `parts`.
fn one(config: &Config, machine: &Machine, severity: Severity, parts: &[&str]) {
    let lines = lines(config, machine, severity);
    assert_eq!(lines.len(), 1, "{lines:?}");
    for part in parts {
        assert!(lines[0].contains(part), "{:?} lacks {part:?}", lines[0]);
    }
}

fn error(config: &Config, machine: &Machine, parts: &[&str]) {
    one(config, machine, Severity::Error, parts);
    assert!(!would_run(&check(config, machine)));
}

#[test]
fn a_good_machine_has_no_error_and_no_warning() {
    let findings = check(&config(BDF, ""), &machine());
    assert!(would_run(&findings));
    assert!(
        findings
            .iter()
            .all(|finding| finding.severity == Severity::Info),
        "{findings:?}"
    );
}

#[test]
fn a_pci_port_that_is_not_ready() {
    let config = config(BDF, "");
    let with = |pci: Pci| Machine {
        pci: Some(pci),
        ..machine()
    };
    error(
        &config,
        &with(Pci::default()),
        &["no PCI device 0000:04:00.0", "lspci -D"],
    );
    let bridge = Pci {
        present: true,
        class: Some(0x06_0000),
        ..Pci::default()
    };
    error(
        &config,
        &with(bridge),
        &["no network device (PCI class 060000)"],
    );
    let unbound = Pci {
        present: true,
        iommu: true,
        ..Pci::default()
    };
    error(
        &config,
        &with(unbound.clone()),
        &[
            "bound to no driver",
            "dpdk-devbind.py -b vfio-pci 0000:04:00.0",
        ],
    );
    let kernel = Pci {
        driver: Some("ixgbe".to_owned()),
        interfaces: vec!["eth2".to_owned()],
        ..unbound
    };
    error(
        &config,
        &with(kernel),
        &[
            "kernel driver ixgbe as eth2",
            "ip link set dev eth2 down; modprobe",
        ],
    );
    let no_iommu = Pci {
        driver: Some("vfio-pci".to_owned()),
        iommu: false,
        ..unbound.clone()
    };
    error(
        &config,
        &with(no_iommu.clone()),
        &["IOMMU", "enable_unsafe_noiommu_mode=1"],
    );
    assert!(would_run(&check(
        &config,
        &with(Pci {
            unsafe_noiommu: true,
            ..no_iommu
        })
    )));
    assert!(would_run(&check(
        &config,
        &with(Pci {
            driver: Some("mlx5_core".to_owned()),
            ..unbound
        })
    )));
}

#[test]
fn a_netdev_must_be_free_unless_it_is_exclusive() {
    error(
        &config(r#""netdev": "eth7""#, ""),
        &machine(),
        &["no interface eth7", "lo, eth0, eth1"],
    );
    error(&config(r#""netdev": "lo""#, ""), &machine(), &["loopback"]);
    let parts = [
        "carries the default route, carries 10.0.0.5/24",
        "ip addr del 10.0.0.5/24 dev eth0",
        "exclusive",
    ];
    error(&config(r#""netdev": "eth0""#, ""), &machine(), &parts);
    one(
        &config(r#""netdev": "eth0", "exclusive": true"#, ""),
        &machine(),
        Severity::Warning,
        &["stops working"],
    );
    assert!(
        lines(
            &config(r#""netdev": "eth1""#, ""),
            &machine(),
            Severity::Warning
        )
        .is_empty()
    );
}

#[test]
fn an_interface_that_does_not_fit() {
    let mut machine = machine();
    let keys = r#""vdevs": ["net_af_packet0,iface=eth1"], "mtu": 9000, "mac": "02:00:00:00:00:02""#;
    let warnings = lines(&config(keys, ""), &machine, Severity::Warning);
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(
        warnings[0].contains("mtu 9000") && warnings[1].contains("02:00:00:00:00:01"),
        "{warnings:?}"
    );
    if let Some(Ok(net)) = &mut machine.net {
        net.links[2].up = false;
    }
    error(
        &config(r#""vdevs": ["net_af_packet0,iface=eth1"]"#, ""),
        &machine,
        &["eth1 is down", "ip link set dev eth1 up"],
    );
    error(
        &config(r#""vdevs": ["net_af_packet0,iface=no"]"#, ""),
        &machine,
        &["no interface no"],
    );
    error(
        &config(r#""vdevs": ["net_af_packet0"]"#, ""),
        &machine,
        &["iface=NAME"],
    );
}

#[test]
fn our_address_on_a_kernel_interface() {
    let mut machine = machine();
    if let Some(Ok(net)) = &mut machine.net {
        net.addresses.push((2, Ipv4Addr::new(192, 168, 1, 58), 24));
    }
    error(
        &config(BDF, ""),
        &machine,
        &["192.168.1.58", "ip addr del 192.168.1.58/24 dev eth0"],
    );
}

#[test]
fn cores_against_the_machine() {
    let cores = |list: &str| {
        config(
            BDF,
            &format!("\"dpdk\": {{\"core_list_global\": \"{list}\"}}"),
        )
    };
    error(&cores("9"), &machine(), &["CPU 9 does not run here", "0-7"]);
    error(
        &cores("7"),
        &Machine {
            cpuset_cpus: Some(cpus(4)),
            ..machine()
        },
        &["outside the cpuset", "0-3"],
    );
    let pinned = Machine {
        allowed_cpus: vec![CpuId(1)],
        ..machine()
    };
    one(
        &cores("1"),
        &pinned,
        Severity::Warning,
        &["CPU 1 is all that this process may use"],
    );
    let infos = lines(&cores("4,5"), &machine(), Severity::Info);
    let several = |line: &&String| line.contains("2 lcores") && line.contains("by CPU 4");
    assert_eq!(infos.iter().filter(several).count(), 1, "{infos:?}");
    let many = Machine {
        online_cpus: cpus(16),
        allowed_cpus: cpus(16),
        ..machine()
    };
    let parts = ["12 CPUs are named and the first 8 serve", "8 at most"];
    one(&cores("1-12"), &many, Severity::Warning, &parts);
    let infos = lines(
        &config(BDF, ""),
        &Machine {
            allowed_cpus: cpus(4),
            ..machine()
        },
        Severity::Info,
    );
    assert!(
        infos.iter().any(|line| line.contains("gets CPU 7")),
        "{infos:?}"
    );
    let small = Machine {
        online_cpus: cpus(2),
        allowed_cpus: cpus(2),
        cpuset_cpus: None,
        ..machine()
    };
    one(
        &config(BDF, r#""common": {"idle": "spin"}"#),
        &small,
        Severity::Warning,
        &["\"spin\" on 2 CPUs"],
    );
    let infos = lines(&config(BDF, ""), &small, Severity::Info);
    assert!(
        infos
            .iter()
            .any(|line| line.contains("2 CPUs: the data plane")),
        "{infos:?}"
    );
}

#[test]
fn memory_against_the_machine() {
    let huge = Machine {
        hugepages_free: vec![0],
        memory_available: Some(64 << 20),
        ..machine()
    };
    error(
        &config(BDF, ""),
        &huge,
        &["memory: 82 MiB needed, 64 MiB available", "max_mbuf"],
    );
    let tight = Machine {
        hugepages_free: vec![0],
        memory_available: Some(100 << 20),
        ..machine()
    };
    one(
        &config(BDF, ""),
        &tight,
        Severity::Warning,
        &["4096 connections may need 96 MiB"],
    );
    let wanted = config(BDF, r#""dpdk": {"socket_mem": "--socket-mem=2048"}"#);
    one(
        &wanted,
        &machine(),
        Severity::Warning,
        &["2048 MiB wanted on NUMA node 0, 1024 MiB"],
    );
    let wrong = Machine {
        pci: Some(Pci {
            node: Some(1),
            ..machine().pci.unwrap()
        }),
        ..machine()
    };
    let wanted = config(BDF, r#""dpdk": {"socket_mem": "--socket-mem=1024"}"#);
    one(
        &wanted,
        &wrong,
        Severity::Warning,
        &[
            "none for NUMA node 1, where the port is",
            "--socket-mem=0,MB",
        ],
    );
}

#[test]
fn limits_of_the_process() {
    let with = |limits: Limits| Machine {
        limits,
        capabilities: 0,
        ..machine()
    };
    let config = config(BDF, "");
    one(
        &config,
        &with(Limits {
            nofile: Some(256),
            ..Limits::default()
        }),
        Severity::Warning,
        &["ulimit -n: 256", "4160"],
    );
    error(
        &config,
        &with(Limits {
            fsize: Some(0),
            ..Limits::default()
        }),
        &["ulimit -f", "unlimited"],
    );
    error(
        &config,
        &with(Limits {
            address_space: Some(1 << 20),
            ..Limits::default()
        }),
        &["ulimit -v"],
    );
    one(
        &config,
        &with(Limits {
            address_space: Some(1 << 30),
            ..Limits::default()
        }),
        Severity::Warning,
        &["134 GB"],
    );
    error(
        &config,
        &with(Limits {
            memlock: Some(8 << 20),
            ..Limits::default()
        }),
        &["ulimit -l", "CAP_IPC_LOCK"],
    );
    let root = Machine {
        capabilities: 1 << 14,
        ..with(Limits {
            memlock: Some(8 << 20),
            ..Limits::default()
        })
    };
    assert!(would_run(&check(&config, &root)));
}

#[test]
fn privileges_of_the_process() {
    let machine = Machine {
        capabilities: 1 << 13,
        ..machine()
    };
    error(
        &config(r#""netdev": "eth1""#, ""),
        &machine,
        &["CAP_NET_ADMIN missing to open eth1", "mode 1"],
    );
    assert!(would_run(&check(
        &config(r#""vdevs": ["net_af_packet0,iface=eth1"]"#, ""),
        &machine
    )));
    let none = Machine {
        capabilities: 0,
        ..machine
    };
    error(
        &config(r#""vdevs": ["net_af_packet0,iface=eth1"]"#, ""),
        &none,
        &["CAP_NET_RAW missing"],
    );
    assert!(would_run(&check(
        &config(r#""vdevs": ["knet_unix,path=/tmp/x"]"#, ""),
        &none
    )));
}

#[test]
fn parts_that_are_missing() {
    let bare = Machine {
        frame: None,
        host: None,
        plugin: None,
        ..machine()
    };
    assert_eq!(lines(&config(BDF, ""), &bare, Severity::Error).len(), 3);
    let unix = config(r#""vdevs": ["knet_unix,path=/tmp/x"]"#, "");
    assert!(would_run(&check(
        &unix,
        &Machine {
            plugin: None,
            ..machine()
        }
    )));
    error(
        &unix,
        &Machine {
            socket_folder_writable: false,
            ..machine()
        },
        &["/tmp/x cannot be written to"],
    );
    error(
        &config(BDF, r#""common": {"mode": 1}"#),
        &machine(),
        &["no system host listens"],
    );
    assert!(would_run(&check(
        &config(BDF, r#""common": {"mode": 1}"#),
        &Machine {
            system_host: true,
            ..machine()
        }
    )));
}

#[test]
fn the_worst_comes_first() {
    let findings = check(
        &config(BDF, r#""common": {"idle": "spin"}"#),
        &Machine {
            host: None,
            online_cpus: cpus(2),
            ..machine()
        },
    );
    assert!(findings.is_sorted_by_key(|finding| finding.severity));
    assert_eq!(findings[0].severity, Severity::Error);
}

#[test]
fn what_full_buffers_take_is_told() {
    let infos = lines(&config(BDF, ""), &machine(), Severity::Info);
    // Two rings of 256 KiB, and 256 KiB that may be unacknowledged.
    assert!(
        infos
            .iter()
            .any(|line| line.contains("96 MiB for 4096 connections")
                && line.contains("3072 MiB with all their buffers full")),
        "{infos:?}"
    );
}

#[test]
fn a_payload_stage_that_cannot_be_loaded_is_an_error() {
    let gpu = r#""gpu": {"enabled": true, "pipeline": [{"kernel": "stats"}]}"#;
    let text = format!(r#"{{"interface": {{{BDF}, "ip": "192.168.1.58"}}, {gpu}}}"#);
    let config = config::load_bytes("test", text.as_bytes()).unwrap();
    let broken = Machine {
        payload: Some(Err("gpu.pipeline[0]: key_file /k: gone".to_owned())),
        ..machine()
    };
    error(&config, &broken, &["cannot be loaded", "key_file /k: gone"]);
    let whole = Machine {
        payload: Some(Ok(Placement::Cpu)),
        ..machine()
    };
    let said = check(&config, &whole);
    assert!(
        said.iter()
            .any(|one| one.what == "kernels=1 run on the CPU")
    );
    let on_gpu = Machine {
        payload: Some(Ok(Placement::Gpu("a GPU mode=launch".to_owned()))),
        ..machine()
    };
    for (attach, port, cores, memory) in [
        ("stream", BDF, "2", ""),
        ("packet", BDF, "2", "; payload_memory=host: "),
        (
            "packet",
            BDF,
            "2,3",
            "; payload_memory=host where the port has a queue for each lcore, else staged: ",
        ),
        (
            "packet",
            r#""vdevs": ["knet_unix,path=/tmp/x"]"#,
            "2",
            "; payload_memory=staged: ",
        ),
    ] {
        let text = format!(
            r#"{{"interface": {{{port}, "ip": "192.168.1.58"}}, "dpdk": {{"core_list_global": "{cores}"}},
            "gpu": {{"enabled": true, "mode": "launch", "pipeline": [{{"kernel": "stats", "attach": "{attach}"}}]}}}}"#
        );
        let config = config::load_bytes("test", text.as_bytes()).unwrap();
        let said = check(&config, &on_gpu);
        let wanted = format!("kernels=1 run on the GPU: a GPU mode=launch{memory}");
        let is_told =
            |what: &str| what.starts_with(&wanted) && (what == wanted) == memory.is_empty();
        assert!(
            said.iter().any(|one| is_told(&one.what)),
            "{wanted}: {said:?}"
        );
    }
    let crowded = Placement::Crowded("a GPU".to_owned(), "gpu.pipeline[0]: why".to_owned());
    let crowded = Machine {
        payload: Some(Ok(crowded)),
        ..machine()
    };
    let said = check(&config, &crowded);
    let told = said
        .iter()
        .find(|one| one.what == "a GPU has no room for each rule: gpu.pipeline[0]: why");
    assert_eq!(told.unwrap().severity, Severity::Warning);
}
