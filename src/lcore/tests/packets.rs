//! Segments that a GPU (a stand-in for its driver) judges between two programs: held in the port's buffers, in order.

use core::time::Duration;

use super::aloft::{client_reads, count, server_reads, staged, until_counted};
use super::lab::Lab;
use super::payload::{File, Way, both_are_reset, layout, rule};
use crate::channel::cell::flag;
use crate::channel::sync::Ordering;
use crate::config::payload::{Attach, Gpu, Instead, Kernel, Mode, OnMatch, PayloadRule};
use crate::device::fault::FaultConfig;
use crate::gpu::Pipeline;
use crate::gpu::tests::{MODES, StandIn, load};

fn forbidding(file: &File, way: Way, on_match: OnMatch) -> PayloadRule {
    let pattern = Kernel::Pattern {
        file: file.path(),
        on_match,
    };
    rule(pattern, way, Attach::Packet)
}

#[test]
fn a_forbidden_segment_is_reset_by_the_gpu_in_both_directions() {
    for mode in MODES {
        let stand_in = StandIn::new("", &[]);
        let file = File::new(&format!("packets-{}", mode.name()), "forbidden\n");
        let rule = forbidding(&file, Way::Both, OnMatch::Reset);
        let mut lab = staged(&stand_in, mode, rule, |_| {});
        let listener = lab.listen(16);
        let (out, into) = lab.connect(listener);
        lab.client.program.send(out, b"allowed");
        server_reads(&mut lab, into, b"allowed");
        lab.server.program.send(into, b"an answer");
        client_reads(&mut lab, out, b"an answer");
        lab.client.program.send(out, b"so forbidden");
        both_are_reset(&mut lab, out, into);
        assert_eq!(lab.server.program.recv(into, 100), b"");
        let (out, into) = lab.connect(listener);
        lab.server.program.send(into, b"forbidden");
        both_are_reset(&mut lab, out, into);
        assert_eq!(lab.client.program.recv(out, 100), b"");
        assert_eq!(count(&mut lab, "payload_chunks_offloaded"), 4);
        assert_eq!(count(&mut lab, "payload_chunks_redone"), 0);
        // The frames of this port are memory of ours, which the GPU does not reach.
        assert_eq!(count(&mut lab, "payload_segment_bytes_copied"), 37);
        until_counted(&mut lab, "payload_frames_held", 0);
    }
}

#[test]
fn a_segment_that_the_gpu_drops_comes_again_until_the_flow_is_reset() {
    for way in [Way::Rx, Way::Tx] {
        let stand_in = StandIn::new("", &[]);
        let name = if way == Way::Rx {
            "gpu-drop-rx"
        } else {
            "gpu-drop-tx"
        };
        let file = File::new(name, "forbidden\n");
        let rule = forbidding(&file, way, OnMatch::Drop);
        let mut lab = staged(&stand_in, Mode::Persistent, rule, |_| {});
        let (out, into) = lab.connection();
        if way == Way::Rx {
            lab.client.program.send(out, b"forbidden");
        } else {
            lab.server.program.send(into, b"forbidden");
        }
        let over = |cell: &crate::channel::cell::ObjectCell| {
            cell.host.flags.load(Ordering::Relaxed) & flag::OVER != 0
        };
        lab.until_real_in_step(|lab| {
            over(lab.server.program.cell(into)) && over(lab.client.program.cell(out))
        });
        assert_eq!(lab.server.program.recv(into, 100), b"");
        assert_eq!(lab.client.program.recv(out, 100), b"");
        assert_eq!(count(&mut lab, "payload_segments_dropped"), 8);
        assert_eq!(count(&mut lab, "payload_flows_reset_drops"), 1);
    }
}

#[test]
fn bulk_passes_in_order_through_loss_and_full_rings() {
    for (mode, on_full, slots) in [
        (Mode::Launch, Instead::Cpu, 2),
        (Mode::Persistent, Instead::Wait, 2),
        (Mode::Memops, Instead::Wait, 8),
        (Mode::Graph, Instead::Drop, 64),
    ] {
        let stand_in = StandIn::new("", &[]);
        let stats = rule(Kernel::Stats, Way::Both, Attach::Packet);
        let mut config = stand_in.config(mode, vec![stats]);
        config.batches.timeout = Duration::from_secs(3_600);
        config.batches.max_packets = 2;
        config.batches.slots = slots;
        config.on_full = on_full;
        let mut faults = FaultConfig::none();
        (faults.seed, faults.loss, faults.reorder) = (3, 5_000, 10_000);
        let mut lab = Lab::staged(faults, layout(), load(&config), Pipeline::default());
        let listener = lab.listen(16);
        let data: Vec<u8> = (0..=255).cycle().take(60_000).collect();
        let mut flows: Vec<_> = (0..3).map(|_| (lab.connect(listener), [0; 4])).collect();
        let part = |from: usize, most: usize| &data[from..(from + most).min(data.len())];
        lab.until_real_in_step(|lab| {
            let (server, client) = (&lab.server.program, &lab.client.program);
            for ((out, into), [asked, heard, answered, told]) in &mut flows {
                *asked += client.send(*out, part(*asked, 8_000));
                let got = server.recv(*into, 9_000);
                assert!(got == part(*heard, got.len()));
                *heard += got.len();
                *answered += server.send(*into, part(*answered, 4_000));
                let got = client.recv(*out, 9_000);
                assert!(got == part(*told, got.len()));
                *told += got.len();
            }
            let over = |(_, [_, heard, _, told]): &(_, [usize; 4])| {
                *heard == data.len() && *told == data.len()
            };
            flows.iter().all(over)
        });
        for ((out, into), _) in flows {
            lab.client.program.close(out);
            lab.server.program.close(into);
            lab.until_real_in_step(|lab| lab.server.program.is_free(into));
        }
        let offloaded = count(&mut lab, "payload_chunks_offloaded");
        // The CPU takes what finds the small ring full.
        let least = if on_full == Instead::Cpu { 10 } else { 100 };
        assert!(offloaded > least, "{offloaded}");
        assert_eq!(count(&mut lab, "payload_chunks_redone"), 0);
        assert_eq!(count(&mut lab, "payload_gpu_on"), 1);
        if on_full != Instead::Drop {
            assert_eq!(count(&mut lab, "payload_segments_unheld"), 0);
        }
        // What has to wait is not made yet.
        assert_eq!(count(&mut lab, "tx_dropped_no_buffer"), 0, "{on_full:?}");
        until_counted(&mut lab, "payload_frames_held", 0);
        assert_eq!(count(&mut lab, "payload_gpu_buffers_out"), 0);
    }
}

fn hanging(stand_in: &StandIn, name: &str, mode: Mode, set: impl FnOnce(&mut Gpu)) -> (Lab, File) {
    let file = File::new(&format!("{name}-{}", mode.name()), "forbidden\n");
    let rule = forbidding(&file, Way::Both, OnMatch::Reset);
    (staged(stand_in, mode, rule, set), file)
}

#[test]
fn a_gpu_that_hangs_holds_frames_and_no_connection() {
    for mode in MODES {
        let stand_in = StandIn::new("hang=1@1", &[]);
        let (mut lab, _file) = hanging(&stand_in, "hangs-packets", mode, |config| {
            config.batches.timeout = Duration::from_millis(500);
        });
        let (out, into) = lab.connection();
        // What is received, and then what is sent: a ring each, of which the first batch of the driver's hangs.
        lab.client.program.send(out, b"hangs");
        server_reads(&mut lab, into, b"hangs");
        // What was sent again meanwhile is late as well.
        assert!(count(&mut lab, "payload_frames_late") >= 1);
        lab.server.program.send(into, b"an answer");
        client_reads(&mut lab, out, b"an answer");
        assert!(count(&mut lab, "payload_chunks_redone") >= 1);
        lab.client.program.send(out, b"meanwhile");
        server_reads(&mut lab, into, b"meanwhile");
        stand_in.go();
        until_counted(&mut lab, "payload_frames_late", 0);
        until_counted(&mut lab, "payload_frames_held", 0);
        assert_eq!(count(&mut lab, "payload_gpu_on"), 1);
        lab.client.program.send(out, b"forbidden");
        both_are_reset(&mut lab, out, into);
    }
}

#[test]
fn a_late_segment_leaves_as_a_copy() {
    let stand_in = StandIn::new("hang=1@1", &[]);
    let file = File::new("late-copy", "forbidden\n");
    let rule = forbidding(&file, Way::Tx, OnMatch::Reset);
    let mut lab = staged(&stand_in, Mode::Launch, rule, |config| {
        config.batches.timeout = Duration::from_millis(500);
    });
    let (out, into) = lab.connection();
    for word in [b"first", b"other"] {
        lab.server.program.send(into, word);
        client_reads(&mut lab, out, word);
        // Its own buffer stays with the GPU, and so do those of what was sent again meanwhile.
        assert!((1..=4).contains(&count(&mut lab, "payload_frames_late")));
    }
    stand_in.go();
    until_counted(&mut lab, "payload_frames_held", 0);
}

#[test]
fn a_host_ends_while_frames_are_out() {
    for mode in MODES {
        let stand_in = StandIn::new("hang=1@1", &[]);
        let (mut lab, _file) = hanging(&stand_in, "ends-packets", mode, |_| {});
        let (out, _) = lab.connection();
        lab.client.program.send(out, b"hangs");
        until_counted(&mut lab, "payload_frames_held", 1);
        let began = crate::time::monotonic();
        drop(lab);
        assert!(crate::time::monotonic().since(began) < Duration::from_secs(20));
        stand_in.go();
    }
}
