//! Readers that begin at marks, within a segment.

use super::*;
use crate::format::PAGE;
use crate::{Durability, Log, Options, Strategy, Submitter, SyncPolicy};
use nowait::sim::Sim;
use nowait::{Engine, Nowait, block_on};

const SEGMENT: u64 = 1 << 20;

/// A linear congruential generator.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % end
    }
}

fn open(sim: &Sim) -> Log {
    let instance = Nowait::builder().engine(Engine::Sim(sim.clone())).build().unwrap();
    let strategy = Strategy { durability: Durability::Write, by: Submitter::Call, depth: 1 };
    let options = Options::new().create(true).instance(&instance).sync(SyncPolicy::Fixed(strategy));
    let options = options.segment_bytes(SEGMENT).first_segment_bytes(SEGMENT).maintenance(false).tail_bytes(0);
    Log::open("/log", &options).wait().unwrap().0
}

/// A record with its number, and the life of the number: a cut gives the number to another record.
fn record(lsn: u64, life: u8) -> Vec<u8> {
    let mut bytes = vec![life; 8 + (lsn * 577 % 6000) as usize];
    bytes[..8].copy_from_slice(&lsn.to_le_bytes());
    bytes
}

/// Appends records, in blocks of one to three.
fn append(log: &Log, lsns: Range<u64>, life: u8) {
    for lsn in lsns.clone() {
        let ticket = log.append(&record(lsn, life)).wait().unwrap();
        if lsn % 3 == 0 || lsn % 7 == 0 || lsn + 1 == lsns.end {
            ticket.wait().unwrap();
        }
        while log.maintain() {}
    }
}

/// Asserts the next record, and returns the bytes that the reader has read from the open segment.
#[track_caller]
fn assert_next(reader: &mut Reader, waits: bool, life: u8) -> u64 {
    let lsn = reader.next_lsn();
    let next = if waits { reader.next().wait() } else { block_on(reader.next()) };
    let found = next.unwrap().unwrap();
    assert!(found.lsn == lsn && found.bytes == record(lsn, life), "record {lsn}");
    reader.segment.as_ref().unwrap().blocks.bytes_read()
}

/// Symptom: a reader verified its segment from the start.
#[test]
fn a_reader_far_in_a_segment_reads_little() {
    const LAST: u64 = 240;
    let sim = Sim::new(1);
    let log = open(&sim);
    append(&log, 1..LAST + 1, 1);
    assert_eq!(log.stats().segments, 1);
    let check = |log: &Log| {
        let mut random = Random(3);
        for waits in [true, false].repeat(50) {
            let mut reader = log.reader(1 + random.below(LAST));
            let read = assert_next(&mut reader, waits, 1);
            assert!(read <= 80 << 10, "record {}: {read} bytes", reader.next_lsn() - 1);
            // Within what is in memory.
            reader.seek(reader.next_lsn() - 1);
            assert_eq!(assert_next(&mut reader, waits, 1), read);
        }
    };
    check(&log);
    log.close().wait().unwrap();
    // A log that was opened has no marks until a reader has passed.
    let log = open(&sim);
    let mut reader = log.reader(LAST);
    let read = assert_next(&mut reader, true, 1);
    assert!(read > SEGMENT / 2, "{read} bytes");
    check(&log);
}

/// Marks that are wrong cost time only.
#[test]
fn a_mark_leads_to_no_wrong_record() {
    for seed in 1..=8 {
        println!("seed {seed}");
        let mut random = Random(seed);
        let log = open(&Sim::new(seed));
        let (left, last) = (200 + random.below(200), 900);
        append(&log, 1..last + 1, 1);
        log.truncate_suffix(left).wait().unwrap();
        append(&log, left + 1..last + 1, 2);
        let marks = &log.0.shared.marks;
        for _ in 0..300 {
            let (segment, offset) = (1 + random.below(6), PAGE as u64 * random.below(SEGMENT / PAGE as u64));
            marks.add(BlockPlace { segment, lsn: 1 + random.below(last), offset }, u64::MAX, 1);
        }
        let mut moved = log.reader(1);
        for _ in 0..300 {
            let lsn = 1 + random.below(last);
            let (waits, life) = (random.below(2) == 0, if lsn <= left { 1 } else { 2 });
            assert_next(&mut log.reader(lsn), waits, life);
            moved.seek(lsn);
            assert_next(&mut moved, waits, life);
        }
    }
}

/// Damage of a block is reported to readers of its records, also at a mark, and to no other.
#[test]
fn damage_at_a_mark_is_that_of_its_records() {
    const LAST: u64 = 200;
    let sim = Sim::new(1);
    let log = open(&sim);
    append(&log, 1..LAST + 1, 1);
    let shared = &log.0.shared;
    let number = shared.state().segments[0].header.number;
    let (mark, _) = shared.marks.find(number, LAST / 2).unwrap();
    assert!(mark.lsn > 20);
    let path = shared.dir.segment_path(number);
    let file = OpenOptions::new().write(true).open_in(&shared.dir.instance, &path).wait().unwrap();
    let lost = |lsn: u64| {
        let mut reader = log.reader(lsn);
        let error = reader.next().wait().err()?;
        assert_eq!(error.kind(), ErrorKind::Damaged, "record {lsn}: {error}");
        let lsns = reader.damage().unwrap().lsns.clone();
        // Also after it has moved there.
        reader.seek(lsn);
        assert_eq!(block_on(reader.next()).unwrap_err().kind(), ErrorKind::Damaged);
        assert_eq!(reader.damage().unwrap().lsns, lsns);
        Some(lsns)
    };
    let good = sim.contents(&path).unwrap();
    // The magic number, and the last record of the block.
    let next_lsn = mark.lsn + u64::from(good[mark.offset as usize + 44]);
    let length = u32::from_le_bytes(good[mark.offset as usize + 40..][..4].try_into().unwrap());
    for (at, damaged) in [(0, mark.lsn..next_lsn), (63 + u64::from(length), next_lsn - 1..next_lsn)] {
        let at = mark.offset + at;
        file.write_all_from(&[!good[at as usize]], at).unwrap();
        for lsn in 1..=LAST {
            let lost = lost(lsn);
            assert_eq!(lost, damaged.contains(&lsn).then_some(lsn..damaged.end), "record {lsn}");
        }
        file.write_all_from(&[good[at as usize]], at).unwrap();
    }
    assert!((1..=LAST).all(|lsn| lost(lsn).is_none()));
}
