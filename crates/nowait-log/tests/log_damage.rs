//! Bytes of a log that are not what was written, or cannot be read: what is found out, what is
//! left, and how long looking takes.

#[path = "../../nowait/tests/common/mod.rs"]
mod common;
mod reading;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use common::mounts::{self, Kind, Mount};
use common::on;
use common::rng::Rng;
use nowait::sim::{Faults, Sim};
use nowait::{ErrorKind, Nowait};
use nowait_log::{
    Durability, Log, Options, Reader, Recovery, Scan, Strategy, Submitter, SyncPolicy, inspect, inspect_in, read,
    read_aside_in, read_in,
};
use reading::Asking;

const DIR: &str = "/log";
const PAGE: usize = 4096;

fn fixed(depth: u32) -> SyncPolicy {
    SyncPolicy::Fixed(Strategy { durability: Durability::Write, by: Submitter::Call, depth })
}

fn simulated(nowait: &Nowait) -> Options {
    Options::new().create(true).instance(nowait).segment_bytes(16 << 10).sync(fixed(1)).maintenance(false)
}

fn real() -> Options {
    Options::new().create(true).segment_bytes(64 << 10).sync(fixed(1))
}

fn record(lsn: u64) -> Vec<u8> {
    let mut random = Rng::new(lsn);
    let length = 8 + random.below(600);
    let mut bytes = lsn.to_le_bytes().to_vec();
    bytes.extend((8..length).map(|_| random.next() as u8));
    bytes
}

/// Segments, oldest first.
fn segments(sim: &Sim) -> Vec<PathBuf> {
    let names = on(sim).fs().read_dir_names(DIR).wait().unwrap();
    names
        .iter()
        .map(|name| Path::new(DIR).join(name))
        .filter(|name| name.extension().is_some_and(|e| e == "seg"))
        .collect()
}

/// Places of blocks with records, by the file that holds them and the first record of each.
fn blocks(bytes: &[u8]) -> Vec<(usize, u64)> {
    let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let is_block =
        |at: &usize| bytes[*at..].starts_with(b"nwbk") && number(at + 16) == *at as u64 && bytes[at + 44] > 0;
    (4096..bytes.len()).step_by(4096).filter(is_block).map(|at| (at, number(at + 24))).collect()
}

fn change(sim: &Sim, path: &Path, change: impl FnOnce(&mut [u8])) {
    let mut bytes = sim.contents(path).unwrap();
    change(&mut bytes);
    sim.create(path, bytes);
}

/// Processor time of this thread, or elapsed time where the system does not count it.
fn processor_time() -> Duration {
    static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);
    let Ok(text) = fs::read_to_string("/proc/thread-self/schedstat") else { return BEGAN.elapsed() };
    Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
}

/// Reads to the end; gives the records and what was told to be missing.
fn read_all(mut reader: Reader) -> (BTreeSet<u64>, Vec<String>) {
    let (mut read, mut errors) = (BTreeSet::new(), Vec::new());
    let asking = Asking::next_way();
    loop {
        match asking.next(&mut reader, || {}) {
            Ok(None) => return (read, errors),
            Ok(Some(found)) => {
                assert!(found.bytes == record(found.lsn), "record {}", found.lsn);
                assert!(read.last().is_none_or(|last| *last < found.lsn));
                read.insert(found.lsn);
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
                errors.push(error.to_string());
                assert!(errors.len() < 1000);
            }
        }
    }
}

/// A log of `last` records, each in a block of its own, closed.
fn log_of(sim: &Sim, last: u64) {
    let nowait = on(sim);
    let (log, _) = Log::open(DIR, &simulated(&nowait).segment_bytes(64 << 10)).wait().unwrap();
    for lsn in 1..=last {
        assert_eq!(log.append(&record(lsn)).wait().unwrap().wait().unwrap(), lsn);
        log.maintain();
    }
    log.close().wait().unwrap();
}

/// Symptom: a newest segment whose file had been cut had lost its last records, also of a log that
/// had been closed, and nothing was said.
#[test]
fn a_newest_segment_that_has_been_cut_is_damaged() {
    for scan in [Scan::All, Scan::Tail] {
        for pages in 1..16 {
            let sim = Sim::new(pages);
            const LAST: u64 = 10;
            log_of(&sim, LAST);
            let is_newest = |path: &PathBuf| !blocks(&sim.contents(path).unwrap()).is_empty();
            let path = segments(&sim).into_iter().rfind(is_newest).unwrap();
            let bytes = sim.contents(&path).unwrap();
            let is_closed = bytes[pages as usize * PAGE..].iter().all(|byte| *byte == 0);
            sim.create(&path, bytes[..pages as usize * PAGE].to_vec());
            let nowait = on(&sim);
            let options = simulated(&nowait).create(false).scan(scan);
            if is_closed {
                let (log, recovery) = Log::open(DIR, &options).wait().unwrap();
                assert_eq!((recovery.last_lsn, recovery.closed), (LAST, true), "{pages} pages are left");
                log.close().wait().unwrap();
                continue;
            }
            let error = Log::open(DIR, &options).wait().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Damaged, "{pages} pages are left: {error}");
            assert!(error.to_string().contains("was shortened"), "{error}");
            let (log, recovery) = Log::open(DIR, &options.salvage(true)).wait().unwrap();
            assert_eq!(log.append(&record(recovery.next_lsn)).wait().unwrap().wait().unwrap(), recovery.next_lsn);
            log.close().wait().unwrap();
            let recovery = inspect_in(&nowait, DIR).wait().unwrap();
            assert!(recovery.damage.is_empty() && recovery.closed, "{recovery:?}");
        }
    }
}

/// One bad byte made all records behind it unreachable; a salvage gave their numbers again, and
/// left them in a file that nothing reads.
#[test]
fn what_is_whole_behind_a_hole_is_read_and_put_aside() {
    let mut random = Rng::for_test();
    for round in 0..60 {
        let sim = Sim::new(round);
        const LAST: u64 = 40;
        log_of(&sim, LAST);
        // Some blocks go bad, in the middle, and sometimes the header of a segment.
        let mut lost = BTreeSet::new();
        let paths = segments(&sim);
        let mut headers = 0;
        for path in &paths {
            let bytes = sim.contents(path).unwrap();
            for (at, lsn) in blocks(&bytes) {
                if lsn < LAST && random.below(12) == 0 {
                    change(&sim, path, |bytes| bytes[at + 64 + 6] ^= 1);
                    lost.insert(lsn);
                }
            }
            if random.below(6) == 0 && bytes.starts_with(b"nwlogseg") {
                change(&sim, path, |bytes| bytes[60] ^= 1);
                headers += 1;
            }
        }
        let what = format!("round {round}, {lost:?} and {headers} headers of {}", paths.len());
        let nowait = on(&sim);
        let (reader, found) = read_in(&nowait, DIR, 1).wait().unwrap();
        let Recovery { damage, behind, last_lsn, next_lsn, .. } = &found;
        if damage.is_empty() {
            assert!(lost.is_empty() && *last_lsn == LAST, "{what}: {found:?}");
            continue;
        }
        // Nothing is known of records missing at the beginning with the header that would name
        // them.
        let first = found.behind.first().map_or(found.first_lsn, |behind| behind.start.min(found.first_lsn));
        let reader = if first > 1 { read_in(&nowait, DIR, first).wait().unwrap().0 } else { reader };
        let (there, told) = read_all(reader);
        assert!((1..first).all(|lsn| lost.contains(&lsn)), "{what}: {found:?}");
        lost.retain(|lsn| *lsn >= first);
        let expected: BTreeSet<u64> = (first..=LAST).filter(|lsn| !lost.contains(lsn)).collect();
        assert_eq!(there, expected, "{what}: {found:?}");
        assert!(lost.is_empty() || !told.is_empty(), "{what}");
        assert_eq!(*next_lsn, LAST + 1, "{what}: {found:?}");
        for range in behind {
            assert!(range.clone().all(|lsn| expected.contains(&lsn) && !(found.first_lsn..=*last_lsn).contains(&lsn)));
        }
        for damage in damage {
            assert!(
                damage.lsns.start <= damage.lsns.end && damage.bytes.start <= damage.bytes.end,
                "{what}: {damage:?}"
            );
            assert!(damage.lsns.clone().all(|lsn| lost.contains(&lsn)), "{what}: {damage:?}");
        }
        assert_eq!(Log::open(DIR, &simulated(&nowait)).wait().unwrap_err().kind(), ErrorKind::Damaged, "{what}");

        // Salvaged: what was before the damage is there, what comes has new numbers, and nothing
        // whole is gone from the disk.
        let bytes_of = |sim: &Sim| -> Vec<(PathBuf, Vec<u8>)> {
            let names = on(sim).fs().read_dir_names(DIR).wait().unwrap();
            let path = |name: &std::ffi::OsString| Path::new(DIR).join(name);
            names.iter().map(|name| (path(name), sim.contents(path(name)).unwrap())).collect()
        };
        let before = bytes_of(&sim);
        let (log, recovery) = Log::open(DIR, &simulated(&nowait).salvage(true)).wait().unwrap();
        assert_eq!((recovery.last_lsn, recovery.next_lsn), (*last_lsn, LAST + 1), "{what}");
        assert_eq!(log.append(&record(LAST + 1)).wait().unwrap().wait().unwrap(), LAST + 1, "{what}");
        let (kept, told) = read_all(log.reader(found.first_lsn));
        let expected: BTreeSet<u64> = (found.first_lsn..=*last_lsn).chain([LAST + 1]).collect();
        assert_eq!((kept, told), (expected.clone(), vec![]), "{what}");
        log.close().wait().unwrap();
        let after = bytes_of(&sim);
        for lost in &found.lost {
            let bytes = &before.iter().find(|(path, _)| path == lost).unwrap().1;
            let aside = after.iter().find(|(path, bytes_there)| {
                path.to_string_lossy().ends_with(".damaged")
                    && path.to_string_lossy().starts_with(&*lost.to_string_lossy())
                    && bytes_there == bytes
            });
            assert!(aside.is_some(), "{what}: {}", lost.display());
        }
        // Opened again: it is a log without damage, that says what is missing and what lies aside.
        let (log, again) = Log::open(DIR, &simulated(&nowait)).wait().unwrap();
        assert!(again.damage.is_empty() && again.last_lsn == LAST + 1, "{what}: {again:?}");
        assert_eq!(again.aside.len(), found.lost.len(), "{what}: {again:?}");
        let gap = *last_lsn + 1..LAST + 1;
        assert!(again.gaps.iter().cloned().flatten().eq(gap), "{what}: {again:?}");
        assert_eq!(read_all(log.reader(found.first_lsn)).0, expected, "{what}");
        assert_eq!(read_all(read_in(&nowait, DIR, found.first_lsn).wait().unwrap().0), (expected, vec![]), "{what}");
        log.close().wait().unwrap();
    }
}

/// A salvage that is cut off anywhere loses nothing that a whole one keeps, and gives no number
/// again.
#[test]
fn a_salvage_that_is_cut_off_is_as_if_it_had_been_or_had_not() {
    let sim = Sim::new(1);
    log_of(&sim, 40);
    let path = segments(&sim)[1].clone();
    let (at, lost) = blocks(&sim.contents(&path).unwrap())[3];
    change(&sim, &path, |bytes| bytes[at + 70] ^= 1);
    let nowait = on(&sim);
    let crashes: std::sync::Arc<std::sync::Mutex<Vec<Sim>>> = Default::default();
    let to = crashes.clone();
    let random = std::sync::Mutex::new(Rng::for_test());
    sim.watch(move |sim| {
        let mut random = random.lock().unwrap();
        to.lock().unwrap().extend((0..3).map(|_| sim.crash_at_random(random.next())));
    });
    drop(Log::open(DIR, &simulated(&nowait).salvage(true)).wait().unwrap());
    sim.watch(|_| {});
    let crashes = std::mem::take(&mut *crashes.lock().unwrap());
    let mut open = 0;
    for crashed in &crashes {
        let nowait = on(crashed);
        let found = inspect_in(&nowait, DIR).wait().unwrap();
        open += usize::from(found.damage.is_empty());
        assert_eq!((found.last_lsn, found.next_lsn), if found.damage.is_empty() { (40, 41) } else { (lost - 1, 41) });
        let (log, recovery) = Log::open(DIR, &simulated(&nowait).salvage(true)).wait().unwrap();
        assert_eq!(log.append(&record(41)).wait().unwrap().wait().unwrap(), 41, "{recovery:?}");
        log.close().wait().unwrap();
        // Every record but the lost one is in some file.
        let names = nowait.fs().read_dir_names(DIR).wait().unwrap();
        let files = names.iter().map(|name| crashed.contents(Path::new(DIR).join(name)).unwrap());
        let there: BTreeSet<u64> = files.flat_map(|bytes| blocks(&bytes)).map(|(_, lsn)| lsn).collect();
        assert_eq!(there, (1..=41).collect());
    }
    println!("{} crashes, {open} after the salvage counts", crashes.len());
    assert!(open > 3 && crashes.len() - open > 3);
}

/// A sector that cannot be read ended every look at the log with an I/O error, and salvage, too.
#[test]
fn what_cannot_be_read_is_passed_over_and_named() {
    let mut random = Rng::for_test();
    for round in 0..60 {
        let sim = Sim::new(round);
        log_of(&sim, 40);
        let nowait = on(&sim);
        let (mut spoiled, mut lost) = (Vec::new(), BTreeSet::new());
        for path in segments(&sim) {
            let bytes = sim.contents(&path).unwrap();
            let blocks = blocks(&bytes);
            for page in (0..bytes.len()).step_by(4096) {
                if random.below(15) != 0 {
                    continue;
                }
                assert!(sim.spoil(&path, page as u64 + 512..page as u64 + 513));
                spoiled.push((path.clone(), page as u64));
                lost.extend(blocks.iter().filter(|(at, _)| *at == page).map(|(_, lsn)| *lsn));
            }
        }
        if random.below(3) == 0 {
            sim.spoil(Path::new(DIR).join("control"), 0..random.below(2) as u64 * 4096 + 1);
        }
        let what = format!("round {round}, {spoiled:?}, {lost:?}");
        let (reader, found) = read_in(&nowait, DIR, 1).wait().unwrap();
        let first = found.behind.first().map_or(found.first_lsn, |behind| behind.start.min(found.first_lsn));
        let reader = if first > 1 { read_in(&nowait, DIR, first).wait().unwrap().0 } else { reader };
        let (there, _) = read_all(reader);
        // Records that no watermark covers lie behind unknown ones.
        let known = there.last().copied().unwrap_or(0);
        assert!(there.iter().all(|lsn| !lost.contains(lsn)), "{what}: {found:?}");
        for lsn in first..=known {
            assert!(lost.contains(&lsn) != there.contains(&lsn), "{what}: {lsn}, {found:?}");
        }
        assert!(known == 40 || !found.damage.is_empty(), "{what}: {found:?}");
        assert!(found.next_lsn > known, "{what}");
        for page in &found.unreadable {
            assert!(page.what.contains(&format!("(os error {})", common::errno::EIO)), "{}", page.what);
            for at in page.bytes.clone().step_by(4096) {
                let is_known = page.path.ends_with("control") || spoiled.contains(&(page.path.clone(), at));
                assert!(is_known, "{what}: {page:?}");
            }
        }
        if lost.iter().next().is_some_and(|first| *first < known) {
            assert!(!found.unreadable.is_empty(), "{what}: {found:?}");
        }
        let (log, recovery) = Log::open(DIR, &simulated(&nowait).salvage(true)).wait().unwrap();
        assert_eq!(recovery.next_lsn, found.next_lsn, "{what}");
        assert_eq!(log.append(&record(found.next_lsn)).wait().unwrap().wait().unwrap(), found.next_lsn);
        log.close().wait().unwrap();
        let (log, again) = Log::open(DIR, &simulated(&nowait)).wait().unwrap();
        assert!(again.damage.is_empty(), "{what}: {again:?}");
        log.close().wait().unwrap();
    }
}

/// Reads that fail now and then, and succeed when they are made again.
#[test]
fn reads_that_fail_at_random_lose_nothing() {
    for seed in 0..20 {
        let sim = Sim::new(seed);
        log_of(&sim, 40);
        let nowait = on(&sim);
        sim.set_faults({
            let mut faults = Faults::default();
            faults.read_error = 0.3;
            faults
        });
        // An answer, whatever it is: both copies of the control file may be unreadable, and all
        // headers.
        let found = inspect_in(&nowait, DIR).wait();
        assert!(
            found.as_ref().map_or_else(|error| error.kind() == ErrorKind::Damaged, |found| found.last_lsn <= 40),
            "{found:?}"
        );
        let salvaged = Log::open(DIR, &simulated(&nowait).salvage(true)).wait();
        sim.set_faults(Faults::default());
        if let Ok((log, recovery)) = salvaged {
            assert!(recovery.next_lsn > recovery.last_lsn);
            log.close().wait().unwrap();
        }
        let names = nowait.fs().read_dir_names(DIR).wait().unwrap();
        let files = names.iter().map(|name| sim.contents(Path::new(DIR).join(name)).unwrap());
        let there: BTreeSet<u64> = files.flat_map(|bytes| blocks(&bytes)).map(|(_, lsn)| lsn).collect();
        assert!(there.is_superset(&(1..=40).collect()), "seed {seed}: {there:?}");
    }
}

/// A file of the largest number that fits, in the log's directory, made the numbers begin anew, or
/// a panic.
#[test]
fn numbers_that_no_log_gave_are_refused_or_left_alone() {
    let sim = Sim::new(1);
    log_of(&sim, 40);
    let nowait = on(&sim);
    sim.create(Path::new(DIR).join("18446744073709551615.seg"), vec![]);
    let (log, _) = Log::open(DIR, &simulated(&nowait)).wait().unwrap();
    for lsn in 41..=60 {
        assert_eq!(log.append(&record(lsn)).wait().unwrap().wait().unwrap(), lsn);
    }
    log.close().wait().unwrap();
    let found = inspect_in(&nowait, DIR).wait().unwrap();
    assert_eq!((found.first_lsn, found.last_lsn, found.damage), (1, 60, vec![]));
    assert!(sim.contents(Path::new(DIR).join("18446744073709551615.seg")).is_some());
    for number in [u64::MAX / 2, u64::MAX / 2 - 1, u64::MAX / 4 + 1] {
        let path = Path::new(DIR).join(format!("{number:020}.seg"));
        sim.create(&path, vec![0; 64 << 10]);
        assert_eq!(inspect_in(&nowait, DIR).wait().unwrap().last_lsn, 60);
        let error = Log::open(DIR, &simulated(&nowait)).wait().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
        assert!(error.to_string().contains(&number.to_string()), "{error}");
        nowait.fs().remove_file(&path).wait().unwrap();
    }
    let error = Log::open(DIR, &simulated(&nowait).reserve_bytes(u64::MAX)).wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    assert_eq!(Log::open(DIR, &simulated(&nowait)).wait().unwrap().1.last_lsn, 60);
}

/// Each page says that a block begins there that goes on to the end. Checksums were gone over again
/// for each of them: 83 s for 64 MiB. With a header whose checksum is right, or not.
#[test]
fn recovery_is_linear_whatever_the_bytes() {
    let time = |mib: usize, is_sealed: bool| {
        let dir = mounts::temp_dir();
        let path = dir.path().join("log");
        let (log, _) = Log::open(&path, &real().segment_bytes((mib as u64) << 20)).wait().unwrap();
        log.append(&record(1)).wait().unwrap().wait().unwrap();
        log.close().wait().unwrap();
        let segment = path.join("00000000000000000002.seg");
        let mut bytes = fs::read(&segment).unwrap();
        assert!(bytes.starts_with(b"nwlogseg"));
        for at in (20480..bytes.len()).step_by(4096) {
            let length = (bytes.len() - at - 64) as u32;
            bytes[at..at + 4].copy_from_slice(b"nwbk");
            bytes[at + 8..at + 16].copy_from_slice(&1u64.to_le_bytes());
            bytes[at + 16..at + 24].copy_from_slice(&(at as u64).to_le_bytes());
            bytes[at + 24..at + 32].copy_from_slice(&9u64.to_le_bytes());
            bytes[at + 40..at + 44].copy_from_slice(&length.to_le_bytes());
            bytes[at + 44..at + 48].copy_from_slice(&(length / 9).min(1000).to_le_bytes());
            if is_sealed {
                let seed = crc32c::crc32c(&[&bytes[16..32], &2u64.to_le_bytes(), &1u64.to_le_bytes()].concat());
                let crc = crc32c::crc32c_append(seed, &bytes[at + 8..at + 64]);
                bytes[at + 4..at + 8].copy_from_slice(&crc.to_le_bytes());
            }
        }
        fs::write(&segment, bytes).unwrap();
        let started = processor_time();
        let found = inspect(&path).wait().unwrap();
        assert_eq!((found.last_lsn, found.torn.is_some(), found.damage), (1, is_sealed, vec![]));
        processor_time() - started
    };
    // The least of some: caches are cold at first.
    let least = |mib, is_sealed| (0..3).map(|_| time(mib, is_sealed)).min().unwrap();
    time(1, false);
    for is_sealed in [false, true] {
        // Quadratic would be 256 times as long.
        let (short, long) = (least(2, is_sealed), least(32, is_sealed));
        println!("2 MiB: {short:?}, 32 MiB: {long:?}");
        assert!(long < short * 16 * 4 + Duration::from_millis(200), "2 MiB: {short:?}, 32 MiB: {long:?}");
    }
}

/// A log of another version of the format, also where its control file is lost.
#[test]
fn another_version_is_refused() {
    for version in [1u32, 3] {
        let sim = Sim::new(1);
        log_of(&sim, 3);
        let nowait = on(&sim);
        let set = |page: &mut [u8]| {
            page[12..16].copy_from_slice(&version.to_le_bytes());
            let crc = crc32c::crc32c(&page[12..]);
            page[8..12].copy_from_slice(&crc.to_le_bytes());
        };
        change(&sim, &Path::new(DIR).join("control"), |bytes| bytes.chunks_mut(4096).for_each(set));
        for error in [
            inspect_in(&nowait, DIR).wait().unwrap_err(),
            Log::open(DIR, &simulated(&nowait).salvage(true)).wait().unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            let advice = if version == 1 { "read it with the library that wrote it" } else { "use a later one" };
            assert!(error.to_string().contains(&format!("version {version}")), "{error}");
            assert!(error.to_string().contains(advice), "{error}");
        }
    }
}

/// A batch that a crash cut off is not kept in part, though some of its records are whole, and though
/// there is damage before it, which has the whole records behind it read.
#[test]
fn a_torn_batch_is_not_read_in_part_behind_damage() {
    let sim = Sim::manual(1);
    let nowait = on(&sim);
    let options = simulated(&nowait).segment_bytes(64 << 10);
    let (log, _) = Log::open(DIR, &options).wait().unwrap();
    for lsn in 1..=3 {
        log.append(&record(lsn)).wait().unwrap().wait().unwrap();
    }
    let batch: Vec<Vec<u8>> = (4..=30).map(record).collect();
    let mut ticket = log.append_batch(batch.iter().map(Vec::as_slice)).wait().unwrap();
    assert!(common::poll_once(Pin::new(&mut ticket)).is_pending());
    // Its first sectors get to the disk: the header, and some records.
    let left = sim.crash(|_, sector| sector < 6);
    while sim.step() {}
    // On a disk that works by itself.
    let crashed = Sim::new(1);
    for name in on(&left).fs().read_dir_names(DIR).wait().unwrap() {
        let path = Path::new(DIR).join(name);
        crashed.create(&path, left.contents(&path).unwrap());
    }
    let nowait = on(&crashed);
    let found = inspect_in(&nowait, DIR).wait().unwrap();
    assert!(found.damage.is_empty() && found.torn.is_some() && found.last_lsn == 3, "{found:?}");
    let path = segments(&crashed).into_iter().find(|path| !blocks(&crashed.contents(path).unwrap()).is_empty());
    let path = path.unwrap();
    let places = blocks(&crashed.contents(&path).unwrap());
    assert_eq!(places.iter().map(|(_, lsn)| *lsn).collect::<Vec<_>>(), [1, 2, 3, 4]);
    change(&crashed, &path, |bytes| bytes[places[1].0 + 64 + 9] ^= 1);
    let (reader, found) = read_in(&nowait, DIR, 1).wait().unwrap();
    let (there, told) = read_all(reader);
    assert_eq!((there, told.len(), found.next_lsn), (BTreeSet::from([1, 3]), 1, 4), "{found:?}");
    let (log, _) = Log::open(DIR, &simulated(&nowait).salvage(true)).wait().unwrap();
    log.close().wait().unwrap();
    let aside = read_all(read_aside_in(&nowait, DIR).wait().unwrap()).0;
    assert_eq!(aside, BTreeSet::from([1, 3]));
}

/// A reader of an open log returns what is whole in a block that has gone bad since.
#[test]
fn a_live_reader_loses_only_what_is_bad() {
    let sim = Sim::new(1);
    let nowait = on(&sim);
    let (log, _) = Log::open(DIR, &simulated(&nowait).segment_bytes(64 << 10)).wait().unwrap();
    let batch: Vec<Vec<u8>> = (1..=9).map(record).collect();
    log.append_batch(batch.iter().map(Vec::as_slice)).wait().unwrap().wait().unwrap();
    let path = segments(&sim).into_iter().find(|path| !blocks(&sim.contents(path).unwrap()).is_empty()).unwrap();
    let (at, _) = blocks(&sim.contents(&path).unwrap())[0];
    let offset: usize = (1..5).map(|lsn| 9 + record(lsn).len()).sum();
    change(&sim, &path, |bytes| bytes[at + 64 + offset + 9 + 3] ^= 1);
    for from in [1, 5] {
        let mut reader = log.reader(from);
        for lsn in from..5 {
            assert!(reader.next().wait().unwrap().is_some_and(|found| found.bytes == record(lsn)));
        }
        for _ in 0..2 {
            let error = reader.next().wait().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
            assert!(error.to_string().contains("record 5"), "{error}");
        }
    }
    let mut reader = log.reader(6);
    for lsn in 6..=9 {
        assert!(reader.next().wait().unwrap().is_some_and(|found| found.bytes == record(lsn)));
    }
}

/// A live log seemed damaged to whoever looked at it from outside: a look takes time, and what is
/// written meanwhile speaks of records that the look did not see.
#[test]
fn a_log_that_is_written_is_not_damaged() {
    let dir = mounts::temp_dir();
    let path = dir.path().join("log");
    let (log, _) = Log::open(&path, &real().segment_bytes(1 << 20)).wait().unwrap();
    let stop = AtomicBool::new(false);
    let (mut wrong, mut looks) = (Vec::new(), 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Relaxed) {
                let lsn = log.append(&[1; 12_000]).wait().unwrap().wait().unwrap();
                if lsn % 64 == 0 {
                    log.truncate_prefix(lsn.saturating_sub(2000));
                }
            }
        });
        let started = Instant::now();
        while wrong.is_empty() && (looks < 40 || started.elapsed() < Duration::from_secs(2)) {
            wrong.extend(match inspect(&path).wait() {
                Ok(found) if found.damage.is_empty() && found.from_copy.is_empty() => None,
                Err(error) if error.kind() == ErrorKind::WouldBlock => None,
                other => Some(format!("{other:?}")),
            });
            looks += 1;
        }
        stop.store(true, Relaxed);
    });
    assert!(wrong.is_empty(), "look {looks}: {wrong:?}");
    log.close().wait().unwrap();
}

/// Segments that are used again hold blocks of the same epoch, which were taken for writes that
/// were cut off.
#[test]
fn a_segment_that_is_used_again_is_not_torn() {
    let sim = Sim::new(1);
    let nowait = on(&sim);
    let (log, _) = Log::open(DIR, &simulated(&nowait).segment_bytes(32 << 10)).wait().unwrap();
    let mut segments_seen = BTreeSet::new();
    for _ in 0..100 {
        let lsn = log.append(&[1; 3000]).wait().unwrap().wait().unwrap();
        log.truncate_prefix(lsn);
        while log.maintain() {}
        let found = inspect_in(&nowait, DIR).wait().unwrap();
        assert_eq!((found.torn, found.last_lsn), (None, lsn));
        segments_seen.extend(segments(&sim));
    }
    assert!(segments_seen.len() > 10, "{segments_seen:?}");
    log.close().wait().unwrap();
    let found = inspect_in(&nowait, DIR).wait().unwrap();
    assert!(found.closed && found.torn.is_none(), "{found:?}");
}

/// A reader of a log that was being written returned records that were only in a cache: a power cut
/// took them away again.
#[test]
fn what_is_read_is_durable() {
    let sim = Sim::manual(3);
    let nowait = on(&sim);
    let strategy = Strategy { durability: Durability::WriteAndSync, by: Submitter::Call, depth: 1 };
    let (log, _) = Log::open(DIR, &simulated(&nowait).sync(SyncPolicy::Fixed(strategy))).wait().unwrap();
    let mut ticket = log.append(&record(1)).wait().unwrap();
    assert!(common::poll_once(Pin::new(&mut ticket)).is_pending());
    // The write, not the sync.
    assert!(sim.step());
    let (mut reader, recovery) = read_in(&nowait, DIR, 1).wait().unwrap();
    assert_eq!((recovery.last_lsn, reader.next().wait().unwrap().unwrap().lsn), (1, 1));
    let crashed = sim.crash(|_, _| false);
    assert_eq!(inspect_in(&on(&crashed), DIR).wait().unwrap().last_lsn, 1);
    while sim.step() {}
}

/// A log that was made where direct I/O is, and copied to where it is not, wrote several blocks at
/// a time through the page cache, and took a sync beside another for proof.
#[test]
fn direct_is_looked_at_where_the_log_is() {
    let Some(mount) = Mount::or_skip(Kind::Tmpfs) else { return };
    let dir = mounts::temp_dir();
    let path = dir.path().join("log");
    let (log, _) = Log::open(&path, &real().sync(fixed(8))).wait().unwrap();
    let is_direct = log.is_direct();
    log.append(&record(1)).wait().unwrap().wait().unwrap();
    log.close().wait().unwrap();
    let there = mount.path().join("log");
    fs::create_dir(&there).unwrap();
    for entry in fs::read_dir(&path).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), there.join(entry.file_name())).unwrap();
    }
    let file = nowait::OpenOptions::new().read(true).direct(true).open(there.join("control")).wait().unwrap();
    let can = matches!(file.direct(), nowait::DirectIo::Granted { .. });
    assert_eq!(inspect(&there).wait().unwrap().direct, is_direct && can);
    let (log, recovery) = Log::open(&there, &Options::new()).wait().unwrap();
    assert_eq!((log.is_direct(), recovery.direct), (is_direct && can, is_direct && can));
    let mut tickets: Vec<_> = (0..100).map(|_| log.append(&[1; 3000]).wait().unwrap()).collect();
    tickets.iter_mut().for_each(|ticket| drop(common::poll_once(Pin::new(ticket))));
    for ticket in tickets {
        ticket.wait().unwrap();
    }
    if !can {
        assert_eq!(log.stats().in_flight.max, 1);
        assert_eq!(log.strategy(), Strategy { durability: Durability::WriteAndSync, by: Submitter::Call, depth: 1 });
    }
    log.close().wait().unwrap();
    // Where it came from it is as it was.
    assert_eq!(inspect(&path).wait().unwrap().direct, is_direct);
    let (mut reader, _) = read(&there, 1).wait().unwrap();
    assert_eq!(reader.next().wait().unwrap().unwrap().bytes, record(1));
}

/// Whatever bytes change: a salvage gives a log that opens, with what it said it has, and gives no
/// number again that it knows of.
#[test]
fn what_was_salvaged_opens_whatever_had_changed() {
    let good: Vec<(PathBuf, Vec<u8>)> = {
        let sim = Sim::new(1);
        let nowait = on(&sim);
        let mut last = 0;
        // Three lives, a cut, and segments that were used again.
        for life in 0..3 {
            let (log, _) = Log::open(DIR, &simulated(&nowait)).wait().unwrap();
            for _ in 0..15 {
                last += 1;
                assert_eq!(log.append(&record(last)).wait().unwrap().wait().unwrap(), last);
                log.maintain();
            }
            if life == 1 {
                last -= 3;
                log.truncate_suffix(last).wait().unwrap();
                log.truncate_prefix(8);
            }
            while log.maintain() {}
        }
        let names = nowait.fs().read_dir_names(DIR).wait().unwrap();
        let path = |name| Path::new(DIR).join(name);
        names.iter().map(|name| (path(name), sim.contents(path(name)).unwrap())).collect()
    };
    let mut random = Rng::for_test();
    let (mut refused, mut salvaged, mut whole) = (0, 0, 0);
    for round in 0..600 {
        let mut files = good.clone();
        for _ in 0..1 + random.below(4) {
            let (file, other) = (random.below(files.len()), random.below(files.len()));
            let length = files[file].1.len();
            match random.below(8) {
                0 => files[file].1 = files[other].1.clone(),
                1 => files[file].1.truncate(random.below(length + 1)),
                2 if files.len() > 1 => drop(files.remove(file)),
                3 if length >= 4096 => {
                    let page = random.below(length / 4096) * 4096;
                    files[file].1[page..page + 4096].fill(0);
                }
                _ if length > 0 => {
                    let at = random.below(length);
                    let at = if random.below(2) == 0 { at / 4096 * 4096 + at % 112 } else { at };
                    files[file].1[at.min(length - 1)] ^= 1 << random.below(8);
                }
                _ => {}
            }
        }
        let sim = Sim::new(round);
        files.iter().for_each(|(path, bytes)| sim.create(path, bytes.clone()));
        let nowait = on(&sim);
        let what = format!("round {round}");
        let options = simulated(&nowait).create(false);
        let Ok((reader, found)) = read_in(&nowait, DIR, 1).wait() else {
            refused += 1;
            continue;
        };
        for damage in &found.damage {
            assert!(
                damage.lsns.start <= damage.lsns.end && damage.bytes.start <= damage.bytes.end,
                "{what}: {damage:?}"
            );
        }
        drop(reader);
        let first = found.behind.first().map_or(found.first_lsn, |behind| behind.start.min(found.first_lsn));
        let (there, _) = read_all(read_in(&nowait, DIR, first).wait().unwrap().0);
        let listed = found.behind.iter().cloned().flatten().chain(found.first_lsn..=found.last_lsn);
        assert_eq!(there, listed.collect(), "{what}: {found:?}");
        whole += usize::from(found.damage.is_empty());
        assert_eq!(Log::open(DIR, &options).wait().is_err(), !found.damage.is_empty(), "{what}: {found:?}");
        if found.damage.is_empty() {
            continue;
        }
        let (log, recovery) = Log::open(DIR, &options.clone().salvage(true)).wait().unwrap();
        salvaged += 1;
        assert_eq!(
            (recovery.first_lsn, recovery.last_lsn, recovery.next_lsn),
            (found.first_lsn, found.last_lsn, found.next_lsn)
        );
        let lsn = log.append(&record(found.next_lsn)).wait().unwrap().wait().unwrap();
        assert_eq!(lsn, found.next_lsn, "{what}: {found:?}");
        assert!(there.last().is_none_or(|last| *last < lsn), "{what}: {found:?}");
        drop(log);
        let (log, again) = Log::open(DIR, &options).wait().unwrap_or_else(|error| panic!("{what}: {error}, {found:?}"));
        assert_eq!((again.last_lsn, again.damage), (lsn, vec![]), "{what}: {found:?}");
        let kept: BTreeSet<u64> = (found.first_lsn..=found.last_lsn).chain([lsn]).collect();
        assert_eq!(read_all(log.reader(found.first_lsn)), (kept.clone(), vec![]), "{what}: {found:?}");
        // Whole records are in the log, or aside.
        let aside = read_all(read_aside_in(&nowait, DIR).wait().unwrap()).0;
        assert!(there.iter().all(|lsn| kept.contains(lsn) || aside.contains(lsn)), "{what}: {found:?}");
    }
    println!("{refused} refused, {salvaged} salvaged, {whole} had no damage");
    assert!(salvaged > 100 && whole > 20);
}

/// Changes bytes of a file that a log may have open.
fn change_in_place(sim: &Sim, path: &Path, change: impl FnOnce(&mut [u8])) {
    let mut bytes = sim.contents(path).unwrap();
    change(&mut bytes);
    let file = nowait::OpenOptions::new().write(true).open_in(&on(sim), path).wait().unwrap();
    file.write_all_from(&bytes, 0).unwrap();
}

/// An open log whose records are in segments, and not in memory any more: an idle one that several
/// segments hold, each record in a block.
fn idle(sim: &Sim, last: u64) -> Log {
    let nowait = on(sim);
    let (log, _) = Log::open(DIR, &simulated(&nowait).segment_bytes(64 << 10).tail_bytes(0)).wait().unwrap();
    for lsn in 1..=last {
        assert_eq!(log.append(&record(lsn)).wait().unwrap().wait().unwrap(), lsn);
        log.maintain();
    }
    while log.maintain() {}
    log
}

/// Symptom: a reader of an open log could not continue behind the first flipped bit, although
/// intact records followed.
#[test]
fn a_reader_of_an_open_log_goes_on_behind_damage_where_asked_to() {
    const LAST: u64 = 40;
    for victim in 1..=LAST {
        // The block's header, and the record.
        for at in [24, 70] {
            let sim = Sim::new(victim);
            let log = idle(&sim, LAST);
            let hit = segments(&sim).into_iter().find_map(|path| {
                let (place, _) = blocks(&sim.contents(&path)?).into_iter().find(|(_, lsn)| *lsn == victim)?;
                change_in_place(&sim, &path, |bytes| bytes[place + at] ^= 1);
                Some((path, place as u64))
            });
            let (path, place) = hit.unwrap();
            let mut reader = log.reader(1);
            let asking = Asking::next_way();
            for lsn in 1..victim {
                assert_eq!(asking.next(&mut reader, || {}).unwrap().unwrap().lsn, lsn);
            }
            // Unless it is asked to, it stays.
            for _ in 0..3 {
                let error = asking.next(&mut reader, || {}).unwrap_err();
                assert!(error.kind() == ErrorKind::Damaged && reader.next_lsn() == victim, "{error}");
            }
            reader.skip_damage(true);
            let error = asking.next(&mut reader, || {}).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
            assert!(error.to_string().contains(&format!("record {victim} is lost")), "{error}");
            let damage = reader.damage().unwrap().clone();
            assert_eq!((damage.path, damage.lsns), (path, victim..victim + 1));
            assert!((place..place + 4096).contains(&damage.bytes.start), "{:?}", damage.bytes);
            for lsn in victim + 1..=LAST {
                let found = asking.next(&mut reader, || {}).unwrap().unwrap();
                assert!(found.lsn == lsn && found.bytes == record(lsn), "{lsn} behind {victim}");
            }
            assert!(asking.next(&mut reader, || {}).unwrap().is_none());
            // What comes is read, too.
            assert_eq!(log.append(&record(LAST + 1)).wait().unwrap().wait().unwrap(), LAST + 1);
            assert_eq!(asking.next(&mut reader, || {}).unwrap().unwrap().lsn, LAST + 1);
        }
    }
}

/// A reader returns all intact records, in blocks of several records and across segments.
#[test]
fn a_reader_of_an_open_log_loses_no_more_than_what_was_hit() {
    for seed in 1..=60 {
        let mut random = Rng::new(seed);
        let sim = Sim::new(seed);
        let nowait = on(&sim);
        let (log, _) = Log::open(DIR, &simulated(&nowait).segment_bytes(64 << 10).tail_bytes(0)).wait().unwrap();
        let mut last = 0;
        while last < 120 {
            let count = 1 + random.below(6) as u64;
            let batch: Vec<Vec<u8>> = (last + 1..=last + count).map(record).collect();
            log.append_batch(batch.iter().map(Vec::as_slice)).wait().unwrap().wait().unwrap();
            log.maintain();
            last += count;
        }
        while log.maintain() {}
        for _ in 0..1 + random.below(4) {
            let paths = segments(&sim);
            let path = &paths[random.below(paths.len())];
            let length = sim.contents(path).unwrap().len();
            let at = 4096 + random.below(length - 4096);
            change_in_place(&sim, path, |bytes| {
                let end = bytes.len().min(at + if seed % 3 == 0 { 9000 } else { 1 });
                bytes[at..end].iter_mut().for_each(|byte| *byte ^= 0x10);
            });
        }
        let mut reader = log.reader(1);
        reader.skip_damage(true);
        let mut lost = BTreeSet::new();
        let mut found = BTreeSet::new();
        let asking = Asking::next_way();
        loop {
            match asking.next(&mut reader, || {}) {
                Ok(None) => break,
                Ok(Some(next)) => {
                    assert!(next.bytes == record(next.lsn) && found.insert(next.lsn), "seed {seed}: {}", next.lsn);
                    continue;
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::Damaged, "seed {seed}: {error}"),
            }
            let damage = reader.damage().unwrap();
            assert!(
                !damage.lsns.is_empty() && damage.lsns.clone().all(|lsn| lost.insert(lsn)),
                "seed {seed}: {damage}"
            );
        }
        assert!(found.is_disjoint(&lost) && found.len() + lost.len() == last as usize, "seed {seed}");
        // As many as a look at the files finds.
        let (whole, _) = read_all(read_in(&nowait, DIR, 1).wait().unwrap().0);
        assert!(found.is_superset(&whole), "seed {seed}: {:?}", whole.difference(&found).collect::<Vec<_>>());
    }
}
