//! Logs of which only the end is read when they are opened: what is found is what a full scan finds,
//! and a large log is opened as fast as a small one.

#[path = "../../nowait/tests/common/mod.rs"]
mod common;

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use common::mounts;
use common::on;
use common::rng::Rng;
use nowait::sim::Sim;
use nowait::{ErrorKind, Nowait};
use nowait_log::{Durability, Log, Options, Recovery, Scan, Strategy, Submitter, SyncPolicy, inspect_in};

const DIR: &str = "/log";

fn options(nowait: &Nowait, depth: u32) -> Options {
    let strategy = Strategy { durability: Durability::Write, by: Submitter::Call, depth };
    let options = Options::new().create(true).instance(nowait).sync(SyncPolicy::Fixed(strategy));
    options.segment_bytes(4 << 20).maintenance(false).pending_bytes_max(64 << 20)
}

/// Opens a copy of a disk; what was found, and what a full scan finds.
fn open_both(sim: &Sim, what: &str) -> (Recovery, Recovery) {
    let copy = sim.crash(|_, _| true);
    let full = inspect_in(&on(&copy), DIR).wait().unwrap_or_else(|error| panic!("{what}: {error}"));
    let options = options(&on(&copy), 1).create(false).scan(Scan::Tail);
    let (_, tail) = Log::open(DIR, &options).wait().unwrap_or_else(|error| panic!("{what}: {error}, {full:?}"));
    let of = |found: &Recovery| {
        let Recovery { first_lsn, last_lsn, next_lsn, epoch, segments, closed, .. } = *found;
        (first_lsn, last_lsn, next_lsn, epoch, segments, closed, found.gaps.clone(), found.torn.clone())
    };
    assert_eq!(of(&tail), of(&full), "{what}");
    assert_eq!(tail.damage, [], "{what}");
    (tail, full)
}

/// Logs of many lives, in blocks of one page and of hundreds, with segments that are used again; the
/// power fails at any time.
#[test]
fn the_end_is_found_as_by_a_full_scan() {
    let mut random = Rng::for_test();
    let (mut by_tail, mut in_all, mut torn) = (0, 0, 0);
    for round in 0..25u64 {
        let mut sim = Sim::manual(round);
        for life in 0..3 {
            let nowait = on(&sim);
            let depth = 1 + random.below(4) as u32;
            let options = options(&nowait, depth).scan(if random.below(2) == 0 { Scan::Tail } else { Scan::All });
            let (log, recovery) = Log::open(DIR, &options).wait().unwrap();
            let large = [200, 4000, 30_000, 700_000][random.below(4)];
            let mut tickets = Vec::new();
            for _ in 0..random.below(40) {
                let length = 1 + random.below(large);
                let Ok(mut ticket) = log.try_append(&vec![life; length]) else {
                    while log.maintain() || sim.step() {}
                    continue;
                };
                match random.below(3) {
                    0 => _ = common::poll_once(std::pin::Pin::new(&mut ticket)).is_ready(),
                    1 => while sim.step() {},
                    _ => {}
                }
                tickets.push(ticket);
                if random.below(8) == 0 {
                    log.truncate_prefix(log.durable_lsn());
                }
                if random.below(3) == 0 {
                    let what = format!("round {round}, life {life}, {recovery:?}");
                    let (tail, _) = open_both(&sim.crash_at_random(random.next()), &what);
                    by_tail += usize::from(tail.scan == Scan::Tail);
                    in_all += usize::from(tail.scan == Scan::All);
                    torn += usize::from(tail.torn.is_some());
                }
            }
            while sim.step() {}
            let open = if random.below(2) == 0 {
                log.close().wait().unwrap();
                let (tail, full) = open_both(&sim, &format!("round {round}, life {life}, closed"));
                assert!(tail.closed && tail.scan == Scan::Tail, "{full:?}");
                None
            } else {
                Some(log)
            };
            let crashed = sim.crash_at_random(random.next());
            drop((tickets, open));
            while sim.step() {}
            sim = crashed;
        }
    }
    println!("{by_tail} by the tail, {in_all} had to be read as a whole; {torn} were torn");
    assert!(by_tail > 10 * in_all.max(1) && torn > 5);
}

/// Damage that a tail-only opening has to find: at the end, and of headers; and damage that it leaves
/// to readers.
#[test]
fn damage_at_the_end_is_found() {
    let sim = Sim::new(1);
    let nowait = on(&sim);
    let small = options(&nowait, 1).segment_bytes(64 << 10);
    let (log, _) = Log::open(DIR, &small).wait().unwrap();
    for _ in 0..60 {
        log.append(&[1; 3000]).wait().unwrap().wait().unwrap();
        log.maintain();
    }
    // Killed: the last block is not covered.
    let killed = sim.crash(|_, _| true);
    log.close().wait().unwrap();
    let names = nowait.fs().read_dir_names(DIR).wait().unwrap();
    let paths = names.iter().map(|name| Path::new(DIR).join(name));
    let used = |path: &std::path::PathBuf| sim.contents(path).is_some_and(|bytes| bytes.starts_with(b"nwlogseg"));
    let mut segments: Vec<_> = paths.filter(|path| path.extension().is_some_and(|end| end == "seg")).collect();
    segments.retain(used);
    let with = |from: &Sim, path: &Path, at: usize| {
        let copy = from.crash(|_, _| true);
        let mut bytes = copy.contents(path).unwrap();
        bytes[at] ^= 1;
        copy.create(path, bytes);
        let tail = small.clone().instance(&on(&copy)).create(false).scan(Scan::Tail);
        (Log::open(DIR, &tail).wait(), copy, tail)
    };
    // A header of any segment but the first of the epoch, which has a copy.
    for path in &segments[1..] {
        let (opened, ..) = with(&sim, path, 100);
        assert_eq!(opened.unwrap_err().kind(), ErrorKind::Damaged, "{}", path.display());
    }
    // A record in an old segment: readers come upon it, a full scan does, and a salvage leaves it out.
    let (opened, copy, tail) = with(&sim, &segments[1], 3 * 4096 + 500);
    let (log, recovery) = opened.unwrap();
    assert_eq!((recovery.scan, recovery.last_lsn, &recovery.damage[..]), (Scan::Tail, 60, &[][..]));
    let mut reader = log.reader(1);
    let error = loop {
        match reader.next().wait() {
            Ok(found) => assert!(found.is_some(), "the damage was passed over"),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
    log.close().wait().unwrap();
    assert_eq!(inspect_in(&on(&copy), DIR).wait().unwrap().damage.len(), 1);
    assert_eq!(Log::open(DIR, &tail.clone().scan(Scan::All)).wait().unwrap_err().kind(), ErrorKind::Damaged);
    let (_, salvaged) = Log::open(DIR, &tail.salvage(true)).wait().unwrap();
    assert_eq!((salvaged.scan, salvaged.damage.len()), (Scan::All, 1));
    // Any byte of the last blocks that were acknowledged and that no watermark covers, or one does.
    let newest = segments.last().unwrap();
    let bytes = killed.contents(newest).unwrap();
    let last = (4096..bytes.len()).step_by(4096).rfind(|at| bytes[*at..].starts_with(b"nwbk")).unwrap();
    for at in (last - 4096..last + 4096).step_by(97) {
        let (opened, copy, _) = with(&killed, newest, at);
        let full = inspect_in(&on(&copy), DIR).wait().unwrap();
        match opened {
            Ok((_, recovery)) => {
                assert_eq!((recovery.last_lsn, recovery.damage.len()), (full.last_lsn, full.damage.len()), "byte {at}");
            }
            Err(error) => assert!(error.kind() == ErrorKind::Damaged && !full.damage.is_empty(), "byte {at}"),
        }
    }
}

/// Puts fields one after the other.
fn put(page: &mut [u8], at: usize, fields: &[&[u8]]) {
    let bytes = fields.concat();
    page[at..at + bytes.len()].copy_from_slice(&bytes);
}

/// A page with a checksum over what lies behind it.
fn sealed(magic: &[u8; 8], fields: &[&[u8]]) -> Vec<u8> {
    let mut page = vec![0; 4096];
    put(&mut page, 0, &[magic, &[0; 4], &2u32.to_le_bytes()]);
    put(&mut page, 16, fields);
    let crc = crc32c::crc32c(&page[12..]);
    put(&mut page, 8, &[&crc.to_le_bytes()]);
    page
}

/// 10 GiB in segments of 64 MiB, made by docs/log-format.md: headers, and blocks in the newest. The
/// rest are holes, since nothing reads it.
#[test]
fn ten_gibibytes_are_opened_by_their_end() {
    const SEGMENT: u64 = 64 << 20;
    const SEGMENTS: u64 = 160;
    const EACH: u64 = 10_000;
    let dir = mounts::temp_dir();
    let path = dir.path().join("log");
    fs::create_dir(&path).unwrap();
    let id = *b"sixteen bytes id";
    let long = u64::to_le_bytes;
    let short = u32::to_le_bytes;
    // (Fields of later versions of the library are behind these: zero.)
    let control = [&id[..], &long(SEGMENT), &short(1), &short(2), &short(1), &short(1)];
    fs::write(path.join("control"), [sealed(b"nwlogctl", &control), sealed(b"nwlogctl", &control)].concat()).unwrap();
    for number in 1..=SEGMENTS {
        let mut file = File::create_new(path.join(format!("{number:020}.seg"))).unwrap();
        file.set_len(SEGMENT).unwrap();
        let last = (number - 1) * EACH;
        let (before, end) = if number == 1 { (0, 0) } else { (number - 1, SEGMENT - 8192) };
        let numbers = [number, 1, SEGMENT, last + 1, last, before, end, last, 0].map(long).concat();
        let header = sealed(b"nwlogseg", &[&id, &numbers]);
        file.write_all(&header).unwrap();
        // Or the reads past the page cache have it written first.
        file.sync_all().unwrap();
    }
    // One record a page, each of which covers the one before.
    let mut newest = File::options().write(true).open(path.join(format!("{SEGMENTS:020}.seg"))).unwrap();
    newest.seek(SeekFrom::Start(4096)).unwrap();
    let seed = crc32c::crc32c(&[&id[..], &long(SEGMENTS), &long(1)].concat());
    let first = (SEGMENTS - 1) * EACH + 1;
    for index in 0..EACH {
        let (lsn, at) = (first + index, 4096 + 4096 * index);
        let mut page = vec![0; 4096];
        put(&mut page, 64 + 4, &[&short(100), &[3], &[7; 100]]);
        let crc = crc32c::crc32c_append(seed ^ lsn as u32, &page[68..173]);
        put(&mut page, 64, &[&short(crc)]);
        let frames = crc32c::crc32c(&page[64..73]);
        let numbers = [long(1), long(at), long(lsn), long(lsn - 1)].concat();
        put(&mut page, 8, &[&numbers, &short(109), &short(1), &short(0), &short(frames)]);
        let crc = crc32c::crc32c_append(seed, &page[8..64]);
        put(&mut page, 0, &[b"nwbk", &short(crc)]);
        newest.write_all(&page).unwrap();
    }
    newest.sync_all().unwrap();
    drop(newest);
    let options = Options::new().scan(Scan::Tail).maintenance(false);
    let (log, recovery) = Log::open(&path, &options).wait().unwrap();
    println!("{} bytes in {:?}", recovery.bytes_read, recovery.elapsed);
    assert_eq!((recovery.scan, recovery.last_lsn, recovery.segments), (Scan::Tail, SEGMENTS * EACH, SEGMENTS as usize));
    // The log was not closed: the rest of its newest segment is searched, too.
    assert!(recovery.bytes_read < SEGMENTS * 8192 + SEGMENT - EACH * 4096 + (6 << 20), "{recovery:?}");
    let mut reader = log.reader(SEGMENTS * EACH);
    let last = reader.next().wait().unwrap().unwrap();
    assert_eq!((last.kind, last.bytes), (3, &[7; 100][..]));
    log.close().wait().unwrap();
}
