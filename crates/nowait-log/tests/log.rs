//! The log on real files: callers of all kinds, every file system, other processes, full disks,
//! damage, kills.

#[path = "../../nowait/tests/common/mod.rs"]
mod common;
mod reading;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::mpsc;
use std::time::Duration;

use common::child;
use common::mounts::{self, Kind, Mount};
use common::rng::Rng;
use common::{Watchdog, at_most, eventually, on, rounds};
use nowait::sim::Sim;
use nowait::{Engine, ErrorKind, Nowait};
use nowait_log::{Durability, Log, Options, Strategy, Submitter, SyncPolicy, inspect, read};
use reading::Asking;

const SEGMENT_BYTES: u64 = 128 << 10;

fn options() -> Options {
    let strategy = Strategy { durability: Durability::Write, by: Submitter::Ring, depth: 2 };
    Options::new().create(true).segment_bytes(SEGMENT_BYTES).sync(SyncPolicy::Fixed(strategy))
}

/// Contents of record `lsn`, wherever it is appended.
fn record(lsn: u64) -> Vec<u8> {
    let mut rng = Rng::new(lsn);
    let length = 8 + rng.below(400);
    let mut bytes = lsn.to_le_bytes().to_vec();
    bytes.extend((8..length).map(|_| rng.next() as u8));
    bytes
}

/// Reads records from `first` on; they are those of [`record`] up to the last that is durable,
/// which it gives.
fn check(log: &Log, first: u64) -> u64 {
    let last = check_until(log, first);
    assert_eq!(last, log.durable_lsn());
    last
}

/// As [`check`], up to the last that is there without a hole.
fn check_until(log: &Log, first: u64) -> u64 {
    let mut reader = log.reader(first);
    let mut lsn = first;
    let asking = Asking::next_way();
    while let Some(found) = asking.next(&mut reader, || {}).unwrap() {
        assert!(found.bytes == record(found.lsn), "record {}", found.lsn);
        if found.lsn != lsn {
            break;
        }
        lsn += 1;
    }
    lsn - 1
}

/// Checks that hold however the records were appended.
fn check_numbers(log: &Log, last: u64) {
    let mut reader = log.reader(1);
    let asking = Asking::next_way();
    for lsn in 1..=last {
        assert_eq!(asking.next(&mut reader, || {}).unwrap().unwrap().lsn, lsn);
    }
    assert!(asking.next(&mut reader, || {}).unwrap().is_none());
}

/// Everything that a log does, once.
fn life_of_a_log(dir: &Path, options: &Options) {
    let _watchdog = Watchdog::new(format!("the life of {}", dir.display()), 300);
    let (log, recovery) = Log::open(dir, options).wait().unwrap();
    assert_eq!((recovery.first_lsn, recovery.last_lsn, recovery.epoch), (1, 0, 0));
    assert_eq!(log.append(&record(1)).wait().unwrap().wait().unwrap(), 1);
    assert_eq!(
        log.append_batch((2..=50).map(record).collect::<Vec<_>>().iter().map(Vec::as_slice))
            .wait()
            .unwrap()
            .wait()
            .unwrap(),
        50
    );
    assert_eq!(futures::executor::block_on(log.append(&record(51)).wait().unwrap()).unwrap(), 51);
    assert_eq!(nowait::block_on(log.append(&record(52)).wait().unwrap()).unwrap(), 52);
    let (told, hear) = mpsc::channel();
    log.append(&record(53)).wait().unwrap().on_durable(move |result| told.send(result).unwrap());
    assert_eq!(hear.recv_timeout(at_most(Duration::from_secs(20))).unwrap().unwrap(), 53);
    // Nobody waits for it.
    drop(log.append(&record(54)).wait().unwrap());
    assert!(eventually(|| log.durable_lsn() == 54));
    assert_eq!(log.wait_durable(54).wait().unwrap(), 54);
    // Through several segments.
    for lsn in 55..=2000 {
        let ticket = log.append(&record(lsn)).wait().unwrap();
        if lsn % 7 == 0 {
            ticket.wait().unwrap();
        }
    }
    log.wait_durable(2000).wait().unwrap();
    assert_eq!(check(&log, 1), 2000);
    assert_eq!(check(&log, 1234), 2000);
    assert!(log.stats().rotations > 3, "{:?}", log.stats());

    log.truncate_suffix(1500).wait().unwrap();
    assert_eq!((log.durable_lsn(), log.last_lsn()), (1500, 1500));
    for lsn in 1501..=1600 {
        assert_eq!(log.append(&record(lsn)).wait().unwrap().lsn(), lsn);
    }
    log.clone().close().wait().unwrap();
    assert_eq!(check(&log, 1), 1600);
    assert_eq!(log.append(b"late").wait().unwrap_err().kind(), ErrorKind::Closed);

    let (log, recovery) = Log::open(dir, options).wait().unwrap();
    assert!(recovery.closed && recovery.torn.is_none() && recovery.damage.is_empty(), "{recovery:?}");
    assert_eq!((recovery.first_lsn, recovery.last_lsn), (1, 1600));
    check(&log, 1);
    log.truncate_prefix(1000);
    for lsn in 1601..=3000 {
        drop(log.append(&record(lsn)).wait().unwrap());
    }
    log.wait_durable(3000).wait().unwrap();
    check(&log, 1000);
    drop(log);
    // Without being closed. What is dropped lets go in its own time, which an opening waits for.
    let (log, recovery) = Log::open(dir, options).wait().unwrap();
    assert_eq!(recovery.last_lsn, 3000);
    assert!(recovery.first_lsn > 500 && recovery.first_lsn <= 1000, "{recovery:?}");
    assert_eq!(log.reader(1).next().wait().unwrap_err().kind(), ErrorKind::NoSuchRecord);
    check(&log, recovery.first_lsn);
    log.close().wait().unwrap();
}

fn on_file_system(kind: Kind) {
    let Some(mount) = Mount::or_skip(kind) else { return };
    life_of_a_log(&mount.path().join("log"), &options());
    life_of_a_log(&mount.path().join("measured"), &options().sync(SyncPolicy::Auto));
}

mounts::on_every_file_system!(on_file_system);

#[test]
fn every_way_of_writing_and_every_engine() {
    let dir = mounts::temp_dir();
    for (index, engine) in [Engine::Auto, Engine::Aio, Engine::Pool].into_iter().enumerate() {
        let Ok(nowait) = Nowait::builder().engine(engine).build() else { continue };
        for durability in [Durability::Write, Durability::WriteAndSync] {
            for by in [Submitter::Ring, Submitter::Call] {
                let strategy = Strategy { durability, by, depth: 3 };
                let options = options().instance(&nowait).sync(SyncPolicy::Fixed(strategy));
                life_of_a_log(&dir.path().join(format!("{index} {durability:?} {by:?}")), &options);
            }
        }
    }
}

#[test]
fn many_threads_and_tasks_share_writes() {
    share_writes(true);
}

/// Nobody comes by every ten milliseconds to write what was forgotten.
#[test]
fn many_threads_and_tasks_share_writes_without_maintenance() {
    (0..5).for_each(|_| share_writes(false));
}

/// A thread that drives futures must not sleep for a write that only it could notice the end of.
#[test]
fn a_thread_waits_for_what_its_own_futures_began() {
    let dir = mounts::temp_dir();
    let _watchdog = Watchdog::new("a thread that waits for its own futures", 60);
    let (log, _) =
        Log::open(dir.path().join("log"), &options().maintenance(false).pending_bytes_max(5000)).wait().unwrap();
    nowait::block_on(async {
        for _ in 0..50 {
            let mut tickets: Vec<_> = (0..3).map(|_| log.append(&[1; 1000]).wait().unwrap()).collect();
            for ticket in &mut tickets {
                let _ = common::poll_once(std::pin::Pin::new(ticket));
            }
            log.append(&[2; 3000]).wait().unwrap().wait().unwrap();
            for ticket in tickets {
                ticket.await.unwrap();
            }
        }
    });
    check_numbers(&log, 200);
    log.close().wait().unwrap();
}

/// A watermark block that finds no room must not keep the segment from being prepared that would
/// have some.
#[test]
fn a_log_that_is_idle_when_its_segment_is_full_goes_on() {
    let sim = Sim::manual(1);
    let options = options().instance(&on(&sim)).segment_bytes(16 << 10).maintenance(false);
    let (log, _) = Log::open("/log", &options).wait().unwrap();
    for round in 0..5 {
        while let Ok(ticket) = log.try_append(&[7; 3000]) {
            ticket.wait().unwrap();
        }
        // Long enough for the log to be taken for idle.
        sim.advance(Duration::from_millis(30));
        assert!((0..100).any(|_| !log.maintain()), "there is always something to do");
        let ticket = log.try_append(&[8; 3000]);
        ticket.unwrap_or_else(|error| panic!("round {round}: {error}")).wait().unwrap();
    }
    log.close().wait().unwrap();
}

/// It is left for later, and neither stops what else is to be done nor is tried without end.
#[test]
fn a_segment_that_cannot_be_used_again_is_left() {
    let dir = mounts::temp_dir();
    let path = dir.path().join("log");
    let (log, _) = Log::open(&path, &options().segment_bytes(16 << 10).maintenance(false)).wait().unwrap();
    for _ in 0..12 {
        log.append(&[7; 3000]).wait().unwrap().wait().unwrap();
    }
    assert!(eventually(|| !log.maintain()));
    let segments = || -> Vec<PathBuf> {
        let names = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path());
        let mut names: Vec<_> = names.filter(|path| path.extension().is_some_and(|end| end == "seg")).collect();
        names.sort();
        names
    };
    let oldest = segments().swap_remove(0);
    fs::remove_file(&oldest).unwrap();
    fs::create_dir(&oldest).unwrap();
    log.truncate_prefix(12);
    for _ in 0..12 {
        log.append(&[8; 3000]).wait().unwrap().wait().unwrap();
    }
    std::thread::sleep(Duration::from_millis(30));
    let did = (0..100).take_while(|_| log.maintain()).count();
    assert!(did < 100, "it is tried without end");
    // Those after it stay, too: one that is left before a gap would look as if the gap were damage.
    assert!(oldest.is_dir());
    fs::remove_dir(&oldest).unwrap();
    log.close().wait().unwrap();
}

#[test]
fn what_waits_when_a_log_is_closed_is_told() {
    let dir = mounts::temp_dir();
    let _watchdog = Watchdog::new("closing", 60);
    let (log, _) = Log::open(dir.path().join("log"), &options()).wait().unwrap();
    log.append(b"the only one").wait().unwrap().wait().unwrap();
    let mut waits = log.wait_durable(2);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(std::future::Future::poll(std::pin::Pin::new(&mut waits), &mut context).is_pending());
    let follower = std::thread::spawn(move || futures::executor::block_on(waits).unwrap_err().kind());
    let other = log.clone();
    log.close().wait().unwrap();
    assert_eq!(follower.join().unwrap(), ErrorKind::Closed);
    assert_eq!(other.truncate_suffix(0).wait().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(other.close().wait().unwrap_err().kind(), ErrorKind::Closed);
}

/// Waiters of other records, and the next ones, are not lost with it.
#[test]
fn a_callback_that_panics_harms_nobody() {
    let dir = mounts::temp_dir();
    let _watchdog = Watchdog::new("a callback that panics", 60);
    let (log, _) = Log::open(dir.path().join("log"), &options().maintenance(false)).wait().unwrap();
    for _ in 0..20 {
        let waited = log.append(b"waited for").wait().unwrap();
        log.append(b"panics").wait().unwrap().on_durable(|_| panic!("on purpose"));
        waited.wait().unwrap();
    }
    log.wait_durable(40).wait().unwrap();
    log.close().wait().unwrap();
}

fn share_writes(maintenance: bool) {
    const THREADS: u64 = 16;
    const EACH: u64 = 200;
    let dir = mounts::temp_dir();
    let _watchdog = Watchdog::new("many threads and tasks", 120);
    let (log, _) = Log::open(dir.path().join("log"), &options().maintenance(maintenance)).wait().unwrap();
    let commit = |log: &Log, thread: u64, n: u64| log.append(format!("{thread} {n}").as_bytes()).wait().unwrap();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let log = &log;
            scope.spawn(move || match thread % 4 {
                0 => (0..EACH).for_each(|n| assert!(commit(log, thread, n).wait().unwrap() > 0)),
                1 => nowait::block_on(async {
                    for n in 0..EACH {
                        commit(log, thread, n).await.unwrap();
                    }
                }),
                2 => futures::executor::block_on(async {
                    for n in 0..EACH {
                        commit(log, thread, n).await.unwrap();
                    }
                }),
                _ => {
                    let (told, hear) = mpsc::channel();
                    for n in 0..EACH {
                        let told = told.clone();
                        commit(log, thread, n).on_durable(move |result| told.send(result.unwrap()).unwrap());
                    }
                    (0..EACH).for_each(|_| assert!(hear.recv().unwrap() > 0));
                }
            });
        }
    });
    assert_eq!(log.durable_lsn(), THREADS * EACH);
    assert!(log.stats().blocks < THREADS * EACH, "writes are shared: {:?}", log.stats());
    // Each one's records are in its own order.
    let mut reader = log.reader(1);
    let mut next: BTreeMap<u64, u64> = BTreeMap::new();
    while let Some(record) = reader.next().wait().unwrap() {
        let text = std::str::from_utf8(record.bytes).unwrap();
        let (thread, n) = text.split_once(' ').unwrap();
        let expected = next.entry(thread.parse().unwrap()).or_default();
        assert_eq!(n.parse::<u64>().unwrap(), *expected);
        *expected += 1;
    }
    assert!(next.len() as u64 == THREADS && next.values().all(|n| *n == EACH));
    log.close().wait().unwrap();
}

#[test]
fn tickets_that_are_dropped_or_polled_anywhere_lose_nothing() {
    let dir = mounts::temp_dir();
    let _watchdog = Watchdog::new("dropped tickets", 60);
    let (log, _) = Log::open(dir.path().join("log"), &options()).wait().unwrap();
    let mut rng = Rng::for_test();
    let mut kept = Vec::new();
    for _ in 0..500 {
        let mut ticket = log.append(b"a record").wait().unwrap();
        match rng.below(4) {
            0 => drop(ticket),
            1 => {
                let _ = common::poll_once(std::pin::Pin::new(&mut ticket));
                drop(ticket);
            }
            2 => {
                let _ = common::poll_once(std::pin::Pin::new(&mut ticket));
                kept.push(ticket);
            }
            _ => kept.push(ticket),
        }
    }
    // Polled without a waker, then waited for by a thread.
    for ticket in kept {
        ticket.wait().unwrap();
    }
    log.wait_durable(500).wait().unwrap();
    check_numbers(&log, 500);
}

#[test]
fn a_tail_follows() {
    let dir = mounts::temp_dir();
    let _watchdog = Watchdog::new("a tail", 60);
    let (log, _) = Log::open(dir.path().join("log"), &options()).wait().unwrap();
    // One awaits, one waits.
    let followers = [false, true].map(|waits| {
        let log = log.clone();
        std::thread::spawn(move || {
            let mut reader = log.reader(1);
            let mut next = |lsn| {
                let tail = reader.tail();
                let found = if waits { tail.wait() } else { futures::executor::block_on(tail) };
                found.map(|found| assert!(found.lsn == lsn && found.bytes == record(lsn), "record {}", found.lsn))
            };
            for lsn in 1..=700 {
                next(lsn).unwrap();
                assert!(log.durable_lsn() >= lsn, "only what is durable is shown");
            }
            // Until there is no more to come.
            next(701).unwrap_err().kind()
        })
    });
    for lsn in 1..=700 {
        let ticket = log.append(&record(lsn)).wait().unwrap();
        if lsn % 50 == 0 {
            ticket.wait().unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    log.wait_durable(700).wait().unwrap();
    log.close().wait().unwrap();
    for follower in followers {
        assert_eq!(follower.join().unwrap(), ErrorKind::Closed);
    }
}

#[test]
fn appends_wait_or_are_refused_when_too_much_is_pending() {
    let dir = mounts::temp_dir();
    let (log, _) = Log::open(dir.path().join("log"), &options().pending_bytes_max(10_000)).wait().unwrap();
    let refused = (0..100).find_map(|_| log.try_append(&[1; 1000]).err()).unwrap();
    assert_eq!(refused.kind(), ErrorKind::WouldBlock, "{refused}");
    // One that may wait does, and gets in.
    for _ in 0..100 {
        drop(log.append(&[2; 1000]).wait().unwrap());
    }
    let last = log.last_lsn();
    assert!(last > 100);
    log.wait_durable(last).wait().unwrap();
    check_numbers(&log, last);
}

#[test]
fn wrong_options_and_records_are_refused() {
    let dir = mounts::temp_dir();
    let path = dir.path().join("log");
    let fixed = |depth| SyncPolicy::Fixed(Strategy { durability: Durability::Write, by: Submitter::Ring, depth });
    for options in
        [options().segment_bytes(5000), options().segment_bytes(0), options().sync(fixed(0)), options().sync(fixed(65))]
    {
        assert_eq!(Log::open(&path, &options).wait().unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    assert!(!path.exists(), "nothing was made");
    assert_eq!(Log::open(&path, &options().create(false)).wait().unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(inspect(&path).wait().unwrap_err().kind(), ErrorKind::NotFound);
    let (log, _) = Log::open(&path, &options()).wait().unwrap();
    let most = SEGMENT_BYTES as usize - 8265;
    let error = log.append(&vec![0; most + 1]).wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains(&format!("a record of {most} at most")), "{error}");
    assert_eq!(log.append_batch([] as [&[u8]; 0]).wait().unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(log.truncate_suffix(1).wait().unwrap_err().kind(), ErrorKind::NoSuchRecord);
    // The largest, and the smallest.
    let largest = vec![7; SEGMENT_BYTES as usize - 8192 - 64 - 9];
    log.append(&largest).wait().unwrap().wait().unwrap();
    log.append(&[]).wait().unwrap().wait().unwrap();
    log.append(&largest).wait().unwrap().wait().unwrap();
    let mut reader = log.reader(1);
    assert!(reader.next().wait().unwrap().unwrap().bytes == largest);
    assert!(reader.next().wait().unwrap().unwrap().bytes.is_empty());
    assert!(reader.next().wait().unwrap().unwrap().bytes == largest);
    log.close().wait().unwrap();
    fs::write(dir.path().join("file"), b"").unwrap();
    assert!(Log::open(dir.path().join("file"), &options()).wait().is_err());
}

#[test]
fn a_full_disk_refuses_appends_before_they_have_a_number() {
    let Some(mount) = Mount::sized_or_skip(Kind::Tmpfs, 2 << 20) else { return };
    let path = mount.path().join("log");
    let (log, _) = Log::open(&path, &options().reserve_bytes(100 << 10)).wait().unwrap();
    let mut last = 0;
    let error = loop {
        match log.append(&[3; 3000]).wait() {
            Ok(ticket) => last = ticket.wait().unwrap(),
            Err(error) => break error,
        }
        assert!(last < 10_000);
    };
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    assert!(error.to_string().contains("truncate_prefix"), "{error}");
    assert_eq!(log.last_lsn(), last, "the refused one has no number");
    // A checkpoint can be logged still.
    last = log.append_from_reserve(b"checkpoint").wait().unwrap().wait().unwrap();
    check_numbers(&log, last);
    log.truncate_prefix(last);
    let after = eventually(|| match log.try_append(b"there is room again") {
        Ok(ticket) => ticket.wait().is_ok(),
        Err(_) => false,
    });
    assert!(after);
    let last = log.last_lsn();
    log.close().wait().unwrap();
    assert_eq!(inspect(&path).wait().unwrap().last_lsn, last);
}

#[test]
fn one_writer_at_a_time() {
    let dir = mounts::temp_dir();
    let path = dir.path().join("log");
    let (log, _) = Log::open(&path, &options()).wait().unwrap();
    log.append(b"first").wait().unwrap().wait().unwrap();
    let error = Log::open(&path, &options()).wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Locked, "{error}");
    child::play_at("second", &path);
    // Whoever only reads may.
    assert_eq!(inspect(&path).wait().unwrap().last_lsn, 1);
    log.append(b"second").wait().unwrap().wait().unwrap();
    log.close().wait().unwrap();
    child::play_at("alone", &path);
    assert_eq!(inspect(&path).wait().unwrap().last_lsn, 3);
}

/// A log of six records that was closed.
fn small_log(path: &Path) {
    let options = options().segment_bytes(16 << 10);
    let (log, _) = Log::open(path, &options).wait().unwrap();
    for lsn in 1..=6 {
        log.append(&record(lsn)).wait().unwrap().wait().unwrap();
    }
    log.close().wait().unwrap();
}

#[test]
fn damage_is_refused_and_salvaged_when_asked() {
    let dir = mounts::temp_dir();
    let path = dir.path().join("log");
    let (log, _) = Log::open(&path, &options().segment_bytes(16 << 10)).wait().unwrap();
    for lsn in 1..=20 {
        log.append(&record(lsn)).wait().unwrap().wait().unwrap();
    }
    log.close().wait().unwrap();
    let segments = |path: &Path| {
        let mut names: Vec<PathBuf> = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
        names.retain(|name| name.extension().is_some_and(|extension| extension == "seg"));
        names.sort();
        names
    };
    // The middle of the log, in the header and in a block (which may be a watermark block); then a
    // segment that is gone.
    // A watermark block at the beginning, as on a slow machine, has a copy of the header.
    let paths = segments(&path);
    let begins_with_records = |path: &&PathBuf| fs::read(path).unwrap()[4096 + 44] > 0;
    let Some(middle) = paths[1..paths.len() - 1].iter().find(begins_with_records).cloned() else {
        return println!("skipped: each segment begins with a watermark block");
    };
    let good = fs::read(&middle).unwrap();
    for at in [100, 4096 + 20] {
        let mut bad = good.clone();
        bad[at] ^= 1;
        fs::write(&middle, bad).unwrap();
        let error = Log::open(&path, &options()).wait().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
        assert!(error.to_string().contains(middle.to_str().unwrap()), "{error}");
        assert_eq!(inspect(&path).wait().unwrap().damage.len(), 1);
    }
    fs::remove_file(&middle).unwrap();
    let error = Log::open(&path, &options()).wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");

    let (log, recovery) = Log::open(&path, &options().salvage(true)).wait().unwrap();
    let kept = recovery.last_lsn;
    assert!((1..20).contains(&kept), "{recovery:?}");
    assert_eq!(check_until(&log, 1), kept);
    // The numbers of what was lost are not given again.
    assert_eq!(recovery.next_lsn, 21);
    assert_eq!(log.append(&record(21)).wait().unwrap().wait().unwrap(), 21);
    log.close().wait().unwrap();
    let aside = fs::read_dir(&path)
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().path().extension().is_some_and(|extension| extension == "damaged"));
    assert!(aside.count() > 0, "what is lost is put aside");
    let (log, recovery) = Log::open(&path, &options()).wait().unwrap();
    assert!(recovery.damage.is_empty(), "{recovery:?}");
    assert!(recovery.gaps.iter().cloned().flatten().eq(kept + 1..21), "{recovery:?}");
    assert!(!recovery.aside.is_empty());
    assert_eq!((check_until(&log, 1), check(&log, 21)), (kept, 21));
}

/// Zeros are what a segment has that was never used; one that others go on from, or that holds
/// blocks, was.
#[test]
fn a_header_of_zeros_is_damage_where_there_was_one() {
    for which in ["oldest", "newest"] {
        let dir = mounts::temp_dir();
        let path = dir.path().join("log");
        for first in [1, 4] {
            let (log, _) = Log::open(&path, &options()).wait().unwrap();
            for lsn in first..first + 3 {
                log.append(&record(lsn)).wait().unwrap().wait().unwrap();
            }
            log.close().wait().unwrap();
        }
        let mut names: Vec<PathBuf> = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()).collect();
        names.retain(|name| fs::read(name).unwrap().starts_with(b"nwlogseg"));
        names.sort();
        let name = if which == "oldest" { &names[0] } else { &names[names.len() - 1] };
        let mut bytes = fs::read(name).unwrap();
        // With the watermark block behind it, which has a copy.
        bytes[..8192].fill(0);
        fs::write(name, &bytes).unwrap();
        let found = inspect(&path).wait().unwrap();
        assert_eq!(found.damage.len(), 1, "{which}: {found:?}");
        assert_eq!((&found.damage[0].path, &found.lost), (name, &vec![name.clone()]), "{which}: {found:?}");
        assert_eq!(Log::open(&path, &options()).wait().unwrap_err().kind(), ErrorKind::Damaged, "{which}");
        let (log, recovery) = Log::open(&path, &options().salvage(true)).wait().unwrap();
        let last = if which == "oldest" { 6 } else { 3 };
        assert_eq!((recovery.last_lsn, recovery.next_lsn), (last, 7));
        assert_eq!(check_until(&log, recovery.first_lsn), last);
        log.close().wait().unwrap();
        let aside = PathBuf::from(format!("{}.damaged", name.display()));
        assert!(fs::read(aside).unwrap() == bytes, "{which}: what is lost is kept aside");
    }
}

#[test]
fn a_control_file_that_is_gone_is_made_again() {
    let dir = mounts::temp_dir();
    let path = dir.path().join("log");
    small_log(&path);
    let control = path.join("control");
    let good = fs::read(&control).unwrap();
    let mut last = 6;
    for lost in [true, false] {
        if lost {
            fs::remove_file(&control).unwrap();
        } else {
            fs::write(&control, vec![0; 8192]).unwrap();
        }
        let found = inspect(&path).wait().unwrap();
        assert!(found.control_lost && found.damage.is_empty() && found.last_lsn == last, "{found:?}");
        let (log, recovery) = Log::open(&path, &options().segment_bytes(16 << 10)).wait().unwrap();
        assert!(recovery.control_lost);
        last = log.append(b"after").wait().unwrap().wait().unwrap();
        log.close().wait().unwrap();
        // Behind it come the numbers of the oldest and the newest segment.
        assert_eq!(fs::read(&control).unwrap()[16..56], good[16..56], "it says what it said");
        let found = inspect(&path).wait().unwrap();
        assert!(!found.control_lost && found.last_lsn == last, "{found:?}");
    }
    // One of its two copies is enough, and that it was needed is told.
    let mut bad = good.clone();
    bad[4096 + 20] ^= 1;
    fs::write(&control, bad).unwrap();
    let found = inspect(&path).wait().unwrap();
    assert!(found.from_copy.len() == 1 && found.from_copy[0].offset == 4096 && found.from_copy[0].path == control);
    for name in fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()) {
        if name.extension().is_some_and(|extension| extension == "seg") {
            fs::remove_file(name).unwrap();
        }
    }
    assert!(eventually(|| Log::open(&path, &options()).wait().unwrap_err().kind() == ErrorKind::Damaged));
}

/// Acknowledgements go over a pipe; whatever was acknowledged when the process was killed is in the
/// log.
#[test]
fn two_thousand_kills() {
    // Written pages survive the process, not only what is on the disk: most may be killed where
    // a disk is memory.
    kills(rounds(200), mounts::temp_dir().path());
    match Mount::or_skip(Kind::Tmpfs) {
        Some(mount) => kills(rounds(1800), mount.path()),
        None => kills(rounds(100), mounts::temp_dir().path()),
    }
}

fn kills(kills: u32, dir: &Path) {
    let path = dir.join("log");
    let mut rng = Rng::for_test();
    let (mut acknowledged, mut first) = (0, 1);
    for kill in 0..kills {
        // The log's own thread writes where many wait.
        let (role, heard_max) = if kill % 4 == 3 { ("writer of many", 4000) } else { ("writer", 12) };
        let mut process = child::command_at(role, &path).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap());
        let mut line = String::new();
        let patience = rng.below(heard_max);
        let mut heard = 0;
        let killer = std::time::Instant::now();
        loop {
            line.clear();
            if lines.read_line(&mut line).unwrap() == 0 {
                break;
            }
            if let Some(lsn) = line.strip_prefix("durable ").and_then(|lsn| lsn.trim().parse::<u64>().ok()) {
                acknowledged = acknowledged.max(lsn);
                heard += 1;
            }
            if heard == patience || killer.elapsed() > at_most(Duration::from_millis(200)) {
                // Output written before it died is read to the end all the same.
                process.kill().unwrap();
                heard = usize::MAX / 2;
            }
        }
        process.wait().unwrap();
        if kill % 10 != 0 && kill + 1 != kills {
            continue;
        }
        let (mut reader, recovery) = match read(&path, 1).wait() {
            Err(error) if error.kind() == ErrorKind::NotFound && acknowledged == 0 => continue,
            found => found.unwrap(),
        };
        assert!(
            recovery.damage.is_empty() && recovery.last_lsn >= acknowledged,
            "kill {kill}: {acknowledged}, {recovery:?}"
        );
        if recovery.first_lsn > 1 {
            reader = read(&path, recovery.first_lsn).wait().unwrap().0;
        }
        first = recovery.first_lsn.max(first);
        for lsn in recovery.first_lsn..=recovery.last_lsn {
            let found = reader.next().wait().unwrap().unwrap();
            assert!(found.lsn == lsn && found.bytes == record(lsn), "kill {kill}, record {lsn}");
        }
    }
    println!("{kills} kills, {acknowledged} records, the first of which is {first}");
    assert!(acknowledged > u64::from(kills));
}

#[test]
fn child() {
    match child::role().as_deref() {
        None => {}
        Some("second") => {
            let error = Log::open(child::path(), &options()).wait().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Locked, "{error}");
        }
        Some("alone") => {
            let (log, recovery) = Log::open(child::path(), &options()).wait().unwrap();
            assert_eq!(recovery.last_lsn, 2);
            log.append(b"third").wait().unwrap().wait().unwrap();
            log.close().wait().unwrap();
        }
        Some("writer") => writer(&child::path(), 5, false),
        Some("writer of many") => writer(&child::path(), 50, true),
        Some(other) => unreachable!("{other}"),
    }
}

/// Appends until it is killed, with at most `in_flight_max` records in flight, and says what is
/// durable. With callbacks, all of these records have waiters at the same time.
fn writer(path: &Path, in_flight_max: u64, has_callbacks: bool) {
    let options = options().segment_bytes(64 << 10);
    let (log, recovery) = Log::open(path, &options).wait().unwrap();
    let mut lsn = recovery.last_lsn;
    log.truncate_prefix(lsn.saturating_sub(300));
    let mut tickets = std::collections::VecDeque::new();
    loop {
        lsn += 1;
        tickets.push_back(log.append(&record(lsn)).wait().unwrap());
        if tickets.len() as u64 > lsn % in_flight_max {
            let say = |durable: nowait::Result<u64>| {
                let mut out = std::io::stdout();
                writeln!(out, "durable {}", durable.unwrap()).and_then(|()| out.flush()).unwrap();
            };
            let last = tickets.pop_back().unwrap();
            for ticket in tickets.drain(..) {
                match has_callbacks {
                    true => ticket.on_durable(say),
                    false => say(ticket.wait()),
                }
            }
            say(last.wait());
        }
    }
}
