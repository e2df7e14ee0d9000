//! The log's own code on a simulated disk that crashes: what was acknowledged is there, what is
//! there is a prefix of what was appended, batches are whole, and nothing that was cut off comes
//! back.

#[path = "../../nowait/tests/common/mod.rs"]
mod common;
mod reading;

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use common::Watchdog;
use common::on;
use common::rng::Rng;
use nowait::sim::{Faults, Sim, Unsynced};
use nowait::{ErrorKind, Nowait};
use nowait_log::{Durability, Log, Options, Scan, Strategy, Submitter, SyncPolicy, Ticket, inspect_in, read_in};
use reading::Asking;

const DIR: &str = "/log";
const SEGMENT_BYTES: u64 = 32 << 10;

fn options(nowait: &Nowait, durability: Durability, depth: u32) -> Options {
    let strategy = Strategy { durability, by: Submitter::Call, depth };
    Options::new()
        .create(true)
        .instance(nowait)
        .segment_bytes(SEGMENT_BYTES)
        .sync(SyncPolicy::Fixed(strategy))
        .maintenance(false)
}

/// Contents of a record: its number, the life in which it was appended, and bytes derived from
/// both.
fn record(lsn: u64, life: u64, length: usize) -> Vec<u8> {
    let mut random = Rng::new(lsn << 20 | life);
    let mut bytes = [lsn.to_le_bytes(), life.to_le_bytes()].concat();
    bytes.extend((0..length).map(|_| random.next() as u8));
    bytes
}

/// Contents of a write that a crash may lose.
fn place(change: &Unsynced) -> Option<u64> {
    match change {
        Unsynced::Write { path, offset, .. } if path.extension().is_some_and(|end| end == "seg") => Some(*offset),
        _ => None,
    }
}

fn poll(ticket: &mut Ticket) -> Poll<nowait::Result<u64>> {
    Pin::new(ticket).poll(&mut Context::from_waker(Waker::noop()))
}

/// The application's knowledge of its log.
#[derive(Clone, Default)]
struct Model {
    /// Records that may be in the log; the first is record 1.
    records: Vec<Vec<u8>>,
    /// The last records of batches.
    ends: BTreeSet<u64>,
    acknowledged: u64,
    /// Records before it may be gone.
    first: u64,
    /// The epoch of the last cut of the end; blocks of earlier ones may speak of what was cut off.
    cut_epoch: u64,
}

impl Model {
    /// Checks that a disk holds what the application may expect; returns the last record.
    fn check(&self, sim: &Sim, what: &str) -> u64 {
        let nowait = on(sim);
        let (mut reader, recovery) = match read_in(&nowait, DIR, 1).wait() {
            Err(error) if error.kind() == ErrorKind::NotFound && self.acknowledged == 0 => return 0,
            other => other.unwrap_or_else(|error| panic!("{what}: {error}")),
        };
        assert!(recovery.damage.is_empty(), "{what}: {recovery:?}");
        let last = recovery.last_lsn;
        assert!(last >= self.acknowledged, "{what}: {} was acknowledged, {recovery:?}", self.acknowledged);
        assert!(last <= self.records.len() as u64, "{what}: {} were appended, {recovery:?}", self.records.len());
        assert!(
            last == 0 || last < recovery.first_lsn || self.ends.contains(&last),
            "{what}: half a batch, {recovery:?}"
        );
        assert!(recovery.first_lsn <= self.first.max(1), "{what}: {recovery:?}");
        reader = match recovery.first_lsn {
            1 => reader,
            first => read_in(&nowait, DIR, first).wait().unwrap().0,
        };
        let asking = Asking::next_way();
        for lsn in recovery.first_lsn..=last {
            let record = asking.next(&mut reader, || _ = sim.step()).unwrap_or_else(|error| panic!("{what}: {error}"));
            let record = record.unwrap_or_else(|| panic!("{what}: no record {lsn}"));
            assert!(record.lsn == lsn && record.bytes == self.records[lsn as usize - 1], "{what}: record {lsn}");
        }
        assert!(asking.next(&mut reader, || _ = sim.step()).unwrap().is_none(), "{what}");
        last
    }

    fn append(&mut self, log: &Log, life: u64, lengths: &[usize]) -> Result<Ticket, ErrorKind> {
        self.append_by(life, lengths, |records| log.append_batch(records.iter().map(Vec::as_slice)).wait())
    }

    fn append_by(
        &mut self,
        life: u64,
        lengths: &[usize],
        append: impl FnOnce(&[Vec<u8>]) -> nowait::Result<Ticket>,
    ) -> Result<Ticket, ErrorKind> {
        let first = self.records.len() as u64 + 1;
        let records: Vec<Vec<u8>> = (first..).zip(lengths).map(|(lsn, length)| record(lsn, life, *length)).collect();
        let ticket = append(&records).map_err(|error| error.kind())?;
        self.records.extend(records);
        assert_eq!(ticket.lsn(), self.records.len() as u64);
        self.ends.insert(ticket.lsn());
        Ok(ticket)
    }

    /// Gives up some records at the end.
    fn cut(&mut self, sim: &Sim, log: &Log, epoch: &mut u64, within: &Within, random: &mut Rng) -> u64 {
        let mut crashes = within.check(self, "before a cut");
        let last = self.records.len() as u64;
        let mut all = Box::pin(log.wait_durable(last));
        while all.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            assert!(sim.step());
        }
        let left = last.saturating_sub(random.below(20) as u64);
        if log.reader(left).next().wait().is_err() || left < self.first {
            return crashes;
        }
        within.maintains(Some(log));
        log.truncate_suffix(left).wait().unwrap();
        within.maintains(None);
        if left < last {
            *epoch += 1;
            self.cut_epoch = *epoch;
        }
        // In the middle of it they may be there still.
        let mut ends = self.ends.clone();
        ends.insert(left);
        within.acknowledged.store(left, Relaxed);
        crashes += within.check_from(left, &Model { ends, ..self.clone() }, "within a cut");
        self.records.truncate(left as usize);
        self.ends.retain(|end| *end <= left);
        self.ends.insert(left);
        self.acknowledged = left;
        crashes
    }

    /// Turns a bit of a copy of the disk: what is lost by it is told, but for what no watermark
    /// that is left speaks of.
    fn rot(&self, crashed: &Sim, random: &mut Rng, what: &str) {
        let copy = crashed.crash(|_, _| true);
        let paths = segments(&copy);
        let places: Vec<(&PathBuf, Mark)> =
            paths.iter().flat_map(|path| marks(&copy, path).into_iter().map(move |mark| (path, mark))).collect();
        // In what is used, or anywhere.
        let (path, at) = match random.below(4) {
            0..3 if !places.is_empty() => {
                let (path, mark) = &places[random.below(places.len())];
                ((*path).clone(), mark.bytes.start + random.below(mark.bytes.len()))
            }
            _ => {
                let names = on(&copy).fs().read_dir_names(DIR).wait().unwrap();
                let path = Path::new(DIR).join(&names[random.below(names.len())]);
                let length = copy.contents(&path).unwrap().len();
                (path, random.below(length.max(1)))
            }
        };
        let mut bytes = copy.contents(&path).unwrap();
        let Some(byte) = bytes.get_mut(at) else { return };
        *byte ^= 1 << random.below(8);
        copy.create(&path, bytes);
        let what = format!("{what}, rot at {at} of {}", path.display());
        let speaks = |path: &PathBuf| marks(&copy, path).into_iter().filter(|mark| mark.epoch >= self.cut_epoch);
        let watermark = paths.iter().flat_map(speaks).map(|mark| mark.watermark).max().unwrap_or(0);
        let told = match read_in(&on(&copy), DIR, 1).wait() {
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Damaged, "{what}: {error}");
                return;
            }
            Ok((_, recovery)) => !recovery.damage.is_empty(),
        };
        if told {
            let options = options(&on(&copy), Durability::Write, 1);
            assert_eq!(Log::open(DIR, &options).wait().unwrap_err().kind(), ErrorKind::Damaged, "{what}");
            self.salvage(&copy, &options, &what);
        } else {
            Model { acknowledged: self.acknowledged.min(watermark), ..self.clone() }.check(&copy, &what);
        }
    }

    /// Checks that salvaged records are those appended, and that the log is sound from then on.
    fn salvage(&self, sim: &Sim, options: &Options, what: &str) {
        let (log, _) =
            Log::open(DIR, &options.clone().salvage(true)).wait().unwrap_or_else(|error| panic!("{what}: {error}"));
        let next = log.append(b"after the damage").wait().unwrap().wait().unwrap();
        log.close().wait().unwrap();
        let (_, recovery) = read_in(&on(sim), DIR, 1).wait().unwrap();
        assert!(recovery.damage.is_empty() && recovery.last_lsn == next, "{what}, salvaged: {recovery:?}");
        let mut reader = read_in(&on(sim), DIR, recovery.first_lsn).wait().unwrap().0;
        let asking = Asking::next_way();
        while let Ok(Some(record)) = asking.next(&mut reader, || _ = sim.step()) {
            let known = self.records.get(record.lsn as usize - 1);
            let is_known = known.is_some_and(|known| record.bytes == *known);
            assert!(is_known || record.lsn == next, "{what}, salvaged: record {}", record.lsn);
        }
        assert_eq!(reader.next_lsn(), next + 1, "{what}, salvaged");
    }

    /// After a crash only what was found may be in the log.
    fn found(&mut self, last: u64) {
        self.records.truncate(last as usize);
        self.ends.retain(|end| *end <= last);
        // Reading is a promise: it is not there one time and gone the next.
        self.acknowledged = last;
    }
}

/// Opens a copy of a disk by the end of its log: finds what a full scan finds.
fn same_by_its_end(sim: &Sim, last: u64, what: &str) {
    let copy = sim.crash(|_, _| true);
    let nowait = on(&copy);
    let Ok(full) = inspect_in(&nowait, DIR).wait() else { return };
    let options = options(&nowait, Durability::Write, 1).scan(Scan::Tail);
    let (log, tail) = Log::open(DIR, &options).wait().unwrap_or_else(|error| panic!("{what}: {error}, {full:?}"));
    assert_eq!((tail.first_lsn, tail.last_lsn, tail.next_lsn), (full.first_lsn, last, full.next_lsn), "{what}");
    assert_eq!((tail.torn, tail.closed, tail.gaps), (full.torn, full.closed, full.gaps), "{what}");
    assert_eq!(commit(&log, 10), last + 1, "{what}");
}

/// Ten blocks in flight: every subset of them gets to the disk, and each subset with each block
/// torn at each sector.
#[test]
fn every_subset_of_ten_blocks_torn_at_every_sector() {
    const BLOCKS: usize = 10;
    const SECTORS: usize = 8;
    let sim = Sim::manual(1);
    let nowait = on(&sim);
    let (log, _) = Log::open(DIR, &options(&nowait, Durability::Write, 16).segment_bytes(128 << 10)).wait().unwrap();
    let mut model = Model::default();
    for _ in 0..3 {
        model.append(&log, 0, &[100]).unwrap().wait().unwrap();
    }
    model.acknowledged = 3;
    let mut tickets: Vec<Ticket> = (0..BLOCKS)
        .map(|_| {
            let mut ticket = model.append(&log, 0, &[3900]).unwrap();
            assert!(poll(&mut ticket).is_pending());
            ticket
        })
        .collect();
    let unsynced: Vec<u64> = sim.unsynced().iter().filter_map(place).collect();
    assert_eq!(unsynced.len(), BLOCKS);
    let mut states = 0;
    let mut check = |kept: &dyn Fn(usize, usize) -> bool, what: &str| {
        let index = |offset: u64| unsynced.iter().position(|known| *known == offset).unwrap();
        let crashed = sim.crash(|change, sector| place(change).is_none_or(|offset| kept(index(offset), sector)));
        let last = model.check(&crashed, what);
        let whole = (0..BLOCKS).take_while(|block| (0..SECTORS).all(|sector| kept(*block, sector))).count();
        assert_eq!(last, 3 + whole as u64, "{what}");
        states += 1;
    };
    for subset in 0..1u32 << BLOCKS {
        check(&|block, _| subset >> block & 1 == 1, &format!("blocks {subset:010b}"));
        for torn in 0..BLOCKS {
            for sector in 1..SECTORS {
                // The other half of these is the same with the block's bit turned.
                if subset >> torn & 1 == 1 {
                    let kept = |block: usize, at: usize| {
                        if block == torn { at < sector } else { subset >> block & 1 == 1 }
                    };
                    check(&kept, &format!("blocks {subset:010b}, {torn} torn at {sector}"));
                    let kept = |block: usize, at: usize| {
                        if block == torn { at >= sector } else { subset >> block & 1 == 1 }
                    };
                    check(&kept, &format!("blocks {subset:010b}, {torn} torn before {sector}"));
                }
            }
        }
    }
    assert_eq!(states, (1 << BLOCKS) * (1 + BLOCKS * (SECTORS - 1)));
    while sim.step() {}
    assert!(tickets.iter_mut().all(|ticket| poll(ticket).is_ready()));
}

/// Also of a bit in what is not used, where that does no harm.
#[test]
fn a_bit_that_turns_anywhere_loses_nothing_silently() {
    let sim = Sim::new(1);
    let nowait = on(&sim);
    let mut model = Model::default();
    let (log, _) = Log::open(DIR, &options(&nowait, Durability::Write, 1).segment_bytes(16 << 10)).wait().unwrap();
    for lsn in 1..=6 {
        model.append(&log, 0, &[lsn * 20]).unwrap().wait().unwrap();
    }
    log.close().wait().unwrap();
    let (mut found_out, mut harmless) = (0, 0);
    let names = nowait.fs().read_dir_names(DIR).wait().unwrap();
    let files: Vec<_> = names.iter().map(|name| Path::new(DIR).join(name)).collect();
    let files: Vec<_> = files.iter().map(|path| (path, sim.contents(path).unwrap())).collect();
    for (path, good) in &files {
        for at in 0..good.len() {
            let sim = Sim::manual(1);
            files.iter().for_each(|(path, bytes)| sim.create(path, bytes.clone()));
            let mut bad = good.clone();
            bad[at] ^= 1 << (at % 8);
            sim.create(path, bad);
            let nowait = on(&sim);
            let what = format!("{} byte {at}", path.display());
            match read_in(&nowait, DIR, 1).wait() {
                Err(error) => assert_eq!(error.kind(), ErrorKind::Damaged, "{what}: {error}"),
                Ok((_, recovery)) if recovery.damage.is_empty() => {
                    assert_eq!(model.check(&sim, &what), 6, "{what}");
                    harmless += 1;
                    continue;
                }
                Ok((_, recovery)) => assert!(!recovery.damage[0].to_string().is_empty()),
            }
            found_out += 1;
        }
    }
    println!("{found_out} turned bits were found out, {harmless} were harmless");
    assert!(found_out > 1000 && harmless > 1000);
}

/// Appends and writes a record without steps of others in between.
fn commit(log: &Log, length: usize) -> u64 {
    log.append(&vec![1; length]).wait().unwrap().wait().unwrap()
}

/// A record whose write leaves at once, and is on its way when this returns.
fn begin(log: &Log, length: usize) -> Ticket {
    let mut ticket = log.append(&vec![2; length]).wait().unwrap();
    assert!(poll(&mut ticket).is_pending());
    ticket
}

fn segments(sim: &Sim) -> Vec<PathBuf> {
    let names = on(sim).fs().read_dir_names(DIR).wait().unwrap();
    let paths = names.iter().map(|name| Path::new(DIR).join(name));
    paths.filter(|path| path.extension().is_some_and(|end| end == "seg")).collect()
}

/// Turns a bit in the frame of the first record of a block.
fn rot(sim: &Sim, lsn: u64) {
    for path in segments(sim) {
        let mut bytes = sim.contents(&path).unwrap();
        let block = marks(sim, &path).into_iter().find(|mark| mark.first_lsn == lsn && mark.records > 0);
        if let Some(Mark { bytes: place, .. }) = block {
            bytes[place.start + 70] ^= 1;
            return sim.create(&path, bytes);
        }
    }
    panic!("no block begins with record {lsn}");
}

/// A block of a segment's file whose header is whole, by docs/log-format.md; the segment's header
/// comes first.
struct Mark {
    bytes: Range<usize>,
    epoch: u64,
    first_lsn: u64,
    records: u32,
    watermark: u64,
}

fn marks(sim: &Sim, path: &Path) -> Vec<Mark> {
    let (bytes, control) = (sim.contents(path).unwrap(), sim.contents("/log/control").unwrap());
    let number: u64 = path.file_stem().unwrap().to_str().unwrap().parse().unwrap();
    let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    if bytes.len() < 4096 || !bytes.starts_with(b"nwlogseg") || crc32c::crc32c(&bytes[12..4096]) != u32_at(8) {
        return Vec::new();
    }
    if bytes[16..32] != control[16..32] || u64_at(32) != number {
        return Vec::new();
    }
    let epoch = u64_at(40);
    let mut marks = vec![Mark { bytes: 0..4096, epoch, first_lsn: u64_at(56), records: 0, watermark: u64_at(64) }];
    let seed = [&control[16..32], &number.to_le_bytes(), &epoch.to_le_bytes()].concat();
    let seed = crc32c::crc32c(&seed);
    let mut at = 4096;
    while at < bytes.len() {
        let end = at + 64 + u32_at(at + 40) as usize;
        // Of the header; what it says holds whether or not the records are whole.
        let is_sealed = || crc32c::crc32c_append(seed, &bytes[at + 8..at + 64]) == u32_at(at + 4);
        let is_block = bytes[at..].starts_with(b"nwbk") && u64_at(at + 8) == epoch && u64_at(at + 16) == at as u64;
        if is_block && end <= bytes.len() && is_sealed() {
            let end = end.next_multiple_of(4096);
            let (first_lsn, watermark) = (u64_at(at + 24), u64_at(at + 32));
            marks.push(Mark { bytes: at..end, epoch, first_lsn, records: u32_at(at + 44), watermark });
            at = end;
        } else {
            at += 4096;
        }
    }
    marks
}

fn assert_damaged(sim: &Sim) {
    let found = inspect_in(&on(sim), DIR).wait().unwrap();
    assert!(!found.damage.is_empty(), "acknowledged records are gone, and nothing is said: {found:?}");
}

/// The first block behind the damage may have too low a watermark: it was in flight with the
/// damaged one.
#[test]
fn the_highest_watermark_behind_damage_counts() {
    let sim = Sim::manual(1);
    let nowait = on(&sim);
    let (log, _) = Log::open(DIR, &options(&nowait, Durability::Write, 2)).wait().unwrap();
    commit(&log, 10);
    let together = [begin(&log, 10), begin(&log, 10)];
    while sim.step() {}
    commit(&log, 10);
    let killed = sim.crash(|_, _| true);
    rot(&killed, 2);
    assert_damaged(&killed);
    drop(together);
}

/// The only proof may lie in the next segment, behind its first block: that was in flight with what
/// is damaged.
#[test]
fn a_later_segment_speaks_of_an_earlier_one() {
    let opened = || {
        let sim = Sim::manual(1);
        let (log, _) = Log::open(DIR, &options(&on(&sim), Durability::Write, 3)).wait().unwrap();
        while log.maintain() {}
        (sim, log)
    };
    // The first record of the second segment.
    let (_sim, log) = opened();
    while log.stats().rotations == 0 {
        commit(&log, 3000);
    }
    let last = log.last_lsn();
    let (sim, log) = opened();
    for _ in 2..last {
        commit(&log, 3000);
    }
    let together = [begin(&log, 3000), begin(&log, 3000)];
    assert_eq!((sim.pending(), log.stats().rotations, log.last_lsn()), (2, 1, last));
    while sim.step() {}
    assert_eq!(commit(&log, 10), last + 1);
    let killed = sim.crash(|_, _| true);
    let speak = |mark: &Mark| mark.watermark >= last - 1;
    let proofs =
        segments(&killed).into_iter().map(|path| marks(&killed, &path).iter().filter(|mark| speak(mark)).count());
    assert_eq!(proofs.sum::<usize>(), 1, "neither the header nor its block speaks of it");
    drop(together);
    rot(&killed, last - 1);
    assert_damaged(&killed);
}

/// Whatever is given up: the segment of the last durable record stays, or numbers would begin again
/// after a crash.
#[test]
fn the_beginning_is_not_given_up_beyond_what_is_durable() {
    let sim = Sim::manual(1);
    let nowait = on(&sim);
    let (log, _) = Log::open(DIR, &options(&nowait, Durability::Write, 1)).wait().unwrap();
    while log.maintain() {}
    commit(&log, 3000);
    let durable = commit(&log, 3000);
    // Into the next segment, with some behind the durable one before it.
    let mut pending = Vec::new();
    while log.stats().rotations == 0 {
        pending.push(log.append(&[2; 3000]).wait().unwrap());
    }
    assert!(pending.len() > 2 && log.durable_lsn() == durable);
    log.truncate_prefix(u64::MAX);
    // Nothing is due yet that would write them.
    while log.maintain() {}
    assert_eq!(log.durable_lsn(), durable);
    let found = inspect_in(&on(&sim.crash(|_, _| true)), DIR).wait().unwrap();
    assert!(found.last_lsn >= durable && found.damage.is_empty(), "{durable} was acknowledged: {found:?}");
    drop((pending, log));
    while sim.step() {}
}

/// Every durable record is given up while the next segment has begun and is not written: numbers
/// began again after a crash.
#[test]
fn all_that_is_durable_may_be_given_up() {
    let sim = Sim::manual(1);
    let nowait = on(&sim);
    let (log, _) = Log::open(DIR, &options(&nowait, Durability::Write, 1)).wait().unwrap();
    while log.maintain() {}
    let (durable, pending) = loop {
        let ticket = log.append(&[1; 3000]).wait().unwrap();
        if log.stats().rotations > 0 {
            break (ticket.lsn() - 1, ticket);
        }
        ticket.wait().unwrap();
    };
    assert_eq!(log.durable_lsn(), durable);
    log.truncate_prefix(durable + 1);
    while log.maintain() {
        let found = inspect_in(&on(&sim.crash(|_, _| true)), DIR).wait().unwrap();
        assert!(found.last_lsn >= durable && found.damage.is_empty(), "{durable} was acknowledged: {found:?}");
    }
    let crashed = sim.crash(|_, _| true);
    let (again, _) = Log::open(DIR, &options(&on(&crashed), Durability::Write, 1)).wait().unwrap();
    assert!(commit(&again, 10) > durable, "a number is given again");
    drop((pending, log));
    while sim.step() {}
}

/// Records that were cut off do not come back because a page is damaged: to a replica that votes by
/// its log that is another vote.
#[test]
fn damage_does_not_undo_a_cut() {
    let sim = Sim::manual(1);
    let nowait = on(&sim);
    let (log, _) = Log::open(DIR, &options(&nowait, Durability::Write, 1).segment_bytes(128 << 10)).wait().unwrap();
    for _ in 0..10 {
        commit(&log, 100);
    }
    log.truncate_suffix(5).wait().unwrap();
    sim.advance(Duration::from_millis(10));
    while log.maintain() {}
    drop(log);
    let killed = sim.crash(|_, _| false);
    assert_eq!(inspect_in(&on(&killed), DIR).wait().unwrap().last_lsn, 5);
    let newest = segments(&killed).into_iter().rfind(|path| !marks(&killed, path).is_empty()).unwrap();
    let good = killed.contents(&newest).unwrap();
    // The header, the watermark block behind it, and what is behind that.
    for at in (0..12288).step_by(37) {
        let mut bytes = good.clone();
        bytes[at] ^= 1 << (at % 8);
        killed.create(&newest, bytes);
        match inspect_in(&on(&killed), DIR).wait() {
            Err(error) => assert_eq!(error.kind(), ErrorKind::Damaged, "byte {at}: {error}"),
            Ok(found) => assert!(found.last_lsn <= 5 || !found.damage.is_empty(), "byte {at}: {found:?}"),
        }
    }
}

/// Through the page cache a block is durable by a sync, which hears of write-back that failed; and
/// there is one at a time.
#[test]
fn a_log_in_the_page_cache_syncs_one_block_at_a_time() {
    let sim = Sim::manual(1);
    sim.set_faults(buffered());
    let nowait = on(&sim);
    let (log, _) = Log::open(DIR, &options(&nowait, Durability::Write, 4)).wait().unwrap();
    assert!(!log.is_direct());
    let mut first = begin(&log, 10);
    let mut second = log.append(b"waits").wait().unwrap();
    assert!(poll(&mut second).is_pending());
    assert_eq!((sim.pending(), log.stats().in_flight.max), (1, 1));
    assert!(sim.step() && poll(&mut first).is_pending(), "the write alone does not do");
    assert!(sim.step() && poll(&mut first).is_ready());
    while sim.step() {}
    assert!(poll(&mut second).is_ready() && log.stats().in_flight.max == 1);
}

/// After a sync that failed the page cache shows what the disk will never have.
#[test]
fn what_a_failed_sync_lost_is_not_found_again() {
    if !common::cold::DROPS_PAGES {
        return eprintln!("skipped: this system cannot drop pages, so a lost record may be found");
    }
    let mut lost = 0;
    for seed in 0..60 {
        let sim = Sim::manual(seed);
        sim.set_faults(buffered());
        let nowait = on(&sim);
        let (log, _) = Log::open(DIR, &options(&nowait, Durability::Write, 1)).wait().unwrap();
        commit(&log, 3000);
        sim.set_faults(buffered_with(|faults| faults.sync_error = 1.0));
        assert_eq!(log.append(&[1; 3000]).wait().unwrap().wait().unwrap_err().kind(), ErrorKind::Indeterminate);
        drop(log);
        sim.set_faults(buffered());
        let (log, recovery) = Log::open(DIR, &options(&nowait, Durability::Write, 1)).wait().unwrap();
        lost += 2 - recovery.last_lsn;
        let next = commit(&log, 10);
        assert_eq!(next, recovery.last_lsn + 1);
        let crashed = sim.crash(|_, _| false);
        let found = inspect_in(&on(&crashed), DIR).wait().unwrap();
        assert!(found.last_lsn == next && found.damage.is_empty(), "seed {seed}: {recovery:?}, then {found:?}");
    }
    assert!(lost > 0, "no sync lost anything");
}

#[test]
fn each_opening_and_each_cut_begins_an_epoch() {
    let sim = Sim::new(1);
    let nowait = on(&sim);
    for epoch in (0..10).step_by(2) {
        let (log, recovery) = Log::open(DIR, &options(&nowait, Durability::Write, 1)).wait().unwrap();
        assert_eq!(recovery.epoch, epoch);
        let first = commit(&log, 10);
        commit(&log, 10);
        log.truncate_suffix(first).wait().unwrap();
        log.close().wait().unwrap();
    }
}

/// Segments that are cut off are removed while the log is open, and no reader that was ahead
/// continues in those that came instead.
#[test]
fn what_is_cut_off_is_removed_and_not_read_over() {
    let sim = Sim::manual(1);
    let nowait = on(&sim);
    let options = options(&nowait, Durability::Write, 1).recycle_bytes(0);
    let (log, _) = Log::open(DIR, &options).wait().unwrap();
    for _ in 0..30 {
        commit(&log, 3000);
    }
    let mut ahead = log.reader(20);
    assert_eq!(ahead.next().wait().unwrap().map(|record| record.lsn), Some(20));
    let mut behind = log.reader(3);
    assert_eq!(behind.next().wait().unwrap().map(|record| record.lsn), Some(3));
    let before = segments(&sim);
    log.truncate_suffix(5).wait().unwrap();
    while log.maintain() {}
    // Those of the first five records, the current one, and the next.
    let after = segments(&sim);
    assert!(before.len() >= 6 && after.len() <= 3, "{before:?}, then {after:?}");
    for _ in 0..30 {
        commit(&log, 10);
    }
    assert_eq!(ahead.next().wait().unwrap_err().kind(), ErrorKind::NoSuchRecord);
    for lsn in 4..=35 {
        let record = behind.next().wait().unwrap().unwrap();
        assert_eq!((record.lsn, record.bytes.len()), (lsn, if lsn <= 5 { 3000 } else { 10 }));
    }
}

/// A thread that maintains the log while its end is cut must not remove what is the log's end until
/// the cut stands.
#[test]
fn a_cut_is_whole_or_not_at_all_whoever_maintains_the_log() {
    for seed in 0..20 {
        let sim = Sim::manual(seed);
        let nowait = on(&sim);
        let (log, _) = Log::open(DIR, &options(&nowait, Durability::Write, 1)).wait().unwrap();
        for _ in 0..30 {
            commit(&log, 3000);
        }
        while log.maintain() {}
        let images: Arc<Mutex<Vec<Sim>>> = Arc::default();
        let (maintains, to) = (Mutex::new(Some(log.clone())), images.clone());
        sim.watch(move |sim| {
            if !sim.unsynced().iter().any(is_block_under_way) {
                return;
            }
            // Not within itself.
            let Some(log) = maintains.lock().unwrap().take() else { return };
            for _ in 0..20 {
                to.lock().unwrap().push(sim.crash(|change, _| !is_block_under_way(change)));
                if !log.maintain() {
                    break;
                }
            }
            to.lock().unwrap().push(sim.crash(|change, _| !is_block_under_way(change)));
        });
        log.truncate_suffix(5).wait().unwrap();
        sim.watch(|_| {});
        let images = std::mem::take(&mut *images.lock().unwrap());
        assert!(!images.is_empty());
        for image in images {
            let found = inspect_in(&on(&image), DIR).wait().unwrap();
            assert!(found.damage.is_empty() && found.last_lsn == 30, "seed {seed}: {found:?}");
        }
        assert_eq!(inspect_in(&on(&sim.crash(|_, _| false)), DIR).wait().unwrap().last_lsn, 5);
    }
}

/// A disk whose files go through the page cache.
fn buffered() -> Faults {
    buffered_with(|_| {})
}

fn buffered_with(set: impl FnOnce(&mut Faults)) -> Faults {
    let mut faults = Faults::default();
    faults.direct_refused = true;
    set(&mut faults);
    faults
}

/// One life of a log after the other, each ended by a crash, a kill or a close, with whatever goes
/// wrong in between.
fn lives(seed: u64, crashes: &mut u64) {
    let mut random = Rng::new(seed);
    let mut sim = Sim::manual(seed);
    let mut model = Model { first: 1, ..Model::default() };
    // Past the page cache, or through it.
    let sound = if random.below(3) == 0 { buffered() } else { Faults::default() };
    for life in 0..4 {
        let what = format!("seed {seed}, life {life}");
        let within = Within::watch(&sim, random.next());
        within.acknowledged.store(model.acknowledged, Relaxed);
        let nowait = on(&sim);
        let durability = if random.below(3) == 0 { Durability::WriteAndSync } else { Durability::Write };
        let depth = 1 + random.below(5) as u32;
        let pending_bytes_max = [16 << 20, 6000, 20_000][random.below(3)];
        let reserve_bytes = [0, 0, 20_000][random.below(3)];
        let options = options(&nowait, durability, depth).pending_bytes_max(pending_bytes_max);
        let options = options.reserve_bytes(reserve_bytes);
        // A log is made with segments that grow, or not; and those that are given up are kept, or not.
        let options = options
            .segment_bytes([SEGMENT_BYTES, 4 * SEGMENT_BYTES][random.below(2)])
            .first_segment_bytes([1 << 20, 16 << 10][random.below(2)])
            .recycle_bytes([0, SEGMENT_BYTES, 1 << 20][random.below(3)]);
        let (log, recovery) = loop {
            // An unreadable page is no reason to go on without it.
            let reads_fail = random.below(4) == 0;
            sim.set_faults({
                let mut faults = sound;
                faults.read_error = if reads_fail { 0.05 } else { 0.0 };
                faults
            });
            match Log::open(DIR, &options).wait() {
                Ok(opened) => break opened,
                Err(error) => assert!(reads_fail, "{what}: {error}"),
            }
        };
        sim.set_faults(sound);
        assert!(recovery.damage.is_empty(), "{what}: {recovery:?}");
        assert!(recovery.last_lsn >= model.acknowledged, "{what}: {} and {recovery:?}", model.acknowledged);
        model.found(recovery.last_lsn);
        let mut epoch = recovery.epoch + 1;
        *crashes += within.check(&model, &format!("{what}, within the opening"));
        within.acknowledged.store(model.acknowledged, Relaxed);
        // A crash while it was opened, or right after.
        for _ in 0..4 {
            model.check(&sim.crash_at_random(random.next()), &format!("{what}, opened"));
            *crashes += 1;
        }
        let mut faults = sound;
        if random.below(3) == 0 {
            match random.below(4) {
                0 => faults.write_error = 0.05,
                1 => faults.sync_error = 0.05,
                2 => faults.read_error = 0.2,
                _ => faults.no_space = 0.05,
            }
        }
        sim.set_faults(faults);
        let mut tickets: Vec<Ticket> = Vec::new();
        let mut failed_at = None;
        for _ in 0..20 + random.below(80) {
            match random.below(14) {
                way @ 0..5 => {
                    let lengths: Vec<usize> = match way {
                        4 => (0..1 + random.below(5)).map(|_| random.below(2000)).collect(),
                        _ if random.below(8) == 0 => vec![random.below(9000)],
                        _ => vec![random.below(300)],
                    };
                    // An append that waits would wait for steps that no thread makes.
                    let payload = |lengths: &[usize]| lengths.iter().map(|length| 25 + *length as u64).sum::<u64>();
                    let pending =
                        model.records[log.durable_lsn() as usize..].iter().map(|record| 9 + record.len() as u64);
                    let pending: u64 = pending.sum();
                    if pending > 0 && pending + payload(&lengths) > pending_bytes_max {
                        sim.step();
                        continue;
                    }
                    let appended = match way {
                        3 => model.append_by(life, &lengths, |records| log.append_from_reserve(&records[0]).wait()),
                        _ => model.append(&log, life, &lengths),
                    };
                    match appended {
                        Ok(ticket) => tickets.push(ticket),
                        Err(ErrorKind::NoSpace) => assert!(
                            faults.no_space > 0.0 || faults.sync_error > 0.0 || faults.write_error > 0.0,
                            "{what}"
                        ),
                        Err(kind) => assert_eq!(kind, ErrorKind::Poisoned, "{what}"),
                    }
                }
                5..8 if !tickets.is_empty() => {
                    let chosen = random.below(tickets.len());
                    match poll(&mut tickets[chosen]) {
                        Poll::Pending => {}
                        Poll::Ready(Ok(lsn)) => {
                            assert!(failed_at.is_none_or(|durable| lsn <= durable), "{what}: {lsn} after a failure");
                            model.acknowledged = model.acknowledged.max(lsn);
                            drop(tickets.swap_remove(chosen));
                        }
                        Poll::Ready(Err(error)) => {
                            assert!(
                                matches!(error.kind(), ErrorKind::Indeterminate | ErrorKind::Poisoned),
                                "{what}: {error}"
                            );
                            failed_at.get_or_insert(log.durable_lsn());
                            drop(tickets.swap_remove(chosen));
                        }
                    }
                }
                8..11 => {
                    sim.step();
                }
                11 => sim.advance(Duration::from_millis(random.below(30) as u64)),
                12 => {
                    // A reader shows what was appended, or says that it cannot.
                    let lsn = model.first + random.below(model.records.len() + 1) as u64;
                    if let Ok(Some(record)) = log.reader(lsn).next().wait() {
                        assert!(record.bytes == model.records[lsn as usize - 1], "{what}: record {lsn}");
                    }
                }
                _ => {
                    log.maintain();
                    if random.below(8) == 0 && faults == sound {
                        tickets.clear();
                        *crashes += model.cut(&sim, &log, &mut epoch, &within, &mut random);
                    } else if random.below(8) == 0 {
                        // All that is durable at most, whatever is asked for.
                        let lsn = 1 + random.below(model.records.len() + 2) as u64;
                        log.truncate_prefix(lsn);
                        model.first = model.first.max(lsn.min(log.durable_lsn() + 1));
                    }
                }
            }
            model.acknowledged = model.acknowledged.max(log.durable_lsn());
            within.acknowledged.store(model.acknowledged, Relaxed);
            if random.below(3) == 0 {
                model.check(&sim.crash_at_random(random.next()), &what);
                *crashes += 1;
            }
        }
        *crashes += within.check(&model, &format!("{what}, within a call"));
        let crashed = sim.crash_at_random(random.next());
        *crashes += 1;
        let last = model.check(&crashed, &what);
        // Whoever reads twice reads the same.
        assert_eq!(inspect_in(&on(&crashed), DIR).wait().map_or(0, |found| found.last_lsn), last, "{what}");
        model.rot(&crashed, &mut random, &what);
        same_by_its_end(&crashed, last, &what);
        drop(tickets);
        if random.below(3) == 0 {
            // Writes in flight wait for steps, which closing does not make.
            while sim.step() {}
            let closed = log.close().wait();
            *crashes += within.check(&model, &format!("{what}, within closing"));
            assert!(closed.is_ok() || faults != sound || failed_at.is_some(), "{what}: {closed:?}");
            let crashed = sim.crash_at_random(random.next());
            *crashes += 1;
            if closed.is_ok() {
                model.acknowledged = model.records.len() as u64;
                let found = inspect_in(&on(&crashed), DIR).wait().unwrap();
                assert!(found.closed && found.torn.is_none(), "{what}: {found:?}");
            }
            model.check(&crashed, &format!("{what}, closed"));
            model.rot(&crashed, &mut random, &format!("{what}, closed"));
            sim = crashed;
            continue;
        }
        drop(log);
        while sim.step() {}
        if random.below(3) == 0 && (faults.sync_error == 0.0 || sound.direct_refused) {
            // Killed rather than crashed: what was not synced is there, and not safe yet. Also
            // after a write that failed; after a sync only of files in the page cache, which
            // recovery drops. (A device's own cache has no such failures here.)
            continue;
        }
        // A restart that is cut off as well.
        let half = crashed.crash_at_random(random.next());
        assert_eq!(model.check(&half, &what), last, "{what}: nothing was written since");
        sim = crashed;
    }
}

/// Crashes in the middle of calls that wait, and what was acknowledged by then.
struct Within {
    acknowledged: Arc<AtomicU64>,
    crashes: Arc<Mutex<Vec<(u64, Sim)>>>,
    maintains: Arc<Mutex<Option<Log>>>,
}

impl Within {
    fn watch(sim: &Sim, seed: u64) -> Within {
        let within = Within { acknowledged: Arc::default(), crashes: Arc::default(), maintains: Arc::default() };
        let (acknowledged, crashes) = (within.acknowledged.clone(), within.crashes.clone());
        let maintains = within.maintains.clone();
        let random = Mutex::new(Rng::new(seed));
        sim.watch(move |sim| {
            let (crashes_now, maintains_now, next) = {
                let mut random = random.lock().unwrap();
                (random.below(4) == 0, random.below(2) == 0, random.next())
            };
            if maintains_now && sim.unsynced().iter().any(is_block_under_way) {
                // Not within itself.
                let log = maintains.lock().unwrap().take();
                if let Some(log) = log {
                    log.maintain();
                    maintains.lock().unwrap().replace(log);
                }
            }
            if crashes_now {
                let crash = sim.crash_at_random(next);
                crashes.lock().unwrap().push((acknowledged.load(Relaxed), crash));
            }
        });
        within
    }

    /// Has a log maintained while blocks are written, as another thread might.
    fn maintains(&self, log: Option<&Log>) {
        *self.maintains.lock().unwrap() = log.cloned();
    }

    /// How many there were.
    fn check(&self, model: &Model, what: &str) -> u64 {
        self.check_from(u64::MAX, model, what)
    }

    /// Number of the acknowledged records that are still promised, from the first on.
    fn check_from(&self, most: u64, model: &Model, what: &str) -> u64 {
        let crashes = std::mem::take(&mut *self.crashes.lock().unwrap());
        for (acknowledged, crash) in &crashes {
            Model { acknowledged: (*acknowledged).min(most), ..model.clone() }.check(crash, what);
        }
        crashes.len() as u64
    }
}

fn is_block_under_way(change: &Unsynced) -> bool {
    match change {
        Unsynced::Write { path, complete: false, .. } => path.extension().is_some_and(|end| end == "seg"),
        _ => false,
    }
}

/// `NOWAIT_TEST_ROUNDS` rounds from `NOWAIT_TEST_SEED` on: to go on for longer, or to repeat one.
fn seeds(rounds: u64) -> Range<u64> {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let first = number("NOWAIT_TEST_SEED").unwrap_or(0);
    first..first + number("NOWAIT_TEST_ROUNDS").unwrap_or(rounds)
}

#[test]
fn random_lives() {
    let (seeds, mut crashes) = (seeds(100), 0);
    for seed in seeds.clone() {
        let _watchdog = Watchdog::new(format!("a life of seed {seed}"), 120);
        lives(seed, &mut crashes);
    }
    println!("{crashes} crashes, seeds {seeds:?}");
}

/// Threads that append in every way, one that gives up the beginning, one that maintains, one that
/// follows, and the maintenance thread; the power fails again and again. The disk's thread
/// completes operations in an order of its own, so that a seed gives a kind of run, not a run.
#[test]
fn many_callers_and_crashes() {
    let seeds = seeds(12);
    let mut images = 0;
    for seed in seeds.clone() {
        let _watchdog = Watchdog::new(format!("many callers, seed {seed}"), 120);
        images += callers(seed);
    }
    println!("{images} crashes, seeds {seeds:?}");
}

/// Contents of record `number` of the caller `who`.
fn of_caller(who: u64, number: u64) -> Vec<u8> {
    let mut random = Rng::new(who << 32 | number);
    let length = random.below(1500);
    let mut bytes = [who.to_le_bytes(), number.to_le_bytes()].concat();
    bytes.extend((0..length).map(|_| random.next() as u8));
    bytes
}

/// Each caller's records are whole, and in its order.
fn check_callers(read: impl Iterator<Item = Vec<u8>>, what: &str) {
    let mut next: BTreeMap<u64, u64> = BTreeMap::new();
    for bytes in read {
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let (who, number) = (number(0), number(8));
        assert!(bytes == of_caller(who, number), "{what}: record {number} of {who}");
        let expected = next.insert(who, number + 1).unwrap_or(number);
        assert_eq!(number, expected, "{what}: of caller {who}");
    }
}

fn callers(seed: u64) -> u64 {
    const APPENDERS: u64 = 5;
    const EACH: u64 = 60;
    let mut random = Rng::new(seed);
    let sim = Sim::new(seed);
    let mut faults = if random.below(3) == 0 { buffered() } else { Faults::default() };
    (faults.short, faults.interrupted) = (0.05, 0.05);
    sim.set_faults(faults);
    let nowait = on(&sim);
    let durability = if random.below(2) == 0 { Durability::WriteAndSync } else { Durability::Write };
    let options = options(&nowait, durability, 1 + random.below(4) as u32).maintenance(random.below(2) == 0);
    let options = options.pending_bytes_max([16 << 20, 5000][random.below(2)]);
    let (log, _) = Log::open(DIR, &options).wait().unwrap();
    let (acknowledged, given_up) = (Arc::new(AtomicU64::new(0)), AtomicU64::new(1));
    let (over, left) = (AtomicBool::new(false), AtomicU64::new(APPENDERS));
    let mut images: Vec<(u64, Sim, u64)> = Vec::new();
    std::thread::scope(|scope| {
        for who in 0..APPENDERS {
            let (log, acknowledged, left) = (log.clone(), acknowledged.clone(), &left);
            scope.spawn(move || {
                let (told, hear) = mpsc::channel();
                for number in 0..EACH {
                    let bytes = of_caller(who, number);
                    let ticket = loop {
                        match if who % 2 == 0 { log.append(&bytes).wait() } else { log.try_append(&bytes) } {
                            Ok(ticket) => break ticket,
                            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
                        }
                        log.room(bytes.len()).wait().unwrap();
                    };
                    let lsn = ticket.lsn();
                    match who {
                        0 | 1 => drop(ticket.wait().unwrap()),
                        2 => drop(futures::executor::block_on(ticket).unwrap()),
                        3 => {
                            let (acknowledged, told) = (acknowledged.clone(), told.clone());
                            ticket.on_durable(move |result| {
                                acknowledged.fetch_max(result.unwrap(), Relaxed);
                                told.send(()).unwrap();
                            });
                            continue;
                        }
                        // Whoever comes writes it.
                        _ => continue,
                    }
                    acknowledged.fetch_max(lsn, Relaxed);
                }
                drop(told);
                assert_eq!(hear.iter().count() as u64, if who == 3 { EACH } else { 0 });
                left.fetch_sub(1, Relaxed);
            });
        }
        let (over, given_up) = (&over, &given_up);
        let (maintained, trimmed) = (log.clone(), log.clone());
        scope.spawn(move || {
            while !over.load(Relaxed) {
                if !maintained.maintain() {
                    std::thread::yield_now();
                }
            }
        });
        scope.spawn(move || {
            while !over.load(Relaxed) {
                let lsn = trimmed.durable_lsn().saturating_sub(100).max(1);
                given_up.store(lsn, SeqCst);
                trimmed.truncate_prefix(lsn);
                std::thread::yield_now();
            }
        });
        let followed = log.clone();
        scope.spawn(move || {
            let mut read = Vec::new();
            let mut reader = followed.reader(1);
            while read.len() < (APPENDERS * EACH) as usize {
                match futures::executor::block_on(reader.tail()) {
                    Ok(record) => read.push(record.bytes.to_vec()),
                    // Others gave it up.
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::NoSuchRecord, "{error}");
                        break;
                    }
                }
            }
            check_callers(read.into_iter(), "read on");
        });
        while left.load(Relaxed) > 0 {
            // In this order: what was acknowledged before the power failed is there, and what was
            // given up after need not be.
            let before = acknowledged.load(SeqCst).max(log.durable_lsn());
            let image = sim.crash_at_random(random.next());
            if images.len() < 150 {
                images.push((before, image, given_up.load(SeqCst)));
            }
            std::thread::sleep(Duration::from_micros(random.below(2000) as u64));
        }
        log.wait_durable(APPENDERS * EACH).wait().unwrap();
        over.store(true, Relaxed);
    });
    log.close().wait().unwrap();
    images.push((APPENDERS * EACH, sim.crash(|_, _| false), given_up.load(SeqCst)));
    for (number, (acknowledged, image, given_up)) in images.iter().enumerate() {
        let what = format!("seed {seed}, crash {number} of {}", images.len());
        let (_, recovery) = read_in(&on(image), DIR, 1).wait().unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(recovery.damage.is_empty(), "{what}: {recovery:?}");
        assert!(recovery.last_lsn >= *acknowledged, "{what}: {acknowledged} was acknowledged, {recovery:?}");
        assert!(recovery.first_lsn <= *given_up, "{what}: {given_up} was kept, {recovery:?}");
        let mut reader = read_in(&on(image), DIR, recovery.first_lsn).wait().unwrap().0;
        let read = (recovery.first_lsn..=recovery.last_lsn).map(|lsn| {
            let record = reader.next().wait().unwrap().unwrap();
            assert_eq!(record.lsn, lsn, "{what}");
            record.bytes.to_vec()
        });
        check_callers(read, &what);
    }
    images.len() as u64
}
