//! TCP_INFO: a question in the cell, and the numbers that answer it.

use super::lab::Lab;
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
    let cell = lab.client.program.cell(out);
    assert_eq!(
        cell.info.segments.load(Ordering::Relaxed),
        0,
        "nobody asked"
    );
    for question in 1..3 {
        lab.client
            .program
            .cell(out)
            .wish
            .info
            .store(question, Ordering::Release);
        lab.client.program.ring(out);
        lab.turns(2);
        let info = &lab.client.program.cell(out).info;
        let word = |word: &crate::channel::sync::AtomicU32| word.load(Ordering::Relaxed);
        assert_eq!(word(&info.told), question);
        // SYN, the end of the handshake, three segments of data.
        assert!((5..8).contains(&word(&info.segments)), "{info:?}");
        assert_eq!((word(&info.in_flight), word(&info.unsent)), (0, 0));
        assert_eq!(word(&info.mtu), 1_500);
        assert!(word(&info.window) > 0 && word(&info.ring) >= word(&info.backed));
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
    let told = &lab.server.program.cell(listener).info.told;
    assert_eq!(told.load(Ordering::Relaxed), 1);
}
