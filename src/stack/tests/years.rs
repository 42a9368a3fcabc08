//! What only a stack that has run for long meets: sequence numbers, milliseconds and port counters that begin again at 0.

use core::net::SocketAddrV4;
use core::time::Duration;

use super::bulk::transfer_on;
use super::pair::{Faults, Pair};
use super::{address, config};
use crate::stack::FlowState;
use crate::stack::demux::FlowKey;
use crate::stack::isn::isn;
use crate::time::Instant;

/// The only port that `b` connects from here.
const PORT: u16 = 50_000;
/// A wire on which everything is sent again now and then.
const BAD: Faults = Faults {
    loss: 100,
    duplicate: 50,
    reorder: 50,
};
/// When milliseconds no longer fit into 32 bits: after 49.7 days.
const WRAP_MS: u64 = 1 << 32;

/// A pair whose first connection has initial sequence numbers less than `bytes` below the end at both ends.
fn just_below_the_wrap(bytes: u32) -> Pair {
    let (mut a, mut b) = (config(1), config(2));
    b.ephemeral_ports = (PORT, PORT);
    let of_b = FlowKey {
        local: SocketAddrV4::new(address(2), PORT),
        remote: SocketAddrV4::new(address(1), 80),
    };
    let of_a = FlowKey {
        local: of_b.remote,
        remote: of_b.local,
    };
    // The numbers count up with time, four microseconds each; a few seconds are room for the handshake.
    let wanted = 0_u32.wrapping_sub(bytes);
    let ahead = wanted.wrapping_sub(isn(Instant::ZERO, of_b, &b.secret));
    let now = Instant::from_micros(4 * u64::from(ahead));
    let is_near = |secret: &[u8; 16]| isn(now, of_a, secret).wrapping_sub(wanted) < bytes / 2;
    assert_eq!(isn(now, of_b, &b.secret), wanted);
    a.secret = (0_u128..1 << 24)
        .map(u128::to_le_bytes)
        .find(is_near)
        .unwrap();
    let mut pair = Pair::with(a, b, 5);
    pair.now = now;
    pair
}

#[test]
fn a_transfer_goes_on_where_sequence_numbers_begin_again() {
    const BELOW: u32 = 600_000;
    let pair = just_below_the_wrap(BELOW);
    transfer_on(pair, 4 << 20, BAD);
}

#[test]
fn the_end_of_a_connection_lies_beyond_the_wrap() {
    // SYN, a few bytes, FIN: each of them stands at the wrap once.
    for below in 1..12 {
        let mut pair = just_below_the_wrap(1 << 16);
        pair.now = pair.now + Duration::from_micros(4 * ((1 << 16) - below));
        pair.a.listen(80, 8);
        let (a, b) = pair.join();
        assert_eq!(pair.b.stack.send(pair.now, b, b"12345"), 5);
        pair.run(Duration::from_millis(5));
        assert_eq!(pair.a.read(pair.now, a, 0), b"12345");
        pair.b.stack.shutdown_write(pair.now, b);
        pair.run(Duration::from_millis(5));
        assert_eq!(pair.a.facts(a).state, FlowState::CloseWait, "{below}");
        pair.close(a, b);
        pair.run(Duration::from_secs(200));
        let left = (pair.a.stack.live_flows(), pair.b.stack.live_flows());
        assert_eq!(left, (0, 0), "{below}");
    }
}

#[test]
fn timers_and_idle_times_pass_the_end_of_32_bit_milliseconds() {
    let mut pair = Pair::new();
    pair.now = Instant::from_millis(WRAP_MS - 30);
    pair = transfer_on(pair, 2 << 20, BAD);
    assert!(pair.now.millis() > WRAP_MS + 200_000);

    let mut pair = Pair::new();
    pair.now = Instant::from_millis(WRAP_MS - 500);
    pair.a.listen(80, 8);
    let (_, b) = pair.join();
    assert_eq!(pair.b.stack.send(pair.now, b, b"x"), 1);
    pair.run(Duration::from_millis(900));
    let facts = pair.b.facts(b);
    let view = pair.b.stack.view_one(pair.now, facts.local, facts.remote);
    let quiet = view.unwrap().quiet_ms;
    assert!((890..=900).contains(&quiet), "{quiet}");
}
