//! Programs that do anything at all, forged words included: nothing panics, the others are served, nothing leaks.

use core::time::Duration;

use super::lab::{ENDPOINT, Lab, OWNER};
use crate::channel::cell::{ObjectCell, operation};
use crate::channel::layout::Layout;
use crate::channel::sync::Ordering;
use crate::device::fault::FaultConfig;
use crate::lcore::Mail;
use crate::seeded::Seeded;

/// Writes something that no honest program writes.
fn forge(cell: &ObjectCell, random: &mut Seeded) {
    let value = match random.below(4) {
        0 => 0,
        1 => u64::MAX,
        2 => random.bits() % (1 << 20),
        _ => random.bits(),
    };
    let word = u32::try_from(value & 0xffff_ffff).unwrap();
    match random.below(18) {
        0 => cell.read.rx_head.store(value, Ordering::SeqCst),
        1 => cell.write.tx_tail.store(value, Ordering::SeqCst),
        2 => cell.write.tx_origin.store(value, Ordering::SeqCst),
        3 => cell.host.rx_tail.store(value, Ordering::SeqCst),
        4 => cell.host.tx_head.store(value, Ordering::SeqCst),
        5 => cell.host.tx_backed.store(word, Ordering::SeqCst),
        6 => cell.host.kind.store(word % 6, Ordering::SeqCst),
        7 => cell.wish.wish.store(word, Ordering::SeqCst),
        8 => cell.wish.operation.store(word % 4, Ordering::SeqCst),
        9 => cell.wish.backlog.store(word, Ordering::SeqCst),
        10 => cell.wish.local_port.store(word, Ordering::SeqCst),
        11 => cell.wish.remote_port.store(word, Ordering::SeqCst),
        12 => cell.option.changed.store(word, Ordering::SeqCst),
        13 => cell.option.ttl.store(word, Ordering::SeqCst),
        16 => cell.queue.heads[0].store(word, Ordering::SeqCst),
        17 => cell.queue.tails[0].store(word, Ordering::SeqCst),
        14 => cell.write.shut.store(word, Ordering::SeqCst),
        _ => cell.wish.linger.store(word, Ordering::SeqCst),
    }
}

/// Plays, and returns how many flows were accepted and how many objects were found broken.
fn play(seed: u64, forging: bool) -> (u64, u64) {
    println!("forging={forging}");
    let mut random = Seeded::new(seed);
    let mut faults = FaultConfig::none();
    faults.seed = seed;
    faults.loss = 20_000;
    faults.reorder = 20_000;
    let mut lab = Lab::with(faults, Layout::for_flows(64, 16 << 10, 16 << 10));
    let mut outs: Vec<u32> = Vec::new();
    let mut ins: Vec<u32> = Vec::new();
    let mut listener = None;
    for _ in 0..4_000 {
        match random.below(14) {
            0 if listener.is_none() => {
                let object = lab.server.program.claim();
                lab.server.program.listen(object, ENDPOINT, 5);
                listener = Some(object);
            }
            1 | 2 if outs.len() < 20 => {
                let object = lab.client.program.claim();
                lab.client.program.connect(object, ENDPOINT);
                outs.push(object);
            }
            3 | 4 => {
                if let Some(listener) = listener
                    && let Some(object) = lab.server.program.accept_any(listener)
                {
                    ins.push(object);
                }
            }
            5 | 6 => {
                if let Some(object) = pick(&outs, &mut random) {
                    let count = random.below(3_000);
                    lab.client.program.try_send(object, &vec![1; count]);
                }
            }
            7 | 8 => {
                if let Some(object) = pick(&ins, &mut random) {
                    lab.server.program.try_recv(object, 5_000);
                    lab.server.program.try_send(object, &[2; 700]);
                }
            }
            9 if random.below(4) == 0 => {
                if let Some(object) = pick(&outs, &mut random) {
                    outs.retain(|other| *other != object);
                    lab.client.program.close(object);
                }
            }
            10 if random.below(4) == 0 => {
                if let Some(object) = pick(&ins, &mut random) {
                    ins.retain(|other| *other != object);
                    lab.server.program.close(object);
                }
            }
            11 => {
                if let Some(object) = pick(&ins, &mut random) {
                    lab.server.program.shutdown_write(object);
                }
            }
            12 if random.below(20) == 0 => {
                if let Some(object) = listener.take() {
                    lab.server.program.close(object);
                }
            }
            13 if forging => {
                let object = match random.below(3) {
                    0 => listener,
                    _ => pick(&ins, &mut random).or(listener),
                };
                if let Some(object) = object {
                    forge(lab.server.program.cell(object), &mut random);
                    lab.server.program.ring(object);
                }
                let stray = random.bits() % u64::from(lab.server.program.control.layout().objects);
                let stray = u32::try_from(stray).unwrap();
                let wish = &lab.server.program.cell(stray).wish;
                wish.operation.store(operation::CONNECT, Ordering::SeqCst);
                lab.server.program.ring(stray);
            }
            _ => {}
        }
        lab.turn();
    }
    // Both programs die; whatever they did, every object comes back.
    for host in [&lab.server, &lab.client] {
        host.mailbox.post(Mail::ProcessGone {
            owner: OWNER,
            cell: 0,
            pid: super::program::PID,
        });
        host.mailbox.post(Mail::Detach { owner: OWNER });
    }
    let end = lab.now + Duration::from_secs(300);
    let (mut server, mut client) = (false, false);
    while !(server && client) {
        assert!(
            lab.now < end,
            "a family does not end: server={server} client={client}"
        );
        server |= !lab.server.status.take_ended().is_empty();
        client |= !lab.client.status.take_ended().is_empty();
        lab.turn();
    }
    let counters = &lab.server.status.counters;
    (
        counters.flows_handed_over.value(),
        counters.objects_broken_by_program.value(),
    )
}

fn pick(list: &[u32], random: &mut Seeded) -> Option<u32> {
    (!list.is_empty()).then(|| list[random.below(list.len())])
}

/// Plays each seed; the sums of what was counted.
fn sums(seeds: core::ops::RangeInclusive<u64>, forging: bool) -> (u64, u64) {
    seeds
        .map(|seed| play(seed, forging))
        .fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
}

#[test]
fn an_honest_program_leaves_nothing_behind() {
    let (accepted, broken) = sums(1..=6, false);
    assert!(accepted > 50, "accepted={accepted}");
    assert_eq!(broken, 0);
}

#[test]
fn a_forging_program_leaves_nothing_behind() {
    let (accepted, broken) = sums(100..=112, true);
    assert!(
        accepted > 50 && broken > 50,
        "accepted={accepted} broken={broken}"
    );
}
