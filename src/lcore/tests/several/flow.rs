//! The lcore that a connection belongs to.

use super::*;
use crate::errno::Errno;
use crate::stack::demux::FlowKey;

#[test]
fn one_listener_is_served_by_all_lcores_each_with_the_flows_of_its_hash() {
    for lcores in [2, 3, 4] {
        let mut lab = Lab::new(lcores);
        let listener = lab.listen(64);
        let (out, into) = lab.connect(listener, 48);
        let mut seen = BTreeSet::new();
        for object in &into {
            let lcore = lab.server.lcore_of(*object);
            assert_eq!(lcore, lab.server.steering.by_hash(lab.server.key(*object)));
            let fact = &lab.server.program.cell(*object).fact;
            assert_eq!(fact.listener.load(Ordering::Relaxed), listener);
            seen.insert(lcore);
        }
        assert_eq!(seen, (0..lcores).collect(), "every lcore has some");
        carries(&mut lab, true, &out, &into);
        carries(&mut lab, false, &into, &out);
        assert_eq!(lab.server.sum("flows_handed_over"), 48);
        assert!(lab.server.count(0, "frames_passed") > 48);
        assert_eq!(lab.server.sum("frames_dropped_ring_full"), 0);
        assert_eq!(lab.server.sum("listeners_made"), 1);
        assert_eq!(lab.server.sum("resets_sent_no_flow"), 0);
        for object in out {
            lab.client.program.close(object);
        }
        for object in &into {
            lab.server.program.close(*object);
        }
        lab.until(20, |lab| {
            into.iter()
                .all(|object| lab.server.program.is_free(*object))
        });
    }
}

#[test]
fn replies_to_what_is_begun_here_come_to_the_lcore_that_began_it() {
    let mut lab = Lab::new(3);
    // The server's program connects; the client's listens.
    let there = SocketAddrV4::new(CLIENT, 80);
    let listener = lab.client.program.claim();
    lab.client.program.listen(listener, there, 64);
    lab.turn();
    let out: Vec<u32> = (0..30)
        .map(|n| {
            let object = lab.server.program.claim_at(n % 3);
            lab.server.program.connect(object, there);
            object
        })
        .collect();
    let mut into = Vec::new();
    while into.len() < out.len() {
        lab.turn();
        into.extend(lab.client.program.accept(listener));
        assert!(lab.now < Instant::from_millis(9_000));
    }
    lab.until_up(true, &out);
    for object in &out {
        let home = lab.server.steering.by_hash(lab.server.key(*object));
        assert_eq!(
            home,
            lab.server.lcore_of(*object),
            "the port was chosen for it"
        );
    }
    carries(&mut lab, false, &out, &into);
    carries(&mut lab, true, &into, &out);
    assert_eq!(lab.server.sum("flows_guest"), 0);
}

#[test]
fn a_port_that_the_program_chose_works_at_every_lcore() {
    let mut lab = Lab::new(2);
    let there = SocketAddrV4::new(CLIENT, 80);
    let listener = lab.client.program.claim();
    lab.client.program.listen(listener, there, 64);
    lab.turn();
    let mut out = Vec::new();
    for port in 5_000..5_008 {
        let object = lab.server.program.claim_at(port % 2);
        let wish = &lab.server.program.cell(object).wish;
        wish.local_port.store(port, Ordering::Relaxed);
        lab.server.program.connect(object, there);
        out.push(object);
    }
    let mut into = Vec::new();
    lab.until(5, |lab| {
        into.extend(lab.client.program.accept(listener));
        into.len() == 8
    });
    lab.until_up(true, &out);
    carries(&mut lab, false, &out, &into);
    carries(&mut lab, true, &into, &out);
    let guests = lab.server.sum("flows_guest");
    assert!((1..8).contains(&guests), "{guests} of 8 lie elsewhere");
    let keys: Vec<_> = out.iter().map(|out| lab.server.key(*out)).collect();
    for object in &out {
        lab.server.program.close(*object);
    }
    for object in &into {
        lab.client.program.close(*object);
    }
    lab.until(20, |lab| {
        out.iter().all(|object| lab.server.program.is_free(*object))
    });
    let over = lab.now + Duration::from_secs(3);
    lab.until(5, |lab| lab.now > over);
    for key in keys {
        let home = lab.server.steering.by_hash(key);
        assert_eq!(lab.server.steering.lcore_of(key), home, "no guest is left");
    }
}

/// A connection of the server's program from `port`, begun at the lcore that its hash does not lead to; it has ended, and rests there.
#[track_caller]
fn rested(lab: &mut Lab, port: u32) -> FlowKey {
    let there = SocketAddrV4::new(CLIENT, 80);
    let listener = lab.client.program.claim();
    lab.client.program.listen(listener, there, 64);
    lab.turn();
    let local = SocketAddrV4::new(SERVER, u16::try_from(port).unwrap());
    let key = FlowKey {
        local,
        remote: there,
    };
    let home = lab.server.steering.by_hash(key);
    let out = lab.server.program.claim_at(1 - home);
    let wish = &lab.server.program.cell(out).wish;
    wish.local_port.store(port, Ordering::Relaxed);
    lab.server.program.connect(out, there);
    lab.until_up(true, &[out]);
    let mut into = None;
    lab.until(5, |lab| {
        into = lab.client.program.accept(listener);
        into.is_some()
    });
    assert_eq!(lab.server.sum("flows_guest"), 1);
    // The server says first that it is over.
    lab.server.program.close(out);
    let into = into.unwrap();
    lab.until(5, |lab| lab.client.program.bits(into) & event::RDHUP != 0);
    lab.client.program.close(into);
    lab.client.program.close(listener);
    lab.until(5, |lab| {
        lab.server.program.is_free(out)
            && lab.client.program.is_free(into)
            && lab.client.program.is_free(listener)
    });
    assert_eq!(lab.server.sum("flows_time_wait"), 1);
    key
}

#[test]
fn what_is_left_of_a_guest_is_found_where_it_is() {
    let mut lab = Lab::new(2);
    let key = rested(&mut lab, 5_000);
    let home = lab.server.steering.by_hash(key);
    assert_eq!(lab.server.steering.lcore_of(key), 1 - home);
    // Nobody else begins one with these ends meanwhile.
    let out = lab.server.program.claim_at(home);
    let wish = &lab.server.program.cell(out).wish;
    wish.local_port.store(5_000, Ordering::Relaxed);
    lab.server.program.connect(out, key.remote);
    lab.until(1, |lab| lab.server.program.answer(out).is_some());
    let refused = Errno::ADDRNOTAVAIL.raw_os_error().unsigned_abs();
    assert_eq!(lab.server.program.answer(out), Some(refused));
    // The time of its rest is over.
    let over = lab.now + Duration::from_secs(3);
    lab.until(5, |lab| lab.now > over);
    assert_eq!(lab.server.steering.lcore_of(key), home);
    assert_eq!(lab.server.sum("resets_sent_no_flow"), 0);
}

#[test]
fn who_takes_the_place_of_a_guest_is_a_guest() {
    let mut lab = Lab::new(2);
    let key = rested(&mut lab, 5_000);
    let home = lab.server.steering.by_hash(key);
    let listener = lab.listen_at(key.local, 8, 0);
    let out = lab.client.program.claim();
    let wish = &lab.client.program.cell(out).wish;
    let port = u32::from(key.remote.port());
    wish.local_port.store(port, Ordering::Relaxed);
    lab.client.program.connect(out, key.local);
    let mut into = None;
    lab.until(5, |lab| {
        into = lab.server.program.accept(listener);
        into.is_some()
    });
    let into = into.unwrap();
    assert_eq!(lab.server.sum("time_wait_replaced"), 1);
    assert_eq!(lab.server.lcore_of(into), 1 - home);
    carries(&mut lab, true, &[out], &[into]);
    carries(&mut lab, false, &[into], &[out]);
    // The client says first that it is over: nothing is left here.
    lab.client.program.close(out);
    lab.until(5, |lab| lab.server.program.bits(into) & event::RDHUP != 0);
    lab.server.program.close(into);
    lab.until(5, |lab| lab.server.program.is_free(into));
    assert_eq!(lab.server.steering.lcore_of(key), home);
}
