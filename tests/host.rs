//! knetd as a process: hand-shake, service, and its whole life. No privilege is needed: two hosts exchange frames
//! over a socket.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    reason = "in a test a surprise is a failure, and its output is for people"
)]

#[path = "support/knetd.rs"]
mod knetd;
#[allow(dead_code, reason = "the lcore's tests use the rest")]
#[path = "support/program.rs"]
mod program;
#[path = "support/side.rs"]
mod side;

use std::net::SocketAddrV4;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

use knet::channel::cell::{host_state, kind, process};
use knet::channel::layout::{EPOLLS, SLOTS};
use knet::channel::message::{HEAD_BYTES, Kind, Message, TEXT_BYTES};
use knet::readiness::event;
use knetd::{Attached, Folder, Knetd, until};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::Signal;
use side::{CLIENT, ENDPOINT, SERVER, Side, connect, listen};

/// Two hosts on one wire; the server's lingers as `common` says.
fn two(folder: &Folder, common: &str) -> (Side, Side) {
    let server = Side::start(folder, "server", SERVER, common);
    let client = Side::start(folder, "client", CLIENT, r#""linger_s": 0"#);
    (server, client)
}

/// Reads `count` bytes.
#[track_caller]
fn read(side: &Side, object: u32, count: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    until("the bytes came", || {
        bytes.extend(side.recv(object, 65_536));
        side.attached.wake();
        bytes.len() >= count
    });
    bytes
}

#[track_caller]
fn write(side: &Side, object: u32, bytes: &[u8]) {
    let mut sent = 0;
    until("the bytes were taken", || {
        sent += side.send(object, &bytes[sent..]);
        side.attached.wake();
        sent == bytes.len()
    });
}

#[test]
fn two_hosts_echo_and_end_when_nobody_needs_them() {
    let folder = Folder::new();
    let (mut server, mut client) = two(&folder, r#""linger_s": 0"#);
    let listener = listen(&server);
    let (out, into) = connect(&client, &server, listener);
    let data: Vec<u8> = (0..100_000_u32).map(|n| (n * 7 % 251) as u8).collect();
    write(&client, out, &data[..60_000]);
    assert_eq!(read(&server, into, 60_000), data[..60_000]);
    write(&server, into, &data);
    assert_eq!(read(&client, out, data.len()), data);
    // The server's program dies; what it has sent arrives, then FIN.
    write(&server, into, b"bye");
    server.attached.socket = spare();
    until("FIN came", || client.bits(out) & event::RDHUP != 0);
    assert_eq!(read(&client, out, 3), b"bye");
    assert!(server.knetd.runs(), "the peer has not closed");
    client.attached.socket = spare();
    assert_eq!(server.knetd.ended().code(), Some(0));
    assert_eq!(client.knetd.ended().code(), Some(0));
    assert_eq!(server.knetd.socket(), None);
}

/// Any open descriptor, to replace and so close another one.
fn spare() -> OwnedFd {
    std::fs::File::open("/dev/null").unwrap().into()
}

/// A server with an lcore on each of two CPUs, and a client with one.
fn two_with_two(folder: &Folder, common: &str) -> (Side, Side) {
    let cpus = knet::lcore::cpus_of(None);
    let [first, second, ..] = *cpus else {
        panic!("this test needs two CPUs");
    };
    let list = format!("{first},{second}");
    let conf = folder.config_on("server", SERVER, common, &list);
    let server = Side::with(folder, "server", conf);
    let client = Side::start(folder, "client", CLIENT, r#""linger_s": 0"#);
    (server, client)
}

#[test]
fn two_lcores_serve_one_listener_and_end_together() {
    const CONNECTIONS: usize = 16;
    for idle in ["adaptive", "spin"] {
        let folder = Folder::new();
        let common = format!(r#""linger_s": 0, "idle": "{idle}", "spin_us": 0"#);
        let (mut server, mut client) = two_with_two(&folder, &common);
        assert_eq!(server.attached.eventfds.len(), 2);
        let listener = listen(&server);
        let pairs: Vec<_> = (0..CONNECTIONS)
            .map(|_| connect(&client, &server, listener))
            .collect();
        let lcore_of = |object: u32| server.control.lcore_of(object);
        for lcore in 0..2 {
            assert!(pairs.iter().any(|(_, into)| lcore_of(*into) == lcore));
        }
        let data: Vec<u8> = (0..40_000_u32).map(|n| (n * 7 % 251) as u8).collect();
        for (out, into) in &pairs {
            write(&client, *out, &data);
            assert_eq!(read(&server, *into, data.len()), data);
            write(&server, *into, &data);
            assert_eq!(read(&client, *out, data.len()), data);
        }
        // Outgoing ones of both lcores.
        let back = SocketAddrV4::new(CLIENT, 80);
        let theirs = client.claim();
        client.listen(theirs, back, 16);
        client.attached.wake();
        until("listen is answered", || client.answer(theirs) == Some(0));
        for lcore in 0..2 {
            let out = server.claim_at(lcore);
            server.connect(out, back);
            server.attached.wake();
            until("it is connected", || server.kind(out) == kind::STREAM);
            until("it waits for accept", || client.bits(theirs) != 0);
            let into = client.accept(theirs).unwrap();
            write(&server, out, b"from here");
            assert_eq!(read(&client, into, 9), b"from here");
        }
        // The program dies: all of it ends, at both.
        server.attached.socket = spare();
        for (out, _) in &pairs {
            until("FIN came", || client.bits(*out) & event::RDHUP != 0);
        }
        client.attached.socket = spare();
        assert_eq!(server.knetd.ended().code(), Some(0));
        assert_eq!(client.knetd.ended().code(), Some(0));
    }
}

#[test]
fn a_listener_ends_at_every_lcore_and_its_port_is_free() {
    let folder = Folder::new();
    let (mut server, client) = two_with_two(&folder, r#""linger_s": 0"#);
    let listener = listen(&server);
    for _ in 0..4 {
        connect(&client, &server, listener);
    }
    // Listens no more; the port is free for the next one at every lcore.
    server.close(listener);
    server.attached.wake();
    until("the listener is free", || server.is_free(listener));
    let again = listen(&server);
    connect(&client, &server, again);
    server.knetd.signal(Signal::KILL);
    server.knetd.ended();
    assert!(knetd::receive(server.attached.socket.as_fd()).is_none());
}

#[test]
fn a_sleeper_is_woken_through_its_eventfd() {
    let folder = Folder::new();
    let (server, client) = two(
        &folder,
        r#""linger_s": 0, "idle": "adaptive", "spin_us": 0"#,
    );
    let listener = listen(&server);
    let (out, into) = connect(&client, &server, listener);
    let eventfd = server.attached.waiter(3);
    assert!(
        knetd::readable(eventfd.as_fd()),
        "a new waiter is woken once"
    );
    let mut count = [0; 8];
    rustix::io::read(&eventfd, &mut count).unwrap();
    let slot = server.control.slot(3).unwrap();
    slot.sleeping.store(1, Ordering::SeqCst);
    server.cell(into).watch.slots.add(3);
    client.send(out, b"wake up");
    client.attached.wake();
    assert!(knetd::readable(eventfd.as_fd()));
    assert_eq!(slot.sleeping.load(Ordering::SeqCst), 0);
    assert_eq!(read(&server, into, 7), b"wake up");
}

#[test]
fn a_restarted_program_attaches_to_the_lingering_host() {
    let folder = Folder::new();
    let (mut server, client) = two(&folder, r#""linger_s": 30"#);
    let first = listen(&server);
    let (out, _into) = connect(&client, &server, first);
    server.attached.socket = spare();
    until("FIN came", || client.bits(out) & event::RDHUP != 0);
    let socket = knetd::connect(&server.knetd.socket().unwrap()).unwrap();
    server.attached = Attached::over(socket, &server.conf);
    let listener = listen(&server);
    connect(&client, &server, listener);
    assert!(server.knetd.runs());
}

#[test]
fn another_config_or_build_is_told_so() {
    let folder = Folder::new();
    let conf = folder.config("server", SERVER, r#""linger_s": 30"#);
    let (knetd, control) = Knetd::private(&folder, "run");
    let _first = Attached::attach(control, &conf);
    let path = knetd.socket().unwrap();

    let other = folder.config("other", CLIENT, "");
    let answer = knetd::hello(&knetd::connect(&path).unwrap(), &other).unwrap();
    assert_eq!(answer.kind, Kind::Fault);
    assert!(
        answer.text.contains("other") && answer.text.contains("server"),
        "{}",
        answer.text
    );

    let answer = knetd::hello_as(&knetd::connect(&path).unwrap(), &conf, "0.0.9").unwrap();
    assert_eq!(answer.kind, Kind::Fault);
    for part in ["0.0.9", knet::BUILD_VERSION, "/usr/lib/frame.so", "knetd"] {
        assert!(answer.text.contains(part), "{}", answer.text);
    }

    let socket = knetd::connect(&path).unwrap();
    let mut buffer = [0; HEAD_BYTES + TEXT_BYTES];
    let mut bytes = Message::new(Kind::Hello, 0, 0).emit(&mut buffer).to_vec();
    bytes[4] = 99;
    knetd::send_bytes(socket.as_fd(), &bytes, &[]);
    let answer = knetd::receive(socket.as_fd()).unwrap();
    assert!(
        answer.text.contains("channel version 99"),
        "{}",
        answer.text
    );

    let socket = knetd::connect(&path).unwrap();
    knetd::send_bytes(socket.as_fd(), b"GET / HTTP/1.1", &[]);
    assert!(
        knetd::receive(socket.as_fd()).is_none(),
        "a stranger is hung up on"
    );
}

#[test]
fn a_bad_config_is_one_line_and_the_host_ends() {
    let folder = Folder::new();
    let conf = folder.0.join("bad");
    std::fs::write(&conf, r#"{"interface": {"ip": "10.0.0.300"}}"#).unwrap();
    let (mut knetd, control) = Knetd::private(&folder, "run");
    let answer = knetd::hello(&control, &conf).unwrap();
    assert_eq!(answer.kind, Kind::Fault);
    assert!(answer.text.contains("interface.ip"), "{}", answer.text);
    assert!(
        answer.text.ends_with("kernel sockets are used"),
        "{}",
        answer.text
    );
    assert_eq!(knetd.ended().code(), Some(0));
}

#[test]
fn a_device_that_does_not_open_is_one_line() {
    let folder = Folder::new();
    let conf = folder.0.join("conf");
    let text = r#"{"interface": {"vdevs": ["knet_unix,path=/no/such/folder/wire"], "ip": "10.0.0.1",
        "netmask": "255.255.255.0"}, "common": {"linger_s": 0, "on_error": "fail"}}"#;
    std::fs::write(&conf, text).unwrap();
    let (mut knetd, control) = Knetd::private(&folder, "run");
    let attached = Attached::attach(control, &conf);
    knetd::send(
        attached.socket.as_fd(),
        &Message::new(Kind::Open, 0, 0),
        &[],
    );
    let answer = knetd::receive(attached.socket.as_fd()).unwrap();
    assert_eq!((answer.kind, answer.b), (Kind::Fault, 1));
    assert!(
        answer.text.contains("/no/such/folder/wire"),
        "{}",
        answer.text
    );
    assert!(answer.text.contains("refused"), "{}", answer.text);
    assert_eq!(knetd.ended().code(), Some(0));
}

#[test]
fn a_host_whose_port_does_not_open_makes_room_for_another() {
    let folder = Folder::new();
    let conf = folder.0.join("conf");
    let text = r#"{"interface": {"vdevs": ["knet_unix,path=/no/such/folder/wire"], "ip": "10.0.0.1",
        "netmask": "255.255.255.0"}, "common": {"linger_s": 60}}"#;
    std::fs::write(&conf, text).unwrap();
    let (mut knetd, control) = Knetd::private(&folder, "run");
    let attached = Attached::attach(control, &conf);
    let open = Message::new(Kind::Open, 0, 0);
    knetd::send(attached.socket.as_fd(), &open, &[]);
    let answer = knetd::receive(attached.socket.as_fd()).unwrap();
    assert_eq!((answer.kind, answer.b), (Kind::Fault, 0));
    assert_eq!(knetd.ended().code(), Some(0), "it does not linger");
    assert_eq!(knetd.socket(), None, "its socket is gone");
}

#[test]
fn a_forked_child_keeps_the_sockets() {
    let folder = Folder::new();
    let (mut server, client) = two(&folder, r#""linger_s": 0"#);
    let listener = listen(&server);
    // As the fork handler does: a cell, the holdings, one end of a pair for the host.
    let cell = (0..).find(|&cell| {
        let it = server.control.process(cell).unwrap();
        it.state.load(Ordering::SeqCst) == process::FREE
    });
    let cell = cell.unwrap();
    let it = server.control.process(cell).unwrap();
    it.pid.store(std::process::id(), Ordering::SeqCst);
    it.state.store(process::FORKING, Ordering::SeqCst);
    let held = server.control.held(server.cell).unwrap();
    held.copy_to(&server.control.held(cell).unwrap());
    let (childs, hosts) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    let message = Message::new(Kind::Fork, cell, 0);
    knetd::send(server.attached.socket.as_fd(), &message, &[hosts.as_fd()]);
    drop(hosts);
    let message = Message::new(Kind::Child, cell, std::process::id());
    knetd::send(childs.as_fd(), &message, &[]);
    until("the child lives", || {
        it.state.load(Ordering::SeqCst) == process::LIVE
    });
    // The parent exits; the child serves.
    let parent = server.cell;
    server.attached.socket = childs;
    server.attached.program.cell = cell;
    let gone = server.control.process(parent).unwrap();
    until("the parent is gone", || {
        gone.state.load(Ordering::SeqCst) == process::FREE
    });
    let (out, into) = connect(&client, &server, listener);
    write(&server, into, b"from the child");
    assert_eq!(read(&client, out, 14), b"from the child");
    assert!(server.knetd.runs());
}

#[test]
fn a_tool_learns_what_is_served() {
    let folder = Folder::new();
    let (server, client) = two(&folder, r#""linger_s": 0"#);
    let listener = listen(&server);
    connect(&client, &server, listener);
    let socket = knetd::connect(&server.knetd.socket().unwrap()).unwrap();
    knetd::send(socket.as_fd(), &Message::new(Kind::Status, 0, 0), &[]);
    let answer = knetd::receive(socket.as_fd()).unwrap();
    assert_eq!(answer.kind, Kind::Status);
    let status: serde_json::Value = serde_json::from_str(&answer.text).unwrap();
    assert_eq!(status["counters"]["flows_accepted"], 1, "{status}");
    assert_eq!(status["families"], 1);
    assert!(status["port_stats"]["rx_frames"].as_u64().unwrap() > 2);
}

#[test]
fn guests_and_false_slots_cost_a_bounded_number_of_descriptors() {
    let folder = Folder::new();
    let conf = folder.config("server", SERVER, r#""linger_s": 0"#);
    let (knetd, control) = Knetd::private(&folder, "run");
    let attached = Attached::attach(control, &conf);
    let path = knetd.socket().unwrap();
    let open = || {
        let folder = format!("/proc/{}/fd", knetd.child.id());
        std::fs::read_dir(folder).unwrap().count()
    };
    let before = open();
    // The lcore does not run yet, so that the control thread keeps what comes.
    // Behind the slots of threads and the heralds of epolls.
    for slot in (SLOTS + EPOLLS..).take(256) {
        attached.waiter(slot);
    }
    let guests: Vec<OwnedFd> = (0..200).map(|_| knetd::connect(&path).unwrap()).collect();
    // The oldest were sent away, and a tool that comes last is served.
    assert!(knetd::receive(guests[0].as_fd()).is_none());
    let tool = knetd::connect(&path).unwrap();
    knetd::send(tool.as_fd(), &Message::new(Kind::Status, 0, 0), &[]);
    assert_eq!(knetd::receive(tool.as_fd()).unwrap().kind, Kind::Status);
    // A socket and a pidfd each.
    assert!(open() <= before + 2 * 64, "{before} {}", open());
}

#[test]
fn a_second_sigterm_does_not_wait_for_a_peer_that_is_gone() {
    let folder = Folder::new();
    let conf = folder.config("system", SERVER, r#""mode": 1"#);
    let mut knetd = Knetd::system(&folder, &conf);
    let path = folder.0.join("knetd.sock");
    until("it listens", || knetd::connect(&path).is_ok());
    let server = Attached::over(knetd::connect(&path).unwrap(), &conf);
    let listener = server.program.claim();
    server.program.listen(listener, ENDPOINT, 4);
    server.wake();
    until("listen is answered", || {
        server.program.answer(listener) == Some(0)
    });
    let client = Side::start(&folder, "client", CLIENT, r#""linger_s": 0"#);
    let out = client.claim();
    client.connect(out, ENDPOINT);
    client.attached.wake();
    until("it waits for accept", || server.program.bits(listener) != 0);
    let into = server.program.accept(listener).unwrap();
    client.knetd.signal(Signal::STOP);
    server.program.send(into, b"nobody hears this");
    // What a program leaves behind is delivered; what it still holds would be reset.
    drop(server);
    let clients = || {
        let tool = knetd::connect(&path).unwrap();
        knetd::send(tool.as_fd(), &Message::new(Kind::Status, 0, 0), &[]);
        let answer = knetd::receive(tool.as_fd()).unwrap();
        let status: serde_json::Value = serde_json::from_str(&answer.text).unwrap();
        status["clients"].clone()
    };
    until("only the tool that asks is left", || clients() == 1);
    knetd.signal(Signal::TERM);
    until("nobody finds it any more", || !path.exists());
    assert!(knetd.runs(), "it still tries to deliver");
    knetd.signal(Signal::TERM);
    assert_eq!(knetd.ended().code(), Some(0));
}

#[test]
fn sigterm_spares_a_private_host_with_clients() {
    let folder = Folder::new();
    let (mut server, client) = two(&folder, r#""linger_s": 0"#);
    let listener = listen(&server);
    server.knetd.signal(Signal::TERM);
    let (out, into) = connect(&client, &server, listener);
    write(&client, out, b"still here");
    assert_eq!(read(&server, into, 10), b"still here");
    assert!(server.knetd.runs());
}

#[test]
fn a_killed_host_hangs_up_and_leaves_no_stale_socket_behind() {
    let folder = Folder::new();
    let conf = folder.config("server", SERVER, r#""linger_s": 0"#);
    let (mut knetd, control) = Knetd::private(&folder, "run");
    let attached = Attached::attach(control, &conf);
    let path = knetd.socket().unwrap();
    knetd.signal(Signal::KILL);
    knetd.ended();
    assert!(knetd::receive(attached.socket.as_fd()).is_none());
    assert!(path.exists(), "kill -9 removes nothing");
    let (knetd, control) = Knetd::private(&folder, "run");
    // Kept: without a client it would end at once.
    let _attached = Attached::attach(control, &conf);
    assert_eq!(knetd.socket(), Some(path.clone()));
    knetd::connect(&path).unwrap();
}

#[test]
fn a_system_host_serves_several_programs_and_ends_on_sigterm() {
    let folder = Folder::new();
    let conf = folder.config("system", SERVER, r#""mode": 1"#);
    let mut knetd = Knetd::system(&folder, &conf);
    let path = folder.0.join("knetd.sock");
    until("it listens", || knetd::connect(&path).is_ok());
    let first = Attached::over(knetd::connect(&path).unwrap(), &conf);
    let second = Attached::over(knetd::connect(&path).unwrap(), &conf);
    for attached in [&first, &second] {
        until("the lcore serves it", || {
            let state = &attached.program.control.header().host_state;
            state.load(Ordering::SeqCst) == host_state::RUNNING
        });
    }
    let listener = first.program.claim();
    first.program.listen(listener, ENDPOINT, 4);
    first.wake();
    until("listen is answered", || {
        first.program.answer(listener) == Some(0)
    });
    // A program of the same host reaches it inside the host.
    let out = second.program.claim();
    second.program.connect(out, ENDPOINT);
    second.wake();
    until("it is connected", || {
        second.program.kind(out) == kind::STREAM
    });
    until("it waits for accept", || first.program.bits(listener) != 0);
    let into = first.program.accept(listener).unwrap();
    second.program.send(out, b"looped");
    second.wake();
    until("the bytes came", || {
        first.program.recv(into, 100) == b"looped"
    });
    knetd.signal(Signal::TERM);
    assert_eq!(knetd.ended().code(), Some(0));
    assert!(!path.exists());
}

/// A system host that listens.
fn system(folder: &Folder) -> (Knetd, std::path::PathBuf, std::path::PathBuf) {
    let conf = folder.config(
        "system",
        SERVER,
        r#""mode": 1, "idle": "adaptive", "spin_us": 0"#,
    );
    let knetd = Knetd::system(folder, &conf);
    let path = folder.0.join("knetd.sock");
    until("it listens", || knetd::connect(&path).is_ok());
    (knetd, path, conf)
}

#[test]
fn a_system_host_whose_socket_file_was_taken_away_is_found_again() {
    let folder = Folder::new();
    let (mut knetd, path, conf) = system(&folder);
    let before = Attached::over(knetd::connect(&path).unwrap(), &conf);
    std::fs::remove_file(&path).unwrap();
    until("it listens again", || knetd::connect(&path).is_ok());
    let _after = Attached::over(knetd::connect(&path).unwrap(), &conf);
    // Who was there before is served on.
    let listener = before.program.claim();
    before.program.listen(listener, ENDPOINT, 4);
    before.wake();
    until("listen is answered", || {
        before.program.answer(listener) == Some(0)
    });
    knetd.signal(Signal::TERM);
    assert_eq!(knetd.ended().code(), Some(0));
    assert!(!path.exists());
}

#[test]
fn a_program_that_makes_its_eventfds_block_holds_nobody_up() {
    let folder = Folder::new();
    let (_knetd, path, conf) = system(&folder);
    let hostile = Attached::over(knetd::connect(&path).unwrap(), &conf);
    let other = Attached::over(knetd::connect(&path).unwrap(), &conf);
    let full = (u64::MAX - 1).to_ne_bytes();
    let blocking = |fd: &OwnedFd| {
        let flags = rustix::fs::fcntl_getfl(fd).unwrap();
        rustix::fs::fcntl_setfl(fd, flags - rustix::fs::OFlags::NONBLOCK).unwrap();
    };
    // The bell that all programs share: what the host reads when it wakes, and would write for its mail.
    blocking(&hostile.eventfds[0]);
    // The eventfd of a sleeper.
    let eventfd = hostile.waiter(3);
    assert!(knetd::readable(eventfd.as_fd()));
    rustix::io::read(&eventfd, &mut [0; 8]).unwrap();
    blocking(&eventfd);
    rustix::io::write(&eventfd, &full).unwrap();
    hostile.program.control.header().kicks.slots.add(3);
    rustix::io::write(&hostile.eventfds[0], &1_u64.to_ne_bytes()).unwrap();
    until("the lcore is free again", || {
        let tool = knetd::connect(&path).unwrap();
        knetd::send(tool.as_fd(), &Message::new(Kind::Status, 0, 0), &[]);
        let told = knetd::receive(tool.as_fd()).unwrap().text;
        told.contains(r#""families_muted":1"#)
    });
    let listener = other.program.claim();
    other.program.listen(listener, ENDPOINT, 4);
    other.wake();
    until("listen is answered", || {
        other.program.answer(listener) == Some(0)
    });
}

#[test]
fn sighup_opens_the_log_of_a_system_host_again() {
    let folder = Folder::new();
    let (mut knetd, path, conf) = system(&folder);
    let log = folder.0.join("log");
    std::fs::rename(&log, folder.0.join("log.1")).unwrap();
    knetd.signal(Signal::HUP);
    until("the log is there again", || log.exists());
    drop(Attached::over(knetd::connect(&path).unwrap(), &conf));
    assert!(knetd.runs());
    knetd.signal(Signal::TERM);
    assert_eq!(knetd.ended().code(), Some(0));
}

#[test]
fn a_flood_of_one_line_is_counted_and_summed_up() {
    let folder = Folder::new();
    let (mut knetd, path, _) = system(&folder);
    // Each beyond the 64th sends the oldest away, with a line.
    let guests: Vec<OwnedFd> = (0..400).map(|_| knetd::connect(&path).unwrap()).collect();
    assert!(knetd::receive(guests[300].as_fd()).is_none());
    knetd.signal(Signal::TERM);
    assert_eq!(knetd.ended().code(), Some(0));
    let log = std::fs::read_to_string(folder.0.join("log")).unwrap();
    let lines = || {
        log.lines()
            .filter(|line| line.contains("event=guest_ended") && !line.contains("reason=silent"))
    };
    let number = |line: &str, key: &str| -> u64 {
        let value = line
            .split(key)
            .nth(1)
            .and_then(|rest| rest.split(' ').next());
        value.map_or(0, |value| value.parse().unwrap())
    };
    let written = lines()
        .filter(|line| !line.contains("lines_held_back"))
        .count() as u64;
    let summed: u64 = lines()
        .map(|line| number(line, "lines_held_back count=") + number(line, "held_back="))
        .sum();
    assert!((64..=192).contains(&written), "{written} written\n{log}");
    assert!(
        (301..=400).contains(&(written + summed)),
        "{written} written, {summed} held back\n{log}"
    );
    assert!(log.contains("event=lines_held_back count="), "{log}");
}

#[test]
fn a_private_host_does_not_take_a_config_of_the_service() {
    let folder = Folder::new();
    let conf = folder.config("shared", SERVER, r#""mode": 1"#);
    let (mut knetd, control) = Knetd::private(&folder, "shared");
    let answer = knetd::hello(&control, &conf).expect("an answer");
    assert_eq!(answer.kind, Kind::Fault);
    assert!(
        answer
            .text
            .contains("common.mode is 1, but no host of the system"),
        "{}",
        answer.text
    );
    assert!(
        answer.text.contains("kernel sockets are used"),
        "{}",
        answer.text
    );
    drop(control);
    assert!(knetd.ended().success());
}
