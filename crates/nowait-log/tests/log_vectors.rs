//! Small logs in the repository, byte by byte as this library writes them; and what a reader in
//! Python, written by docs/log-format.md alone, finds in them.
//!
//! `NOWAIT_WRITE_VECTORS=1` writes them anew, where the format has changed.

#[path = "../../nowait/tests/common/mod.rs"]
mod common;

use std::fmt::Write;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::Command;
use std::time::Duration;

use common::rng::Rng;
use common::{eventually, mounts, on};
use nowait::sim::Sim;
use nowait::{ErrorKind, Nowait};
use nowait_log::{Durability, Entry, Log, Options, Strategy, Submitter, SyncPolicy, read, read_in};

const DIR: &str = "/log";
const SEGMENT_BYTES: u64 = 16 << 10;

type Files = Vec<(String, Vec<u8>)>;

fn options(nowait: &Nowait) -> Options {
    let strategy = Strategy { durability: Durability::Write, by: Submitter::Call, depth: 1 };
    Options::new().instance(nowait).sync(SyncPolicy::Fixed(strategy)).maintenance(false)
}

/// An empty log that has always the same identity: its control file, and a segment of zeros.
fn empty(segment_bytes: u64) -> Sim {
    let sim = Sim::manual(1);
    let mut page = vec![0; 4096];
    page[..8].copy_from_slice(b"nwlogctl");
    let fields = [2u32, 0x7463_6576, 0x2073_726f, 0x6c20_666f, 0x2173_676f, segment_bytes as u32, 0, 1, 2, 1, 1];
    page[12..56].copy_from_slice(&fields.map(u32::to_le_bytes).concat());
    let crc = crc32c::crc32c(&page[12..]);
    page[8..12].copy_from_slice(&crc.to_le_bytes());
    sim.create(format!("{DIR}/control"), page.repeat(2));
    sim.create(format!("{DIR}/00000000000000000001.seg"), vec![0; segment_bytes as usize]);
    sim
}

fn record(lsn: u64) -> Vec<u8> {
    let mut random = Rng::new(lsn);
    (0..1 + random.below(120)).map(|_| random.next() as u8).collect()
}

fn commit(log: &Log, batch: &[(u8, Vec<u8>)]) {
    let entries = batch.iter().map(|(kind, bytes)| Entry { kind: *kind, bytes });
    log.append_batch(entries).wait().unwrap().wait().unwrap();
    while log.stats().spares == 0 {
        assert!(log.maintain());
    }
}

fn files(sim: &Sim) -> Files {
    let names = on(sim).fs().read_dir_names(DIR).wait().unwrap();
    let names = names.into_iter().map(|name| name.into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name == "control" || name.ends_with(".seg")).collect();
    names.sort();
    let file = |name: String| (name.clone(), sim.contents(format!("{DIR}/{name}")).unwrap());
    names.into_iter().map(file).collect()
}

fn open(sim: &Sim) -> Log {
    Log::open(DIR, &options(&on(sim))).wait().unwrap().0
}

/// True if a segment has a block whose first record was in an earlier segment.
fn is_used_again(bytes: &[u8]) -> bool {
    let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let is_older = |at: usize| bytes[at..].starts_with(b"nwbk") && number(at + 24) < number(56);
    bytes.starts_with(b"nwlogseg")
        && bytes[4096..].starts_with(b"nwbk")
        && (8192..bytes.len()).step_by(4096).any(is_older)
}

/// The logs: name, files, the records that were acknowledged and not given up, and those of them
/// that are lost.
fn vectors() -> Vec<(&'static str, Files, Range<u64>, Vec<u64>)> {
    let mut vectors = Vec::new();
    let sim = empty(SEGMENT_BYTES);
    let log = open(&sim);
    for lsn in 1..=3 {
        commit(&log, &[(0, record(lsn))]);
    }
    log.close().wait().unwrap();
    vectors.push(("plain", files(&sim), 1..4, vec![]));

    let sim = empty(SEGMENT_BYTES);
    let log = open(&sim);
    for first in [1, 4, 7] {
        let batch: Vec<(u8, Vec<u8>)> = (first..first + 3).map(|lsn| (lsn as u8 * 28, record(lsn))).collect();
        commit(&log, &batch);
    }
    log.close().wait().unwrap();
    let mut batches = files(&sim);
    vectors.push(("batches", batches.clone(), 1..10, vec![]));

    // A bit of record 5: 9 bytes of frame before it, and a record of the same block.
    let place = |bytes: &[u8]| {
        let is_block = |at: &usize| bytes[*at..].starts_with(b"nwbk") && bytes[*at + 24] == 4 && bytes[*at + 44] == 3;
        (4096..bytes.len()).step_by(4096).find(is_block)
    };
    let (file, at) = batches.iter().enumerate().find_map(|(file, (_, bytes))| Some((file, place(bytes)?))).unwrap();
    batches[file].1[at + 64 + 9 + record(4).len() + 9] ^= 4;
    vectors.push(("flipped", batches, 1..10, vec![5]));

    // The newest segment is empty: what was cut off before it began is not there again.
    let sim = empty(4 * SEGMENT_BYTES);
    let log = open(&sim);
    for lsn in [1, 2, 3, 104, 105, 106] {
        commit(&log, &[(0, record(lsn))]);
    }
    log.truncate_suffix(3).wait().unwrap();
    for lsn in 4..=7 {
        commit(&log, &[(0, record(lsn))]);
    }
    log.close().wait().unwrap();
    let mut headless = files(&sim);
    let begins_with = |bytes: &[u8], lsn| bytes.starts_with(b"nwlogseg") && bytes[56..64] == u64::to_le_bytes(lsn);
    let (_, newest) = headless.iter_mut().rfind(|(_, bytes)| begins_with(bytes, 4)).unwrap();
    newest.clear();
    vectors.push(("headless", headless, 1..8, vec![4, 5, 6, 7]));

    // A segment that is used again holds blocks of an earlier one behind the end.
    let sim = empty(2 * SEGMENT_BYTES);
    let log = open(&sim);
    let mut last = 0;
    while !files(&sim).iter().any(|(_, bytes)| is_used_again(bytes)) {
        assert!(last < 100);
        last += 1;
        // Given up before the next segment is prepared: of the one that is given up.
        log.append_kind(1, &record(last)).wait().unwrap().wait().unwrap();
        log.truncate_prefix(last);
        while log.maintain() {}
    }
    sim.advance(Duration::from_millis(20));
    while log.maintain() {}
    let reused = files(&sim.crash(|_, _| true));
    assert!(reused.iter().any(|(_, bytes)| is_used_again(bytes)));
    vectors.push(("reused", reused, last..last + 1, vec![]));

    // A batch of which only the first sector is there.
    let sim = empty(SEGMENT_BYTES);
    let log = open(&sim);
    commit(&log, &[(0, record(1))]);
    sim.advance(Duration::from_millis(20));
    while log.maintain() {}
    let batch: Vec<Vec<u8>> = (2..=20).map(record).collect();
    let mut ticket = log.append_batch(batch.iter().map(Vec::as_slice)).wait().unwrap();
    assert!(common::poll_once(Pin::new(&mut ticket)).is_pending());
    vectors.push(("torn", files(&sim.crash(|_, sector| sector % 8 == 0)), 1..2, vec![]));
    while sim.step() {}
    vectors
}

/// What the library finds in a log's directory, as tests/read_log.py prints it.
fn found(dir: &Path) -> String {
    let (mut reader, recovery) = read(dir, 1).wait().unwrap();
    if recovery.first_lsn > 1 {
        reader = read(dir, recovery.first_lsn).wait().unwrap().0;
    }
    let mut text = format!("first {} next {} torn ", recovery.first_lsn, recovery.next_lsn);
    match &recovery.torn {
        Some(place) => {
            writeln!(text, "{} {}", place.path.file_name().unwrap().to_string_lossy(), place.offset).unwrap()
        }
        None => writeln!(text, "nowhere").unwrap(),
    }
    recovery.damage.iter().flat_map(|damage| damage.lsns.clone()).for_each(|lsn| writeln!(text, "lost {lsn}").unwrap());
    loop {
        match reader.next().wait() {
            Ok(None) => return text,
            Ok(Some(record)) => {
                let hex: String = record.bytes.iter().map(|byte| format!("{byte:02x}")).collect();
                writeln!(text, "record {} {} {hex}", record.lsn, record.kind).unwrap();
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::Damaged, "{error}"),
        }
    }
}

/// What the reader in Python finds; None where there is no Python.
fn found_by_python(dir: &Path) -> Option<String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/read_log.py");
    let output = match Command::new("python3").arg(script).arg(dir).output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            println!("skipped: there is no python3");
            return None;
        }
        output => output.unwrap(),
    };
    assert!(output.status.success(), "{}: {}", dir.display(), String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).unwrap().replace("\r\n", "\n"))
}

#[test]
fn vectors_are_as_they_were() {
    let root: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors");
    for (name, files, acknowledged, lost) in vectors() {
        let dir = root.join(name);
        if std::env::var_os("NOWAIT_WRITE_VECTORS").is_some() {
            let _ = fs::remove_dir_all(&dir);
            fs::create_dir_all(&dir).unwrap();
            files.iter().for_each(|(file, bytes)| fs::write(dir.join(file), bytes).unwrap());
        }
        let mut names: Vec<String> =
            fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        assert!(names.iter().eq(files.iter().map(|(file, _)| file)), "{name}: {names:?}");
        for (file, bytes) in &files {
            let known = fs::read(dir.join(file)).unwrap();
            let differs = known.iter().zip(bytes).position(|(known, byte)| known != byte);
            assert!(known == *bytes, "{name}/{file}: another byte at {differs:?}");
        }
        // And read: by the library, on a copy, since what is read is synced, and by Python.
        let temporary = mounts::temp_dir();
        let copy = temporary.path().join("log");
        fs::create_dir(&copy).unwrap();
        files.iter().for_each(|(file, bytes)| fs::write(copy.join(file), bytes).unwrap());
        let text = found(&copy);
        let read: Vec<u64> = (1..200)
            .filter(|lsn| {
                let hex: String = record(*lsn).iter().map(|byte| format!("{byte:02x}")).collect();
                let is_it =
                    |line: &str| line.starts_with(&format!("record {lsn} ")) && line.ends_with(&format!(" {hex}"));
                text.lines().any(is_it)
            })
            .collect();
        let first = *read.first().unwrap();
        assert_eq!(read.len(), text.lines().filter(|line| line.starts_with("record")).count(), "{name}: {text}");
        assert!(first <= acknowledged.start, "{name}: {text}");
        let left = (first..acknowledged.end).filter(|lsn| !lost.contains(lsn));
        assert!(read.iter().copied().eq(left), "{name}: {text}");
        for lsn in &lost {
            assert!(text.contains(&format!("\nlost {lsn}\n")), "{name}: {text}");
        }
        assert_eq!(text.contains("torn nowhere"), name != "torn", "{name}: {text}");
        if let Some(by_python) = found_by_python(&dir) {
            assert_eq!(by_python, text, "{name}");
        }
    }
}

/// A log that was made just now, and copies of it with changed bits.
#[test]
fn python_finds_what_the_library_finds() {
    let mut random = Rng::for_test();
    let dir = mounts::temp_dir();
    let path = dir.path().join("log");
    let options = Options::new().create(true).segment_bytes(64 << 10);
    let strategy = Strategy { durability: Durability::Write, by: Submitter::Call, depth: 1 };
    let options = options.sync(SyncPolicy::Fixed(strategy));
    let mut last = 0;
    for _ in 0..3 {
        let (log, _) = Log::open(&path, &options).wait().unwrap();
        for _ in 0..12 {
            let batch: Vec<(u8, Vec<u8>)> =
                (0..1 + random.below(6)).map(|_| (random.next() as u8, vec![7; random.below(2000)])).collect();
            let entries = batch.iter().map(|(kind, bytes)| Entry { kind: *kind, bytes });
            last = log.append_batch(entries).wait().unwrap().wait().unwrap();
        }
        if random.below(2) == 0 {
            last -= 2;
            log.truncate_suffix(last).wait().unwrap();
        }
        log.close().wait().unwrap();
    }
    let text = found(&path);
    assert!(text.starts_with(&format!("first 1 next {} torn nowhere", last + 1)), "{text}");
    let Some(by_python) = found_by_python(&path) else { return };
    assert!(by_python == text, "{by_python}{text}");
    // A bit in records and frames, not in headers, beside which this reader gives up.
    let mut changed = 0;
    for entry in fs::read_dir(&path).unwrap() {
        let file = entry.unwrap().path();
        let good = fs::read(&file).unwrap();
        if !good.starts_with(b"nwlogseg") {
            continue;
        }
        let blocks: Vec<usize> = (4096..good.len())
            .step_by(4096)
            .filter(|at| good[*at..].starts_with(b"nwbk") && good[*at + 44] > 0)
            .collect();
        for at in blocks.into_iter().step_by(3) {
            let length = u32::from_le_bytes(good[at + 40..at + 44].try_into().unwrap()) as usize;
            let mut bad = good.clone();
            bad[at + 64 + random.below(length)] ^= 1 << random.below(8);
            fs::write(&file, bad).unwrap();
            let (text, by_python) = (found(&path), found_by_python(&path).unwrap());
            assert!(by_python == text, "{} at {at}: {by_python}{text}", file.display());
            changed += 1;
        }
        fs::write(&file, &good).unwrap();
    }
    assert!(changed > 5);
    // Unchanged, and on the simulator as on the disk.
    assert_eq!(found(&path), text);
    let sim = Sim::new(1);
    for entry in fs::read_dir(&path).unwrap() {
        let file = entry.unwrap().path();
        sim.create(Path::new(DIR).join(file.file_name().unwrap()), fs::read(&file).unwrap());
    }
    assert_eq!(read_in(&on(&sim), DIR, 1).wait().unwrap().1.last_lsn, last);
}

/// The watermark block of a log that was idle before its end was cut speaks of records that are gone.
/// It counted in Python always, and here beside damage.
#[test]
fn a_watermark_of_records_that_were_cut_off_says_nothing() {
    let dir = mounts::temp_dir();
    let path = dir.path().join("log");
    let strategy = Strategy { durability: Durability::Write, by: Submitter::Call, depth: 1 };
    let options = Options::new().create(true).segment_bytes(64 << 10).sync(SyncPolicy::Fixed(strategy));
    let (log, _) = Log::open(&path, &options).wait().unwrap();
    for record in [b"one", b"two", b"cut"] {
        log.append(record).wait().unwrap().wait().unwrap();
    }
    assert!(eventually(|| log.stats().watermark_blocks > 0), "the log is idle");
    log.truncate_suffix(2).wait().unwrap();
    log.close().wait().unwrap();
    let text = found(&path);
    assert_eq!(text, "first 1 next 3 torn nowhere\nrecord 1 0 6f6e65\nrecord 2 0 74776f\n");
    found_by_python(&path).inspect(|by_python| assert_eq!(*by_python, text));
    // A bit of the second record.
    let segments = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path());
    let bit = segments.filter_map(|file| {
        let bytes = fs::read(&file).unwrap();
        let at = bytes.windows(3).position(|bytes| bytes == b"two")?;
        Some((file, bytes, at))
    });
    let (file, mut bytes, at) = bit.last().unwrap();
    bytes[at] ^= 1;
    fs::write(&file, bytes).unwrap();
    let text = found(&path);
    assert_eq!(text, "first 1 next 3 torn nowhere\nlost 2\nrecord 1 0 6f6e65\n");
    found_by_python(&path).inspect(|by_python| assert_eq!(*by_python, text));
}
