//! A payload stage at each lcore.

use super::super::payload::{File, Way, connection_reset, rule};
use super::*;
use crate::channel::cell::flag;
use crate::config::payload::{Attach, Gpu, Kernel, Mode, OnMatch, PayloadRule};
use crate::gpu::FrameMemory;
use crate::gpu::tests::{MODES, StandIn, load_all};

const LCORES: u32 = 3;
const CONNECTIONS: usize = 24;

fn forbidding(file: &File, way: Way, attach: Attach) -> PayloadRule {
    let pattern = Kernel::Pattern {
        file: file.path(),
        on_match: OnMatch::Reset,
    };
    rule(pattern, way, attach)
}

/// Turns until `done`, which waits for other threads as well.
#[track_caller]
fn until_real(lab: &mut Lab, mut done: impl FnMut(&Lab) -> bool) {
    let began = crate::time::monotonic();
    while !done(lab) {
        let waited = crate::time::monotonic().since(began);
        assert!(waited < Duration::from_secs(60), "nothing came of it");
        lab.turn();
        std::thread::yield_now();
    }
}

/// Lets connections to every lcore say something harmless and half of them something forbidden, which nobody hears.
fn judges(lab: &mut Lab) {
    let listener = lab.listen(64);
    let (out, into) = lab.connect(listener, CONNECTIONS);
    let lcores: BTreeSet<u32> = into.iter().map(|it| lab.server.lcore_of(*it)).collect();
    assert_eq!(lcores, (0..LCORES).collect(), "every lcore has some");
    for (number, out) in out.iter().enumerate() {
        lab.client
            .program
            .send(*out, &[b'a' + u8::try_from(number).unwrap(), b' ']);
    }
    // Whose is whose.
    let mut whose = vec![usize::MAX; CONNECTIONS];
    until_real(lab, |lab| {
        for (into, whose) in into.iter().zip(&mut whose) {
            if let [letter, _] = lab.server.program.recv(*into, 100)[..] {
                *whose = usize::from(letter - b'a');
            }
        }
        !whose.contains(&usize::MAX)
    });
    let is_bad = |number: usize| number.is_multiple_of(2);
    for (number, out) in out.iter().enumerate() {
        let text: &[u8] = if is_bad(number) {
            b"so forbidden"
        } else {
            b"harmless"
        };
        lab.client.program.send(*out, text);
    }
    let mut heard = vec![Vec::new(); CONNECTIONS];
    until_real(lab, |lab| {
        let mut over = 0;
        for (into, number) in into.iter().zip(&whose) {
            heard[*number].extend(lab.server.program.recv(*into, 100));
            let host = &lab.server.program.cell(*into).host;
            let is_reset = host.flags.load(Ordering::Relaxed) & flag::OVER != 0;
            if is_reset {
                assert_eq!(host.error.load(Ordering::Relaxed), connection_reset());
            }
            over +=
                usize::from(is_reset == is_bad(*number) && (is_reset || heard[*number].len() == 8));
        }
        over == CONNECTIONS
    });
    for (number, heard) in heard.iter().enumerate() {
        let wanted: &[u8] = if is_bad(number) { b"" } else { b"harmless" };
        assert_eq!(heard, wanted, "{number}");
    }
    assert_eq!(
        lab.server.sum("payload_flows_reset"),
        CONNECTIONS as u64 / 2
    );
    assert!(lab.server.sum("frames_passed") > 0);
}

#[test]
fn what_is_forbidden_is_reset_at_every_lcore_on_the_cpu() {
    for attach in [Attach::Stream, Attach::Packet] {
        let file = File::new(&format!("several-{attach:?}"), "forbidden\n");
        let config = Gpu::on_cpu(vec![forbidding(&file, Way::Rx, attach)]);
        let all = Pipeline::load(&config, LCORES as usize, FrameMemory::Port(&|| None)).unwrap();
        judges(&mut Lab::staged(all));
    }
}

#[test]
fn what_is_forbidden_is_reset_at_every_lcore_on_the_gpu() {
    for mode in MODES {
        let stand_in = StandIn::new("", &[]);
        let file = File::new(&format!("several-{}", mode.name()), "forbidden\n");
        let mut config = stand_in.config(mode, vec![forbidding(&file, Way::Both, Attach::Stream)]);
        config.batches.timeout = Duration::from_secs(3_600);
        let mut lab = Lab::staged(load_all(&config, LCORES as usize));
        judges(&mut lab);
        for lcore in 0..LCORES as usize {
            assert!(lab.server.count(lcore, "payload_chunks_offloaded") > 0);
            assert_eq!(lab.server.count(lcore, "payload_gpu_on"), 1);
        }
    }
}

#[test]
fn forbidden_segments_are_reset_at_every_lcore_whoever_received_them() {
    let stand_in = StandIn::new("", &[]);
    let file = File::new("several-packets", "forbidden\n");
    let rules = vec![forbidding(&file, Way::Both, Attach::Packet)];
    let mut config = stand_in.config(Mode::Persistent, rules);
    config.batches.timeout = Duration::from_secs(3_600);
    let mut lab = Lab::staged(load_all(&config, LCORES as usize));
    judges(&mut lab);
    assert!(lab.server.count(0, "payload_chunks_offloaded") > 0);
    // What another lcore has passed on lies in a buffer of that one's.
    assert!(lab.server.count(1, "payload_segments_grounded") > 0);
    assert_eq!(lab.server.sum("payload_segments_unheld"), 0);
}

#[test]
fn a_gpu_that_is_given_up_is_given_up_for_every_lcore() {
    // The code is a crash of the context: whoever asks next hears of it.
    let stand_in = StandIn::new("launch=700@4", &[]);
    let file = File::new("several-gone", "forbidden\n");
    let mut config = stand_in.config(
        Mode::Launch,
        vec![forbidding(&file, Way::Both, Attach::Stream)],
    );
    config.batches.timeout = Duration::from_secs(3_600);
    let mut lab = Lab::staged(load_all(&config, LCORES as usize));
    judges(&mut lab);
    assert_eq!(lab.server.sum("payload_gpu_on"), 0);
    assert!(lab.server.sum("payload_chunks_redone") > 0);
}
