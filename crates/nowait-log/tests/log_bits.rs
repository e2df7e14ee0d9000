//! Every bit of a small log, flipped: exactly the records that it belongs to are lost, they are
//! named with their place, and nothing else changes.

#[path = "../../nowait/tests/common/mod.rs"]
mod common;
mod reading;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use common::on;
use common::rng::Rng;
use nowait::sim::Sim;
use nowait::{ErrorKind, Nowait};
use nowait_log::{
    Durability, Entry, Log, Options, Reader, Recovery, Strategy, Submitter, SyncPolicy, inspect_in, read_in,
};
use reading::Asking;

const DIR: &str = "/log";
const HEADER: usize = 64;
const FRAME: usize = 9;

type Records = BTreeMap<u64, (u8, Vec<u8>)>;
type Files = Vec<(PathBuf, Vec<u8>)>;

fn options(nowait: &Nowait) -> Options {
    let strategy = Strategy { durability: Durability::Write, by: Submitter::Call, depth: 1 };
    Options::new()
        .create(true)
        .instance(nowait)
        .segment_bytes(16 << 10)
        .sync(SyncPolicy::Fixed(strategy))
        .maintenance(false)
}

fn files_of(sim: &Sim) -> Files {
    let names = on(sim).fs().read_dir_names(DIR).wait().unwrap();
    let paths = names.iter().map(|name| Path::new(DIR).join(name));
    paths.map(|path| (path.clone(), sim.contents(&path).unwrap())).collect()
}

fn disk_of(files: &Files, changed: usize, bytes: &[u8]) -> Sim {
    let sim = Sim::new(1);
    for (index, (path, good)) in files.iter().enumerate() {
        sim.create(path, if index == changed { bytes.to_vec() } else { good.clone() });
    }
    sim
}

/// A closed log of batches and kinds, in several segments.
fn log(random: &mut Rng) -> (Files, Records) {
    let sim = Sim::manual(1);
    let nowait = on(&sim);
    let (log, _) = Log::open(DIR, &options(&nowait)).wait().unwrap();
    let mut records = Records::new();
    while log.stats().rotations < 1 || records.len() < 16 {
        let batch: Vec<(u8, Vec<u8>)> = (0..1 + random.below(5))
            .map(|_| (random.next() as u8, (0..random.below(40)).map(|_| random.next() as u8).collect()))
            .collect();
        let entries = batch.iter().map(|(kind, bytes)| Entry { kind: *kind, bytes });
        let last = log.append_batch(entries).wait().unwrap().wait().unwrap();
        records.extend((last + 1 - batch.len() as u64..).zip(batch));
        while log.stats().spares == 0 {
            assert!(log.maintain());
        }
        if random.below(4) == 0 {
            // A watermark block in between.
            sim.advance(Duration::from_millis(20));
            while log.maintain() {}
        }
    }
    log.close().wait().unwrap();
    (files_of(&sim), records)
}

/// What a place in a segment's file is for.
#[derive(Clone, Debug, PartialEq)]
enum Place {
    /// The segment's header, or its copy; padding; what is not used.
    Other,
    /// Header of the block with these records.
    Header(Range<u64>),
    /// Frame of a record, and the records from there to the end of the block.
    Frame(Range<u64>),
    Record(u64),
}

/// Takes a segment's file apart, by docs/log-format.md; `last` records count.
fn places(bytes: &[u8], last: u64) -> Vec<Place> {
    let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let short = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
    let mut places = vec![Place::Other; bytes.len()];
    if !bytes.starts_with(b"nwlogseg") {
        return places;
    }
    let mut at = 4096;
    while at < bytes.len() && bytes[at..].starts_with(b"nwbk") && number(at + 16) == at as u64 {
        let (first, records) = (number(at + 24), short(at + 44) as u64);
        let lsns = first..first + records;
        assert!(lsns.end <= last + 1);
        places[at..at + HEADER].fill(Place::Header(lsns.clone()));
        let mut frame = at + HEADER;
        for lsn in lsns.clone() {
            let end = frame + FRAME + short(frame + 4);
            places[frame..frame + FRAME].fill(Place::Frame(lsn..lsns.end));
            places[frame + FRAME..end].fill(Place::Record(lsn));
            frame = end;
        }
        assert_eq!(frame, at + HEADER + short(at + 40));
        at = frame.next_multiple_of(4096);
    }
    places
}

/// Reads to the end; the records, and how often damage was told.
fn read_all(mut reader: Reader) -> (Records, usize) {
    let (mut read, mut told) = (Records::new(), 0);
    let asking = Asking::next_way();
    loop {
        match asking.next(&mut reader, || {}) {
            Ok(None) => return (read, told),
            Ok(Some(found)) => _ = read.insert(found.lsn, (found.kind, found.bytes.to_vec())),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
                told += 1;
                assert!(told < 100);
            }
        }
    }
}

/// Flips a bit, and compares what is found with what has to be.
fn check(files: &Files, records: &Records, good: &Recovery, index: usize, at: usize, place: &Place, bit: usize) {
    let (path, bytes) = &files[index];
    let what = format!("{} byte {at} bit {bit}, {place:?}", path.display());
    let mut bad = bytes.clone();
    bad[at] ^= 1 << bit;
    let sim = disk_of(files, index, &bad);
    let nowait = on(&sim);
    let lost: BTreeSet<u64> = match place {
        Place::Other => BTreeSet::new(),
        Place::Header(lsns) | Place::Frame(lsns) => lsns.clone().collect(),
        Place::Record(lsn) => BTreeSet::from([*lsn]),
    };
    let (reader, found) = read_in(&nowait, DIR, 1).wait().unwrap_or_else(|error| panic!("{what}: {error}"));
    let (read, told) = read_all(reader);
    let left: Records = records.iter().filter(|(lsn, _)| !lost.contains(lsn)).map(|(l, r)| (*l, r.clone())).collect();
    assert_eq!(read, left, "{what}: {found:?}");
    assert_eq!((found.first_lsn, found.next_lsn, found.epoch), (1, good.next_lsn, good.epoch), "{what}: {found:?}");
    let named: Vec<u64> = found.damage.iter().flat_map(|damage| damage.lsns.clone()).collect();
    assert!(named.iter().copied().eq(lost.iter().copied()), "{what}: {found:?}");
    let listed = found.behind.iter().cloned().flatten().chain(1..=found.last_lsn);
    assert!(listed.collect::<BTreeSet<u64>>().iter().eq(left.keys()), "{what}: {found:?}");
    if lost.is_empty() {
        // A block without records, or a header: damage may be told, and costs nothing.
        return;
    }
    let [damage] = &found.damage[..] else { panic!("{what}: {found:?}") };
    assert_eq!(&damage.path, path, "{what}");
    assert!(damage.bytes.contains(&(at as u64)) && told == 1, "{what}: {damage:?}, told {told} times");
    if let Place::Record(lsn) = place {
        let length = FRAME + records[lsn].1.len();
        assert_eq!(damage.bytes.end - damage.bytes.start, length as u64, "{what}: {damage:?}");
    }
    let first = *lost.first().unwrap();
    assert_eq!(found.last_lsn, first - 1, "{what}: {found:?}");
    assert_eq!(found.torn, None, "{what}");
    if (at + bit) % 16 != 0 {
        return;
    }
    assert_eq!(Log::open(DIR, &options(&nowait)).wait().unwrap_err().kind(), ErrorKind::Damaged, "{what}");
    let (log, recovery) = Log::open(DIR, &options(&nowait).salvage(true)).wait().unwrap();
    assert_eq!((recovery.last_lsn, recovery.next_lsn), (first - 1, good.next_lsn), "{what}");
    let next = log.append_kind(7, b"after").wait().unwrap().wait().unwrap();
    assert_eq!(next, good.next_lsn, "{what}");
    let mut kept: Records = records.range(..first).map(|(lsn, record)| (*lsn, record.clone())).collect();
    kept.insert(next, (7, b"after".to_vec()));
    assert_eq!(read_all(log.reader(1)), (kept.clone(), 0), "{what}");
    log.close().wait().unwrap();
    let (reader, again) = read_in(&nowait, DIR, 1).wait().unwrap();
    assert_eq!((again.damage.len(), again.last_lsn), (0, next), "{what}: {again:?}");
    assert!(again.gaps.iter().cloned().flatten().eq(first..next), "{what}: {again:?}");
    assert_eq!(read_all(reader), (kept, 0), "{what}");
    // Nothing whole is gone.
    let (aside, _) = read_all(nowait_log::read_aside_in(&nowait, DIR).wait().unwrap());
    assert!(left.iter().all(|(lsn, record)| *lsn < first || aside.get(lsn) == Some(record)), "{what}");
    // Opened, and cut in the block that is not whole.
    let (log, _) = Log::open(DIR, &options(&nowait)).wait().unwrap();
    if first > 2 {
        log.truncate_suffix(first - 2).wait().unwrap();
        assert_eq!(inspect_in(&nowait, DIR).wait().unwrap().last_lsn, first - 2, "{what}");
    }
    log.close().wait().unwrap();
}

#[test]
fn a_flipped_bit_costs_its_record() {
    let mut random = Rng::for_test();
    let (files, records) = log(&mut random);
    let last = records.len() as u64;
    let good = {
        let sim = disk_of(&files, usize::MAX, &[]);
        let (reader, good) = read_in(&on(&sim), DIR, 1).wait().unwrap();
        assert_eq!(read_all(reader), (records.clone(), 0));
        good
    };
    assert!(good.closed && good.damage.is_empty() && good.last_lsn == last, "{good:?}");
    let mut bits = Vec::new();
    let mut count = [0; 4];
    for (index, (path, bytes)) in files.iter().enumerate() {
        let is_segment = path.extension().is_some_and(|end| end == "seg");
        let places = if is_segment { places(bytes, last) } else { vec![Place::Other; bytes.len()] };
        for (at, place) in places.into_iter().enumerate() {
            match place {
                // One bit in some bytes of what is not a record's.
                Place::Other if random.below(8) > 0 => {}
                Place::Other => bits.push((index, at, place, random.below(8))),
                place => bits.extend((0..8).map(|bit| (index, at, place.clone(), bit))),
            }
        }
    }
    for (.., place, _) in &bits {
        count[match place {
            Place::Other => 0,
            Place::Header(_) => 1,
            Place::Frame(_) => 2,
            Place::Record(_) => 3,
        }] += 1;
    }
    println!("{last} records; bits elsewhere, in headers, frames, records: {count:?}");
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, |count| count.get()) {
            scope.spawn(|| {
                while let Some((index, at, place, bit)) = bits.get(next.fetch_add(1, Relaxed)) {
                    check(&files, &records, &good, *index, *at, place, *bit);
                }
            });
        }
    });
}
