//! Records that are given up, at the log's beginning and at its end, and crashes and rot beside that.

mod common;

use nowait::log::{By, Durability, Log, Options, Strategy, Sync, inspect_in};
use nowait::sim::Sim;
use nowait::{Engine, Nowait};

const DIR: &str = "/log";

fn on(sim: &Sim) -> Nowait {
    Nowait::builder().engine(Engine::Sim(sim.clone())).build().unwrap()
}

fn options(nowait: &Nowait) -> Options {
    let strategy = Strategy { durability: Durability::Write, by: By::Call, depth: 1 };
    Options::new().create(true).instance(nowait).segment_bytes(16 << 10).sync(Sync::Fixed(strategy)).keeper(false)
}

/// A log whose next segment had begun, without a byte of it on the disk, gave up the one before, with all that was acknowledged: after a
/// crash it was empty, and its numbers began at 1 again.
#[test]
fn a_prefix_is_given_up_only_when_what_follows_it_stands() {
    let sim = Sim::new(1);
    let nowait = on(&sim);
    let (log, _) = Log::open(DIR, &options(&nowait)).unwrap();
    let mut durable = 0;
    // Until an append begins a segment, which is not written yet.
    let ticket = loop {
        let rotations = log.stats().rotations;
        let ticket = log.append(&[1; 3000]).unwrap();
        if log.stats().rotations > rotations && durable > 20 {
            break ticket;
        }
        durable = ticket.wait().unwrap();
        // One segment is left, and a spare.
        log.truncate_prefix(durable);
        while log.tend() {}
    };
    assert_eq!(log.durable_lsn(), durable);
    let check = |what: &str, acknowledged: u64| {
        for seed in 0..20 {
            let crashed = if seed == 0 { sim.crash(|_, _| true) } else { sim.crash_at_random(seed) };
            let nowait = on(&crashed);
            let found = inspect_in(&nowait, DIR).unwrap();
            assert!(found.damage.is_empty(), "{what}, seed {seed}: {found:?}");
            assert!(found.last_lsn >= acknowledged, "{what}, seed {seed}: {acknowledged}, {found:?}");
            let (log, _) = Log::open(DIR, &options(&nowait).create(false)).unwrap();
            assert!(log.append(b"next").unwrap().wait().unwrap() > acknowledged, "{what}, seed {seed}");
        }
    };
    log.truncate_prefix(durable + 1);
    // At once: what was given up is used again before the record is old enough to be written for nobody.
    log.tend();
    check("cut", durable);
    while log.durable_lsn() == durable && log.tend() {
        check("tended", durable);
    }
    let last = ticket.wait().unwrap();
    log.truncate_prefix(last + 1);
    while log.tend() {
        check("written and tended", last);
    }
    // Now the one before could go.
    let left = inspect_in(&nowait, DIR).unwrap();
    assert_eq!((left.first_lsn, left.last_lsn), (last, last));
    log.close().unwrap();
}
