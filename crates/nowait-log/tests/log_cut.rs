//! Records that are given up, at the log's beginning and at its end, and crashes and rot beside
//! that.

#[path = "../../nowait/tests/common/mod.rs"]
mod common;
mod reading;

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use common::{eventually, on};
use nowait::Nowait;
use nowait::sim::Sim;
use nowait_log::{
    Durability, Log, Options, Reader, Retention, Scan, Strategy, Submitter, SyncPolicy, inspect_in, read_in,
};
use reading::Asking;

const DIR: &str = "/log";

fn options(nowait: &Nowait) -> Options {
    let strategy = Strategy { durability: Durability::Write, by: Submitter::Call, depth: 1 };
    Options::new()
        .create(true)
        .instance(nowait)
        .segment_bytes(16 << 10)
        .sync(SyncPolicy::Fixed(strategy))
        .maintenance(false)
}

/// A log whose next segment had begun, without a byte of it on the disk, gave up the one before,
/// with all that was acknowledged: after a crash it was empty, and its numbers began at 1 again.
#[test]
fn a_prefix_is_given_up_only_when_what_follows_it_stands() {
    let sim = Sim::new(1);
    let nowait = on(&sim);
    let (log, _) = Log::open(DIR, &options(&nowait)).wait().unwrap();
    let mut durable = 0;
    // Until an append begins a segment, which is not written yet.
    let ticket = loop {
        let rotations = log.stats().rotations;
        let ticket = log.append(&[1; 3000]).wait().unwrap();
        if log.stats().rotations > rotations && durable > 20 {
            break ticket;
        }
        durable = ticket.wait().unwrap();
        // One segment is left, and a spare.
        log.truncate_prefix(durable);
        while log.maintain() {}
    };
    assert_eq!(log.durable_lsn(), durable);
    let check = |what: &str, acknowledged: u64| {
        for seed in 0..20 {
            let crashed = if seed == 0 { sim.crash(|_, _| true) } else { sim.crash_at_random(seed) };
            let nowait = on(&crashed);
            let found = inspect_in(&nowait, DIR).wait().unwrap();
            assert!(found.damage.is_empty(), "{what}, seed {seed}: {found:?}");
            assert!(found.last_lsn >= acknowledged, "{what}, seed {seed}: {acknowledged}, {found:?}");
            let (log, _) = Log::open(DIR, &options(&nowait).create(false)).wait().unwrap();
            assert!(log.append(b"next").wait().unwrap().wait().unwrap() > acknowledged, "{what}, seed {seed}");
        }
    };
    log.truncate_prefix(durable + 1);
    // At once: the given-up segment is reused before the record is old enough to be written
    // unasked.
    log.maintain();
    check("cut", durable);
    while log.durable_lsn() == durable && log.maintain() {
        check("maintained", durable);
    }
    let last = ticket.wait().unwrap();
    log.truncate_prefix(last + 1);
    while log.maintain() {
        check("written and maintained", last);
    }
    // Now the one before could go.
    let left = inspect_in(&nowait, DIR).wait().unwrap();
    assert_eq!((left.first_lsn, left.last_lsn), (last, last));
    log.close().wait().unwrap();
}

/// A record, and the life of its number: a cut gives the number to another.
fn record(lsn: u64, life: u8) -> Vec<u8> {
    let mut bytes = vec![life; 200];
    bytes[..8].copy_from_slice(&lsn.to_le_bytes());
    bytes
}

/// No record that was cut off is shown; gives the last one that is.
fn shows_no_cut(mut reader: Reader, left: u64, what: &str) -> u64 {
    let mut last = 0;
    let asking = Asking::next_way();
    // An error of each damage, and behind it what is whole.
    for _ in 0..100 {
        match asking.next(&mut reader, || {}) {
            Ok(None) => break,
            Ok(Some(found)) if found.bytes == b"after" => last = found.lsn,
            Ok(Some(found)) => {
                let life = if found.lsn <= left { 1 } else { 2 };
                assert!(found.bytes == record(found.lsn, life), "{what}: record {}", found.lsn);
                last = found.lsn;
            }
            Err(_) => {}
        }
    }
    last
}

/// One bad page brought back, silently, what truncate_suffix had cut off: to a replica that is a
/// vote taken back.
#[test]
fn no_page_that_goes_bad_undoes_a_cut() {
    const LEFT: u64 = 5;
    let mut looks = 0;
    for (appended_after, maintained, reopened) in
        [(0, false, false), (0, true, false), (0, true, true), (3, false, false), (3, true, false), (3, true, true)]
    {
        let sim = Sim::new(1);
        let nowait = on(&sim);
        let (log, _) = Log::open(DIR, &options(&nowait)).wait().unwrap();
        // Through several segments, in blocks that hold two records each: the cut is in the middle
        // of one.
        for lsn in (1..=20).step_by(2) {
            let batch = [record(lsn, 1), record(lsn + 1, 1)];
            log.append_batch(batch.iter().map(Vec::as_slice)).wait().unwrap().wait().unwrap();
            while log.stats().spares == 0 {
                assert!(log.maintain());
            }
        }
        assert!(log.stats().rotations > 2);
        log.truncate_suffix(LEFT).wait().unwrap();
        for lsn in LEFT + 1..=LEFT + appended_after {
            assert_eq!(log.append(&record(lsn, 2)).wait().unwrap().wait().unwrap(), lsn);
        }
        // Stamped, when it has been quiet for some milliseconds, if there is something to say.
        let watermark_blocks = log.stats().watermark_blocks;
        let is_written = || {
            while log.maintain() {}
            log.stats().watermark_blocks > watermark_blocks || appended_after == 0
        };
        assert!(!maintained || common::eventually(is_written));
        drop(log);
        if reopened {
            drop(Log::open(DIR, &options(&nowait)).wait().unwrap());
        }
        let names = nowait.fs().read_dir_names(DIR).wait().unwrap();
        let files: Vec<(PathBuf, Vec<u8>)> = names
            .iter()
            .map(|name| Path::new(DIR).join(name))
            .map(|path| (path.clone(), sim.contents(&path).unwrap()))
            .collect();
        for (path, good) in &files {
            for page in (0..good.len()).step_by(4096) {
                for way in ["bit", "zeros", "unreadable"] {
                    let what = format!(
                        "{appended_after} after, maintained {maintained}, reopened {reopened}: {} page {page} {way}",
                        path.display()
                    );
                    let sim = Sim::new(2);
                    files.iter().for_each(|(path, bytes)| sim.create(path, bytes.clone()));
                    let mut bad = good.clone();
                    match way {
                        "bit" => bad[page + 100] ^= 1,
                        "zeros" => bad[page..page + 4096].fill(0),
                        _ => {}
                    }
                    sim.create(path, bad);
                    if way == "unreadable" {
                        assert!(sim.spoil(path, page as u64..page as u64 + 1));
                    }
                    let nowait = on(&sim);
                    let (reader, found) = read_in(&nowait, DIR, 1).wait().unwrap();
                    let last = shows_no_cut(reader, LEFT, &what);
                    let whole = LEFT + appended_after;
                    // No watermark covers the last records before the log is maintained.
                    let is_told = last == whole || !found.damage.is_empty();
                    assert!(is_told || (appended_after > 0 && !maintained), "{what}: {found:?}");
                    let (log, recovery) = Log::open(DIR, &options(&nowait).salvage(true)).wait().unwrap();
                    shows_no_cut(log.reader(1), LEFT, &what);
                    assert_eq!(log.append(b"after").wait().unwrap().wait().unwrap(), recovery.next_lsn, "{what}");
                    log.close().wait().unwrap();
                    let (log, _) = Log::open(DIR, &options(&nowait)).wait().unwrap();
                    shows_no_cut(log.reader(1), LEFT, &what);
                    log.close().wait().unwrap();
                    looks += 1;
                }
            }
        }
    }
    println!("{looks} bad pages");
}

/// Files of segments, oldest first.
fn segments(sim: &Sim) -> Vec<PathBuf> {
    let names = on(sim).fs().read_dir_names(DIR).wait().unwrap();
    let paths = names.iter().map(|name| Path::new(DIR).join(name));
    let mut paths: Vec<PathBuf> = paths.filter(|path| path.extension().is_some_and(|end| end == "seg")).collect();
    paths.sort();
    paths
}

/// A copy of the disk without one file.
fn without(sim: &Sim, gone: &Path) -> Sim {
    let copy = Sim::new(3);
    for name in on(sim).fs().read_dir_names(DIR).wait().unwrap() {
        let path = Path::new(DIR).join(name);
        if path != gone {
            copy.create(&path, sim.contents(&path).unwrap());
        }
    }
    copy
}

/// A log whose oldest or newest file was gone was taken for whole.
#[test]
fn a_segment_that_is_gone_is_missed_whichever_it_is() {
    for cut in [None, Some(6)] {
        for given_up in [1, 10] {
            let sim = Sim::new(1);
            let nowait = on(&sim);
            let (log, _) = Log::open(DIR, &options(&nowait).recycle_bytes(0)).wait().unwrap();
            for lsn in 1..=30 {
                log.append(&record(lsn, 1)).wait().unwrap().wait().unwrap();
                while log.maintain() {}
            }
            log.truncate_prefix(given_up);
            if let Some(left) = cut.map(|cut| cut + given_up) {
                log.truncate_suffix(left).wait().unwrap();
            }
            log.append(b"after").wait().unwrap().wait().unwrap();
            while log.maintain() {}
            let last = log.last_lsn();
            log.close().wait().unwrap();
            let what = format!("cut {cut:?}, given up {given_up}");
            let found = inspect_in(&nowait, DIR).wait().unwrap();
            assert!(found.damage.is_empty() && found.last_lsn == last, "{what}: {found:?}");
            let files = segments(&sim);
            // (The last is prepared, and holds nothing.)
            assert!(files.len() >= 3, "{what}: {files:?}");
            for gone in &files {
                let copy = without(&sim, gone);
                let what = format!("{what}, without {}", gone.display());
                let found = inspect_in(&on(&copy), DIR).wait().unwrap();
                assert!(found.damage.iter().any(|damage| damage.path == *gone), "{what}: {found:?}");
                assert!(found.damage[0].what.contains("is missing"), "{what}: {found:?}");
                for scan in [Scan::All, Scan::Tail] {
                    let error = Log::open(DIR, &options(&on(&copy)).scan(scan)).wait().unwrap_err();
                    assert_eq!(error.kind(), nowait::ErrorKind::Damaged, "{what}: {error}");
                }
                let (log, _) = Log::open(DIR, &options(&on(&copy)).salvage(true)).wait().unwrap();
                let next = log.append(b"salvaged").wait().unwrap().wait().unwrap();
                log.close().wait().unwrap();
                let found = inspect_in(&on(&copy), DIR).wait().unwrap();
                assert!(found.damage.is_empty() && found.last_lsn == next, "{what}, salvaged: {found:?}");
                Log::open(DIR, &options(&on(&copy))).wait().unwrap().0.close().wait().unwrap();
            }
        }
    }
}

/// What may be removed is named before it is: a crash at any step leaves nothing that looks missing.
#[test]
fn a_crash_between_the_steps_of_upkeep_looks_like_no_damage() {
    use std::sync::{Arc, Mutex};
    // The last gives up a segment at the moment when another is wanted.
    let by_itself = Retention::bytes(20_000);
    for (recycle_bytes, retention) in [(0, None), (16 << 10, None), (1 << 20, None), (1 << 20, Some(by_itself))] {
        let sim = Sim::manual(5);
        let images: Arc<Mutex<Vec<Sim>>> = Arc::default();
        let to = images.clone();
        // At each step of a call that waits.
        sim.watch(move |sim| {
            let mut to = to.lock().unwrap();
            let seed = to.len() as u64;
            to.extend([sim.crash(|_, _| true), sim.crash(|_, _| false), sim.crash_at_random(seed)]);
        });
        let nowait = on(&sim);
        let options = options(&nowait).segment_bytes(64 << 10).first_segment_bytes(16 << 10);
        for life in 0..3 {
            let (log, _) = Log::open(
                DIR,
                &options.clone().recycle_bytes(recycle_bytes).retain(retention.clone().unwrap_or_default()),
            )
            .wait()
            .unwrap();
            for _ in 0..40 {
                let lsn = log.append(&[1; 3000]).wait().unwrap().wait().unwrap();
                if retention.is_none() {
                    log.truncate_prefix(lsn.saturating_sub(10));
                }
                while log.maintain() {}
            }
            if life == 1 {
                log.truncate_suffix(log.last_lsn() - 5).wait().unwrap();
                while log.maintain() {}
            }
            if life != 1 {
                log.close().wait().unwrap();
            }
        }
        sim.watch(|_| {});
        let images = std::mem::take(&mut *images.lock().unwrap());
        assert!(images.len() > 500);
        for (number, image) in images.iter().enumerate() {
            match inspect_in(&on(image), DIR).wait() {
                Ok(found) => assert!(found.damage.is_empty(), "recycle {recycle_bytes}, crash {number}: {found:?}"),
                // Before the log was made.
                Err(error) => assert_eq!(error.kind(), nowait::ErrorKind::NotFound, "crash {number}: {error}"),
            }
        }
    }
}

/// Symptom: after a cut, nothing was acknowledged until the next segment was filled with zeros: for
/// seconds, where segments are large.
#[test]
fn a_cut_does_not_wait_for_a_segment_that_is_prepared() {
    let sim = Sim::new(1);
    let nowait = on(&sim);
    // The next is there, and the one behind it is not ready for long.
    let temporary = "/log/prepare-4.tmp";
    sim.watch(move |sim| sim.set_hung(temporary, true));
    let options = options(&nowait).segment_bytes(64 << 10).first_segment_bytes(64 << 10);
    let options = options.reserve_bytes(8 << 10).maintenance(true);
    let (log, _) = Log::open(DIR, &options).wait().unwrap();
    assert!(eventually(|| sim.contents(temporary).is_some()));
    assert_eq!(log.stats().spares, 1);
    let (tell, told) = mpsc::channel();
    let cutting = log.clone();
    let thread = std::thread::spawn(move || {
        for _ in 0..2 {
            cutting.append_from_reserve(b"before").wait().unwrap().wait().unwrap();
        }
        cutting.truncate_suffix(1).wait().unwrap();
        tell.send(cutting.append_from_reserve(b"behind").wait().unwrap().wait().unwrap()).unwrap();
    });
    let behind = told.recv_timeout(Duration::from_secs(20));
    sim.watch(|_| {});
    sim.set_hung(temporary, false);
    thread.join().unwrap();
    assert_eq!(behind, Ok(2));
    log.close().wait().unwrap();
    let found = inspect_in(&nowait, DIR).wait().unwrap();
    assert!(found.damage.is_empty() && found.last_lsn == 2, "{found:?}");
}
