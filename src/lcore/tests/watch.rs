//! What somebody who watches a connection is told.

use core::net::SocketAddrV4;

use super::lab::{ENDPOINT, Lab};
use crate::channel::layout::Layout;
use crate::device::fault::FaultConfig;
use crate::lcore::{Look, Mail, Seen, Sight, Watch, Watcher};
use crate::stack::FlowState;
use crate::stack::demux::FlowKey;

/// Watches the server's end of the only connection.
fn watched(lab: &mut Lab) -> Watcher {
    let (to, seen) = std::sync::mpsc::sync_channel(1);
    let at = Look::Flows { from: 0 };
    lab.server.mailbox.post(Mail::Look { at, to });
    lab.turn();
    let Ok(Seen::Flows(slice)) = seen.try_recv() else {
        panic!("the lcore did not answer");
    };
    let [view] = slice.entries[..] else {
        panic!("{} connections", slice.entries.len());
    };
    watch(lab, view.facts.local, view.facts.remote)
}

fn watch(lab: &mut Lab, local: SocketAddrV4, remote: SocketAddrV4) -> Watcher {
    let (watch, watcher) = Watch::new(FlowKey { local, remote });
    let watch = Box::new(watch);
    lab.server.mailbox.post(Mail::Watch { watch });
    lab.turn();
    watcher
}

fn taken(watcher: &Watcher) -> Vec<Sight> {
    watcher.sights.try_iter().collect()
}

/// Received, read, written, acknowledged.
fn bytes(sight: &Sight) -> (u64, u64, u64, u64) {
    let view = sight.view.expect("it lives");
    let facts = view.facts;
    (
        facts.rx_total,
        view.consumed,
        facts.tx_total,
        facts.tx_acked,
    )
}

#[test]
fn each_step_of_a_connection_is_one_sight() {
    let (mut lab, out, into) = Lab::connected();
    let watcher = watched(&mut lab);
    let first = taken(&watcher);
    assert_eq!(first.len(), 1, "as it is now");
    lab.client.program.send(out, b"ping");
    lab.turns(20);
    assert_eq!(lab.server.program.recv(into, 100), b"ping");
    lab.turns(20);
    lab.server.program.send(into, b"pong!");
    lab.turns(100);
    let steps: Vec<_> = taken(&watcher).iter().map(bytes).collect();
    assert_eq!(
        steps,
        [(4, 0, 0, 0), (4, 4, 0, 0), (4, 4, 5, 0), (4, 4, 5, 5)]
    );
    lab.turns(100);
    assert!(taken(&watcher).is_empty(), "nothing happens");
    assert_eq!(lab.client.program.recv(out, 100), b"pong!");
    lab.client.program.close(out);
    lab.turns(50);
    lab.server.program.close(into);
    lab.turns(100);
    let last = taken(&watcher);
    let states: Vec<_> = last
        .iter()
        .map(|it| it.view.map(|view| view.facts.state))
        .collect();
    assert!(states.contains(&Some(FlowState::CloseWait)), "{states:?}");
    assert!(states.contains(&Some(FlowState::LastAck)), "{states:?}");
    assert_eq!(states.last(), Some(&None), "{states:?}");
    assert_eq!(watcher.lost(), 0);
}

#[test]
fn what_is_sent_again_is_seen_and_whoever_looks_away_loses_only_sights() {
    let mut faults = FaultConfig::none();
    (faults.loss, faults.seed) = (150_000, 3);
    let mut lab = Lab::with(faults, Layout::for_flows(64, 64 << 10, 16 << 10));
    let (out, into) = lab.connection();
    let watcher = watched(&mut lab);
    let asleep = {
        let view = taken(&watcher)[0].view.expect("it lives");
        watch(&mut lab, view.facts.local, view.facts.remote)
    };
    let (mut sent, mut read, mut again, mut sights) = (0, 0, 0, 0);
    let data = vec![7; 20_000];
    lab.until(600, |lab| {
        sent += lab.server.program.send(into, &data[sent..]);
        read += lab.client.program.recv(out, 9_000).len();
        for sight in taken(&watcher) {
            sights += 1;
            again = sight.view.expect("it lives").facts.retransmits;
        }
        read == data.len()
    });
    assert!(again > 0, "{sights} sights");
    assert_eq!(watcher.lost(), 0);
    let kept = taken(&asleep).len() as u64;
    assert_eq!(kept + asleep.lost(), sights + 1, "one way or the other");
    // Without anybody who looks, nothing is looked at.
    drop((watcher, asleep));
    lab.turn();
    assert_eq!(lab.server.lcore.watches(), 0);
}

#[test]
fn a_connection_of_another_lcore_is_not_spoken_of() {
    let mut lab = Lab::new();
    let watcher = watch(&mut lab, ENDPOINT, SocketAddrV4::new(*ENDPOINT.ip(), 1));
    lab.turns(10);
    assert!(taken(&watcher).is_empty());
    assert_eq!(lab.server.lcore.watches(), 1);
}
