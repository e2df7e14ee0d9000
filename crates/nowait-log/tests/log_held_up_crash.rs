//! Crashes, and cuts of both ends, while threads are held up in their writes and others write in
//! their place.

#[path = "../../nowait/tests/common/mod.rs"]
mod common;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, RwLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use common::rng::Rng;
use common::{Watchdog, on};
use nowait::sim::Sim;
use nowait_log::{Durability, Log, Options, Strategy, Submitter, SyncPolicy, Ticket, read_in};

const DIR: &str = "/log";
/// The threads that may be held up.
const WAITER: &str = "waiter";

/// Knowledge of the application.
#[derive(Default)]
struct Model {
    records: BTreeMap<u64, Vec<u8>>,
    acknowledged: u64,
}

fn check(sim: &Sim, before: u64, model: &Mutex<Model>, what: &str) {
    let nowait = on(sim);
    let first = read_in(&nowait, DIR, 1).wait().unwrap_or_else(|error| panic!("{what}: {error}")).1.first_lsn;
    let (mut reader, recovery) = read_in(&nowait, DIR, first).wait().unwrap();
    assert!(recovery.damage.is_empty(), "{what}: {recovery:?}");
    assert!(recovery.last_lsn >= before, "{what}: {before} was acknowledged, {recovery:?}");
    let mut found = Vec::new();
    while let Some(record) = reader.next().wait().unwrap_or_else(|error| panic!("{what}: {error}")) {
        found.push((record.lsn, record.bytes.to_vec()));
    }
    assert_eq!(found.len() as u64, recovery.last_lsn + 1 - recovery.first_lsn, "{what}");
    let model = model.lock().unwrap();
    for (lsn, bytes) in found {
        // The thread that appended it may not have noted it yet.
        assert!(model.records.get(&lsn).is_none_or(|known| *known == bytes), "{what}: record {lsn}");
    }
}

fn run(seed: u64, durability: Durability, depth: u32, maintenance: bool) -> u64 {
    let what = format!("seed {seed}, {durability:?}, depth {depth}, maintenance {maintenance}");
    println!("{what}");
    let sim = Sim::new(seed);
    let strategy = Strategy { durability, by: Submitter::Call, depth };
    let options = Options::new().create(true).instance(&on(&sim)).segment_bytes(32 << 10);
    let options = options.sync(SyncPolicy::Fixed(strategy)).maintenance(maintenance);
    let log = Log::open(DIR, &options).wait().unwrap().0;
    let random = Mutex::new(Rng::new(seed));
    sim.watch(move |_| {
        if thread::current().name() == Some(WAITER) {
            let time = {
                let mut random = random.lock().unwrap();
                (random.below(6) == 0).then(|| 20 + random.below(70) as u64)
            };
            // Longer than the log is patient, at times.
            time.into_iter().for_each(|time| thread::sleep(Duration::from_millis(time)));
        }
    });
    let model = Arc::new(Mutex::new(Model::default()));
    // Writers append while they have read it; the end is cut while it is written.
    let gate = Arc::new(RwLock::new(()));
    let stop = Arc::new(AtomicBool::new(false));
    let count = Arc::new(AtomicU64::new(0));
    let mut threads = Vec::new();
    for writer in 0..3 {
        let (told, hear) = mpsc::sync_channel::<Ticket>(2);
        let wait = move || hear.iter().for_each(|ticket| _ = ticket.wait().unwrap());
        threads.push(thread::Builder::new().name(WAITER.into()).spawn(wait).unwrap());
        let (log, model, gate, stop, count) = (log.clone(), model.clone(), gate.clone(), stop.clone(), count.clone());
        threads.push(thread::spawn(move || {
            let mut random = Rng::new(seed * 1000 + writer);
            while !stop.load(SeqCst) {
                let ticket = {
                    let _cut = gate.read().unwrap();
                    let append = || {
                        let number = count.fetch_add(1, SeqCst);
                        let mut bytes = number.to_le_bytes().to_vec();
                        bytes.resize(8 + number as usize * 37 % 1500, number as u8);
                        let ticket = log.append(&bytes).wait().unwrap();
                        model.lock().unwrap().records.insert(ticket.lsn(), bytes);
                        ticket
                    };
                    let given = append();
                    let mine = append();
                    if random.below(2) == 0 {
                        let lsn = mine.wait().unwrap();
                        let mut model = model.lock().unwrap();
                        model.acknowledged = model.acknowledged.max(lsn);
                    }
                    given
                };
                told.send(ticket).unwrap();
                if random.below(8) == 0 {
                    thread::sleep(Duration::from_millis(15))
                }
            }
        }));
    }
    let (mut random, mut first) = (Rng::new(seed), 1);
    let until = Instant::now() + Duration::from_millis(1500);
    while Instant::now() < until {
        thread::sleep(Duration::from_millis(random.below(40) as u64));
        match random.below(6) {
            0 => {
                let _cut = gate.write().unwrap();
                let last = log.durable_lsn();
                let left = last.saturating_sub(random.below(30) as u64);
                if left >= first {
                    log.truncate_suffix(left).wait().unwrap();
                    let mut model = model.lock().unwrap();
                    model.records.retain(|lsn, _| *lsn <= left);
                    model.acknowledged = left;
                }
            }
            1 => {
                first = first.max(log.durable_lsn().saturating_sub(random.below(60) as u64));
                log.truncate_prefix(first);
            }
            _ => {
                let before = model.lock().unwrap().acknowledged;
                let crashed = sim.crash_at_random(random.next());
                check(&crashed, before, &model, &what);
            }
        }
    }
    stop.store(true, SeqCst);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let rescues = log.stats().rescues;
    let last = model.lock().unwrap().records.keys().last().copied().unwrap_or(0);
    log.close().wait().unwrap();
    check(&sim, last, &model, &what);
    rescues
}

#[test]
fn what_was_acknowledged_is_there_though_others_wrote_it() {
    let _watchdog = Watchdog::new("crashes while threads are held up", 300);
    let mut rescues = 0;
    for seed in 1..3 {
        for (durability, depth) in [(Durability::Write, 1), (Durability::WriteAndSync, 1), (Durability::Write, 2)] {
            rescues += run(seed, durability, depth, seed % 2 == 0);
        }
    }
    assert!(rescues > 0);
}
