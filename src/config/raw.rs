//! The file's sections as structs: every key once, with its type, range, default and meaning.

use super::error::Fault;
use super::key::{
    ANY, BASE_VIRTADDR, BDF, CPUS, DRIVER, HUGE_DIR, IPV4, IPV4_PREFIX, IPV4_SET, IPV6_PREFIX, Key,
    Kind, MAC, METRICS, NETDEV, ROUTE, SOCKET_LIMIT, SOCKET_MEM, Section, U64, VDEV,
};
use super::parse::Node;
use super::reader::{Field, Reader, Take};

const BIT: Kind = whole(0, 1);

const fn whole(min: i64, max: i64) -> Kind {
    Kind::Whole { min, max }
}

const NO_CONTROL: &str = "there are no control threads here";
const NO_ZCOPY: &str = "there is no zero-copy pool here";
const NO_BOND: &str = "user-space bonds are not served: the first port is used alone";
const NO_UDP: &str = "UDP stays on the kernel in this version";
const NO_FRAGMENTS: &str = "IP fragments are not put together in this version";

macro_rules! section {
    ($name:ident $path:literal $about:literal { $($field:ident: $type:ty = $key:expr;)+ }) => {
        #[doc = $about]
        #[derive(Clone, PartialEq, Debug, Default)]
        #[allow(dead_code, reason = "a key without a meaning here is read only to be checked")]
        pub(super) struct $name { $(pub(super) $field: Field<$type>,)+ }

        impl $name {
            pub(super) const SECTION: Section = Section { path: $path, about: $about, keys: &[$($key),+] };

            fn fields(reader: &mut Reader<'_>) -> Self {
                Self { $($field: reader.field(&const { $key }),)+ }
            }

            #[allow(dead_code, reason = "an object of a list is read as an item")]
            fn read(reader: &mut Reader<'_>) -> Self {
                reader.open(&Self::SECTION);
                let read = Self::fields(reader);
                reader.close(&Self::SECTION);
                read
            }
        }
    };
}

section! { Common "common" "Mode, policy and progress." {
    mode: i64 = Key::knet("mode", BIT, "0", "0: each program family starts its own host; 1: the host that the system runs (knetd) serves all.");
    log_level: String = Key::knet("log_level", Kind::Choice(&["ERROR", "WARNING", "INFO", "DEBUG"]), "\"WARNING\"", "Least important lines that are logged.");
    ctrl_vcpu_nums: i64 = Key::knet("ctrl_vcpu_nums", whole(1, 8), "1", "K-NET: control threads.").without_meaning(NO_CONTROL);
    ctrl_ring_per_vcpu: i64 = Key::knet("ctrl_ring_per_vcpu", whole(1, 8), "1", "K-NET: rings of a control thread.").without_meaning(NO_CONTROL);
    ctrl_vcpu_ids: Vec<Field<i64>> = Key::knet("ctrl_vcpu_ids", Kind::WholeList { min: 0, max: 319 }, "[0]", "K-NET: CPUs of the control threads.").without_meaning(NO_CONTROL);
    zcopy_enable: i64 = Key::knet("zcopy_enable", BIT, "0", "K-NET: zero-copy calls.").without_meaning(NO_ZCOPY);
    cothread_enable: i64 = Key::knet("cothread_enable", BIT, "0", "1: the same as \"progress\": \"inline\".");
    on_error: String = Key::ours("on_error", Kind::Choice(&["kernel", "fail"]), "\"kernel\"", "When the stack cannot serve: kernel sockets where the kernel can, or refuse.");
    on_host_lost: String = Key::ours("on_host_lost", Kind::Choice(&["kernel", "wait"]), "\"kernel\"", "New sockets while the host is gone: kernel sockets, or wait for it.");
    progress: String = Key::ours("progress", Kind::Choice(&["dedicated", "inline"]), "\"dedicated\"", "Who drives the stack: cores of the host, or the program's own thread while it waits.");
    idle: String = Key::ours("idle", Kind::Choice(&["spin", "adaptive"]), "\"adaptive\"", "With nothing to do: poll on, or poll for spin_us and then sleep.");
    spin_us: i64 = Key::ours("spin_us", whole(0, 1_000_000), "50", "Microseconds of polling before an adaptive sleep.");
    budget_us: i64 = Key::ours("budget_us", whole(1, 100_000), "50", "Microseconds that one inline turn takes at most.");
    inline_grace_us: i64 = Key::ours("inline_grace_us", whole(10, 1_000_000), "200", "Microseconds without a driving thread after which the inline helper thread takes over; it looks once in so many, once in up to 20 times as many at a program that nearly always comes back in time.");
    linger_s: i64 = Key::ours("linger_s", whole(0, 3_600), "5", "Seconds that a host stays with no client and no flow.");
    linger_max_s: i64 = Key::ours("linger_max_s", whole(1, 3_600), "120", "Seconds that a host stays at most to deliver what programs left behind.");
    metrics: String = Key::ours("metrics", Kind::Text(METRICS), "\"\"", "Where OpenMetrics are served (http, /metrics): \"unix:/absolute/path\" or a loopback address with a port, \"127.0.0.1:9464\"; empty: nowhere.");
} }

section! { Accelerate "common.accelerate" "Narrows what is accelerated; an empty list means all." {
    programs: Vec<Field<String>> = Key::ours("programs", Kind::TextList(ANY), "[]", "Program names (\"redis-server\") or absolute paths.");
    ports: Vec<Field<i64>> = Key::ours("ports", Kind::WholeList { min: 1, max: 65_535 }, "[]", "Ports: local ones of listeners, remote ones of connections.");
    addresses: Vec<Field<String>> = Key::ours("addresses", Kind::TextList(IPV4_SET), "[]", "Some of our own addresses.");
} }

section! { Interface "interface" "The port and its addresses. Exactly one of bdf_nums, netdev and vdevs names the port." {
    user_bond_enable: i64 = Key::knet("user_bond_enable", BIT, "0", "K-NET: bond of two ports.").without_meaning(NO_BOND);
    user_bond_mode: i64 = Key::knet("user_bond_mode", whole(4, 4), "4", "K-NET: LACP.").without_meaning(NO_BOND);
    bdf_nums: Vec<Field<String>> = Key::knet("bdf_nums", Kind::TextList(BDF), "[]", "PCI address of the port, as lspci -D shows it.");
    netdev: String = Key::ours("netdev", Kind::Text(NETDEV), "\"\"", "Kernel interface that is used as the port.");
    vdevs: Vec<Field<String>> = Key::ours("vdevs", Kind::TextList(VDEV), "[]", "Virtual device: knet_pair, knet_unix,path=P, or one of DPDK's such as net_af_packet0,iface=veth0.");
    exclusive: bool = Key::ours("exclusive", Kind::Switch, "false", "Take the netdev even when it carries the default route or other addresses.");
    mac: String = Key::knet("mac", Kind::Text(MAC), "\"\"", "MAC address of the port; empty: the port's own.");
    ip: String = Key::knet("ip", Kind::Text(IPV4), "\"\"", "Our address; it must not be on a kernel interface.");
    netmask: String = Key::knet("netmask", Kind::Text(IPV4_SET), "\"255.255.255.0\"", "Netmask of ip.");
    gateway: String = Key::knet("gateway", Kind::Text(IPV4), "\"0.0.0.0\"", "Default gateway inside one of our networks; 0.0.0.0: none.");
    addresses: Vec<Field<String>> = Key::ours("addresses", Kind::TextList(IPV4_PREFIX), "[]", "More addresses of ours.");
    ip6: Vec<Field<String>> = Key::ours("ip6", Kind::TextList(IPV6_PREFIX), "[]", "IPv6 addresses of ours.").not_served("IPv6 stays on the kernel in this version");
    vlan: i64 = Key::ours("vlan", whole(0, 4_094), "0", "802.1Q tag of all frames; 0: untagged.");
    routes: Vec<Field<String>> = Key::ours("routes", Kind::TextList(ROUTE), "[]", "Static routes; the longest prefix wins.");
    mtu: i64 = Key::knet("mtu", whole(256, 9_600), "1500", "Largest IP packet in bytes, within the port's own limit.");
} }

section! { HwOffload "hw_offload" "What the port does for us, where it can." {
    tso: i64 = Key::knet("tso", BIT, "0", "1: a port that can cuts large TCP segments; vhost sends them whole while its peer has agreed to that. Needs tcp_checksum.");
    lro: i64 = Key::knet("lro", BIT, "0", "1: a port that can joins TCP segments; needs tcp_checksum.");
    tcp_checksum: i64 = Key::knet("tcp_checksum", BIT, "0", "1: the port checks and fills in IP and TCP checksums.");
    bifur_enable: i64 = Key::knet("bifur_enable", whole(0, 2), "0", "K-NET: traffic shared with the kernel.").without_meaning("the port is not shared with the kernel; other addresses stay on kernel interfaces");
} }

section! { ProtoStack "proto_stack" "The TCP/IP stack." {
    max_mbuf: i64 = Key::knet("max_mbuf", whole(8_192, 1_073_741_823), "20480", "Packet buffers of the port; at least max_worker_num * (tx_cache_size + rx_cache_size) + 2048.");
    max_worker_num: i64 = Key::knet("max_worker_num", whole(1, 32), "1", "Data-plane threads; core_list_global decides: one for each CPU that it names, else one.");
    max_route: i64 = Key::knet("max_route", whole(1, 100_000), "1024", "Static routes at most.");
    max_arp: i64 = Key::knet("max_arp", whole(8, 8_192), "1024", "Neighbours at most.");
    max_tcpcb: i64 = Key::knet("max_tcpcb", whole(32, 1_000_000), "4096", "TCP connections at most.");
    max_udpcb: i64 = Key::knet("max_udpcb", whole(32, 1_000_000), "4096", "UDP sockets at most.").not_served(NO_UDP);
    max_epollcb: i64 = Key::knet("max_epollcb", whole(1, 1_000_000), "64", "K-NET: epolls at most.").without_meaning("an epoll here is the kernel's, without a limit of ours");
    tcp_sack: i64 = Key::knet("tcp_sack", BIT, "1", "1: selective acknowledgements (RFC 2018).").not_served("selective acknowledgements stay on");
    tcp_dack: i64 = Key::knet("tcp_dack", BIT, "1", "1: delayed acknowledgements (RFC 1122 section 4.2.3.2).").not_served("acknowledgements stay delayed");
    msl_time: i64 = Key::knet("msl_time", whole(1, 30), "30", "Seconds; TIME-WAIT lasts twice this.");
    fin_timeout: i64 = Key::knet("fin_timeout", whole(1, 600), "600", "Seconds in FIN-WAIT-2 before an orphan is reset.");
    min_port: i64 = Key::knet("min_port", whole(1, 49_152), "49152", "First port that connect() takes.");
    max_port: i64 = Key::knet("max_port", whole(50_000, 65_535), "65535", "Last port that connect() takes.");
    max_sendbuf: i64 = Key::knet("max_sendbuf", whole(8_192, 2_147_483_647), "10485760", "Bytes that SO_SNDBUF can ask for at most.");
    def_sendbuf: i64 = Key::knet("def_sendbuf", whole(8_192, 2_147_483_647), "8192", "Bytes of SO_SNDBUF at first; at most max_sendbuf.");
    max_recvbuf: i64 = Key::knet("max_recvbuf", whole(8_192, 2_147_483_647), "10485760", "Bytes that SO_RCVBUF can ask for at most, and limit of the receive window.");
    def_recvbuf: i64 = Key::knet("def_recvbuf", whole(8_192, 2_147_483_647), "8192", "Bytes of SO_RCVBUF at first; at most max_recvbuf; not the window, which is larger.");
    tcp_cookie: i64 = Key::knet("tcp_cookie", BIT, "0", "1: SYN cookies when the backlog fills.").not_served("a SYN beyond the backlog is dropped");
    reass_max: i64 = Key::knet("reass_max", whole(1, 4_096), "1000", "IP datagrams being put together at most.").not_served(NO_FRAGMENTS);
    reass_timeout: i64 = Key::knet("reass_timeout", whole(1, 30), "30", "Seconds that a fragment is kept.").not_served(NO_FRAGMENTS);
    synack_retries: i64 = Key::knet("synack_retries", whole(1, 255), "5", "SYN-ACKs sent again before a half-open connection is dropped.");
    zcopy_sge_len: i64 = Key::knet("zcopy_sge_len", whole(0, 524_288), "65535", "K-NET: size of a zero-copy buffer.").without_meaning(NO_ZCOPY);
    zcopy_sge_num: i64 = Key::knet("zcopy_sge_num", whole(8_192, 1_073_741_823), "8192", "K-NET: zero-copy buffers.").without_meaning(NO_ZCOPY);
    epoll_data: String = Key::knet("epoll_data", Kind::Text(U64), "\"0\"", "K-NET: the epoll value it keeps for itself.").without_meaning("no epoll value is taken from the program here");
} }

section! { Dpdk "dpdk" "DPDK: cores, queues and EAL arguments." {
    core_list_global: String = Key::knet("core_list_global", Kind::Text(CPUS), "\"\"", "CPUs of the data plane, an lcore on each, 8 at most; empty: one, chosen at run time (the highest CPU of the cpuset outside the program's mask, else the highest one, shared). Not read with cothread_enable 1.");
    queue_num: i64 = Key::knet("queue_num", whole(1, 64), "1", "K-NET: queues in all.").without_meaning("each data-plane thread has one queue pair");
    tx_cache_size: i64 = Key::knet("tx_cache_size", whole(256, 16_384), "256", "Transmit descriptors of a queue.");
    rx_cache_size: i64 = Key::knet("rx_cache_size", whole(256, 16_384), "256", "Receive descriptors of a queue.");
    socket_mem: String = Key::knet("socket_mem", Kind::Text(SOCKET_MEM), "\"\"", "MB of hugepages for each NUMA node; empty: as much as the port needs.");
    socket_limit: String = Key::knet("socket_limit", Kind::Text(SOCKET_LIMIT), "\"\"", "MB of hugepages for each NUMA node at most; not below socket_mem.");
    external_driver: String = Key::knet("external_driver", Kind::Text(DRIVER), "\"\"", "PMD that DPDK does not bring along, for example \"-dlibrte_net_hinic3.so\".");
    telemetry: i64 = Key::knet("telemetry", BIT, "1", "1: DPDK's telemetry sockets, with K-NET's commands (dpdk-telemetry.py -f knet -i 1), and the file of statistics that is kept.");
    huge_dir: String = Key::knet("huge_dir", Kind::Text(HUGE_DIR), "\"\"", "hugetlbfs folder; empty: hugepages without files.");
    base_virtaddr: String = Key::knet("base-virtaddr", Kind::Text(BASE_VIRTADDR), "\"\"", "Where EAL maps its memory first.");
} }

section! { Gpu "gpu" "The payload stage: what is done to the bytes of chosen flows (docs/gpu.md)." {
    enabled: bool = Key::ours("enabled", Kind::Switch, "false", "Run the kernels of pipeline.");
    required: bool = Key::ours("required", Kind::Switch, "false", "Refuse to start where mode cannot be had, instead of running the kernels on the CPU.");
    mode: String = Key::ours("mode", Kind::Choice(&["cpu", "launch", "persistent", "memops", "graph"]), "\"cpu\"", "Where the kernels run: on the CPU, or on a GPU that is told of each batch in one of these ways (docs/gpu.md).");
    in_process: bool = Key::ours("in_process", Kind::Switch, "false", "Use the GPU also from inside the program, with progress inline; else the CPU runs the kernels there.");
    device: String = Key::ours("device", Kind::Text(ANY), "\"0\"", "GPU: index, PCI address or UUID.");
    driver_library: String = Key::ours("driver_library", Kind::Text(ANY), "\"libcuda.so.1\"", "The driver's library.");
    batch_packets: i64 = Key::ours("batch_packets", whole(0, 1_024), "0", "Chunks of a batch at most; 0: 32 for mode persistent, 64 for the others.");
    batch_wait_us: i64 = Key::ours("batch_wait_us", whole(0, 10_000), "20", "Microseconds that a chunk waits for others while a batch is out; none is waited for when the GPU is idle.");
    batch_slots: i64 = Key::ours("batch_slots", whole(2, 1_024), "64", "Batches of a rule that are out at most.");
    persistent_blocks: i64 = Key::ours("persistent_blocks", whole(1, 64), "4", "Mode persistent: blocks of 256 threads that stay on the GPU for each rule.");
    timeout_us: i64 = Key::ours("timeout_us", whole(100, 10_000_000), "5000", "Microseconds after which a batch is given up.");
    on_timeout: String = Key::ours("on_timeout", Kind::Choice(&["cpu", "bypass", "drop"]), "\"cpu\"", "What becomes of the payload of a batch that was given up.");
    on_full: String = Key::ours("on_full", Kind::Choice(&["cpu", "bypass", "drop", "wait"]), "\"cpu\"", "What becomes of payload when the GPU's ring is full.");
    pipeline: Vec<Field<PayloadRule>> = Key::ours("pipeline", Kind::Objects(&PayloadRule::SECTION), "[]", "Kernels in the order in which payload meets them, at most 16.");
} }

section! { PayloadRule "gpu.pipeline" "One kernel and the flows that it is for." {
    kernel: String = Key::ours("kernel", Kind::Choice(&["", "pattern", "stats", "chacha20", "crc32c", "user"]), "\"\"", "What is done; it must be there.");
    direction: String = Key::ours("direction", Kind::Choice(&["both", "rx", "tx"]), "\"both\"", "Bytes that the program receives, sends, or both.");
    attach: String = Key::ours("attach", Kind::Choice(&["stream", "packet"]), "\"stream\"", "Bytes in stream order, each once; or the payload of each segment on the wire (kernels that only read).");
    ports: Vec<Field<i64>> = Key::ours("ports", Kind::WholeList { min: 1, max: 65_535 }, "[]", "Flows with one of these ports at either end; empty: all.");
    addresses: Vec<Field<String>> = Key::ours("addresses", Kind::TextList(IPV4_PREFIX), "[]", "Flows whose peer is in one of these networks; empty: all.");
    min_payload: i64 = Key::ours("min_payload", whole(0, 65_535), "0", "Bytes below which a segment is passed over; needs attach packet.");
    patterns_file: String = Key::ours("patterns_file", Kind::Text(ANY), "\"\"", "Kernel pattern: the file with its literals, one a line (docs/gpu.md).");
    key_file: String = Key::ours("key_file", Kind::Text(ANY), "\"\"", "Kernel chacha20: the file with its key, 64 hexadecimal digits.");
    ptx_file: String = Key::ours("ptx_file", Kind::Text(ANY), "\"\"", "Kernel user: the PTX with the function (docs/gpu.md).");
    function: String = Key::ours("function", Kind::Text(ANY), "\"\"", "Kernel user: the name of the function in ptx_file.");
    writes: bool = Key::ours("writes", Kind::Switch, "false", "Kernel user: the function changes payload; needs attach stream.");
    without_gpu: String = Key::ours("without_gpu", Kind::Choice(&["refuse", "pass"]), "\"refuse\"", "Kernel user, which no CPU can run: without a GPU the port does not open, and when one fails later, flows are reset; or payload passes unjudged, and is counted.");
    on_match: String = Key::ours("on_match", Kind::Choice(&["reset", "drop", "mark", "mirror", "pass"]), "\"reset\"", "Kernels pattern and user: what a match does; drop needs attach packet, mirror needs mirror_file.");
    mark: i64 = Key::ours("mark", whole(0, 4_294_967_295), "0", "on_match mark: the number in the log line.");
    mirror_file: String = Key::ours("mirror_file", Kind::Text(ANY), "\"\"", "on_match mirror: the pcap file that gets copies of what matched.");
} }

impl Take for PayloadRule {
    fn take(node: &Node, path: &str, _: &Kind, faults: &mut Vec<Fault>) -> Option<Self> {
        let mut reader = Reader::item(node, path);
        let read = Self::fields(&mut reader);
        reader.close_item(&Self::SECTION);
        let good = reader.faults.is_empty();
        faults.append(&mut reader.faults);
        good.then_some(read)
    }
}

/// Every section with keys, in the order of the file; a nested one follows its parent.
pub(super) const SECTIONS: &[Section] = &[
    Common::SECTION,
    Accelerate::SECTION,
    Interface::SECTION,
    HwOffload::SECTION,
    ProtoStack::SECTION,
    Dpdk::SECTION,
    Gpu::SECTION,
];

/// Top-level names that are not sections of the table.
pub(super) const OTHER: &[&str] = &["version", "$schema"];

/// The whole file, checked key by key and defaults filled in.
#[derive(Debug)]
pub(super) struct Raw {
    pub(super) common: Common,
    pub(super) accelerate: Accelerate,
    pub(super) interface: Interface,
    pub(super) hw_offload: HwOffload,
    pub(super) proto_stack: ProtoStack,
    pub(super) dpdk: Dpdk,
    pub(super) gpu: Gpu,
}

impl Raw {
    /// Reads every section; what is wrong is left in the reader.
    pub(super) fn read(reader: &mut Reader<'_>) -> Self {
        Self {
            common: Common::read(reader),
            accelerate: Accelerate::read(reader),
            interface: Interface::read(reader),
            hw_offload: HwOffload::read(reader),
            proto_stack: ProtoStack::read(reader),
            dpdk: Dpdk::read(reader),
            gpu: Gpu::read(reader),
        }
    }
}
