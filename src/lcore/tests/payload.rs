//! The payload stage between two programs: what is forbidden never arrives, whatever the wire does to it.

use std::io::Write;

use super::lab::Lab;
use crate::channel::cell::flag;
use crate::channel::layout::Layout;
use crate::channel::sync::Ordering;
use crate::config::payload::{Attach, Gpu, Kernel, OnMatch, PayloadRule};
use crate::device::fault::FaultConfig;
use crate::errno::Errno;
use crate::gpu::{FrameMemory, Pipeline};
use crate::readiness::event;

/// A file of this test process that is gone when the test is over.
pub(super) struct File(std::path::PathBuf);

impl File {
    pub(super) fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("knet-lcore-{}-{name}", std::process::id()));
        std::fs::File::create(&path)
            .unwrap()
            .write_all(text.as_bytes())
            .unwrap();
        Self(path)
    }

    pub(super) fn path(&self) -> String {
        self.0.to_str().unwrap().to_owned()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).unwrap();
    }
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Way {
    Rx,
    Tx,
    Both,
}

pub(super) fn rule(kernel: Kernel, way: Way, attach: Attach) -> PayloadRule {
    PayloadRule {
        path: "gpu.pipeline[0]".to_owned(),
        kernel,
        rx: way != Way::Tx,
        tx: way != Way::Rx,
        attach,
        ports: Vec::new(),
        networks: Vec::new(),
        min_payload: 0,
    }
}

fn load(rules: Vec<PayloadRule>) -> Pipeline {
    Pipeline::load(&Gpu::on_cpu(rules), 1, FrameMemory::Port(&|| None))
        .unwrap()
        .remove(0)
}

fn forbidding(name: &str, on_match: OnMatch, way: Way, attach: Attach) -> Pipeline {
    let file = File::new(name, "forbidden\n");
    let pattern = Kernel::Pattern {
        file: file.path(),
        on_match,
    };
    load(vec![rule(pattern, way, attach)])
}

pub(super) fn layout() -> Layout {
    Layout::for_flows(64, 64 << 10, 32 << 10)
}

fn staged(server: Pipeline) -> Lab {
    Lab::staged(FaultConfig::none(), layout(), server, Pipeline::default())
}

pub(super) fn connection_reset() -> u32 {
    Errno::CONNRESET.raw_os_error().unsigned_abs()
}

/// Waits until both ends of a connection were reset, and nothing of what was forbidden arrived.
#[track_caller]
pub(super) fn both_are_reset(lab: &mut Lab, out: u32, into: u32) {
    let over = |cell: &crate::channel::cell::ObjectCell| {
        cell.host.flags.load(Ordering::Relaxed) & flag::OVER != 0
    };
    lab.until_real(|lab| over(lab.server.program.cell(into)) && over(lab.client.program.cell(out)));
    for cell in [lab.server.program.cell(into), lab.client.program.cell(out)] {
        assert_eq!(cell.host.error.load(Ordering::Relaxed), connection_reset());
    }
}

#[test]
fn a_forbidden_request_resets_both_ends_and_is_never_read() {
    let mut lab = staged(forbidding("rx", OnMatch::Reset, Way::Rx, Attach::Stream));
    let listener = lab.listen(16);
    let (out, into) = lab.connect(listener);
    lab.client.program.send(out, b"allowed, then forb");
    lab.until(1, |lab| lab.server.program.bits(into) != 0);
    lab.turns(10);
    assert_eq!(lab.server.program.recv(into, 100), b"allowed, then forb");
    lab.client.program.send(out, b"idden and more");
    both_are_reset(&mut lab, out, into);
    assert_eq!(
        lab.server.program.recv(into, 100),
        b"",
        "the end is not told"
    );
    // Others go on.
    let (out, into) = lab.connect(listener);
    lab.client.program.send(out, b"allowed");
    lab.turns(50);
    assert_eq!(lab.server.program.recv(into, 100), b"allowed");
}

#[test]
fn a_forbidden_answer_does_not_leave() {
    let mut lab = staged(forbidding("tx", OnMatch::Reset, Way::Tx, Attach::Stream));
    let (out, into) = lab.connection();
    lab.client.program.send(out, b"forbidden is fine this way");
    lab.turns(50);
    assert_eq!(lab.server.program.recv(into, 100).len(), 26);
    lab.server.program.send(into, b"here it is: ");
    lab.turns(50);
    lab.server.program.send(into, b"forbidden");
    both_are_reset(&mut lab, out, into);
    assert_eq!(lab.client.program.recv(out, 100), b"here it is: ");
}

#[test]
fn a_pattern_that_was_cut_lost_and_reordered_is_still_found() {
    for seed in 1..=3 {
        println!("seed={seed}");
        let mut faults = FaultConfig::none();
        (faults.seed, faults.loss, faults.reorder) = (seed, 10_000, 20_000);
        let server = forbidding(
            &format!("seed{seed}"),
            OnMatch::Reset,
            Way::Rx,
            Attach::Stream,
        );
        let mut lab = Lab::staged(faults, layout(), server, Pipeline::default());
        let (out, into) = lab.connection();
        // The pattern lies across the end of a segment and of the ring (64 KiB).
        let mut data = vec![b'.'; 140_000];
        let at = (128 << 10) - 4;
        data[at..at + 9].copy_from_slice(b"forbidden");
        let (mut sent, mut received) = (0, Vec::new());
        let end = lab.now + core::time::Duration::from_secs(900);
        loop {
            assert!(lab.now < end, "sent={sent} received={}", received.len());
            sent += lab
                .client
                .program
                .send(out, &data[sent..(sent + 3_000).min(data.len())]);
            received.extend(lab.server.program.recv(into, 5_000));
            lab.turn();
            let cell = lab.server.program.cell(into);
            if cell.host.error.load(Ordering::Relaxed) == connection_reset() {
                break;
            }
        }
        received.extend(lab.server.program.recv(into, 1 << 20));
        assert!(received.len() <= at + 9, "the end of it was read");
        assert!(received.iter().take(at).all(|byte| *byte == b'.'));
    }
}

#[test]
fn what_one_end_hides_the_other_end_reads() {
    let key = File::new("key", &"5a".repeat(32));
    let cipher = || {
        let kernel = Kernel::Chacha20 {
            key_file: key.path(),
        };
        load(vec![rule(kernel, Way::Both, Attach::Stream)])
    };
    let data: Vec<u8> = (0..=255).cycle().take(300_000).collect();
    for (client, same) in [(cipher(), true), (Pipeline::default(), false)] {
        let mut faults = FaultConfig::none();
        (faults.seed, faults.loss) = (3, 10_000);
        let mut lab = Lab::staged(faults, layout(), cipher(), client);
        let (out, into) = lab.connection();
        let (mut sent, mut received) = (0, Vec::new());
        while received.len() < data.len() {
            sent += lab
                .client
                .program
                .send(out, &data[sent..(sent + 4_000).min(data.len())]);
            received.extend(lab.server.program.recv(into, 9_000));
            lab.turn();
        }
        assert_eq!(received == data, same);
    }
}

#[test]
fn a_segment_that_is_dropped_comes_again_until_the_flow_is_reset() {
    for way in [Way::Rx, Way::Tx] {
        let name = if way == Way::Rx { "drop-rx" } else { "drop-tx" };
        let mut lab = staged(forbidding(name, OnMatch::Drop, way, Attach::Packet));
        let (out, into) = lab.connection();
        lab.client.program.send(out, b"hello");
        lab.turns(50);
        assert_eq!(lab.server.program.recv(into, 100), b"hello");
        if way == Way::Rx {
            lab.client.program.send(out, b"forbidden");
        } else {
            lab.server.program.send(into, b"forbidden");
        }
        let over = |cell: &crate::channel::cell::ObjectCell| {
            cell.host.flags.load(Ordering::Relaxed) & flag::OVER != 0
        };
        lab.until(2_000, |lab| {
            over(lab.server.program.cell(into)) && over(lab.client.program.cell(out))
        });
        assert_eq!(lab.server.program.recv(into, 100), b"");
        assert_eq!(lab.client.program.recv(out, 100), b"");
    }
}

#[test]
fn a_forbidden_segment_resets_both_ends() {
    for way in [Way::Rx, Way::Tx] {
        let name = if way == Way::Rx {
            "reset-rx"
        } else {
            "reset-tx"
        };
        let mut lab = staged(forbidding(name, OnMatch::Reset, way, Attach::Packet));
        let (out, into) = lab.connection();
        if way == Way::Rx {
            lab.client.program.send(out, b"forbidden");
        } else {
            lab.server.program.send(into, b"forbidden");
        }
        both_are_reset(&mut lab, out, into);
        assert_eq!(lab.server.program.recv(into, 100), b"");
        assert_eq!(lab.client.program.recv(out, 100), b"");
    }
}

#[test]
fn a_mark_is_told_with_the_bytes_that_have_it() {
    for way in [Way::Rx, Way::Tx] {
        let name = if way == Way::Rx { "mark-rx" } else { "mark-tx" };
        let mut lab = staged(forbidding(name, OnMatch::Mark(7), way, Attach::Stream));
        let (out, into) = lab.connection();
        let mark = |lab: &Lab| {
            let fact = &lab.server.program.cell(into).fact;
            fact.payload_mark.load(Ordering::Relaxed)
        };
        lab.client.program.send(out, b"harmless");
        lab.server_told(into, event::IN);
        assert_eq!(
            (lab.server.program.recv(into, 100).len(), mark(&lab)),
            (8, 0)
        );
        if way == Way::Rx {
            lab.client.program.send(out, b"forbidden");
        } else {
            lab.server.program.send(into, b"forbidden");
        }
        lab.until(1, |lab| mark(lab) == 7);
        lab.server.program.close(into);
        lab.client.program.close(out);
        lab.until(20, |lab| lab.server.program.is_free(into));
        assert_eq!(mark(&lab), 0, "of the next connection with this index");
    }
}
