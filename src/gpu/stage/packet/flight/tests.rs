//! Segments on a stand-in for the driver's library, in the memory of a port that a test plays.

use core::time::Duration;
use std::collections::HashMap;

use super::*;
use crate::config::payload::{Attach, Gpu, Kernel, Mode, OnMatch, PayloadRule};
use crate::ffi::cuda::Lasting;
use crate::gpu::pipeline::Placement;
use crate::gpu::pipeline::tests::rule;
use crate::gpu::stage::tests::{ends, pattern};
use crate::gpu::tests::{MODES, StandIn, load_on};

const FRAME: usize = 20_480;
const FRAMES: usize = 64;
/// Bytes ahead of the payload.
const HEAD: usize = 10;

/// The buffers of a port, some of them kept.
struct Port {
    memory: &'static mut [u8],
    free: Vec<usize>,
    kept: HashMap<u32, (usize, usize)>,
}

impl HeldFrames for Port {
    fn frame(&mut self, ticket: u32) -> Option<&mut [u8]> {
        let (at, bytes) = *self.kept.get(&ticket)?;
        self.memory.get_mut(at..at + bytes)
    }
}

/// A stage between a port and whoever takes what is released.
struct Wire {
    stand_in: StandIn,
    place: Placement,
    stage: PacketStage,
    port: Port,
    now: Instant,
    /// What went on: port of the flow, payload.
    out: Vec<(u16, String)>,
    resets: Vec<Ends>,
}

fn packet(kernel_of: PayloadRule) -> PayloadRule {
    PayloadRule {
        attach: Attach::Packet,
        tx: false,
        ports: vec![80],
        ..kernel_of
    }
}

fn forbidding(name: &str, on_match: OnMatch) -> Vec<PayloadRule> {
    vec![packet(pattern(name, on_match))]
}

fn whose(port: u16) -> Ends {
    let mut whose = ends();
    whose.remote.set_port(port);
    if port >= 60_000 {
        // No rule is for these.
        whose.local.set_port(81);
    }
    whose
}

fn start(
    faults: &str,
    mode: Mode,
    rules: Vec<PayloadRule>,
    is_lent: bool,
    set: impl FnOnce(&mut Gpu),
) -> Wire {
    let stand_in = StandIn::new(faults, &[]);
    let mut config = stand_in.config(mode, rules);
    set(&mut config);
    let (lasting, memory) = Lasting::leaked(FRAME * FRAMES);
    let (pipeline, place) = load_on(&config, Some(&lasting).filter(|_| is_lent));
    let mut stage = pipeline.packet_rx.unwrap();
    stage.hold_at_most(32);
    Wire {
        stand_in,
        place,
        stage,
        port: Port {
            memory,
            free: (0..FRAMES).map(|at| at * FRAME).rev().collect(),
            kept: HashMap::new(),
        },
        now: Instant::from_millis(1),
        out: Vec::new(),
        resets: Vec::new(),
    }
}

impl Wire {
    fn come(&mut self, port: u16, payload: &[u8]) -> Meeting {
        let at = self.port.free.pop().unwrap();
        let end = at + HEAD + payload.len();
        let frame = &mut self.port.memory[at..end];
        frame[HEAD..].copy_from_slice(payload);
        let segment = Segment {
            ends: whose(port),
            frame,
            payload: HEAD..HEAD + payload.len(),
            can_be_kept: true,
        };
        let meeting = self.stage.meet(self.now, segment);
        match meeting {
            Meeting::Keep(ticket) => {
                let before = self.port.kept.insert(ticket, (at, end - at));
                assert!(before.is_none(), "the ticket is in use");
            }
            Meeting::Pass => {
                self.out
                    .push((port, String::from_utf8(payload.to_vec()).unwrap()));
                self.port.free.push(at);
            }
            Meeting::Stop => self.port.free.push(at),
        }
        self.stage.take_resets(&mut self.resets);
        meeting
    }

    fn step(&mut self) {
        self.stage.step(self.now, &mut self.port);
        let mut tickets = Vec::new();
        self.stage.released(usize::MAX, &mut tickets);
        for ticket in &tickets {
            let port = self
                .stage
                .hold
                .as_mut()
                .unwrap()
                .entry(*ticket)
                .unwrap()
                .ends;
            let text = self.port.frame(*ticket).unwrap()[HEAD..].to_vec();
            let text = String::from_utf8(text).unwrap();
            self.out.push((port.remote.port(), text));
        }
        self.stage.taken(tickets.len());
        tickets.clear();
        self.stage.take_freed(&mut tickets);
        for ticket in tickets {
            self.port
                .free
                .push(self.port.kept.remove(&ticket).unwrap().0);
        }
        self.stage.take_resets(&mut self.resets);
    }

    #[track_caller]
    fn until(&mut self, is_so: impl Fn(&Self) -> bool) {
        let began = crate::time::monotonic();
        while !is_so(self) {
            let waited = crate::time::monotonic().since(began);
            assert!(waited < Duration::from_secs(60), "nothing came of it");
            self.step();
            std::thread::yield_now();
        }
    }

    /// Until nothing is held and every buffer is back.
    #[track_caller]
    fn until_empty(&mut self) {
        self.until(|wire| wire.port.kept.is_empty());
        assert_eq!(self.count("payload_frames_held"), 0);
        assert!(!self.stage.is_busy());
        assert_eq!(self.port.free.len(), FRAMES);
    }

    fn late(&mut self) {
        self.step();
        self.now = self.now + Duration::from_secs(11);
        self.step();
    }

    fn count(&self, wanted: &str) -> u64 {
        let mut sum = None;
        self.stage.report(&mut |name, value| {
            if name == wanted {
                sum = Some(value);
            }
        });
        sum.unwrap()
    }

    fn went(&self) -> Vec<(u16, &str)> {
        self.out
            .iter()
            .map(|(port, text)| (*port, &**text))
            .collect()
    }
}

#[test]
fn segments_are_judged_where_they_lie_in_every_mode() {
    for mode in MODES {
        let name = format!("lies-{}", mode.name());
        let mut wire = start("", mode, forbidding(&name, OnMatch::Drop), true, |_| {});
        let wanted = format!("stand-in mode={} payload_memory=host", mode.name());
        assert_eq!(wire.place, Placement::Gpu(wanted));
        for number in 0..40_u16 {
            let text = format!(
                "{} {number}",
                if number % 5 == 4 {
                    "so forbidden"
                } else {
                    "harmless"
                }
            );
            assert!(matches!(
                wire.come(1_000 + number % 3, text.as_bytes()),
                Meeting::Keep(_)
            ));
            if number % 10 == 9 {
                wire.until_empty();
            }
        }
        assert_eq!(wire.count("payload_chunks_offloaded"), 40);
        assert_eq!(wire.count("payload_segments_dropped"), 8);
        for none in [
            "payload_segment_bytes_copied",
            "payload_chunks_redone",
            "payload_segments_grounded",
        ] {
            assert_eq!(wire.count(none), 0, "{none}");
        }
        for port in 0..3_u16 {
            let of_flow: Vec<_> = wire
                .out
                .iter()
                .filter(|(whose, _)| *whose == 1_000 + port)
                .collect();
            let wanted: Vec<_> = (0..40_u16)
                .filter(|number| number % 3 == port && number % 5 != 4)
                .map(|number| (1_000 + port, format!("harmless {number}")))
                .collect();
            assert!(of_flow.into_iter().eq(&wanted), "{:?}", wire.out);
        }
    }
}

#[test]
fn what_came_behind_waits_and_other_flows_pass() {
    for mode in MODES {
        let name = format!("behind-{}", mode.name());
        let mut wire = start(
            "hang=1@1",
            mode,
            forbidding(&name, OnMatch::Reset),
            true,
            |_| {},
        );
        assert!(matches!(wire.come(1, b"first"), Meeting::Keep(_)));
        wire.step();
        // An acknowledgement behind it, and what no rule is for.
        assert!(matches!(wire.come(1, b""), Meeting::Keep(_)));
        assert_eq!(wire.come(60_000, b"forbidden"), Meeting::Pass);
        assert_eq!(wire.come(2, b""), Meeting::Pass);
        assert!(matches!(wire.come(1, b"second"), Meeting::Keep(_)));
        assert!(matches!(wire.come(2, b"third"), Meeting::Keep(_)));
        wire.step();
        assert_eq!(wire.went(), [(60_000, "forbidden"), (2, "")]);
        assert_eq!(wire.count("payload_frames_held"), 4);
        wire.stand_in.go();
        wire.until_empty();
        let of_first: Vec<_> = wire
            .went()
            .into_iter()
            .filter(|(port, _)| *port == 1)
            .collect();
        assert_eq!(of_first, [(1, "first"), (1, ""), (1, "second")]);
        assert_eq!(wire.out.len(), 6);
    }
}

#[test]
fn what_is_held_behind_a_forbidden_segment_does_not_go_on() {
    let mut wire = start(
        "",
        Mode::Launch,
        forbidding("reset", OnMatch::Reset),
        true,
        |gpu| {
            gpu.batches.max_packets = 1;
        },
    );
    wire.come(1, b"harmless");
    wire.come(1, b"so forbidden");
    wire.come(1, b"");
    wire.come(1, b"more of it");
    wire.come(2, b"another's");
    wire.until_empty();
    let mut went = wire.went();
    went.sort_unstable();
    assert_eq!(went, [(1, "harmless"), (2, "another's")]);
    assert_eq!(wire.resets, [whose(1)]);
    assert_eq!(wire.count("payload_flows_reset"), 1);
}

#[test]
fn dropped_segments_in_a_row_end_in_a_reset() {
    let mut wire = start(
        "",
        Mode::Persistent,
        forbidding("row", OnMatch::Drop),
        true,
        |_| {},
    );
    for number in 0..9 {
        wire.come(1, b"so forbidden");
        wire.until_empty();
        assert_eq!(wire.resets.len(), usize::from(number == 8));
    }
    assert_eq!(wire.count("payload_segments_dropped"), 8);
    assert_eq!(wire.count("payload_flows_reset_drops"), 1);
    assert!(wire.out.is_empty());
}

#[test]
fn marks_and_mirrors_let_it_pass() {
    let file = std::env::temp_dir().join(format!("knet-flight-{}.pcap", std::process::id()));
    let mirror = OnMatch::Mirror(file.to_str().unwrap().to_owned());
    let mut rules = forbidding("mark", OnMatch::Mark(7));
    rules.extend(forbidding("mirror", mirror));
    rules.push(packet(rule(Kernel::Stats)));
    let mut wire = start("", Mode::Graph, rules, true, |_| {});
    wire.come(1, b"so forbidden");
    wire.come(1, b"harmless");
    wire.until_empty();
    assert_eq!(wire.went(), [(1, "so forbidden"), (1, "harmless")]);
    assert_eq!(wire.count("payload_chunks_offloaded"), 6);
    assert_eq!(wire.count("payload_chunks_marked"), 1);
    assert_eq!(wire.count("payload_chunks_mirrored"), 1);
    drop(wire);
    std::fs::remove_file(file).unwrap();
}

#[test]
fn a_late_batch_keeps_its_frames_and_the_cpu_takes_over_at_once() {
    for mode in MODES {
        let name = format!("late-{}", mode.name());
        let mut wire = start(
            "hang=1@1",
            mode,
            forbidding(&name, OnMatch::Reset),
            true,
            |_| {},
        );
        wire.come(1, b"first");
        wire.step();
        wire.come(1, b"second");
        wire.come(1, b"");
        wire.come(2, b"so forbidden");
        wire.late();
        assert_eq!(wire.went(), [(1, "first"), (1, "second"), (1, "")]);
        assert_eq!(wire.resets, [whose(2)]);
        assert_eq!(wire.count("payload_chunks_redone"), 3);
        assert_eq!(wire.count("payload_gpu_batches_late"), 1);
        // One frame was handed over; the others had only been gathered.
        assert_eq!(wire.count("payload_frames_late"), 1);
        assert_eq!(wire.port.kept.len(), 1);
        assert!(wire.stage.next_due(wire.now).is_some());
        // Meanwhile the CPU judges, and holds nothing.
        assert_eq!(wire.come(3, b"harmless"), Meeting::Pass);
        assert_eq!(wire.come(3, b"forbidden"), Meeting::Stop);
        wire.stand_in.go();
        wire.until_empty();
        assert_eq!(wire.count("payload_frames_late"), 0);
        assert_eq!(wire.count("payload_gpu_on"), 1);
        assert!(matches!(wire.come(4, b"harmless"), Meeting::Keep(_)));
        wire.until_empty();
    }
}

#[test]
fn a_flow_that_ends_while_a_kernel_looks_gives_its_frames_back_later() {
    let mut wire = start(
        "hang=1@2",
        Mode::Launch,
        forbidding("ends", OnMatch::Reset),
        true,
        |gpu| {
            gpu.batches.max_packets = 1;
        },
    );
    wire.come(1, b"so forbidden");
    wire.step();
    wire.come(1, b"behind it");
    wire.until(|wire| !wire.resets.is_empty());
    // The kernel is at what was behind, for which nobody waits.
    assert_eq!(wire.port.kept.len(), 1);
    assert!(!wire.stage.is_busy());
    wire.late();
    assert_eq!(
        (wire.port.kept.len(), wire.count("payload_frames_late")),
        (1, 1)
    );
    assert_eq!(wire.count("payload_chunks_redone"), 0);
    wire.stand_in.go();
    wire.until_empty();
    assert!(wire.out.is_empty());
}

#[test]
fn whatever_a_driver_or_kernel_says_the_cpu_judges() {
    for (faults, mode) in [
        ("error=3@1", Mode::Launch),
        ("blank=1@1", Mode::Persistent),
        ("state=99@1", Mode::Persistent),
        ("state=0@1", Mode::Memops),
        ("launch=700", Mode::Launch),
        ("launch=700@3", Mode::Graph),
    ] {
        let mut wire = start(
            faults,
            mode,
            forbidding("codes", OnMatch::Reset),
            true,
            |_| {},
        );
        for port in 0..12 {
            wire.come(port, b"harmless");
            wire.come(port, b"so forbidden");
            // What a broken batch has never comes back.
            wire.until(|wire| !wire.stage.is_busy());
        }
        assert_eq!((wire.out.len(), wire.resets.len()), (12, 12), "{faults}");
        let is_off = !faults.starts_with("error") && !faults.starts_with("blank");
        // A call may fail behind the batch that led to it.
        wire.until(|wire| wire.count("payload_gpu_on") == u64::from(!is_off));
        if faults != "launch=700@3" {
            assert!(wire.count("payload_chunks_redone") > 0, "{faults}");
        }
    }
}

#[test]
fn three_strikes_are_too_many() {
    let faults = "error=3@1\nerror=3@2\nerror=3@3\n";
    let mut wire = start(
        faults,
        Mode::Persistent,
        forbidding("three", OnMatch::Reset),
        true,
        |_| {},
    );
    for number in 0..3 {
        assert_eq!(wire.count("payload_gpu_on"), 1, "{number}");
        wire.come(number, b"harmless");
        wire.until_empty();
    }
    assert_eq!(wire.count("payload_gpu_on"), 0);
    assert_eq!(wire.come(9, b"harmless"), Meeting::Pass);
    assert_eq!(wire.come(9, b"forbidden"), Meeting::Stop);
    assert_eq!(wire.count("payload_gpu_batches"), 3);
}

#[test]
fn a_full_ring_does_what_on_full_says() {
    for on_full in [Instead::Cpu, Instead::Bypass, Instead::Drop, Instead::Wait] {
        let name = format!("full-{on_full:?}");
        let mut wire = start(
            "hang=1@1",
            Mode::Launch,
            forbidding(&name, OnMatch::Reset),
            true,
            |gpu| {
                gpu.on_full = on_full;
                gpu.batches.max_packets = 1;
                gpu.batches.slots = 1;
            },
        );
        wire.come(1, b"harmless");
        wire.step();
        let meetings = [wire.come(2, b"forbidden"), wire.come(3, b"harmless")];
        let refused = wire.count("payload_chunks_refused_full");
        match on_full {
            Instead::Cpu => assert_eq!(meetings, [Meeting::Stop, Meeting::Pass]),
            Instead::Bypass => assert_eq!(meetings, [Meeting::Pass; 2]),
            Instead::Drop => {
                assert_eq!(meetings, [Meeting::Stop; 2]);
                assert_eq!(wire.count("payload_segments_dropped_gpu"), 2);
            }
            Instead::Wait => {
                assert!(meetings.iter().all(|it| matches!(it, Meeting::Keep(_))));
                wire.step();
                assert_eq!(wire.out, []);
            }
        }
        assert_eq!(refused, 2);
        let is_judged = matches!(on_full, Instead::Cpu | Instead::Wait);
        wire.stand_in.go();
        wire.until_empty();
        assert_eq!(wire.resets.len(), usize::from(is_judged), "{on_full:?}");
        let bypassed = wire.count("payload_chunks_bypassed");
        assert_eq!(bypassed, if on_full == Instead::Bypass { 2 } else { 0 });
        let went = [1, 3].map(|port| wire.went().contains(&(port, "harmless")));
        assert_eq!(went, [true, on_full != Instead::Drop]);
        // Refused once each, however often they were offered.
        assert_eq!(wire.count("payload_chunks_refused_full"), 2);
    }
}

#[test]
fn late_segments_do_what_on_timeout_says() {
    for (on_timeout, wanted) in [(Instead::Bypass, 1), (Instead::Drop, 0)] {
        let name = format!("timeout-{on_timeout:?}");
        let mut wire = start(
            "hang=1@1",
            Mode::Launch,
            forbidding(&name, OnMatch::Reset),
            true,
            |gpu| {
                gpu.on_timeout = on_timeout;
            },
        );
        wire.come(1, b"so forbidden");
        wire.late();
        assert_eq!((wire.out.len(), wire.resets.len()), (wanted, 0));
        assert_eq!(wire.count("payload_chunks_bypassed"), wanted as u64);
        assert_eq!(
            wire.count("payload_segments_dropped_gpu"),
            1 - wanted as u64
        );
        wire.stand_in.go();
        wire.until_empty();
    }
}

#[test]
fn no_more_is_held_than_the_port_can_spare() {
    for on_full in [Instead::Cpu, Instead::Wait] {
        let name = format!("bound-{on_full:?}");
        let mut wire = start(
            "hang=1@1",
            Mode::Launch,
            forbidding(&name, OnMatch::Reset),
            true,
            |gpu| {
                gpu.on_full = on_full;
            },
        );
        wire.stage.hold_at_most(6);
        // Half of the places may fly.
        for port in 0..3 {
            assert!(matches!(wire.come(port, b"harmless"), Meeting::Keep(_)));
        }
        wire.step();
        let waits = on_full == Instead::Wait;
        assert_eq!(matches!(wire.come(9, b"harmless"), Meeting::Keep(_)), waits);
        for _ in 0..if waits { 2 } else { 3 } {
            assert!(matches!(wire.come(0, b""), Meeting::Keep(_)));
        }
        assert_eq!(wire.stage.is_full(1), waits);
        // It would overtake those ahead of it.
        assert_eq!(wire.come(0, b""), Meeting::Stop);
        assert_eq!(wire.count("payload_segments_unheld"), 1);
        // What overtakes nothing is the CPU's.
        assert_eq!(wire.come(10, b"forbidden"), Meeting::Stop);
        assert_eq!(wire.come(11, b"harmless"), Meeting::Pass);
        assert_eq!(wire.count("payload_segments_grounded"), 2);
        assert_eq!(wire.resets, [whose(10)]);
        assert_eq!(wire.port.kept.len(), 6);
        wire.stand_in.go();
        wire.until_empty();
        assert!(!wire.stage.is_full(1));
    }
}

#[test]
fn memory_that_cannot_be_registered_is_copied() {
    // The first registration is the port's memory.
    for (faults, is_lent) in [("", false), ("refuse=2@1", true)] {
        let rules = forbidding("staged", OnMatch::Drop);
        let mut wire = start(faults, Mode::Persistent, rules, is_lent, |_| {});
        let wanted = "stand-in mode=persistent payload_memory=staged";
        assert_eq!(wire.place, Placement::Gpu(wanted.to_owned()), "{faults}");
        wire.come(1, b"harmless");
        wire.come(1, b"forbidden");
        wire.come(2, b"");
        wire.until_empty();
        assert_eq!(wire.count("payload_segment_bytes_copied"), 17);
        assert_eq!(wire.count("payload_chunks_offloaded"), 2);
        assert_eq!(wire.count("payload_gpu_buffers_out"), 0);
        assert_eq!(wire.count("payload_segments_dropped"), 1);
        let mut went = wire.went();
        went.sort_unstable();
        assert_eq!(went, [(1, "harmless"), (2, "")]);
    }
}

#[test]
fn a_copy_that_was_judged_does_not_keep_its_buffer_from_those_that_wait() {
    let mut wire = start(
        "",
        Mode::Launch,
        forbidding("one-buffer", OnMatch::Reset),
        false,
        |gpu| {
            gpu.on_full = Instead::Wait;
            gpu.batches.max_packets = 1;
            gpu.batches.slots = 1;
        },
    );
    wire.come(1, b"first");
    wire.come(1, b"second");
    wire.until(|wire| !wire.out.is_empty());
    // It is behind the one that waits, also for the buffer.
    wire.come(1, b"third");
    wire.come(2, b"another's");
    wire.until_empty();
    let of_first: Vec<_> = wire
        .went()
        .into_iter()
        .filter(|(port, _)| *port == 1)
        .collect();
    assert_eq!(of_first, [(1, "first"), (1, "second"), (1, "third")]);
    assert_eq!(wire.count("payload_chunks_offloaded"), 4);
    assert_eq!(wire.count("payload_gpu_buffers_out"), 0);
}

#[test]
fn those_that_wait_are_offered_before_new_ones() {
    let mut wire = start(
        "hang=1@1",
        Mode::Launch,
        forbidding("before-new", OnMatch::Reset),
        true,
        |gpu| {
            gpu.on_full = Instead::Wait;
        },
    );
    wire.stage.hold_at_most(4);
    // Half of the places may fly.
    wire.come(1, b"flies");
    wire.come(2, b"flies");
    wire.step();
    wire.come(3, b"waits");
    assert_eq!(wire.stage.places(), 1);
    // There would be a place for it in a ring.
    wire.stage.hold_at_most(32);
    let Meeting::Keep(ticket) = wire.come(4, b"new") else {
        panic!("it is to be held");
    };
    let hold = wire.stage.hold.as_mut().unwrap();
    assert_eq!(hold.entry(ticket).unwrap().phase, Phase::Stalled);
    wire.stand_in.go();
    wire.until_empty();
    assert_eq!(wire.out.len(), 4);
    assert_eq!(wire.stage.places(), usize::MAX);
}

#[test]
fn what_cannot_be_held_or_is_too_long_is_the_cpus() {
    let rules = forbidding("long", OnMatch::Reset);
    let mut wire = start("", Mode::Launch, rules, true, |_| {});
    let mut long = vec![b'x'; PACKET_BYTES_MAX + 1];
    assert_eq!(wire.come(1, &long), Meeting::Pass);
    long[PACKET_BYTES_MAX - 9..].copy_from_slice(b" forbidden");
    assert_eq!(wire.come(1, &long), Meeting::Stop);
    let mut frame = b"so forbidden".to_vec();
    let segment = Segment {
        ends: whose(2),
        payload: 0..frame.len(),
        frame: &mut frame,
        can_be_kept: false,
    };
    assert_eq!(wire.stage.meet(wire.now, segment), Meeting::Stop);
    assert_eq!(wire.count("payload_segments_grounded"), 3);
    assert_eq!(wire.count("payload_chunks_offloaded"), 0);
    wire.step();
    assert_eq!(wire.resets, [whose(1), whose(2)]);
    assert_eq!(wire.count("payload_frames_held"), 0);
}

#[test]
fn an_end_while_frames_are_out_does_not_wait_for_them() {
    for mode in MODES {
        let name = format!("end-{}", mode.name());
        let mut wire = start(
            "hang=1@1",
            mode,
            forbidding(&name, OnMatch::Reset),
            true,
            |_| {},
        );
        wire.come(1, b"harmless");
        wire.step();
        let began = crate::time::monotonic();
        drop(wire.stage);
        assert!(crate::time::monotonic().since(began) < Duration::from_secs(10));
        wire.stand_in.go();
    }
}
