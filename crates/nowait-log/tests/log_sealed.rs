//! Blocks that are handed over: all of them, in order, before and after they are durable.

#[path = "../../nowait/tests/common/mod.rs"]
mod common;

use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use common::{Watchdog, eventually, mounts, on};
use nowait::sim::{Faults, Sim};
use nowait_log::{Durability, Log, Options, SealedBlock, Strategy, Submitter, SyncPolicy};

const DIR: &str = "/log";

fn strategy(by: Submitter, depth: u32) -> SyncPolicy {
    SyncPolicy::Fixed(Strategy { durability: Durability::Write, by, depth })
}

fn on_sim(sim: &Sim, depth: u32) -> Options {
    let options = Options::new().create(true).instance(&on(sim)).segment_bytes(64 << 10).maintenance(false);
    options.sync(strategy(Submitter::Call, depth))
}

/// A replica, as stupid as it gets: each record with its number, and the last epoch.
#[derive(Default)]
struct Replica {
    records: Vec<(u64, u8, Vec<u8>)>,
    epoch: u64,
    /// Numbers of the blocks, with whether they were durable.
    blocks: Vec<(u64, bool)>,
}

impl Replica {
    fn take(&mut self, block: &SealedBlock) {
        assert!(block.epoch() >= self.epoch && !block.lsns().is_empty());
        if block.epoch() > self.epoch {
            self.records.retain(|(lsn, ..)| *lsn < block.lsns().start);
        }
        self.epoch = block.epoch();
        let last = self.records.last().map_or(0, |(lsn, ..)| *lsn);
        assert_eq!(block.lsns().start, last + 1, "blocks come in order, and none is missing");
        self.blocks.push((block.lsns().start, block.is_durable()));
        self.records.extend(block.records().map(|(lsn, found)| (lsn, found.kind, found.bytes.to_vec())));
        assert_eq!(self.records.last().unwrap().0 + 1, block.lsns().end);
        assert!(block.as_bytes().starts_with(b"nwbk") && block.as_bytes().len() % 4096 == 0);
    }

    /// True if it has what a reader has.
    fn is_like(&self, log: &Log) -> bool {
        let mut reader = log.reader(1);
        let mut all = Vec::new();
        while let Some(found) = reader.next().wait().unwrap() {
            all.push((found.lsn, found.kind, found.bytes.to_vec()));
        }
        self.records == all
    }
}

/// Options that feed two replicas: of blocks before they are durable, and after.
fn replicated(options: Options) -> (Options, [Arc<Mutex<Replica>>; 2]) {
    let replicas: [Arc<Mutex<Replica>>; 2] = Default::default();
    let [sealed, durable] = replicas.clone();
    let options = options.on_sealed(move |block| sealed.lock().unwrap().take(block));
    (options.on_durable(move |block| durable.lock().unwrap().take(block)), replicas)
}

fn has(replica: &Mutex<Replica>, last: u64) -> bool {
    eventually(|| replica.lock().unwrap().records.last().is_some_and(|(lsn, ..)| *lsn == last))
}

/// Writes that end in any order, and a cut in between.
#[test]
fn replicas_have_what_the_log_has() {
    let _watchdog = Watchdog::new("replicas", 120);
    for (seed, depth) in (1..25).flat_map(|seed| [(seed, 1), (seed, 4)]) {
        println!("seed {seed}, depth {depth}");
        let sim = Sim::manual(seed);
        let (options, [sealed, durable]) = replicated(on_sim(&sim, depth));
        let (log, _) = Log::open(DIR, &options).wait().unwrap();
        let mut last = 0;
        let mut go_on = |kind: u8, from: u64| {
            last = from;
            for number in 0..40_u64 {
                last += 1;
                let bytes = vec![number as u8; 20 + (number * 97 % 3000) as usize];
                // A callback has it submitted as soon as may be.
                log.append_kind(kind, &bytes).wait().unwrap().on_durable(|_| {});
                for _ in 0..seed % 3 {
                    sim.step();
                }
            }
            while sim.step() {}
            assert_eq!(log.durable_lsn(), last);
            last
        };
        let last = go_on(1, 0);
        for replica in [&sealed, &durable] {
            assert!(has(replica, last) && replica.lock().unwrap().is_like(&log));
        }
        while log.maintain() {}
        let left = 7;
        log.truncate_suffix(left).wait().unwrap();
        let last = go_on(2, left);
        for replica in [&sealed, &durable] {
            assert!(has(replica, last) && replica.lock().unwrap().is_like(&log), "after a cut");
        }
        let (sealed, durable) = (sealed.lock().unwrap(), durable.lock().unwrap());
        assert!(sealed.blocks.iter().all(|(_, is_durable)| !is_durable));
        assert!(durable.blocks.iter().all(|(_, is_durable)| *is_durable));
        assert!(sealed.blocks.iter().map(|(lsn, _)| lsn).eq(durable.blocks.iter().map(|(lsn, _)| lsn)));
    }
}

/// A block is handed over while it is written; when its write fails it is never said to be durable.
#[test]
fn sealed_is_not_durable() {
    let _watchdog = Watchdog::new("blocks of a log that fails", 60);
    let sim = Sim::manual(1);
    let (options, [sealed, durable]) = replicated(on_sim(&sim, 1));
    let (log, _) = Log::open(DIR, &options).wait().unwrap();
    let (told, hear) = mpsc::channel();
    let append = |bytes: &[u8]| {
        let told = told.clone();
        log.append(bytes).wait().unwrap().on_durable(move |result| told.send(result.is_ok()).unwrap());
    };
    append(b"durable");
    assert!(has(&sealed, 1), "before its write has ended");
    assert!(durable.lock().unwrap().records.is_empty() && log.durable_lsn() == 0);
    while sim.step() {}
    assert!(has(&durable, 1) && hear.recv().unwrap());
    let mut faults = Faults::default();
    faults.write_error = 1.0;
    sim.set_faults(faults);
    append(b"fails");
    append(b"was never sealed");
    while sim.step() {}
    assert!(!hear.recv().unwrap() && !hear.recv().unwrap());
    assert!(has(&sealed, 2) && durable.lock().unwrap().records.len() == 1);
    drop(log);
}

/// Neither a panic nor a hook that never ends holds up a commit.
#[test]
fn no_commit_waits_for_a_hook() {
    let _watchdog = Watchdog::new("hooks that panic and block", 60);
    let dir = mounts::temp_dir();
    let (go_on, blocked) = mpsc::channel::<()>();
    let (told, hear) = mpsc::channel();
    let blocked = Mutex::new(blocked);
    let options = Options::new().create(true).segment_bytes(64 << 10).sync(strategy(Submitter::Call, 1));
    let options = options.on_sealed(move |block| {
        if block.lsns().start == 1 {
            blocked.lock().unwrap().recv().unwrap_or_default();
            panic!("on purpose");
        }
        told.send(block.lsns().end - 1).unwrap();
    });
    let (log, _) = Log::open(dir.path().join("log"), &options).wait().unwrap();
    for _ in 0..50 {
        log.append(&[1; 3000]).wait().unwrap().wait().unwrap();
    }
    assert!(hear.try_recv().is_err(), "the first call has not ended");
    drop(go_on);
    while hear.recv().unwrap() < 50 {}
    log.close().wait().unwrap();
}

/// Threads that write, on files.
#[test]
fn replicas_of_a_log_on_files() {
    let _watchdog = Watchdog::new("replicas of a log on files", 120);
    for (by, depth) in [(Submitter::Ring, 1), (Submitter::Call, 2), (Submitter::Ring, 4)] {
        let dir = mounts::temp_dir();
        let options = Options::new().create(true).segment_bytes(256 << 10).sync(strategy(by, depth));
        let (options, replicas) = replicated(options);
        let (log, _) = Log::open(dir.path().join("log"), &options).wait().unwrap();
        thread::scope(|scope| {
            for writer in 0..4_u8 {
                let log = &log;
                scope.spawn(move || {
                    for number in 0..200_usize {
                        log.append_kind(writer, &vec![writer; number * 5]).wait().unwrap().wait().unwrap();
                    }
                });
            }
        });
        for replica in &replicas {
            assert!(has(replica, 800) && replica.lock().unwrap().is_like(&log));
        }
        log.close().wait().unwrap();
    }
}
