//! Beginning, data both ways, end.

use core::net::SocketAddrV4;
use core::time::Duration;

use super::address;
use super::pair::Pair;
use crate::errno::Errno;
use crate::stack::{Change, Close, FlowState};

const SHORT: Duration = Duration::from_millis(5);

#[test]
fn bytes_go_both_ways_and_both_ends_close() {
    let mut pair = Pair::new();
    pair.a.listen(80, 8);
    let (a, b) = pair.join();
    assert_eq!(pair.b.stack.send(pair.now, b, b"request"), 7);
    pair.run(SHORT);
    assert_eq!(pair.a.read(pair.now, a, 0), b"request");
    assert_eq!(pair.a.stack.send(pair.now, a, b"reply"), 5);
    pair.run(SHORT);
    assert_eq!(pair.b.read(pair.now, b, 0), b"reply");
    let facts = pair.a.facts(a);
    assert_eq!((facts.tx_acked, facts.tx_total, facts.rx_total), (5, 5, 7));

    pair.b.stack.close(pair.now, b, Close::Graceful);
    pair.run(SHORT);
    assert!(pair.a.facts(a).rx_finished);
    assert_eq!(pair.a.facts(a).state, FlowState::CloseWait);
    pair.a.stack.close(pair.now, a, Close::Graceful);
    pair.run(SHORT);
    assert_eq!(pair.a.stack.facts(a), None);
    assert_eq!(pair.b.stack.facts(b), None);
    assert_eq!(
        (pair.a.stack.live_flows(), pair.b.stack.live_flows()),
        (0, 0)
    );
    let gone = |changes: &[Change]| {
        changes
            .iter()
            .filter(|change| matches!(change, Change::Gone { .. }))
            .count()
    };
    assert_eq!((gone(&pair.a.changes), gone(&pair.b.changes)), (1, 1));
    assert_eq!(
        (pair.a.memory.returned.len(), pair.b.memory.returned.len()),
        (1, 1)
    );
    // Who closed first waits, in the small table.
    assert_eq!(pair.b.stack.time_wait.len(), 1);
    assert_eq!(pair.a.stack.time_wait.len(), 0);
    pair.run(Duration::from_secs(61));
    assert_eq!(pair.b.stack.time_wait.len(), 0);
    assert_eq!(pair.b.stack.next_timer(), None);
}

#[test]
fn lent_send_buffers_are_used_and_come_back() {
    let mut pair = Pair::new();
    (pair.a.memory.lends, pair.b.memory.lends) = (true, true);
    pair.a.listen(80, 8);
    let (a, b) = pair.join();
    assert_eq!((pair.a.memory.lent.len(), pair.b.memory.lent.len()), (1, 1));
    pair.a.stack.send(pair.now, a, b"lent");
    pair.run(SHORT);
    assert_eq!(pair.b.read(pair.now, b, 0), b"lent");
    pair.close(a, b);
    pair.run(SHORT);
    assert!(pair.a.memory.lent.is_empty() && pair.b.memory.lent.is_empty());
}

#[test]
fn a_closed_port_refuses() {
    let mut pair = Pair::new();
    let b = pair.b.connect(pair.now, SocketAddrV4::new(address(1), 81));
    pair.run(SHORT);
    let facts = pair.b.facts(b);
    assert_eq!(
        (facts.state, facts.error),
        (FlowState::Closed, Some(Errno::CONNREFUSED))
    );
    pair.b.stack.close(pair.now, b, Close::Graceful);
    pair.run(SHORT);
    assert_eq!(pair.b.stack.facts(b), None);
}
