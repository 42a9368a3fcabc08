//! A knetd of this build with a run folder of its own, and what a program says to it.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use knet::channel::cell::Header;
use knet::channel::message::{DESCRIPTORS_MAX, HEAD_BYTES, Kind, Message, TEXT_BYTES};
use knet::time::monotonic;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use crate::program::Program;

/// Everything here ends sooner; a test that waits this long has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// A folder of one test.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("knet-host-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    /// Writes a config of a host at `address` on the wire of this folder.
    pub(crate) fn config(&self, name: &str, address: Ipv4Addr, common: &str) -> PathBuf {
        self.config_on(name, address, common, "")
    }

    /// As [`Folder::config`], with the CPUs of the lcores.
    pub(crate) fn config_on(
        &self,
        name: &str,
        address: Ipv4Addr,
        common: &str,
        cpus: &str,
    ) -> PathBuf {
        let path = self.0.join(name);
        let wire = self.0.join("wire");
        let text = format!(
            r#"{{"interface": {{"vdevs": ["knet_unix,path={}"], "ip": "{address}", "netmask": "255.255.255.0"}},
            "common": {{{common}}}, "proto_stack": {{"msl_time": 1}}, "dpdk": {{"core_list_global": "{cpus}"}}}}"#,
            wire.display()
        );
        std::fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A started knetd; killed when it is dropped.
pub(crate) struct Knetd {
    pub(crate) child: Child,
    pub(crate) folder: PathBuf,
    run: PathBuf,
}

impl Knetd {
    /// Starts a private host with the run folder `run` and returns our end of its control socket.
    pub(crate) fn private(folder: &Folder, run: &str) -> (Self, OwnedFd) {
        let (ours, theirs) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        let child = Self::command(folder, run)
            .args(["--private", "--control-fd", "0", "--program", "test"])
            .stdin(Stdio::from(theirs))
            .spawn()
            .unwrap();
        let made = Self {
            child,
            folder: folder.0.clone(),
            run: folder.0.join(format!("run-{run}")),
        };
        (made, ours)
    }

    /// Starts a system host.
    pub(crate) fn system(folder: &Folder, conf: &Path) -> Self {
        let child = Self::command(folder, "run")
            .arg("--conf")
            .arg(conf)
            .arg("--socket")
            .arg(folder.0.join("knetd.sock"))
            .spawn()
            .unwrap();
        Self {
            child,
            folder: folder.0.clone(),
            run: folder.0.join("run-run"),
        }
    }

    fn command(folder: &Folder, run: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_knetd"));
        command
            .env("KNET_RUN_DIR", folder.0.join(format!("run-{run}")))
            .env("KNET_LOG", folder.0.join("log"))
            .stdout(Stdio::null());
        command
    }

    /// Waits for its end.
    #[track_caller]
    pub(crate) fn ended(&mut self) -> ExitStatus {
        let mut status = None;
        until("the host has ended", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }

    pub(crate) fn runs(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// The socket by which others find a private host.
    pub(crate) fn socket(&self) -> Option<PathBuf> {
        let entries = std::fs::read_dir(&self.run).ok()?;
        entries
            .flatten()
            .map(|entry| entry.path())
            .find(|path| path.extension().is_some_and(|end| end == "sock"))
    }
}

impl Drop for Knetd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking()
            && let Ok(log) = std::fs::read_to_string(self.folder.join("log"))
        {
            println!("{log}");
        }
    }
}

/// Repeats `done` until it says yes.
#[track_caller]
pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = monotonic() + PATIENCE;
    while !done() {
        assert!(monotonic() < end, "in vain: {what}");
        // Both hosts need the CPU more than we do.
        let nap = Timespec {
            tv_sec: 0,
            tv_nsec: 500_000,
        };
        let _ = rustix::event::poll(&mut [], Some(&nap));
    }
}

/// Connects to a listening host.
pub(crate) fn connect(path: &Path) -> rustix::io::Result<OwnedFd> {
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Sends one message.
pub(crate) fn send(socket: BorrowedFd<'_>, message: &Message<'_>, riding: &[BorrowedFd<'_>]) {
    let mut buffer = [0; HEAD_BYTES + TEXT_BYTES];
    send_bytes(socket, message.emit(&mut buffer), riding);
}

pub(crate) fn send_bytes(socket: BorrowedFd<'_>, bytes: &[u8], riding: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(riding.is_empty() || ancillary.push(SendAncillaryMessage::ScmRights(riding)));
    rustix::net::sendmsg(
        socket,
        &[IoSlice::new(bytes)],
        &mut ancillary,
        SendFlags::NOSIGNAL,
    )
    .unwrap();
}

/// An answer: its kind, its first two numbers, its text, its descriptors.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) kind: Kind,
    pub(crate) a: u32,
    pub(crate) b: u32,
    pub(crate) text: String,
    pub(crate) descriptors: Vec<OwnedFd>,
}

/// Waits for a message; None when the host hung up.
#[track_caller]
pub(crate) fn receive(socket: BorrowedFd<'_>) -> Option<Answer> {
    let mut sources = [PollFd::from_borrowed_fd(socket, PollFlags::IN)];
    let limit = Timespec {
        tv_sec: 20,
        tv_nsec: 0,
    };
    assert_eq!(
        rustix::event::poll(&mut sources, Some(&limit)),
        Ok(1),
        "no answer"
    );
    let mut bytes = [0; HEAD_BYTES + TEXT_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut part = [IoSliceMut::new(&mut bytes)];
    let got = rustix::net::recvmsg(socket, &mut part, &mut ancillary, RecvFlags::CMSG_CLOEXEC);
    let got = match got {
        Ok(got) if got.bytes > 0 => got.bytes,
        Ok(_) | Err(rustix::io::Errno::CONNRESET) => return None,
        Err(errno) => panic!("{errno}"),
    };
    let mut descriptors = Vec::new();
    for one in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = one {
            descriptors.extend(fds);
        }
    }
    let message = Message::parse(&bytes[..got]).unwrap();
    Some(Answer {
        kind: message.kind,
        a: message.a,
        b: message.b,
        text: message.text.to_owned(),
        descriptors,
    })
}

/// A program attached to a host.
pub(crate) struct Attached {
    pub(crate) socket: OwnedFd,
    pub(crate) program: Program,
    /// One an lcore.
    pub(crate) eventfds: Vec<OwnedFd>,
}

/// Says Hello with the config at `conf`.
pub(crate) fn hello(socket: &OwnedFd, conf: &Path) -> Option<Answer> {
    hello_as(socket, conf, knet::BUILD_VERSION)
}

pub(crate) fn hello_as(socket: &OwnedFd, conf: &Path, version: &str) -> Option<Answer> {
    let file = std::fs::File::open(conf).unwrap();
    let text = format!(
        "{version}\n{}\n/usr/bin/test\n/usr/lib/frame.so",
        conf.display()
    );
    let message = Message {
        text: &text,
        ..Message::new(
            Kind::Hello,
            u32::try_from(size_of::<Header>()).unwrap(),
            std::process::id(),
        )
    };
    send(socket.as_fd(), &message, &[file.as_fd()]);
    receive(socket.as_fd())
}

impl Attached {
    /// Attaches, and opens the device.
    #[track_caller]
    pub(crate) fn over(socket: OwnedFd, conf: &Path) -> Self {
        let attached = Self::attach(socket, conf);
        send(
            attached.socket.as_fd(),
            &Message::new(Kind::Open, 0, 0),
            &[],
        );
        let answer = receive(attached.socket.as_fd()).unwrap();
        assert_eq!(answer.kind, Kind::Opened, "{}", answer.text);
        attached
    }

    #[track_caller]
    pub(crate) fn attach(socket: OwnedFd, conf: &Path) -> Self {
        let answer = hello(&socket, conf).expect("the host hung up");
        assert_eq!(answer.kind, Kind::Welcome, "{}", answer.text);
        let mut descriptors = answer.descriptors.into_iter();
        let (control, receive) = (descriptors.next().unwrap(), descriptors.next().unwrap());
        let writable = rustix::fs::fcntl_getfl(&receive).unwrap();
        assert_eq!(
            writable & rustix::fs::OFlags::ACCMODE,
            rustix::fs::OFlags::RDONLY
        );
        Self {
            socket,
            program: Program::attach(control.as_fd(), receive.as_fd(), answer.a),
            eventfds: descriptors.collect(),
        }
    }

    /// Wakes the lcores that sleep: a bell may have rung.
    pub(crate) fn wake(&self) {
        for eventfd in &self.eventfds {
            rustix::io::write(eventfd, &1_u64.to_ne_bytes()).unwrap();
        }
    }

    /// Registers an eventfd as slot `slot`.
    pub(crate) fn waiter(&self, slot: u32) -> OwnedFd {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let eventfd = rustix::event::eventfd(0, flags).unwrap();
        let message = Message::new(Kind::Waiter, slot, std::process::id());
        send(self.socket.as_fd(), &message, &[eventfd.as_fd()]);
        eventfd
    }
}

/// Whether `fd` becomes readable in time.
pub(crate) fn readable(fd: BorrowedFd<'_>) -> bool {
    let mut sources = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    let limit = Timespec {
        tv_sec: 20,
        tv_nsec: 0,
    };
    rustix::event::poll(&mut sources, Some(&limit)) == Ok(1)
}
