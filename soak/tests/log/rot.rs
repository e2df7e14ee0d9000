//! Damages files of logs at random, for `NOWAIT_SOAK_SECONDS`. Every record that was acknowledged
//! is read back as it was, or open refuses and reports damage; no number is given again.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::rng::Rng;
use crate::common::{self, mounts};
use nowait_log::{Durability, Log, Options, Scan, Strategy, Submitter, SyncPolicy, inspect, read};
use tempfile::TempDir;

const PAGE: u64 = 4096;

/// A log that was closed or dropped, with all that it must hold.
struct Original {
    dir: TempDir,
    /// A copy of the directory, made earlier.
    older: TempDir,
    records: BTreeMap<u64, Vec<u8>>,
    last: u64,
    closed: bool,
}

fn copy(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

fn options(scan: Scan) -> Options {
    let strategy = Strategy { durability: Durability::Write, by: Submitter::Call, depth: 2 };
    let options = Options::new().segment_bytes(256 << 10).first_segment_bytes(32 << 10);
    options.sync(SyncPolicy::Fixed(strategy)).scan(scan)
}

impl Original {
    fn make(rng: &mut Rng) -> Original {
        let (dir, older) = (mounts::temp_dir(), mounts::temp_dir());
        let (mut records, mut last) = (BTreeMap::new(), 0);
        let closed = rng.below(5) < 3;
        let lives = 2 + rng.below(3);
        for life in 0..lives {
            let (log, _) = Log::open(dir.path(), &options(Scan::All).create(true)).wait().unwrap();
            for _ in 0..rng.below(200) {
                let bound = if rng.below(20) == 0 { 100_000 } else { 3000 };
                let length = rng.below(bound);
                let record = common::contents(length, rng.next());
                let ticket = log.append(&record).wait().unwrap();
                records.insert(ticket.lsn(), record);
            }
            log.wait_durable(log.last_lsn()).wait().unwrap();
            if rng.below(3) == 0 {
                let end = log.last_lsn().saturating_sub(rng.below(30) as u64);
                if log.truncate_suffix(end).wait().is_ok() {
                    records.split_off(&(end + 1));
                }
            }
            if rng.below(3) == 0 {
                log.truncate_prefix(log.last_lsn() / 2);
                for _ in 0..5 {
                    log.maintain();
                }
            }
            last = log.last_lsn();
            if life + 2 == lives {
                for _ in 0..5 {
                    log.maintain();
                }
                copy(dir.path(), older.path());
            }
            if closed { log.close().wait().unwrap() } else { drop(log) }
        }
        // A log that was dropped says what it holds before it releases its lock.
        let lock = fs::File::open(dir.path().join("lock")).unwrap();
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
        let found = inspect(dir.path()).wait().unwrap();
        assert!(found.damage.is_empty() && found.last_lsn == last, "{last}: {found:?}");
        let records = records.split_off(&found.first_lsn);
        Original { dir, older, records, last, closed }
    }
}

/// Changes a file, and returns a description; none if the draw suits no file.
fn damage(rng: &mut Rng, dir: &Path, original: &Original) -> Option<String> {
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| name == "control" || name.ends_with(".seg"));
    names.sort();
    let pick = |rng: &mut Rng| names[rng.below(names.len())].clone();
    // The newest files are the most interesting.
    let name =
        if rng.below(2) == 0 { names[names.len() - 1 - rng.below(3.min(names.len()))].clone() } else { pick(rng) };
    let path = dir.join(&name);
    let file = fs::File::options().read(true).write(true).open(&path).unwrap();
    let length = file.metadata().unwrap().len();
    let pages = (length / PAGE).max(1) as usize;
    let page = |rng: &mut Rng| rng.below(pages) as u64 * PAGE;
    Some(match rng.below(12) {
        0..3 if length > 0 => {
            // Half of them in a header.
            let at =
                if rng.below(2) == 0 { page(rng) + rng.below(100) as u64 } else { rng.below(length as usize) as u64 };
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ (1 << rng.below(8))], at).unwrap();
            format!("a bit of {name} at {at} flipped")
        }
        3 | 4 if length > 0 => {
            let (at, count) = (page(rng), 1 + rng.below(8) as u64);
            let zeros = rng.below(2) == 0;
            let bytes = common::contents((count * PAGE).min(length - at) as usize, rng.next());
            file.write_all_at(&bytes.iter().map(|byte| if zeros { 0 } else { *byte }).collect::<Vec<_>>(), at).unwrap();
            format!("{count} pages of {name} at {at} {}", if zeros { "zeroed" } else { "overwritten" })
        }
        5 => {
            let to = [0, PAGE - 1, PAGE, length / 2, page(rng)][rng.below(5)].min(length);
            file.set_len(to).unwrap();
            format!("{name} cut from {length} to {to}")
        }
        6 => {
            file.set_len(0).and_then(|()| file.set_len(length)).unwrap();
            format!("{name} zeroed")
        }
        7 => {
            fs::remove_file(&path).unwrap();
            format!("{name} removed")
        }
        8 => {
            let other = pick(rng);
            if other == name || name == "control" || other == "control" {
                return None;
            }
            let between = dir.join("between");
            fs::rename(&path, &between).unwrap();
            fs::rename(dir.join(&other), &path).unwrap();
            fs::rename(&between, dir.join(&other)).unwrap();
            format!("{name} and {other} swapped")
        }
        9 => {
            let older = original.older.path().join(&name);
            if !older.exists() {
                return None;
            }
            fs::copy(older, &path).unwrap();
            format!("{name} restored from an older copy")
        }
        10 if name != "control" => {
            let other = pick(rng);
            if other == "control" || other == name {
                return None;
            }
            fs::copy(dir.join(&other), &path).unwrap();
            format!("{name} replaced by {other}")
        }
        _ if length >= 2 * PAGE => {
            let (from, to) = (page(rng), page(rng));
            let mut bytes = vec![0; PAGE as usize];
            file.read_exact_at(&mut bytes, from).unwrap();
            file.write_all_at(&bytes, to).unwrap();
            format!("a page of {name} copied from {from} to {to}")
        }
        _ => return None,
    })
}

/// Reads to the end, past damage, and compares; returns how many of the original's records it met.
fn compare(
    mut next: impl FnMut() -> nowait::Result<Option<(u64, Vec<u8>)>>,
    original: &Original,
) -> Result<usize, String> {
    let (mut met, mut errors) = (0, 0);
    loop {
        match next() {
            Ok(Some((lsn, bytes))) => match original.records.get(&lsn) {
                Some(record) if *record == bytes => met += 1,
                Some(_) => return Err(format!("record {lsn} has other bytes")),
                // Of before the prefix was given up.
                None if lsn < *original.records.keys().next().unwrap_or(&u64::MAX) => {}
                None => return Err(format!("record {lsn} was cut off, and is back")),
            },
            Ok(None) => return Ok(met),
            Err(_) if errors < 3 => errors += 1,
            Err(_) => return Ok(met),
        }
    }
}

fn check(dir: &Path, original: &Original, scan: Scan) -> Result<(), String> {
    if let Ok((mut reader, _)) = read(dir, *original.records.keys().next().unwrap_or(&1)).wait() {
        let next = || reader.next().wait().map(|record| record.map(|record| (record.lsn, record.bytes.to_vec())));
        compare(next, original).map_err(|fault| format!("read: {fault}"))?;
    }
    let inspected = inspect(dir).wait();
    let next_lsn = match Log::open(dir, &options(scan)).wait() {
        Ok((log, found)) => {
            let mut reader = log.reader(found.first_lsn);
            let mut failed = false;
            let next = || {
                let record = reader.next().wait().inspect_err(|_| failed = true);
                record.map(|record| record.map(|record| (record.lsn, record.bytes.to_vec())))
            };
            let met = compare(next, original).map_err(|fault| format!("the reader of an open log: {fault}"))?;
            // A scan of the tail leaves damage before it to readers, which report it.
            if met < original.records.len() && (scan == Scan::All || !failed) {
                return Err(format!("open found {met} of {} records, and no damage", original.records.len()));
            }
            let lsn =
                log.append(b"later").wait().and_then(|ticket| ticket.wait()).map_err(|error| error.to_string())?;
            log.close().wait().map_err(|error| error.to_string())?;
            lsn
        }
        Err(error) => {
            if inspected.is_ok_and(|found| found.damage.is_empty()) {
                return Err(format!("open reports {error}, inspect no damage"));
            }
            let Ok((log, found)) = Log::open(dir, &options(Scan::All).salvage(true)).wait() else { return Ok(()) };
            let lsn =
                log.append(b"later").wait().and_then(|ticket| ticket.wait()).map_err(|error| error.to_string())?;
            log.close().wait().map_err(|error| error.to_string())?;
            let again = inspect(dir).wait().map_err(|error| format!("after the salvage: {error}"))?;
            if !again.damage.is_empty() {
                return Err(format!("damage after the salvage: {:?}", again.damage));
            }
            let lost = found.damage.iter().map(|damage| damage.lsns.end).max().unwrap_or(0);
            if lsn < lost {
                return Err(format!("number {lsn} was given again; up to {lost} were reported lost"));
            }
            // What no file of a log knows cannot be kept from coming again.
            if original.closed { lsn } else { u64::MAX }
        }
    };
    match next_lsn <= original.last {
        true => Err(format!("number {next_lsn} was given again, the last was {}", original.last)),
        false => Ok(()),
    }
}

pub(crate) fn rot() {
    let seed = nowait_soak::seed();
    eprintln!("NOWAIT_TEST_SEED={seed}");
    let (begun, mut rng) = (Instant::now(), Rng::new(seed));
    let (mut rounds, mut original) = (0, Original::make(&mut rng));
    let mut faults = Vec::new();
    while begun.elapsed() < Duration::from_secs(nowait_soak::seconds()) && faults.len() < 10 {
        if rounds % 25 == 0 {
            original = Original::make(&mut rng);
        }
        rounds += 1;
        let dir = mounts::temp_dir();
        copy(original.dir.path(), dir.path());
        let hits = if rng.below(5) == 0 { 1 + rng.below(3) } else { 1 };
        let what: Vec<_> = (0..hits).filter_map(|_| damage(&mut rng, dir.path(), &original)).collect();
        let scan = if rng.below(5) < 2 { Scan::Tail } else { Scan::All };
        // The control file vouches for the newest segments: without it their loss cannot be known.
        let touches = |file: &str| what.iter().any(|text| text.contains(file));
        if touches("control") && touches(".seg") {
            continue;
        }
        if let Err(fault) = check(dir.path(), &original, scan) {
            eprintln!("FAULT: {}, {scan:?}, closed {}: {fault}", what.join(", "), original.closed);
            faults.push(fault);
        }
    }
    eprintln!("{rounds} rounds");
    assert!(faults.is_empty(), "{} faults in {rounds} rounds", faults.len());
}
