//! Two processes joined by vhost-user: offloads, super-frames and the receive interrupt, without root.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use super::*;

/// Set in the process that is the vhost end: its socket.
const SOCKET: &str = "KNET_TEST_VHOST";

/// What the vhost end tells about each frame that it gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Verdict {
    pub(super) good: bool,
    pub(super) bad: bool,
    pub(super) partial: bool,
    ip_header_holds: bool,
    bytes: usize,
    pub(super) payload_holds: bool,
    /// The frame ended a sleep of the vhost end.
    woke: bool,
}

impl Verdict {
    pub(super) fn of(bytes: &[u8], meta: RxMeta, woke: bool) -> Self {
        let header = bytes.get(14..34).unwrap_or(&[]);
        let payload = bytes.get(54..).unwrap_or(&[]);
        Self {
            good: meta.checksum_good,
            bad: meta.checksum_bad,
            partial: meta.checksum_partial,
            ip_header_holds: wire::checksum(header, 0) == 0,
            bytes: bytes.len(),
            payload_holds: payload
                .iter()
                .enumerate()
                .all(|(at, byte)| usize::from(*byte) == at % 251),
            woke,
        }
    }

    fn note(self) -> Vec<u8> {
        let flags = [
            self.good,
            self.bad,
            self.partial,
            self.ip_header_holds,
            self.payload_holds,
            self.woke,
        ];
        let mut payload = flags.map(u8::from).to_vec();
        payload.extend(u32::try_from(self.bytes).unwrap().to_be_bytes());
        wire::note(&payload)
    }

    fn read(payload: &[u8]) -> Self {
        let flag = |index: usize| payload[index] == 1;
        let bytes = u32::from_be_bytes(payload[6..10].try_into().unwrap()) as usize;
        Self {
            good: flag(0),
            bad: flag(1),
            partial: flag(2),
            ip_header_holds: flag(3),
            payload_holds: flag(4),
            woke: flag(5),
            bytes,
        }
    }
}

/// The other process; it ends with the case.
struct Other(Child, PathBuf);

impl Other {
    fn start(case: &str) -> Self {
        let socket =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("v{}", std::process::id()));
        let child = Command::new(std::env::current_exe().unwrap())
            .args([case, "--exact", "--nocapture", "--test-threads=1"])
            .env(SOCKET, &socket)
            .spawn()
            .unwrap();
        let other = Self(child, socket);
        wait_until("the vhost end listens", || other.1.exists());
        other
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
        // It was killed, so it could not remove its socket.
        let _ = std::fs::remove_file(&self.1);
    }
}

/// The vhost end: tells about every frame, until it is killed.
fn judge(socket: &str) -> ! {
    use rustix::process::{Signal, set_parent_process_death_signal};
    set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    let mut config = config(PortSelector::Vdev(format!(
        "net_vhost0,iface={socket},tso=1"
    )));
    // Super-frames are received into large buffers.
    config.want_lro = true;
    let mut device = PluginDevice::open(&config).unwrap();
    let mut queues = Queues::of(&mut device);
    let (mut woke, mut armed) = (false, false);
    loop {
        let mut verdicts = Vec::new();
        queues.receive.rx_burst(Instant::ZERO, &mut |frames| {
            for frame in frames
                .iter()
                .filter(|frame| wire::ether_type(frame.bytes) == 0x0800)
            {
                verdicts.push(Verdict::of(frame.bytes, frame.meta, woke));
            }
        });
        let idle = verdicts.is_empty();
        for verdict in verdicts {
            queues.send(&verdict.note(), TxMeta::default());
        }
        // The descriptor comes with the peer. After arming it is polled once more before the sleep,
        // which lasts far longer than the other end waits for its verdict.
        match queues.receive.wait_fd().map(|fd| fd.as_raw_fd()) {
            Some(fd) if idle && armed => woke = process::readable(fd, 60_000),
            Some(_) if idle => woke = false,
            _ => std::thread::yield_now(),
        }
        armed = idle && !armed;
        queues.receive.arm(armed);
    }
}

fn verdict(queues: &mut Queues) -> Verdict {
    let mut verdict = None;
    queues.receive_until("a verdict", |bytes, _| {
        verdict = wire::note_in(bytes).map(Verdict::read);
        verdict.is_some()
    });
    verdict.unwrap()
}

#[test]
fn vhost_peers_use_offloads_super_frames_and_interrupts() {
    let name = "vhost::vhost_peers_use_offloads_super_frames_and_interrupts";
    in_own_process(name, false, || {
        if let Ok(socket) = std::env::var(SOCKET) {
            judge(&socket);
        }
        let other = Other::start(name);
        let vdev = format!("net_virtio_user0,path={}", other.1.display());
        let mut config = config(PortSelector::Vdev(vdev));
        config.want_tso = true;
        let mut device = PluginDevice::open(&config).unwrap();
        let facts = device.capabilities().clone();
        assert_eq!(facts.description, "net_virtio_user (net_virtio_user0)");
        assert!(facts.tx_checksum && facts.rx_checksum && !facts.trust_checksum);
        assert_eq!(facts.tso_bytes, 18 * 1024);
        wait_until("the link is up", || device.link_up());
        let mut queues = Queues::of(&mut device);
        let summed = TxMeta {
            checksum_offload: true,
            segment_bytes: 0,
        };

        // The port fills in the TCP checksum (virtio: partial), the C file the header's.
        queues.send(&wire::tcp_unsummed(queues.mac, [2; 6], 100), summed);
        let offloaded = verdict(&mut queues);
        let expected = Verdict {
            good: true,
            bad: false,
            partial: true,
            ip_header_holds: true,
            bytes: 154,
            payload_holds: true,
            woke: offloaded.woke,
        };
        assert_eq!(offloaded, expected);

        // Without the wish nothing is touched, and the receiver's port finds the checksum wrong.
        queues.send(
            &wire::tcp_unsummed(queues.mac, [2; 6], 100),
            TxMeta::default(),
        );
        let plain = verdict(&mut queues);
        assert!(
            !plain.good && !plain.partial && !plain.ip_header_holds,
            "{plain:?}"
        );

        // A super-frame of many segments goes in one piece.
        let cut = TxMeta {
            checksum_offload: true,
            segment_bytes: 1460,
        };
        queues.send(&wire::tcp_unsummed(queues.mac, [2; 6], 30_000), cut);
        let told = verdict(&mut queues);
        assert_eq!(
            told,
            Verdict {
                bytes: 30_054,
                woke: told.woke,
                ..expected
            }
        );

        // Headers that no port can finish are dropped and counted, and block nothing.
        let before = device.stats().tx_dropped;
        queues.send(&wire::arp_request(queues.mac, OUR_IP, PEER_IP), summed);
        queues.send(&wire::tcp_unsummed(queues.mac, [2; 6], 8), summed);
        let told = verdict(&mut queues);
        assert_eq!(
            told,
            Verdict {
                bytes: 62,
                woke: told.woke,
                ..expected
            }
        );
        assert_eq!(device.stats().tx_dropped - before, 1);

        // Both ends sleep: silent while armed, woken by a frame, again and again.
        let mut woken = 0;
        wait_until("three sleeps of both ends", || {
            queues.receive.arm(true);
            let fd = queues
                .receive
                .wait_fd()
                .expect("a receive interrupt")
                .as_raw_fd();
            assert!(!process::readable(fd, 0), "readable without a frame");
            queues.send(&wire::tcp_unsummed(queues.mac, [2; 6], 8), summed);
            assert!(process::readable(fd, 10_000), "not woken by a frame");
            queues.receive.arm(false);
            woken += u32::from(verdict(&mut queues).woke);
            woken >= 3
        });
    });
}
