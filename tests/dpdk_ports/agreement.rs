//! A vhost port sends super-frames to a peer that agreed to them, and to no other; each peer is asked anew.

use std::path::{Path, PathBuf};

use super::roles::{self, Process};
use super::vhost::Verdict;
use super::*;

const NAME: &str = "agreement::a_vhost_port_sends_super_frames_to_peers_that_agreed";

/// Payload of a request for a super-frame, of one that also leaves another super-frame behind for whoever comes next, and of
/// the super-frame.
const REQUEST: usize = 200;
const LEAVE: usize = 300;
const SUPER: usize = 9_000;
/// Bytes in front of the payload.
const HEADERS: usize = 54;
const CUT: TxMeta = TxMeta {
    checksum_offload: true,
    segment_bytes: 1460,
};

/// The file that says that a super-frame was left behind.
fn left(socket: impl AsRef<Path>) -> PathBuf {
    socket.as_ref().with_extension("left")
}

/// Puts a super-frame into the burst; false when none can be sent.
fn put_super(queues: &mut Queues) -> bool {
    let frame = wire::tcp_unsummed(queues.mac, [2; 6], SUPER);
    let Some(room) = queues.transmit.alloc(frame.len()) else {
        return false;
    };
    room.copy_from_slice(&frame);
    queues.transmit.commit(frame.len(), CUT);
    true
}

/// The vhost end: answers each request with a super-frame, or with a note that says how many frames were dropped so far.
fn vhost(socket: &str) -> ! {
    let mut config = config(PortSelector::Vdev(format!(
        "net_vhost0,iface={socket},tso=1"
    )));
    config.want_tso = true;
    let mut device = PluginDevice::open(&config).unwrap();
    assert_eq!(
        device.capabilities().description,
        "net_vhost (net_vhost0), super-frames while its peer takes them"
    );
    let mut queues = Queues::of(&mut device);
    loop {
        let mut requests = Vec::new();
        queues.receive.rx_burst(Instant::ZERO, &mut |frames| {
            requests.extend(
                frames
                    .iter()
                    .filter(|frame| wire::ether_type(frame.bytes) == 0x0800)
                    .map(|frame| frame.bytes.len()),
            );
        });
        for request in requests {
            if put_super(&mut queues) {
                queues.transmit.flush(Instant::ZERO);
            } else {
                let dropped = u8::try_from(device.stats().tx_dropped).unwrap();
                queues.send(&wire::note(&[dropped]), TxMeta::default());
            }
            if request == HEADERS + LEAVE {
                assert!(put_super(&mut queues));
                std::fs::write(left(socket), "").unwrap();
            }
        }
        std::thread::yield_now();
    }
}

/// One peer: asks, and sees what comes.
fn peer(socket: &str, agrees: bool) {
    let vdev = format!("net_virtio_user0,path={socket}");
    let mut config = config(PortSelector::Vdev(vdev));
    config.want_lro = agrees;
    let mut device = PluginDevice::open(&config).unwrap();
    wait_until("the link is up", || device.link_up());
    let mut queues = Queues::of(&mut device);
    if !agrees {
        // What was left behind is dropped when the first answer would send it, and the second one tells.
        ask(&mut queues, REQUEST).expect_err("a super-frame came unasked");
        let dropped = ask(&mut queues, REQUEST).expect_err("a super-frame came unasked");
        assert_eq!(dropped, 1);
        return;
    }
    // The other end knows of the agreement a moment after the link is up.
    let mut answer = None;
    wait_until("a super-frame", || {
        answer = ask(&mut queues, REQUEST).ok();
        answer.is_some()
    });
    let verdict = answer.unwrap();
    assert!(
        verdict.good && verdict.partial && !verdict.bad && verdict.payload_holds,
        "{verdict:?}"
    );
    ask(&mut queues, LEAVE).unwrap();
    // Whoever goes first takes the agreement with it.
    wait_until("one is left behind", || left(socket).exists());
}

/// The answer to a request: a super-frame, or the number of frames that were dropped.
fn ask(queues: &mut Queues, payload: usize) -> Result<Verdict, u8> {
    let request = wire::tcp_unsummed(queues.mac, [2; 6], payload);
    queues.send(
        &request,
        TxMeta {
            segment_bytes: 0,
            ..CUT
        },
    );
    let mut answer = None;
    queues.receive_until("an answer", |bytes, meta| {
        if wire::ether_type(bytes) == 0x0800 {
            assert_eq!(bytes.len(), HEADERS + SUPER);
            answer = Some(Ok(Verdict::of(bytes, meta, false)));
        } else if let Some(note) = wire::note_in(bytes) {
            answer = Some(Err(note[0]));
        }
        answer.is_some()
    });
    answer.unwrap()
}

#[test]
fn a_vhost_port_sends_super_frames_to_peers_that_agreed() {
    in_own_process(NAME, false, || {
        if let Some((role, socket)) = roles::ours() {
            if role == "vhost" {
                vhost(&socket);
            }
            return peer(&socket, role == "agrees");
        }
        let vhost = Process::vhost(NAME);
        for role in ["agrees", "refuses", "agrees"] {
            vhost.peer(role);
        }
        let _ = std::fs::remove_file(left(vhost.socket()));
    });
}
