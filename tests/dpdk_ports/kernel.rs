//! The kernel's end: a namespace of its own behind a veth pair. Both end with this process.

use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Sender, channel};

type Job = Box<dyn FnOnce() + Send>;

/// A thread that lives in the peer's namespace and does what it is told.
pub(crate) struct Peer {
    jobs: Sender<Job>,
    end: &'static str,
}

impl Peer {
    /// Moves this thread into a new namespace with `ours`, and makes a peer with `theirs` and `address`.
    pub(crate) fn with_veth(ours: &str, theirs: &'static str, address: &str) -> Self {
        leave();
        let (jobs, todo) = channel::<Job>();
        let (tell, told) = channel();
        std::thread::spawn(move || {
            leave();
            tell.send(rustix::thread::gettid().as_raw_nonzero())
                .unwrap();
            for job in todo {
                job();
            }
        });
        let thread = told.recv().unwrap().to_string();
        ip(&[
            "link", "add", ours, "type", "veth", "peer", "name", theirs, "netns", &thread,
        ]);
        ip(&["link", "set", ours, "addrgenmode", "none"]);
        ip(&["link", "set", ours, "up"]);
        let peer = Self { jobs, end: theirs };
        peer.ip(&["link", "set", theirs, "addrgenmode", "none"]);
        peer.ip(&["address", "add", address, "dev", theirs]);
        peer.ip(&["link", "set", theirs, "up"]);
        peer
    }

    /// Calls `job` on the peer's thread and waits for it.
    pub(crate) fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        let (tell, told) = channel();
        self.jobs
            .send(Box::new(move || tell.send(job()).unwrap()))
            .unwrap();
        told.recv().expect("the peer's thread lives")
    }

    pub(crate) fn ip(&self, arguments: &[&str]) {
        let arguments: Vec<String> = arguments.iter().map(|word| (*word).to_owned()).collect();
        self.run(move || ip(&arguments.iter().map(String::as_str).collect::<Vec<_>>()));
    }

    /// Starts a program in the peer's namespace.
    pub(crate) fn spawn(&self, program: &str, arguments: &[&str]) -> Child {
        let mut command = Command::new(program);
        command.args(arguments).stdout(Stdio::null());
        self.run(move || command.spawn().unwrap())
    }

    /// Frames that the peer's end got.
    pub(crate) fn received(&self) -> u64 {
        let end = self.end;
        self.run(move || {
            let text = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
            let line = text
                .lines()
                .find_map(|line| line.trim().strip_prefix(end))
                .unwrap();
            line.trim_start_matches(':')
                .split_whitespace()
                .nth(1)
                .unwrap()
                .parse()
                .unwrap()
        })
    }

    pub(crate) fn mac(&self) -> [u8; 6] {
        let end = self.end;
        self.run(move || mac_of(end))
    }
}

/// Takes this thread into a new, empty network namespace.
fn leave() {
    // SAFETY: changes the network namespace of this thread only; no memory is involved.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }.unwrap();
}

/// Runs `ip` in this thread's namespace.
pub(crate) fn ip(arguments: &[&str]) {
    let output = Command::new("ip").args(arguments).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "ip {}: {errors}",
        arguments.join(" ")
    );
}

/// The MAC address of an interface of this thread's namespace.
pub(crate) fn mac_of(name: &str) -> [u8; 6] {
    let output = Command::new("ip")
        .args(["-o", "link", "show", "dev", name])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let mac = text
        .split("link/ether ")
        .nth(1)
        .expect("a MAC address")
        .split(' ')
        .next()
        .unwrap();
    let bytes: Vec<u8> = mac
        .split(':')
        .map(|hex| u8::from_str_radix(hex, 16).unwrap())
        .collect();
    bytes.try_into().unwrap()
}

pub(crate) fn send_udp(to: &str, payload: &[u8]) {
    std::net::UdpSocket::bind("0.0.0.0:0")
        .unwrap()
        .send_to(payload, to)
        .unwrap();
}

/// The kernel knows AF_XDP sockets.
pub(crate) fn has_xdp() -> bool {
    use rustix::net::{AddressFamily, SocketType, socket};
    socket(AddressFamily::XDP, SocketType::RAW, None).is_ok()
}
