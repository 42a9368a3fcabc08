//! The payload stage with a GPU (a stand-in for its driver) between two programs.

use core::time::Duration;
use std::sync::mpsc::sync_channel;

use super::lab::Lab;
use super::payload::{File, Way, both_are_reset, layout, rule};
use crate::channel::cell::{flag, shut};
use crate::channel::sync::Ordering;
use crate::config::payload::{
    Attach, Gpu, Instead, Kernel, Mode, OnMatch, PayloadRule, WithoutGpu,
};
use crate::device::fault::FaultConfig;
use crate::gpu::tests::{MODES, StandIn, load, with_user};
use crate::gpu::{FrameMemory, Pipeline};
use crate::lcore::Mail;
use crate::readiness::event;

fn forbidding(file: &File, way: Way) -> PayloadRule {
    let pattern = Kernel::Pattern {
        file: file.path(),
        on_match: OnMatch::Reset,
    };
    rule(pattern, way, Attach::Stream)
}

/// A lab whose server's stage is on a GPU. Virtual time runs away from the stand-in: a batch has an hour of it.
pub(super) fn staged(
    stand_in: &StandIn,
    mode: Mode,
    rule: PayloadRule,
    set: impl FnOnce(&mut Gpu),
) -> Lab {
    let mut config = stand_in.config(mode, vec![rule]);
    config.batches.timeout = Duration::from_secs(3_600);
    set(&mut config);
    let none = FaultConfig::none();
    Lab::staged(none, layout(), load(&config), Pipeline::default())
}

pub(super) fn count(lab: &mut Lab, wanted: &str) -> u64 {
    let (to, from) = sync_channel(1);
    lab.server.mailbox.post(Mail::Report { to });
    lab.turn();
    let report = from.try_recv().unwrap();
    let found = report.iter().find(|(name, _)| *name == wanted);
    found.unwrap().1
}

/// Turns until the server's program has read `wanted`.
#[track_caller]
pub(super) fn server_reads(lab: &mut Lab, into: u32, wanted: &[u8]) {
    let mut got = Vec::new();
    lab.until_real(|lab| {
        got.extend(lab.server.program.recv(into, 1 << 20));
        got.len() >= wanted.len()
    });
    assert!(got == wanted, "{} bytes", got.len());
}

#[track_caller]
pub(super) fn client_reads(lab: &mut Lab, out: u32, wanted: &[u8]) {
    let mut got = Vec::new();
    lab.until_real(|lab| {
        got.extend(lab.client.program.recv(out, 1 << 20));
        got.len() >= wanted.len()
    });
    assert!(got == wanted, "{} bytes", got.len());
}

/// Turns until the server's stage has counted so many.
#[track_caller]
pub(super) fn until_counted(lab: &mut Lab, wanted: &str, value: u64) {
    let began = crate::time::monotonic();
    while count(lab, wanted) != value {
        let waited = crate::time::monotonic().since(began);
        assert!(waited < Duration::from_secs(60), "{wanted}");
        std::thread::yield_now();
    }
}

fn flags(lab: &Lab, into: u32) -> u32 {
    let cell = lab.server.program.cell(into);
    cell.host.flags.load(Ordering::Relaxed)
}

#[test]
fn what_the_gpu_allows_arrives_and_what_it_forbids_is_never_read() {
    for mode in MODES {
        let stand_in = StandIn::new("", &[]);
        let file = File::new(&format!("aloft-{}", mode.name()), "forbidden\n");
        let mut lab = staged(&stand_in, mode, forbidding(&file, Way::Both), |_| {});
        let listener = lab.listen(16);
        let (out, into) = lab.connect(listener);
        lab.client.program.send(out, b"allowed, then forb");
        server_reads(&mut lab, into, b"allowed, then forb");
        lab.server.program.send(into, b"an answer");
        client_reads(&mut lab, out, b"an answer");
        lab.client.program.send(out, b"idden");
        both_are_reset(&mut lab, out, into);
        assert_eq!(count(&mut lab, "payload_chunks_offloaded"), 3);
        // The same the other way.
        let (out, into) = lab.connect(listener);
        lab.server.program.send(into, b"so forb");
        client_reads(&mut lab, out, b"so forb");
        lab.server.program.send(into, b"idden");
        both_are_reset(&mut lab, out, into);
        assert_eq!(lab.client.program.recv(out, 100), b"");
    }
}

#[test]
fn what_a_gpu_hides_a_cpu_reads_through_loss_and_full_rings() {
    let key = File::new("aloft-key", &"5a".repeat(32));
    let cipher = || {
        let kernel = Kernel::Chacha20 {
            key_file: key.path(),
        };
        rule(kernel, Way::Both, Attach::Stream)
    };
    for (mode, on_full) in [
        (Mode::Launch, Instead::Cpu),
        (Mode::Persistent, Instead::Wait),
        (Mode::Memops, Instead::Wait),
        (Mode::Graph, Instead::Cpu),
    ] {
        let stand_in = StandIn::new("", &[]);
        let mut config = stand_in.config(mode, vec![cipher()]);
        config.batches.timeout = Duration::from_secs(3_600);
        config.batches.max_packets = 1;
        config.batches.slots = 2;
        config.on_full = on_full;
        let mut faults = FaultConfig::none();
        (faults.seed, faults.loss) = (3, 10_000);
        let client = Pipeline::load(&Gpu::on_cpu(vec![cipher()]), 1, FrameMemory::Port(&|| None))
            .unwrap()
            .remove(0);
        let mut lab = Lab::staged(faults, layout(), load(&config), client);
        let listener = lab.listen(16);
        let data: Vec<u8> = (0..=255).cycle().take(20_000).collect();
        let mut flows: Vec<_> = (0..3).map(|_| (lab.connect(listener), [0; 4])).collect();
        let part = |from: usize, most: usize| &data[from..(from + most).min(data.len())];
        lab.until_real(|lab| {
            // The real wait and the turns are its; what is done between them is here.
            let (server, client) = (&lab.server.program, &lab.client.program);
            for ((out, into), [asked, heard, answered, told]) in &mut flows {
                *asked += client.send(*out, part(*asked, 4_000));
                let got = server.recv(*into, 9_000);
                assert!(got == part(*heard, got.len()));
                *heard += got.len();
                *answered += server.send(*into, part(*answered, 2_000));
                let got = client.recv(*out, 9_000);
                assert!(got == part(*told, got.len()));
                *told += got.len();
            }
            let over = |(_, [_, heard, _, told]): &(_, [usize; 4])| {
                *heard == data.len() && *told == data.len()
            };
            flows.iter().all(over)
        });
        assert!(count(&mut lab, "payload_chunks_offloaded") > 0);
        assert_eq!(count(&mut lab, "payload_gpu_on"), 1);
    }
}

#[test]
fn a_gpu_that_hangs_costs_no_byte() {
    for mode in MODES {
        let stand_in = StandIn::new("hang=1@3", &[]);
        let file = File::new(&format!("hangs-{}", mode.name()), "forbidden\n");
        let mut lab = staged(&stand_in, mode, forbidding(&file, Way::Both), |config| {
            config.batches.timeout = Duration::from_secs(100);
        });
        let (out, into) = lab.connection();
        for word in [b"first", b"other"] {
            lab.client.program.send(out, word);
            server_reads(&mut lab, into, word);
        }
        lab.client.program.send(out, b"hangs, and forb");
        until_counted(&mut lab, "payload_gpu_buffers_out", 1);
        // A longer jump would count as half a second.
        for _ in 0..300 {
            lab.now = lab.now + Duration::from_millis(400);
            lab.turn();
        }
        server_reads(&mut lab, into, b"hangs, and forb");
        assert_eq!(count(&mut lab, "payload_chunks_redone"), 1);
        lab.server.program.send(into, b"meanwhile");
        client_reads(&mut lab, out, b"meanwhile");
        stand_in.go();
        // Its ring has lost its memory meanwhile: the first call gets it back.
        lab.until_real(|lab| lab.client.program.send(out, b"idden") == 5);
        both_are_reset(&mut lab, out, into);
    }
}

#[test]
fn the_end_of_a_stream_waits_for_the_bytes_before_it() {
    let stand_in = StandIn::new("hang=1@1", &[]);
    let file = File::new("fin", "forbidden\n");
    let mut lab = staged(
        &stand_in,
        Mode::Launch,
        forbidding(&file, Way::Both),
        |_| {},
    );
    let (out, into) = lab.connection();
    lab.client.program.send(out, b"last words");
    lab.client.program.close(out);
    lab.turns(2_000);
    assert_eq!(flags(&lab, into) & flag::RX_FINISHED, 0);
    assert_eq!(lab.server.program.recv(into, 100), b"");
    stand_in.go();
    server_reads(&mut lab, into, b"last words");
    lab.until_real(|lab| lab.server.program.bits(into) & event::RDHUP != 0);
    // And what a program has sent before it closed leaves before the FIN.
    lab.server.program.send(into, b"good bye");
    lab.server.program.close(into);
    lab.until_real(|lab| lab.client.program.is_free(out) && lab.server.program.is_free(into));
}

#[test]
fn what_was_sent_before_a_close_arrives() {
    for mode in MODES {
        let stand_in = StandIn::new("slow=2", &[]);
        let file = File::new(&format!("close-{}", mode.name()), "forbidden\n");
        let mut lab = staged(&stand_in, mode, forbidding(&file, Way::Both), |_| {});
        let (out, into) = lab.connection();
        let text = vec![b'.'; 20_000];
        let mut sent = 0;
        lab.until_real(|lab| {
            sent += lab.server.program.send(into, &text[sent..]);
            sent == text.len()
        });
        lab.server.program.close(into);
        client_reads(&mut lab, out, &text);
        lab.until_real(|lab| lab.client.program.bits(out) & event::RDHUP != 0);
    }
}

/// A function of the operator's, which hangs, and a connection that both ends have ended; the server's was the first or the last.
fn aloft_at_the_end(name: &str, is_first: bool) -> (Lab, StandIn, u32) {
    let stand_in = StandIn::new("hanguser=1@1", &[]);
    let mut lab = with_user(name, WithoutGpu::Refuse, |rule| {
        staged(&stand_in, Mode::Launch, rule, |_| {})
    });
    let (out, into) = lab.connection();
    let say_end = |lab: &mut Lab| {
        let cell = lab.server.program.cell(into);
        cell.write.shut.store(shut::WRITE, Ordering::Relaxed);
        lab.server.program.ring(into);
        lab.turns(100);
    };
    if is_first {
        say_end(&mut lab);
    }
    lab.client.program.send(out, b"last words");
    lab.client.program.close(out);
    lab.turns(100);
    if !is_first {
        say_end(&mut lab);
    }
    lab.turns(1_000);
    assert_eq!(lab.server.program.recv(into, 100), b"");
    assert_eq!(flags(&lab, into) & (flag::OVER | flag::RX_FINISHED), 0);
    (lab, stand_in, into)
}

#[test]
fn bytes_that_only_a_gpu_can_judge_are_told_behind_the_end_of_both_sides() {
    for is_first in [true, false] {
        let (mut lab, stand_in, into) = aloft_at_the_end(&format!("ends-{is_first}"), is_first);
        stand_in.go();
        server_reads(&mut lab, into, b"last words");
        lab.until_real(|lab| flags(lab, into) & flag::OVER != 0);
        let error = &lab.server.program.cell(into).host.error;
        assert_eq!(error.load(Ordering::Relaxed), 0);
        assert_eq!(count(&mut lab, "payload_user_unjudged"), 0);
        lab.server.program.close(into);
        lab.until_real(|lab| lab.server.program.is_free(into));
        until_counted(&mut lab, "payload_flows", 0);
        until_counted(&mut lab, "payload_gpu_buffers_out", 0);
    }
}

#[test]
fn a_program_that_leaves_before_the_last_bytes_are_judged_leaves_nothing_behind() {
    let (mut lab, stand_in, into) = aloft_at_the_end("leaves", false);
    lab.server.program.close(into);
    lab.until_real(|lab| lab.server.program.is_free(into));
    stand_in.go();
    until_counted(&mut lab, "payload_flows", 0);
    until_counted(&mut lab, "payload_gpu_buffers_out", 0);
}
