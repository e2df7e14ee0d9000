//! Files of a log that are emptied, zeroed, cut, exchanged, removed or set back: what was acknowledged
//! is read, or reported as damage, and no number is given again.

#[path = "../../nowait/tests/common/mod.rs"]
mod common;

use std::path::{Path, PathBuf};

use common::on;
use nowait::sim::Sim;
use nowait::{ErrorKind, Nowait};
use nowait_log::{Durability, Log, Options, Recovery, Scan, Strategy, Submitter, SyncPolicy, inspect_in};

const DIR: &str = "/log";

fn options(nowait: &Nowait) -> Options {
    let strategy = Strategy { durability: Durability::Write, by: Submitter::Call, depth: 1 };
    let options = Options::new().create(true).instance(nowait).sync(SyncPolicy::Fixed(strategy));
    options.segment_bytes(32 << 10).first_segment_bytes(32 << 10).maintenance(false)
}

/// Contents of a record: its number, and the epoch in which it was appended.
fn record(lsn: u64, epoch: u64) -> Vec<u8> {
    [&lsn.to_le_bytes()[..], &epoch.to_le_bytes(), &[lsn as u8; 1000]].concat()
}

fn append(log: &Log, lsns: std::ops::RangeInclusive<u64>, epoch: u64) {
    for lsn in lsns {
        assert_eq!(log.append(&record(lsn, epoch)).wait().unwrap().wait().unwrap(), lsn);
        while log.maintain() {}
    }
}

/// Segments, oldest first, each with its bytes.
fn segments(sim: &Sim) -> Vec<(PathBuf, Vec<u8>)> {
    let names = on(sim).list(DIR).wait().unwrap();
    let paths = names.iter().map(|name| Path::new(DIR).join(name));
    let mut paths: Vec<PathBuf> = paths.filter(|path| path.extension().is_some_and(|end| end == "seg")).collect();
    paths.sort();
    let with_bytes = |path: PathBuf| (path.clone(), sim.contents(&path).unwrap());
    paths.into_iter().map(with_bytes).collect()
}

/// Index of the newest segment with a header of its own.
fn newest(segments: &[(PathBuf, Vec<u8>)]) -> usize {
    let number = |path: &Path| path.file_stem().unwrap().to_str().unwrap().parse::<u64>().unwrap();
    let is_its_own = |(path, bytes): &(PathBuf, Vec<u8>)| {
        bytes.starts_with(b"nwlogseg") && bytes[32..40] == number(path).to_le_bytes()
    };
    segments.iter().rposition(is_its_own).unwrap()
}

/// The log is refused; a salvage of it has records up to `kept`, all of `epoch`, and gives no number
/// up to `last` again.
#[track_caller]
fn assert_is_found(sim: &Sim, kept: impl Fn(u64) -> bool, epoch: u64, last: u64, what: &str) -> Recovery {
    let nowait = on(sim);
    let found = inspect_in(&nowait, DIR).wait().unwrap();
    assert!(!found.damage.is_empty(), "{what}: acknowledged records are gone, and nothing is said: {found:?}");
    let named = found.damage.iter().flat_map(|damage| damage.lsns.clone());
    let behind = found.behind.iter().cloned().flatten();
    let known = named.chain(behind).chain(found.first_lsn..=found.last_lsn);
    let known: std::collections::BTreeSet<u64> = known.collect();
    assert!((found.first_lsn..=last).all(|lsn| known.contains(&lsn)), "{what}: {found:?}");
    for scan in [Scan::All, Scan::Tail] {
        let error = Log::open(DIR, &options(&nowait).scan(scan)).wait().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damaged, "{what}, {scan:?}: {error}");
    }
    let (log, recovery) = Log::open(DIR, &options(&nowait).salvage(true)).wait().unwrap();
    let next = log.append(b"after").wait().unwrap().wait().unwrap();
    assert!(next > last, "{what}: number {next} is given again, {recovery:?}");
    let mut reader = log.reader(recovery.first_lsn);
    while let Some(found) = reader.next().wait().unwrap() {
        let is_known = kept(found.lsn) && found.bytes == record(found.lsn, epoch);
        assert!(is_known || found.lsn == next, "{what}: record {}", found.lsn);
    }
    log.close().wait().unwrap();
    let again = inspect_in(&nowait, DIR).wait().unwrap();
    assert!(again.damage.is_empty() && again.last_lsn == next, "{what}: {again:?}");
    found
}

/// Symptom: whatever was in the newest segment of a closed log was gone without a word, and its
/// numbers were given again, since nothing but that segment said that it was the newest.
#[test]
fn the_newest_segment_of_a_closed_log_is_missed() {
    const LAST: u64 = 70;
    let sim = Sim::new(1);
    let (log, _) = Log::open(DIR, &options(&on(&sim))).wait().unwrap();
    append(&log, 1..=LAST, 1);
    log.close().wait().unwrap();
    let files = segments(&sim);
    let at = newest(&files);
    let (path, bytes) = &files[at];
    let spare = files.get(at + 1).map(|(_, bytes)| bytes.clone()).unwrap();
    for (what, foul) in [
        ("emptied", Vec::new()),
        ("zeroed", vec![0; bytes.len()]),
        ("cut within the header", bytes[..4095].to_vec()),
        ("cut to the header", bytes[..4096].to_vec()),
        ("zeros behind the header", [&bytes[..4096], &vec![0; bytes.len() - 4096]].concat()),
        ("replaced by the spare", spare),
        ("replaced by the segment before", files[at - 1].1.clone()),
    ] {
        let foul_play = sim.crash(|_, _| true);
        foul_play.create(path, foul);
        assert_is_found(&foul_play, |_| true, 1, LAST, what);
    }
    let removed = sim.crash(|_, _| true);
    on(&removed).remove_file(path).wait().unwrap();
    assert_is_found(&removed, |_| true, 1, LAST, "removed");
}

/// Symptom: records that had been cut off were records again when the segment behind the cut was
/// lost, and numbers that were acknowledged since were given again.
#[test]
fn what_was_cut_off_does_not_return_without_the_segment_behind_it() {
    const LAST: u64 = 45;
    // Within a segment, and with whole segments that are cut off.
    for kept in [4, 40] {
        for last in [kept + 8, LAST + kept] {
            let sim = Sim::new(1);
            let (log, _) = Log::open(DIR, &options(&on(&sim))).wait().unwrap();
            append(&log, 1..=60, 1);
            log.truncate_suffix(kept).wait().unwrap();
            let (behind, _) = segments(&sim).swap_remove(newest(&segments(&sim)));
            append(&log, kept + 1..=last, 2);
            log.close().wait().unwrap();
            let emptied = sim.crash(|_, _| true);
            emptied.create(&behind, Vec::new());
            assert_is_found(&emptied, |lsn| lsn <= kept, 1, last, &format!("emptied, cut to {kept} of {last}"));
            let removed = sim.crash(|_, _| true);
            on(&removed).remove_file(&behind).wait().unwrap();
            assert_is_found(&removed, |lsn| lsn <= kept, 1, last, &format!("removed, cut to {kept} of {last}"));
        }
    }
}

/// Symptom: the search for the end of a log ended at a record larger than a mebibyte whose header
/// had a turned bit, and those behind it were lost without a word.
#[test]
fn the_end_is_found_behind_a_large_record_that_is_damaged() {
    const LAST: u64 = 8;
    const LENGTH: usize = 3 << 19;
    let sim = Sim::new(1);
    let nowait = on(&sim);
    let options = options(&nowait).segment_bytes(16 << 20).first_segment_bytes(16 << 20);
    for is_closed in [true, false] {
        let sim = sim.crash(|_, _| true);
        let options = options.clone().instance(&on(&sim));
        let (log, _) = Log::open(DIR, &options).wait().unwrap();
        for _ in 0..LAST {
            log.append(&vec![7; LENGTH]).wait().unwrap().wait().unwrap();
        }
        let killed = sim.crash(|_, _| true);
        log.close().wait().unwrap();
        let sim = if is_closed { sim } else { killed };
        let files = segments(&sim);
        let (path, bytes) = &files[newest(&files)];
        let is_block = |at: &usize| bytes[*at..].starts_with(b"nwbk") && bytes[at + 44] == 1;
        for at in (4096..bytes.len()).step_by(4096).filter(is_block).take(LAST as usize - 1) {
            let foul_play = sim.crash(|_, _| true);
            let mut bytes = bytes.clone();
            bytes[at + 24] ^= 1;
            foul_play.create(path, bytes);
            let options = options.clone().instance(&on(&foul_play)).scan(Scan::Tail);
            match Log::open(DIR, &options).wait() {
                Err(error) => assert_eq!(error.kind(), ErrorKind::Damaged, "block at {at}: {error}"),
                // Of older ones only the headers are read.
                Ok((log, recovery)) => {
                    assert_eq!(recovery.last_lsn, LAST, "block at {at}: {recovery:?}");
                    drop(log);
                }
            }
        }
    }
}

/// Symptom: two segments with each other's names were taken for files to be used again, and all
/// records behind the first were lost without a word.
#[test]
fn segments_with_each_others_names_are_damage() {
    const LAST: u64 = 100;
    let sim = Sim::new(1);
    let (log, _) = Log::open(DIR, &options(&on(&sim))).wait().unwrap();
    append(&log, 1..=LAST, 1);
    log.close().wait().unwrap();
    let files = segments(&sim);
    for first in 0..files.len() {
        for second in first + 1..files.len() {
            let foul_play = sim.crash(|_, _| true);
            foul_play.create(&files[first].0, files[second].1.clone());
            foul_play.create(&files[second].0, files[first].1.clone());
            let what = format!("{} and {}", files[first].0.display(), files[second].0.display());
            if files[first].1 == files[second].1 {
                continue;
            }
            let error = Log::open(DIR, &options(&on(&foul_play))).wait().unwrap_err();
            assert!(error.to_string().contains("rename it back"), "{what}: {error}");
            assert_is_found(&foul_play, |_| true, 1, LAST, &what);
        }
    }
}
