//! Readers at the end of an open log: served from memory, or from the segments, and never with a
//! record that is not durable or was cut off.

#[path = "../../nowait/tests/common/mod.rs"]
mod common;

use std::thread;

use common::rng::Rng;
use common::{Watchdog, counted_by_system, mounts, on};
use nowait::sim::{Faults, Sim};
use nowait::{ErrorKind, block_on};
use nowait_log::{Durability, Log, Options, Reader, Strategy, Submitter, SyncPolicy};

const DIR: &str = "/log";

fn strategy(by: Submitter, depth: u32) -> SyncPolicy {
    SyncPolicy::Fixed(Strategy { durability: Durability::Write, by, depth })
}

fn on_sim(sim: &Sim, tail_bytes: u64) -> Options {
    Options::new()
        .create(true)
        .instance(&on(sim))
        .segment_bytes(64 << 10)
        .first_segment_bytes(64 << 10)
        .sync(strategy(Submitter::Call, 1))
        .maintenance(false)
        .tail_bytes(tail_bytes)
}

/// A record that tells its number and the life of the log in which it got it.
fn record(lsn: u64, life: u8) -> Vec<u8> {
    let mut bytes = vec![life; 20 + (lsn * 37 % 900) as usize];
    bytes[..8].copy_from_slice(&lsn.to_le_bytes());
    bytes
}

/// The oracle: all records from the reader's on, up to `last`, and no more.
#[track_caller]
fn assert_reads(reader: &mut Reader, last: u64, life: impl Fn(u64) -> u8, what: &str) {
    for lsn in reader.next_lsn()..=last {
        let found = reader.next().wait().unwrap().unwrap_or_else(|| panic!("{what}: record {lsn} is not there"));
        assert!(found.lsn == lsn && found.bytes == record(lsn, life(lsn)), "{what}: record {}", found.lsn);
    }
    assert!(reader.next().wait().unwrap().is_none(), "{what}: more than is durable");
}

/// Readers that lag by chance, through several segments, with a tail of any size.
#[test]
fn the_tail_and_the_segments_give_the_same_records() {
    let _watchdog = Watchdog::new("readers that lag", 120);
    for seed in 1..=40_u64 {
        println!("seed {seed}");
        let tail_bytes = [0, 4096, 20_000, 4 << 20][seed as usize % 4];
        let (log, _) = Log::open(DIR, &on_sim(&Sim::new(seed), tail_bytes)).wait().unwrap();
        let mut readers = Vec::new();
        let mut random = seed;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (random >> 33) % below
        };
        let mut last = 0;
        for _ in 0..150 {
            for _ in 0..1 + next(20) {
                last += 1;
                drop(log.append(&record(last, 1)).wait().unwrap());
            }
            log.wait_durable(last).wait().unwrap();
            while log.maintain() {}
            match next(8) {
                0 => readers.push(log.reader(1 + next(last))),
                1 if readers.len() > 3 => drop(readers.remove(0)),
                _ => {}
            }
            for reader in &mut readers {
                match next(4) {
                    0 => assert_reads(reader, last, |_| 1, "all"),
                    // It stays in the middle of a block.
                    1 if reader.next_lsn() <= last => {
                        let lsn = reader.next_lsn();
                        assert_eq!(reader.next().wait().unwrap().unwrap().bytes, record(lsn, 1));
                    }
                    _ => {}
                }
            }
        }
        readers.iter_mut().for_each(|reader| assert_reads(reader, last, |_| 1, "at the end"));
    }
}

/// Readers at random places, new and moved ones, beside appends, cuts at both ends and openings.
#[test]
fn readers_at_random_places_return_what_was_appended() {
    let _watchdog = Watchdog::new("readers at random places", 120);
    for seed in 1..=20_u64 {
        println!("seed {seed}");
        let sim = Sim::new(seed);
        let options = on_sim(&sim, [0, 20_000][seed as usize % 2]);
        let options = options.segment_bytes(256 << 10).first_segment_bytes(256 << 10);
        let mut random = Rng::new(seed);
        let (mut log, _) = Log::open(DIR, &options).wait().unwrap();
        let mut moved = log.reader(1);
        // The life of each record, and the first record that was not given up.
        let (mut lives, mut first) = (Vec::new(), 1);
        for step in 1..=60 {
            let last = lives.len();
            match random.below(10) {
                0 if last >= first => {
                    let left = first + random.below(last + 1 - first);
                    log.truncate_suffix(left as u64).wait().unwrap();
                    lives.truncate(left);
                }
                1 if last >= first => {
                    first += random.below(last + 1 - first);
                    log.truncate_prefix(first as u64);
                }
                2 => {
                    drop(moved);
                    log.close().wait().unwrap();
                    (log, _) = Log::open(DIR, &options).wait().unwrap();
                    moved = log.reader(1);
                }
                _ => {
                    for _ in 0..1 + random.below(100) {
                        lives.push(step);
                        drop(log.append(&record(lives.len() as u64, step)).wait().unwrap());
                        if random.below(5) == 0 {
                            log.wait_durable(lives.len() as u64).wait().unwrap();
                        }
                        while log.maintain() {}
                    }
                    log.wait_durable(lives.len() as u64).wait().unwrap();
                }
            }
            while log.maintain() {}
            for read in 0..10 {
                let lsn = 1 + random.below(lives.len() + 1);
                let mut new = log.reader(lsn as u64);
                moved.seek(lsn as u64);
                let reader = if read % 2 == 0 { &mut new } else { &mut moved };
                for lsn in lsn..lsn + 1 + random.below(30) {
                    let next = if random.below(2) == 0 { reader.next().wait() } else { block_on(reader.next()) };
                    match (next, lives.get(lsn - 1)) {
                        (Ok(None), None) => break,
                        (Ok(Some(found)), Some(life)) => {
                            assert_eq!(found.lsn, lsn as u64);
                            assert!(found.bytes == record(lsn as u64, *life), "step {step}: record {lsn}");
                        }
                        (Err(error), _) if lsn < first => {
                            assert_eq!(error.kind(), ErrorKind::NoSuchRecord);
                            break;
                        }
                        (other, _) => panic!("step {step}: record {lsn}: {other:?}"),
                    }
                }
            }
        }
    }
}

/// What is in flight is in memory, too; it is shown when it is durable, with all before it.
#[test]
fn what_is_not_durable_is_not_shown() {
    let _watchdog = Watchdog::new("readers beside writes in flight", 60);
    for (seed, depth) in (1..30).flat_map(|seed| [(seed, 1), (seed, 4)]) {
        let sim = Sim::manual(seed);
        let (log, _) = Log::open(DIR, &on_sim(&sim, 4 << 20).sync(strategy(Submitter::Call, depth))).wait().unwrap();
        let mut reader = log.reader(1);
        let mut last = 0;
        for _ in 0..20 {
            last += 1;
            // A callback has it submitted at once, as far as the depth allows.
            log.append(&record(last, 1)).wait().unwrap().on_durable(|_| {});
            for _ in 0..seed % 3 {
                sim.step();
                let durable = log.durable_lsn();
                assert_reads(&mut reader, durable, |_| 1, &format!("seed {seed}, depth {depth}"));
            }
        }
        while sim.step() {}
        assert_reads(&mut reader, last, |_| 1, &format!("seed {seed}, depth {depth}, at the end"));

        // A write that fails: what it held is in memory, and never shown.
        let mut faults = Faults::default();
        faults.write_error = 1.0;
        sim.set_faults(faults);
        log.append(&record(last + 1, 1)).wait().unwrap().on_durable(|_| {});
        while sim.step() {}
        assert_reads(&mut reader, last, |_| 1, "after a failure");
        assert_reads(&mut log.reader(1), last, |_| 1, "a new reader after a failure");
        assert_eq!(reader.tail().wait().unwrap_err().kind(), ErrorKind::Indeterminate);
    }
}

/// What was shown survives a crash, whatever of the writes in flight reached the disk.
#[test]
fn what_was_shown_survives_a_crash() {
    let _watchdog = Watchdog::new("a reader and a crash", 60);
    for seed in 1..60 {
        let sim = Sim::manual(seed);
        let (log, _) = Log::open(DIR, &on_sim(&sim, 4 << 20).sync(strategy(Submitter::Call, 3))).wait().unwrap();
        let mut reader = log.reader(1);
        for lsn in 1..=30 {
            log.append(&record(lsn, 1)).wait().unwrap().on_durable(|_| {});
            for _ in 0..seed % 4 {
                sim.step();
            }
            while reader.next().wait().unwrap().is_some() {}
        }
        let shown = reader.next_lsn() - 1;
        let crashed = sim.crash_at_random(seed);
        let (log, found) = Log::open(DIR, &on_sim(&crashed, 4 << 20)).wait().unwrap();
        assert!(found.damage.is_empty() && found.last_lsn >= shown, "seed {seed}: {shown} were shown: {found:?}");
        assert_reads(&mut log.reader(1), found.last_lsn, |_| 1, &format!("seed {seed}, after the crash"));
        while sim.step() {}
    }
}

/// After the end was cut the same numbers are given anew. A reader that was served from memory gets
/// the new ones, or is told.
#[test]
fn what_was_cut_off_is_not_shown() {
    let _watchdog = Watchdog::new("readers and a cut", 60);
    for tail_bytes in [0, 4 << 20] {
        for left in 0..12 {
            let (log, _) = Log::open(DIR, &on_sim(&Sim::new(1), tail_bytes)).wait().unwrap();
            let append = |first: u64, last: u64, life: u8| {
                for lsn in first..=last {
                    drop(log.append(&record(lsn, life)).wait().unwrap());
                    if lsn % 4 == 0 || lsn == last {
                        log.wait_durable(lsn).wait().unwrap();
                    }
                }
                while log.maintain() {}
            };
            let mut readers = Vec::from_iter((0..=12).map(|_| log.reader(1)));
            append(1, 12, 1);
            // Each has read so many; most of them have a block that begins before the cut.
            for (count, reader) in readers.iter_mut().enumerate() {
                for lsn in 1..=count as u64 {
                    assert_eq!(reader.next().wait().unwrap().unwrap().lsn, lsn);
                }
            }
            log.truncate_suffix(left).wait().unwrap();
            let life = |lsn: u64| if lsn <= left { 1 } else { 2 };
            for reader in readers.iter_mut().take(left as usize / 2) {
                assert_reads(reader, left, life, "before others have come");
            }
            append(left + 1, left + 9, 2);
            for (count, reader) in readers.iter_mut().enumerate() {
                let what = format!("tail {tail_bytes}, {left} left, {count} read");
                match count as u64 <= left {
                    true => assert_reads(reader, left + 9, life, &what),
                    false => {
                        assert_eq!(reader.next().wait().unwrap_err().kind(), ErrorKind::NoSuchRecord, "{what}");
                    }
                }
            }
            assert_reads(&mut log.reader(1), left + 9, life, "a new reader");
        }
    }
}

/// Records that were given up are not shown, though they are in memory.
#[test]
fn what_was_given_up_is_not_shown() {
    let _watchdog = Watchdog::new("readers and a prefix", 60);
    let (log, _) = Log::open(DIR, &on_sim(&Sim::new(1), 4 << 20)).wait().unwrap();
    let (mut behind, mut ahead) = (log.reader(1), log.reader(1));
    for lsn in 1..=100 {
        log.append(&[3; 3000]).wait().unwrap().wait().unwrap();
        assert_eq!(ahead.next().wait().unwrap().unwrap().lsn, lsn);
        while log.maintain() {}
    }
    assert_eq!(behind.next().wait().unwrap().unwrap().lsn, 1);
    log.truncate_prefix(80);
    for mut reader in [behind, log.reader(1)] {
        assert_eq!(reader.next().wait().unwrap_err().kind(), ErrorKind::NoSuchRecord);
    }
    let mut later = log.reader(80);
    for lsn in 80..=100 {
        assert_eq!(later.next().wait().unwrap().unwrap().lsn, lsn);
    }
}

/// Symptom: a reader at the end read up to 1 MiB from the device for each block. Cause: it read
/// ahead what was not written yet, and again when it was. Guaranteed: with a tail it reads nothing,
/// without one each durable page once.
#[test]
fn a_reader_at_the_end_reads_little() {
    let _watchdog = Watchdog::new("bytes that a reader reads", 120);
    // Of this thread, since other tests run beside it.
    let read_bytes = || counted_by_system("/proc/thread-self/io", "read_bytes: ");
    for tail_bytes in [0, 4 << 20] {
        let dir = mounts::temp_dir();
        let options = Options::new().create(true).segment_bytes(4 << 20).first_segment_bytes(4 << 20);
        let options = options.sync(strategy(Submitter::Call, 1)).tail_bytes(tail_bytes);
        let (log, _) = Log::open(dir.path().join("log"), &options).wait().unwrap();
        if !log.is_direct() {
            return println!("skipped: no direct I/O here");
        }
        let mut reader = log.reader(1);
        let mut before = None;
        for lsn in 1..=300 {
            log.append(&record(lsn, 1)).wait().unwrap().wait().unwrap();
            assert_reads(&mut reader, lsn, |_| 1, "at the end");
            if lsn == 1 {
                before = read_bytes();
            }
        }
        let read = read_bytes().zip(before).map_or(0, |(now, then)| now - then);
        // And code of this program that is not cached; at 64 KiB a block it was 19 MiB.
        let bound = if tail_bytes == 0 { 300 * 4096 } else { 0 } + (1 << 20);
        assert!(read <= bound, "with a tail of {tail_bytes}: {read} bytes were read, more than {bound}");
        log.close().wait().unwrap();
    }
}

/// Threads and tasks that follow beside writers, on files.
#[test]
fn followers_beside_writers() {
    const WRITERS: u64 = 4;
    const EACH: u64 = 300;
    let _watchdog = Watchdog::new("followers beside writers", 120);
    for (by, depth) in [(Submitter::Ring, 1), (Submitter::Call, 1), (Submitter::Ring, 3)] {
        for tail_bytes in [0, 16 << 10, 4 << 20] {
            let dir = mounts::temp_dir();
            let options = Options::new().create(true).segment_bytes(256 << 10).sync(strategy(by, depth));
            let (log, _) = Log::open(dir.path().join("log"), &options.tail_bytes(tail_bytes)).wait().unwrap();
            let check = |bytes: &[u8], next: &mut [u64; WRITERS as usize]| {
                let (writer, number) = (bytes[0] as usize, u64::from(bytes[1]) | u64::from(bytes[2]) << 8);
                assert_eq!(number, next[writer], "writer {writer}");
                next[writer] += 1;
            };
            thread::scope(|scope| {
                let log = &log;
                for writer in 0..WRITERS {
                    scope.spawn(move || {
                        for number in 0..EACH {
                            let mut bytes = vec![writer as u8; 3 + (number % 200) as usize * 10];
                            (bytes[1], bytes[2]) = (number as u8, (number >> 8) as u8);
                            let ticket = log.append(&bytes).wait().unwrap();
                            // Some wait for nothing.
                            if number % 7 < 5 {
                                ticket.wait().unwrap();
                            }
                        }
                    });
                }
                scope.spawn(move || {
                    let (mut reader, mut next) = (log.reader(1), [0; WRITERS as usize]);
                    for lsn in 1..=WRITERS * EACH {
                        let found = reader.tail().wait().unwrap();
                        assert!(found.lsn == lsn && lsn <= log.durable_lsn());
                        check(found.bytes, &mut next);
                    }
                });
                scope.spawn(move || {
                    block_on(async {
                        let (mut reader, mut next) = (log.reader(1), [0; WRITERS as usize]);
                        for lsn in 1..=WRITERS * EACH {
                            let found = reader.tail().await.unwrap();
                            assert!(found.lsn == lsn && lsn <= log.durable_lsn());
                            check(found.bytes, &mut next);
                        }
                    });
                });
            });
            log.close().wait().unwrap();
        }
    }
}
