//! Peers and ports that fall silent at any moment: every flow that waits for them ends in its time.

use core::net::SocketAddrV4;
use core::time::Duration;

use super::address;
use super::pair::Pair;
use crate::errno::Errno;
use crate::id::FlowId;
use crate::seeded::Seeded;
use crate::stack::{Close, FlowOptions, FlowState};
use crate::time::Instant;

const LIMIT: Duration = Duration::from_secs(3);

/// How the peer goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Gone {
    /// The wire is cut.
    Wire,
    /// Our port takes nothing any more: its link is down, or the other side of its ring is gone.
    Port,
}

fn options(keepalive: bool) -> FlowOptions {
    FlowOptions {
        user_timeout_ms: u32::try_from(LIMIT.as_millis()).unwrap(),
        keepalive,
        keepidle_s: 60,
        keepintvl_s: 60,
        ..FlowOptions::default()
    }
}

/// Bytes go both ways over a bad wire for a while, read or not; then nobody hears us any more.
fn fall_silent(seed: u64, gone: Gone) -> (Pair, FlowId) {
    let mut random = Seeded::new(seed);
    let mut pair = Pair::with(super::config(1), super::config(2), seed);
    pair.a.listen_with(80, 8, options(seed.is_multiple_of(2)));
    let (flow, peer) = pair.join();
    pair.faults.loss = random.below(4) * 500;
    pair.faults.reorder = random.below(3) * 500;
    let (mut read, mut taken) = (0, 0);
    let reads = random.below(4) > 0;
    for _ in 0..random.below(60) {
        let some = vec![1; 1 + random.below(30_000)];
        pair.a.stack.send(pair.now, flow, &some);
        if random.below(3) == 0 {
            pair.b.stack.send(pair.now, peer, &some);
        }
        pair.run(Duration::from_micros(1 + random.below(40_000) as u64));
        if reads {
            read += pair.b.read(pair.now, peer, read).len() as u64;
        }
        taken += pair.a.read(pair.now, flow, taken).len() as u64;
    }
    match gone {
        Gone::Wire => pair.cut = true,
        Gone::Port => stick(&mut pair),
    }
    pair.run(Duration::from_micros(random.below(2_000_000) as u64));
    (pair, flow)
}

/// The port of `a` takes nothing any more, and nothing comes.
fn stick(pair: &mut Pair) {
    pair.cut = true;
    pair.a.port.stuck = true;
    pair.a.port.slots = 8;
}

/// When a flow ended, looking every 50 ms for at most `span`.
fn end(pair: &mut Pair, flow: FlowId, span: Duration) -> Option<Instant> {
    let last = pair.now + span;
    while pair.now < last {
        if pair.a.facts(flow).state == FlowState::Closed {
            return Some(pair.now);
        }
        pair.run(Duration::from_millis(50));
    }
    None
}

#[test]
fn a_peer_that_falls_silent_is_given_up_in_the_time_that_the_program_gave() {
    for gone in [Gone::Wire, Gone::Port] {
        for seed in 0..150 {
            let (mut pair, flow) = fall_silent(seed, gone);
            let since = pair.now;
            pair.a.stack.send(pair.now, flow, b"anybody there?");
            let ended = end(&mut pair, flow, 2 * LIMIT);
            let ended =
                ended.unwrap_or_else(|| panic!("{gone:?} {seed}: {:?}", pair.a.facts(flow)));
            let lasted = ended.since(since);
            assert!(
                lasted <= LIMIT + Duration::from_millis(100),
                "{gone:?} {seed}: {lasted:?}"
            );
            assert_eq!(
                pair.a.facts(flow).error,
                Some(Errno::TIMEDOUT),
                "{gone:?} {seed}"
            );
        }
    }
}

#[test]
fn an_idle_peer_that_falls_silent_is_given_up_by_keepalive() {
    for gone in [Gone::Wire, Gone::Port] {
        let mut pair = Pair::new();
        // The user time-out stands above the number of probes, as in Linux.
        let options = FlowOptions {
            user_timeout_ms: 15_000,
            keepalive: true,
            keepidle_s: 10,
            keepintvl_s: 2,
            keepcnt: 1,
            ..FlowOptions::default()
        };
        pair.a.listen_with(80, 8, options);
        let (flow, _) = pair.join();
        let since = pair.now;
        match gone {
            Gone::Wire => pair.cut = true,
            Gone::Port => stick(&mut pair),
        }
        let ended = end(&mut pair, flow, Duration::from_secs(60)).unwrap();
        assert_eq!(
            ended.since(since).as_secs(),
            16,
            "{gone:?}: probes at 10, 12 and 14 s"
        );
        assert_eq!(pair.a.facts(flow).error, Some(Errno::TIMEDOUT), "{gone:?}");
    }
}

/// How long a connect to nobody lasts, the MAC address known or not.
fn connect_to_nobody(options: FlowOptions, known: bool, gone: Gone) -> (Duration, Errno) {
    let mut pair = Pair::new();
    if known {
        pair.b.listen(80, 8);
        let request = SocketAddrV4::new(address(2), 80);
        pair.a.connect(pair.now, request);
        pair.run(Duration::from_millis(5));
    }
    match gone {
        Gone::Wire => pair.cut = true,
        Gone::Port => stick(&mut pair),
    }
    let since = pair.now;
    let far = SocketAddrV4::new(address(2), 7000);
    let flow = pair.a.connect_with(pair.now, far, options);
    let ended = end(&mut pair, flow, Duration::from_secs(300)).expect("it ends");
    let error = pair.a.facts(flow).error.unwrap();
    pair.a.stack.close(pair.now, flow, Close::Graceful);
    (ended.since(since), error)
}

#[test]
fn a_connect_to_nobody_ends_in_its_time_wherever_its_segments_get_stuck() {
    let tries = FlowOptions {
        syn_count: 2,
        ..FlowOptions::default()
    };
    let quick = FlowOptions {
        user_timeout_ms: 2_500,
        ..FlowOptions::default()
    };
    for gone in [Gone::Wire, Gone::Port] {
        for (options, known, seconds, error) in [
            (FlowOptions::default(), false, 3, Errno::HOSTUNREACH),
            (FlowOptions::default(), true, 123, Errno::TIMEDOUT),
            (tries, true, 7, Errno::TIMEDOUT),
            (quick, true, 2, Errno::TIMEDOUT),
            (quick, false, 2, Errno::TIMEDOUT),
        ] {
            let (lasted, why) = connect_to_nobody(options, known, gone);
            let late = lasted.as_secs().abs_diff(seconds);
            assert!(late <= 1, "{gone:?} {options:?} {known}: {lasted:?}");
            assert_eq!(why, error, "{gone:?} {options:?} {known}");
        }
    }
}

#[test]
fn what_a_program_left_behind_does_not_wait_for_a_dead_port_for_ever() {
    for how in [Close::Graceful, Close::Abort] {
        let mut pair = Pair::new();
        pair.a.listen(80, 8);
        let (flow, _) = pair.join();
        stick(&mut pair);
        pair.a.stack.send(pair.now, flow, b"nobody takes this");
        pair.a.stack.close(pair.now, flow, how);
        pair.run(Duration::from_secs(119));
        assert_eq!(pair.a.stack.live_flows(), 1);
        pair.run(Duration::from_secs(122));
        assert_eq!(pair.a.stack.live_flows(), 0, "{how:?}");
    }
}
