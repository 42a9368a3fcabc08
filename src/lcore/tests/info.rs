//! TCP_INFO: a question in the cell, and the numbers that answer it.

use super::lab::Lab;
use crate::channel::cell::{AnswerCell, flag, option};
use crate::channel::sync::Ordering;
use crate::readiness::event;

#[test]
fn a_question_is_answered_with_what_the_stack_knows_now() {
    let mut lab = Lab::new();
    let listener = lab.listen(16);
    let (out, into) = lab.connect(listener);
    lab.client.program.send(out, &[9; 3_000]);
    lab.server_told(into, event::IN);
    lab.turns(300);
    let program = &lab.client.program;
    let answer = program.control.answer(out).unwrap();
    let asked = answer.segments.load(Ordering::Relaxed);
    assert_eq!(asked, 0, "nobody asked");
    for question in 1..3 {
        lab.client
            .program
            .cell(out)
            .wish
            .info
            .store(question, Ordering::Release);
        lab.client.program.ring(out);
        lab.turns(2);
        let info = lab.client.program.control.answer(out).unwrap();
        let word = |word: &crate::channel::sync::AtomicU32| word.load(Ordering::Relaxed);
        let told = AnswerCell::told_of(info.told.load(Ordering::Acquire));
        assert_eq!(told, (0, question));
        // SYN, the end of the handshake, three segments of data.
        assert!((5..8).contains(&word(&info.segments)), "{info:?}");
        assert_eq!((word(&info.in_flight), word(&info.unsent)), (0, 0));
        assert_eq!(word(&info.mtu), 1_500);
        assert!(word(&info.window) > 0 && word(&info.ring) >= word(&info.backed));
        assert_eq!((word(&info.data_segments), word(&info.data_came)), (3, 0));
        assert!((2..6).contains(&word(&info.came)), "{info:?}");
        assert_eq!((word(&info.again_bytes), word(&info.backoff)), (0, 0));
        assert!(word(&info.min_rtt_us) > 0 && word(&info.peer_window) > 0);
    }
    // What is no flow has an answer as well.
    lab.server
        .program
        .cell(listener)
        .wish
        .info
        .store(1, Ordering::Release);
    lab.server.program.ring(listener);
    lab.turns(2);
    let answer = lab.server.program.control.answer(listener).unwrap();
    let told = AnswerCell::told_of(answer.told.load(Ordering::Relaxed));
    assert_eq!(told, (0, 1));
}

#[test]
fn the_syn_of_a_listener_that_asks_is_kept_and_its_time_to_live_told() {
    let mut lab = Lab::new();
    let listener = lab.listen(16);
    let (_, before) = lab.connect(listener);
    let program = &lab.server.program;
    program
        .cell(listener)
        .option
        .bits
        .store(option::SAVE_SYN, Ordering::Relaxed);
    program
        .cell(listener)
        .option
        .changed
        .store(1, Ordering::Release);
    program.ring(listener);
    lab.turns(2);
    let (_, into) = lab.connect(listener);
    let program = &lab.server.program;
    let flags = |object: u32| program.cell(object).host.flags.load(Ordering::Acquire);
    assert_eq!(flags(before) & flag::SYN_SAVED, 0);
    assert_ne!(flags(into) & flag::SYN_SAVED, 0);
    let answer = program.control.answer(into).unwrap();
    let count = answer.syn_bytes.load(Ordering::Acquire) as usize;
    let syn = &answer.syn()[..count];
    // Headers of IP and TCP, and the ports in the order in which they were sent.
    assert_eq!(
        (syn[0], syn[9], count),
        (0x45, 6, 20 + 4 * usize::from(syn[32] >> 4))
    );
    assert_eq!(syn[33], 0x02, "SYN alone");
    let fact = &program.cell(into).fact;
    let port = |at: usize| u32::from(u16::from_be_bytes([syn[at], syn[at + 1]]));
    assert_eq!(port(20), fact.remote_port.load(Ordering::Relaxed));
    assert_eq!(port(22), fact.local_port.load(Ordering::Relaxed));
    let ttl = |object: u32| program.cell(object).fact.peer_ttl.load(Ordering::Relaxed);
    assert_eq!((ttl(before), ttl(into)), (64, 64));
}
