//! What turns without work took.

use core::time::Duration;

use super::lab::Lab;

#[test]
fn turns_without_work_are_timed_and_what_lies_between_calls_of_the_program_is_not() {
    let mut lab = Lab::new();
    lab.turns(50);
    let counters = lab.server.status.counters.clone();
    let mut now = lab.now + Duration::from_millis(1);
    let lcore = &mut lab.server.lcore;
    let mut turn_after = |micros, enters: bool| {
        let before = counters.turns_idle_ns.value();
        now = now + Duration::from_micros(micros);
        if enters {
            lcore.enter();
        }
        assert_eq!(lcore.turn(now, Duration::ZERO), 0);
        counters.turns_idle_ns.value() - before
    };
    turn_after(1_000, true);
    assert_eq!(turn_after(3, false), 3_000);
    assert_eq!(turn_after(7, false), 7_000);
    // The program worked meanwhile.
    assert_eq!(turn_after(5, true), 0);
    // Somebody else had the CPU.
    assert_eq!(turn_after(4_000, false), 20_000);
}
