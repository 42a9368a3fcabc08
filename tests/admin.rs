//! What knetctl shows of running hosts. No privilege is needed: two hosts exchange frames over a socket.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    reason = "in a test a surprise is a failure, and its output is for people"
)]

#[allow(dead_code, reason = "the host's tests use the rest")]
#[path = "support/knetd.rs"]
mod knetd;
#[allow(dead_code, reason = "the lcore's tests use the rest")]
#[path = "support/program.rs"]
mod program;
#[allow(dead_code, reason = "the host's tests use the rest")]
#[path = "support/side.rs"]
mod side;

use std::os::fd::AsFd;
use std::process::{Command, Output};

use knet::channel::message::{Kind, Message, TEXT_BYTES};
use knetd::{Folder, until};
use serde_json::{Value, json};
use side::{CLIENT, SERVER, Side, connect, listen};

/// Of both ends.
const COMMON: &str = r#""linger_s": 0, "idle": "adaptive""#;

impl Side {
    /// `knetctl ARGUMENTS --socket` of this host.
    fn knetctl(&self, arguments: &[&str]) -> Output {
        let socket = self.knetd.socket().unwrap();
        let (command, rest) = arguments.split_first().unwrap();
        Command::new(env!("CARGO_BIN_EXE_knetctl"))
            .arg(command)
            .arg("--socket")
            .arg(socket)
            .args(rest)
            .output()
            .unwrap()
    }

    #[track_caller]
    fn lines(&self, arguments: &[&str]) -> String {
        let output = self.knetctl(arguments);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    }

    #[track_caller]
    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.lines(arguments)).unwrap()
    }
}

/// A server that listens, a client, and both ends of a connection.
struct Wire {
    server: Side,
    client: Side,
    out: u32,
    into: u32,
}

impl Wire {
    fn up(folder: &Folder) -> Self {
        let server = Side::start(folder, "server", SERVER, COMMON);
        let client = Side::start(folder, "client", CLIENT, COMMON);
        let listener = listen(&server);
        let (out, into) = connect(&client, &server, listener);
        Self {
            server,
            client,
            out,
            into,
        }
    }
}

#[test]
fn status_tells_who_is_served_on_what() {
    let folder = Folder::new();
    let wire = Wire::up(&folder);
    let hosts = wire.server.json(&["status", "--json"]);
    let host = &hosts[0];
    assert_eq!(host["private"], true, "{host}");
    assert_eq!(host["process"], wire.server.knetd.child.id());
    assert_eq!(host["idle"], "adaptive");
    assert_eq!(host["progress"], "dedicated");
    assert_eq!(host["addresses"], json!(["10.77.0.1/24"]));
    assert_eq!(host["open"]["link"], "up");
    assert_eq!(host["programs"][0]["program"], "/usr/bin/test");
    assert_eq!(
        host["programs"][0]["processes"],
        json!([std::process::id()])
    );
    assert_eq!(
        (&host["now"]["flows"], &host["now"]["listeners"]),
        (&json!(1), &json!(1))
    );
    let lines = wire.server.lines(&["status"]);
    for part in [
        "private host",
        "10.77.0.1/24",
        "knet_unix",
        "/usr/bin/test (accelerated",
        "1 listening, 1 connections",
    ] {
        assert!(lines.contains(part), "{part}: {lines}");
    }
}

#[test]
fn ss_shows_what_each_socket_does() {
    let folder = Folder::new();
    let wire = Wire::up(&folder);
    let (server, client) = (&wire.server, &wire.client);
    // What the program side does when it hands out a number.
    server
        .cell(wire.into)
        .read
        .fd
        .store(12, std::sync::atomic::Ordering::Relaxed);
    client.send(wire.out, b"not read yet");
    client.attached.wake();
    until("the bytes came", || {
        server.json(&["ss", "--json"])[0]["recv_q"] == 12
    });
    let sockets = server.json(&["ss", "--json", "-a"]);
    let [listener, flow] = sockets.as_array().unwrap().as_slice() else {
        panic!("{sockets}")
    };
    assert_eq!(listener["state"], "LISTEN");
    assert_eq!(
        (&listener["local_port"], &listener["send_q"]),
        (&json!(6_379), &json!(16))
    );
    assert_eq!(flow["state"], "ESTAB");
    assert_eq!(
        (&flow["local"], &flow["peer"]),
        (&json!("10.77.0.1"), &json!("10.77.0.2"))
    );
    assert_eq!(
        (&flow["fd"], &flow["processes"]),
        (&json!(11), &json!([std::process::id()]))
    );
    assert_eq!(flow["made_by"], "accept");
    assert_eq!(flow["bytes_received"], 12);
    until("a round trip was measured", || {
        client.json(&["ss", "--json"])[0]["rtt_us"]
            .as_u64()
            .is_some_and(|rtt| rtt > 0)
    });
    let lines = server.lines(&["ss", "-a"]);
    assert!(
        lines.contains(&format!(",pid={},fd=11))", std::process::id())),
        "{lines}"
    );
    assert_eq!(
        server.json(&["ss", "--json", "sport", "=", ":80"]),
        json!([])
    );
    assert_eq!(
        server
            .json(&["ss", "--json", "-tlnp"])
            .as_array()
            .unwrap()
            .len(),
        1
    );
    assert_eq!(
        server.knetctl(&["ss", "state", "nonsense"]).status.code(),
        Some(64)
    );
    // A connection that has ended rests at the end that closed first.
    client.close(wire.out);
    client.attached.wake();
    until("FIN came", || {
        server.json(&["ss", "--json"])[0]["state"] == "CLOSE-WAIT"
    });
    assert_eq!(server.recv(wire.into, 100), b"not read yet");
    server.close(wire.into);
    server.attached.wake();
    until("it rests", || {
        client
            .json(&["ss", "--json", "state", "time-wait"])
            .as_array()
            .unwrap()
            .len()
            == 1
    });
}

#[test]
fn stats_has_every_counter_by_layer() {
    let folder = Folder::new();
    let wire = Wire::up(&folder);
    let all = wire.server.json(&["stats", "--json"]);
    let host = all.as_object().unwrap().values().next().unwrap();
    assert_eq!(host["stack"]["flows_accepted"], 1, "{host}");
    assert_eq!(host["lcore"]["listeners_made"], 1);
    assert_eq!(host["now"]["flows"], 1);
    assert!(host["port"]["rx_frames"].as_u64().unwrap() > 2);
    assert!(
        host["stack"].get("rx_dropped_land").is_none(),
        "zeros are left out"
    );
    let lines = wire.server.lines(&["stats", "-a"]);
    assert!(lines.contains("stack.rx_dropped_land 0\n"), "{lines}");
    let twice = wire.server.lines(&["stats", "-i", "1", "-c", "2", "-a"]);
    assert_eq!(twice.matches("stack.flows_accepted ").count(), 2);
    assert!(
        twice.ends_with('\n') && twice.contains("stack.flows_accepted 0\n"),
        "{twice}"
    );
}

#[test]
fn a_host_that_is_not_there_is_one_line_and_69() {
    let folder = Folder::new();
    let mut command = Command::new(env!("CARGO_BIN_EXE_knetctl"));
    let output = command
        .arg("ss")
        .env("KNET_RUN_DIR", &folder.0)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(69));
    assert_eq!(String::from_utf8_lossy(&output.stderr).lines().count(), 1);
}

#[test]
fn a_bad_query_is_refused_and_tools_that_do_not_read_are_bounded() {
    let folder = Folder::new();
    let wire = Wire::up(&folder);
    let path = wire.server.knetd.socket().unwrap();
    let ask = |text: &str| {
        let socket = knetd::connect(&path).unwrap();
        let message = Message {
            text,
            ..Message::new(Kind::Query, 0, 0)
        };
        knetd::send(socket.as_fd(), &message, &[]);
        socket
    };
    for (query, reason) in [
        ("{", "no JSON"),
        ("{\"query\": \"nonsense\"}", "no such query"),
    ] {
        let answer = knetd::receive(ask(query).as_fd()).unwrap();
        assert_eq!(answer.kind, Kind::Fault);
        assert!(answer.text.contains(reason), "{}", answer.text);
    }
    let full = &ask(&" ".repeat(TEXT_BYTES));
    assert_eq!(knetd::receive(full.as_fd()).unwrap().kind, Kind::Fault);
    // Whoever does not read holds a thread for a while; the host and its programs go on.
    let silent: Vec<_> = (0..64).map(|_| ask("{\"query\": \"sockets\"}")).collect();
    let tasks = || {
        std::fs::read_dir(format!("/proc/{}/task", wire.server.knetd.child.id()))
            .unwrap()
            .count()
    };
    assert!(tasks() < 16, "{}", tasks());
    wire.client.send(wire.out, b"still here");
    wire.client.attached.wake();
    until("the bytes came", || {
        wire.server.recv(wire.into, 100) == b"still here"
    });
    drop(silent);
    until("tools are answered again", || {
        wire.server.knetctl(&["ss"]).status.success()
    });
}

/// Says `commands` to the telemetry socket of a host as DPDK's client does; the greeting and the answers.
fn telemetry(side: &Side, commands: &[&str]) -> Vec<Value> {
    let run = side.knetd.socket().unwrap();
    let path = run.parent().unwrap().join("dpdk/knet/dpdk_telemetry.v2:1");
    let socket = knetd::connect(&path).unwrap();
    let read = || {
        let mut bytes = vec![0; 16_384];
        let (count, _) =
            rustix::net::recv(&socket, &mut bytes[..], rustix::net::RecvFlags::empty()).unwrap();
        serde_json::from_slice::<Value>(&bytes[..count]).unwrap()
    };
    let mut answers = vec![read()];
    for command in commands {
        rustix::net::send(
            &socket,
            command.as_bytes(),
            rustix::net::SendFlags::NOSIGNAL,
        )
        .unwrap();
        answers.push(read());
    }
    answers
}

#[test]
fn telemetry_answers_every_command_of_knet_with_its_keys() {
    let folder = Folder::new();
    let wire = Wire::up(&folder);
    let server = &wire.server;
    server
        .cell(wire.into)
        .read
        .fd
        .store(12, std::sync::atomic::Ordering::Relaxed);
    let pid = std::process::id();
    let host = server.knetd.child.id();
    let keys = std::fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/fixtures/knet_keys.txt"
    ))
    .unwrap();
    let wanted = |group: &str| -> Vec<&str> {
        let pairs = keys.lines().filter_map(|line| line.split_once(' '));
        let mut of: Vec<&str> = pairs
            .filter(|(other, _)| *other == group)
            .map(|(_, key)| key)
            .collect();
        of.sort_unstable();
        of
    };
    let names = |value: &Value| -> Vec<String> {
        let mut names: Vec<String> = value.as_object().unwrap().keys().cloned().collect();
        names.sort_unstable();
        names
    };
    let one = |command: &str| {
        let mut answers = telemetry(server, &[command]);
        let (name, _) = command.split_once(',').unwrap_or((command, ""));
        answers.pop().unwrap()[name].take()
    };
    let greeting = telemetry(server, &[]).remove(0);
    assert_eq!(
        (&greeting["pid"], &greeting["max_output_len"]),
        (&json!(host), &json!(16_384))
    );
    let list = one("/");
    for command in [
        "/ethdev/list",
        "/ethdev/stats",
        "/ethdev/xstats",
        "/knet/stack/tcp_stat",
        "/knet/stack/conn_stat",
        "/knet/stack/pkt_stat",
        "/knet/stack/abn_stat",
        "/knet/stack/mem_stat",
        "/knet/stack/pbuf_stat",
        "/knet/stack/fd_count",
        "/knet/stack/net_stat",
        "/knet/stack/socket_info",
        "/knet/stack/epoll_stat",
        "/knet/flow/list",
        "/knet/ethdev/queue",
        "/knet/ethdev/usage",
    ] {
        assert!(
            list.as_array().unwrap().contains(&json!(command)),
            "{command}"
        );
        assert!(one(&format!("/help,{command}")).is_object(), "{command}");
    }
    for (command, group) in [
        ("conn_stat", "conn_stat"),
        ("pkt_stat", "pkt_stat"),
        ("mem_stat", "mem_stat"),
        ("pbuf_stat", "pbuf_stat"),
    ] {
        for parameters in [String::new(), format!(",{host}"), format!(",{pid}")] {
            let answer = one(&format!("/knet/stack/{command}{parameters}"));
            assert_eq!(names(&answer), wanted(group), "{command}{parameters}");
        }
    }
    assert_eq!(one("/knet/stack/conn_stat")["PAEstablished"], 1);
    let tcp = one("/knet/stack/tcp_stat");
    assert_eq!(
        (&tcp["Accepts"], &tcp["TcpUserAccept"]),
        (&json!(1), &json!(1))
    );
    assert!(tcp.get("KeepProbe").is_none(), "zeros are left out: {tcp}");
    assert!(
        names(&tcp)
            .iter()
            .all(|name| wanted("tcp_stat").contains(&name.as_str())),
        "{tcp}"
    );
    assert_eq!(one("/knet/stack/abn_stat"), json!({}));
    assert_eq!(one("/knet/stack/fd_count,tcp"), "1");
    assert_eq!(one(&format!("/knet/stack/fd_count,{pid} udp")), "0");
    let sockets = one(&format!("/knet/stack/net_stat,{pid} 0 10"));
    assert_eq!(names(&sockets), ["osFd11"]);
    assert_eq!(names(&sockets["osFd11"]), wanted("net_stat"));
    assert_eq!(
        (&sockets["osFd11"]["state"], &sockets["osFd11"]["rAddr"]),
        (&json!("ESTABLISHED"), &json!("10.77.0.2"))
    );
    let socket = one("/knet/stack/socket_info,11");
    for group in ["SockInfo", "InetSkInfo", "TcpBaseInfo", "TcpTransInfo"] {
        assert_eq!(names(&socket[group]), wanted(group), "{group}");
    }
    assert_eq!(
        (
            &socket["SockInfo"]["state"],
            &socket["TcpBaseInfo"]["state"]
        ),
        (&json!(4), &json!("ESTABLISHED"))
    );
    assert_eq!(
        (
            &socket["TcpBaseInfo"]["connType"],
            &socket["TcpTransInfo"]["lport"]
        ),
        (&json!("Passive"), &json!(6_379))
    );
    assert_eq!(
        one(&format!("/knet/stack/epoll_stat,{pid} 0 10 0 10")),
        json!({})
    );
    assert_eq!(one("/knet/flow/list,0 10"), json!({}));
    assert_eq!(one("/ethdev/list"), json!([0]));
    assert!(one("/ethdev/stats,0")["ipackets"].as_u64().unwrap() > 2);
    assert!(one("/ethdev/xstats,0")["rx_good_bytes"].as_u64().unwrap() > 100);
    let queues = one("/knet/ethdev/queue");
    assert_eq!(names(&queues["queue0"]), wanted("ethdev_queue"));
    assert_eq!(queues["queue0"]["pid"], host);
    let usage = one("/knet/ethdev/usage,0 1");
    assert_eq!(names(&usage["0_1"]), wanted("ethdev_usage"));
    for wrong in [
        "/knet/stack/nonsense",
        "/knet/stack/tcp_stat,1",
        "/knet/stack/net_stat",
        "/knet/ethdev/usage,0 61",
        "/nonsense",
        "hello",
    ] {
        assert_eq!(one(wrong), Value::Null, "{wrong}");
    }
    // K-NET's file of statistics, in the run folder of this trial.
    let file = server
        .knetd
        .socket()
        .unwrap()
        .with_file_name("stats")
        .join("knet-persist.json");
    until("it is written", || file.exists());
    let kept: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(
        names(&kept["pstats0"]),
        ["abn", "conn", "date", "mem", "pbuf", "pid", "pkts", "tcp"]
    );
    assert_eq!(names(&kept["pstats0"]["tcp"]).len(), 136);
}

#[test]
fn memory_is_told_under_the_names_of_knet() {
    let folder = Folder::new();
    let wire = Wire::up(&folder);
    let (server, client) = (&wire.server, &wire.client);
    let told = |command: &str| telemetry(server, &[command]).pop().unwrap()[command].take();
    let number = |command: &str, name: &str| told(command)[name].as_u64().unwrap();
    let pages = number("/knet/stack/mem_stat", "ShmInitMem");
    assert!(pages > 0 && pages % 4_096 == 0, "{pages}");
    assert_eq!(
        number("/knet/stack/pbuf_stat", "recvBufPktNum"),
        0,
        "nobody has sent anything"
    );
    // More than a page of it, so that the ring needs another one.
    let bytes = vec![7; 20_000];
    let mut sent = 0;
    until("all is sent", || {
        sent += client.send(wire.out, &bytes[sent..]);
        client.attached.wake();
        sent == bytes.len()
    });
    until("its segments wait to be read", || {
        number("/knet/stack/pbuf_stat", "recvBufPktNum") >= 20_000 / 1_460
    });
    let grown = number("/knet/stack/mem_stat", "ShmInitMem");
    assert!(grown >= pages + 4 * 4_096, "{pages} bytes, then {grown}");
    let stats = server.json(&["stats", "-a", "--json"]);
    let now = &stats.as_object().unwrap().values().next().unwrap()["now"];
    assert_eq!(
        told("/knet/stack/mem_stat")["SocketInitMem"],
        now["ring_bytes"]
    );
    assert!(now["ring_bytes"].as_u64().unwrap() >= 20_000, "{now}");
    assert!(now["channel_bytes"].as_u64().unwrap() >= grown, "{now}");
    let buffers = told("/knet/stack/mem_stat");
    let of = |name: &str| buffers[name].as_u64().unwrap();
    assert!(
        of("TcpInitMem") > 0 && of("TcpFreeMem") < of("TcpInitMem"),
        "{buffers}"
    );
    let mut read = 0;
    until("all is read", || {
        read += server.recv(wire.into, 65_536).len();
        server.attached.wake();
        read == bytes.len()
    });
    until("nothing waits any more", || {
        number("/knet/stack/pbuf_stat", "recvBufPktNum") == 0
    });
}

#[test]
fn latency_is_measured_while_somebody_asks() {
    let folder = Folder::new();
    let wire = Wire::up(&folder);
    let (server, client) = (&wire.server, &wire.client);
    let stop = std::sync::atomic::AtomicBool::new(false);
    let measured = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                client.send(wire.out, b"ping");
                client.attached.wake();
                until("the ping came", || !server.recv(wire.into, 100).is_empty());
                server.send(wire.into, b"pong");
                server.attached.wake();
                until("the pong came", || !client.recv(wire.out, 100).is_empty());
            }
        });
        let measured = server.json(&["latency", "-d", "1", "--json"]);
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        measured
    });
    let host = measured.as_object().unwrap().values().next().unwrap();
    for kind in ["turn", "rx_to_app", "app_to_tx"] {
        let one = &host[kind];
        assert!(one["count"].as_u64().unwrap() > 5, "{kind}: {one}");
        let of = |name: &str| one[name].as_u64().unwrap();
        assert!(
            0 < of("p50_ns") && of("p50_ns") <= of("p99_ns") && of("p99_ns") <= of("max_ns"),
            "{kind}: {one}"
        );
    }
    let lines = server.lines(&["latency", "-d", "1", "-b"]);
    assert!(
        lines.contains("p99.9") && lines.contains("rx_to_app"),
        "{lines}"
    );
    let top = server.json(&["top", "--json"]);
    assert_eq!(top[0]["process"], server.knetd.child.id());
    assert_eq!(
        server.knetctl(&["top"]).status.code(),
        Some(64),
        "no terminal"
    );
}
