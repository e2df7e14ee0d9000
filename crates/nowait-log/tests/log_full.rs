//! Logs on a full disk: reopening them, and giving up their oldest records.

#[path = "../../nowait/tests/common/mod.rs"]
mod common;

use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use common::mounts::{Kind, Mount};
use common::on;
use nowait::sim::Sim;
use nowait::{ErrorKind, Nowait};
use nowait_log::{
    Durability, Log, Options, Recovery, Retention, Scan, Strategy, Submitter, SyncPolicy, inspect_in, read_in,
    truncate_prefix_in,
};

const DIR: &str = "/log";
const PAGE: u64 = 4096;
const CAPACITY: u64 = 600 << 10;

fn options(nowait: &Nowait) -> Options {
    let strategy = Strategy { durability: Durability::Write, by: Submitter::Call, depth: 1 };
    let options = Options::new().create(true).instance(nowait).sync(SyncPolicy::Fixed(strategy));
    options.segment_bytes(64 << 10).first_segment_bytes(32 << 10)
}

fn record(lsn: u64) -> Vec<u8> {
    let mut bytes = lsn.to_le_bytes().to_vec();
    bytes.resize(20 + (lsn * 997 % 5000) as usize, lsn as u8);
    bytes
}

/// Appends until the disk is full; returns the last LSN.
fn fill(log: &Log) -> u64 {
    loop {
        let lsn = log.last_lsn() + 1;
        match log.append(&record(lsn)).wait() {
            Ok(ticket) => assert_eq!(ticket.wait().unwrap(), lsn),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
                return lsn - 1;
            }
        }
    }
}

fn bytes_of(sim: &Sim) -> u64 {
    let names = on(sim).fs().read_dir_names(DIR).wait().unwrap();
    names.iter().map(|name| sim.contents(Path::new(DIR).join(name)).unwrap().len() as u64).sum()
}

/// Checks that a log is undamaged and ends with record `last`.
fn assert_whole(nowait: &Nowait, dir: &Path, last: u64) -> Recovery {
    let found = inspect_in(nowait, dir).wait().unwrap();
    assert!(found.damage.is_empty() && found.last_lsn == last, "{found:?}");
    let (mut reader, _) = read_in(nowait, dir, found.first_lsn).wait().unwrap();
    for lsn in found.first_lsn..=last {
        let next = reader.next().wait().unwrap().unwrap();
        assert!(next.lsn == lsn && next.bytes == record(lsn), "{lsn}");
    }
    found
}

/// Opens a log, appends a record and closes it.
fn go_on(options: &Options, dir: &Path, last: u64) -> Recovery {
    let (log, recovery) = Log::open(dir, options).wait().unwrap();
    assert_eq!(recovery.last_lsn, last);
    assert_eq!(log.append(&record(last + 1)).wait().unwrap().wait().unwrap(), last + 1);
    log.close().wait().unwrap();
    recovery
}

/// Returns a disk that a log has filled, with `left` bytes free, and the last LSN.
fn full(seed: u64, maintenance: bool, closes: bool, left: u64) -> (Sim, u64) {
    let sim = Sim::new(seed);
    sim.set_capacity(CAPACITY + seed % 13 * PAGE);
    let (log, _) = Log::open(DIR, &options(&on(&sim)).maintenance(maintenance)).wait().unwrap();
    let last = fill(&log);
    if closes {
        log.close().wait().unwrap()
    } else {
        drop(log)
    }
    sim.set_capacity(bytes_of(&sim) + left);
    (sim, last)
}

/// Symptom: a log that had filled its disk could not be opened, even to give up records.
#[test]
fn a_log_that_filled_its_disk_is_opened_again() {
    let mut refused = 0;
    for seed in 1..=26 {
        for left in [0, PAGE, 16 << 10, 20 << 10, 40 << 10] {
            for scan in [Scan::All, Scan::Tail] {
                let (sim, last) = full(seed, false, seed % 2 == 0, left);
                let nowait = on(&sim);
                let dir = Path::new(DIR);
                let options = options(&nowait).maintenance(false).create(false).scan(scan);
                match Log::open(DIR, &options).wait() {
                    // The smallest segment fits.
                    Ok((log, recovery)) => {
                        assert_eq!((recovery.first_lsn, recovery.last_lsn), (1, last));
                        log.close().wait().unwrap();
                        assert_whole(&nowait, dir, last);
                    }
                    Err(error) => {
                        assert!(left < 16 << 10, "{left} bytes are left: {error}");
                        assert_eq!(error.kind(), ErrorKind::NoSpace);
                        assert!(error.to_string().contains("nowait log truncate /log --before LSN"), "{error}");
                        refused += 1;
                        assert_eq!(assert_whole(&nowait, dir, last).first_lsn, 1);
                    }
                }
                let left = truncate_prefix_in(&nowait, DIR, last / 2).wait().unwrap();
                assert!((2..=last / 2).contains(&left.first_lsn) && left.last_lsn == last, "{left:?}");
                assert_eq!(assert_whole(&nowait, dir, last).first_lsn, left.first_lsn);
                assert_eq!(go_on(&options, dir, last).first_lsn, left.first_lsn);
                assert_whole(&nowait, dir, last + 1);
            }
        }
    }
    assert!(refused > 20, "{refused}: the disks were not full");
}

/// An opening that needs room first gives up the records that the retention no longer keeps.
#[test]
fn retention_makes_the_room_that_an_opening_needs() {
    for seed in 1..=13 {
        let (sim, last) = full(seed, false, true, 0);
        let nowait = on(&sim);
        let needed = last / 2;
        for (retention, most) in [(Retention::bytes(200 << 10), last), (Retention::before(move || needed), needed)] {
            let sim = sim.crash(|_, _| true);
            sim.set_capacity(bytes_of(&sim));
            let nowait = on(&sim);
            let options = options(&nowait).maintenance(false).retain(retention);
            let recovery = go_on(&options, Path::new(DIR), last);
            assert!(recovery.first_lsn > 1 && recovery.first_lsn <= most, "{recovery:?}");
            assert!(assert_whole(&nowait, Path::new(DIR), last + 1).first_lsn >= recovery.first_lsn);
        }
        let error = Log::open(DIR, &options(&nowait).maintenance(false)).wait().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace, "without retention: {error}");
    }
}

/// The last segment with records is never given up. An open log is refused. Where there is no log,
/// none is made.
#[test]
fn what_is_given_up_of_a_log_that_is_not_open() {
    let sim = Sim::new(1);
    let nowait = on(&sim);
    let dir = Path::new(DIR);
    let (log, _) = Log::open(DIR, &options(&nowait)).wait().unwrap();
    for lsn in 1..=100 {
        log.append(&record(lsn)).wait().unwrap().wait().unwrap();
    }
    log.close().wait().unwrap();
    // Opening and closing without an append leaves an empty segment.
    Log::open(DIR, &options(&nowait)).wait().unwrap().0.close().wait().unwrap();
    assert_eq!(truncate_prefix_in(&nowait, DIR, 0).wait().unwrap().first_lsn, 1);
    assert_eq!(truncate_prefix_in(&nowait, DIR, 2).wait().unwrap().first_lsn, 1, "its segment holds others");
    let mut before = 1;
    for lsn in [30, 60, 100, u64::MAX] {
        let left = truncate_prefix_in(&nowait, DIR, lsn).wait().unwrap();
        assert!(left.first_lsn <= lsn && left.first_lsn >= before && left.first_lsn <= 100, "{lsn}: {left:?}");
        before = left.first_lsn;
        assert_eq!(assert_whole(&nowait, dir, 100).first_lsn, before);
    }
    assert!(before > 60);
    go_on(&options(&nowait), dir, 100);

    let real = tempfile::tempdir().unwrap();
    let refusal = truncate_prefix_in(Nowait::shared(), real.path(), 1).wait().unwrap_err();
    assert_eq!(refusal.kind(), ErrorKind::NotFound);
    assert_eq!(fs::read_dir(real.path()).unwrap().count(), 0);
    let (log, _) = Log::open(real.path(), &options(Nowait::shared())).wait().unwrap();
    let refusal = truncate_prefix_in(Nowait::shared(), real.path(), 1).wait().unwrap_err();
    assert_eq!(refusal.kind(), ErrorKind::Locked);
    log.close().wait().unwrap();
}

/// Truncation overwrites the control file and removes files. A crash may keep any part of that.
#[test]
fn a_crash_while_records_are_given_up_on_a_full_disk_loses_nothing_else() {
    let crashes = Arc::new(AtomicU64::new(0));
    for seed in 1..=20 {
        let (sim, last) = full(seed, false, seed % 2 == 0, 0);
        let failure = Arc::new(Mutex::new(None));
        let (count, noted) = (crashes.clone(), failure.clone());
        sim.watch(move |sim| {
            for crash in 0..4 {
                let n = count.fetch_add(1, Relaxed);
                let after = sim.crash_at_random(seed << 32 | n << 3 | crash);
                let found = inspect_in(&on(&after), DIR).wait();
                if !found.as_ref().is_ok_and(|found| found.damage.is_empty() && found.last_lsn == last) {
                    *noted.lock().unwrap() = Some(format!("seed {seed}: {found:?}"));
                }
            }
        });
        truncate_prefix_in(&on(&sim), DIR, last - 5).wait().unwrap();
        let nowait = on(&sim);
        let (log, _) = Log::open(DIR, &options(&nowait).maintenance(false)).wait().unwrap();
        log.close().wait().unwrap();
        sim.watch(|_| {});
        let failure = failure.lock().unwrap().take();
        assert!(failure.is_none(), "{failure:?}");
    }
    assert!(crashes.load(Relaxed) > 500, "{crashes:?}");
}

/// Fills the file system to the last byte.
fn fill_disk(dir: &Path) {
    let mut file = fs::File::create(dir.join("ballast")).unwrap();
    for bytes in [64 << 10, 4096, 512, 1] {
        while file.write_all(&vec![7; bytes]).and_then(|()| file.sync_all()).is_ok() {}
    }
}

#[test]
fn a_file_system_without_a_free_byte() {
    let nowait = Nowait::shared();
    for kind in [Kind::Ext4, Kind::Tmpfs] {
        let Some(mount) = Mount::sized_or_skip(kind, 12 << 20) else { continue };
        let dir = mount.path().join("log");
        let options = options(nowait).segment_bytes(1 << 20).first_segment_bytes(1 << 20);
        let (log, _) = Log::open(&dir, &options).wait().unwrap();
        let last = fill(&log);
        log.close().wait().unwrap();
        fill_disk(mount.path());
        let error = Log::open(&dir, &options).wait().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{kind:?}: {error}");
        assert_whole(nowait, &dir, last);
        let left = truncate_prefix_in(nowait, &dir, last / 2).wait().unwrap();
        assert!(left.first_lsn > 1 && left.first_lsn <= last / 2, "{kind:?}: {left:?}");
        assert_whole(nowait, &dir, last);
        // The freed bytes suffice for a new segment. Without maintenance no spare segment is
        // prepared. The last opening would otherwise find its space.
        let options = options.maintenance(false);
        go_on(&options, &dir, last);
        assert_whole(nowait, &dir, last + 1);
        fill_disk(mount.path());
        go_on(&options.retain(Retention::bytes(1 << 20)), &dir, last + 1);
        assert!(assert_whole(nowait, &dir, last + 2).first_lsn > left.first_lsn, "{kind:?}");
    }
}
