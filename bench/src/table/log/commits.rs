//! A case of durable appends: so many records under way at a time, each a writer's, or several of a
//! writer that does not wait for each.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use super::Figures;
use crate::error::{Error, Result};
use crate::machine::load::Transfers;
use crate::machine::testfile;
use crate::measure::interleave::{self, Stage};
use crate::measure::meter::{Check, Sample, Sampled};
use crate::measure::options::Options;
use crate::measure::turn::{Turn, alone};
use crate::measure::work::{Commits, Records};
use crate::report::{Row, median};
use crate::sys;
use crate::table::log::FILE_MAX;
use crate::table::new_file::{no_room, require_room};
use crate::table::{Run, rows};
use crate::ways::{LogWay, Part};

/// Commits of all writers together when they are verified, and the fewest of one writer.
const VERIFIED: u64 = 256;
const FEWEST: u64 = 4;
/// The slowest way's round may take this many times as long as it should; the warm-up takes this
/// share of a round.
const SLOWEST: f64 = 4.0;
const WARM_UP: f64 = 0.2;
/// Synced in steps, so that an interrupt is obeyed soon.
const SYNC_EVERY: u64 = 64 << 20;

/// One case, ready to be measured.
pub(super) struct Commit<'a> {
    table: &'static str,
    name: String,
    pub(super) ways: Vec<Part<dyn LogWay>>,
    /// Records under way at a time, of all writers.
    slots: usize,
    /// Those of each writer, where a way [pipelines](LogWay::pipelines).
    in_flight: usize,
    size: usize,
    /// Free bytes of the file system before anything was written.
    free: u64,
    dir: &'a Path,
    options: &'a Options,
    cancel: &'a AtomicBool,
    /// Options that make it need less room, as an error names them.
    limits: &'static str,
    /// Commits of each slot in the next round.
    commits: u64,
    /// Bytes of the file that each way used in its timed rounds, if it knows.
    file_bytes: Vec<Option<u64>>,
}

impl<'a> Commit<'a> {
    /// A case of `table`, in which so many records are under way at a time. `limits`: options by
    /// which it needs less room.
    pub(super) fn new(
        (table, name): (&'static str, String),
        ways: Vec<Part<dyn LogWay>>,
        (slots, in_flight, size): (usize, usize, usize),
        limits: &'static str,
        free: u64,
        run: &Run<'a>,
    ) -> Self {
        let (dir, options, cancel) = (run.dir, run.options, run.cancel);
        let file_bytes = vec![Some(0); ways.len()];
        let mut case = Self {
            table,
            name,
            ways,
            slots,
            in_flight,
            size,
            free,
            dir,
            options,
            cancel,
            limits,
            commits: 0,
            file_bytes,
        };
        case.commits = case.few();
        case
    }

    /// Measures it, if there is room, and adds its rows.
    pub(super) fn measure(mut self, run: &mut Run<'a>) -> Result<()> {
        require_room(self.free, self.room() * self.few(), self.limits, self.dir)?;
        let (name, ways) = (self.name.clone(), self.ways.clone());
        let timed = run.case(self.table, &name, &ways, &mut self)?;
        run.report.rows.extend(self.rows(&timed));
        Ok(())
    }
}

impl interleave::Case for Commit<'_> {
    fn ways(&self) -> usize {
        self.ways.len()
    }

    fn warms_up(&self) -> bool {
        true
    }

    fn round(&mut self, way: usize, stage: Stage) -> Result<Sample> {
        let (sample, bytes) = self.turn(way, stage)?;
        if let Stage::Timed(_) = stage {
            self.file_bytes[way] = self.file_bytes[way].zip(bytes).map(|(sum, bytes)| sum + bytes);
        }
        Ok(sample)
    }

    fn round_again(&mut self, way: usize, stage: Stage) -> Result<Sample> {
        Ok(self.turn(way, stage)?.0)
    }

    fn completed(&mut self, stage: Stage, samples: &[Sample]) {
        let share = match stage {
            Stage::Verify => WARM_UP,
            Stage::WarmUp => 1.0,
            Stage::Timed(_) => return,
        };
        let speeds: Vec<f64> = samples.iter().map(Sample::per_second).collect();
        self.commits = self.commits_in(&speeds, share);
    }
}

impl Commit<'_> {
    /// One way, once, and how many bytes of the file it took, if it knows.
    fn turn(&self, way: usize, stage: Stage) -> Result<(Sample, Option<u64>)> {
        let records = match stage {
            // Other records for each, so that none finds those of the one before.
            Stage::Verify => Records::new(self.options.seed.wrapping_add(way as u64 + 1)),
            _ => Records::new(self.options.seed),
        };
        self.commit(self.ways[way], records, stage == Stage::Verify)
    }

    /// Commits of each slot that are verified.
    fn few(&self) -> u64 {
        (VERIFIED / self.slots as u64).max(FEWEST)
    }

    fn rows(&self, timed: &[Vec<Sample>]) -> Vec<Row> {
        let rows = rows(self.table, &self.name, &self.ways, timed).into_iter().zip(timed);
        rows.zip(&self.file_bytes).map(|((row, samples), bytes)| row.with(Figures::of(samples, *bytes))).collect()
    }

    /// Commits of each slot in such a share of a round's time, at these speeds of the ways.
    fn commits_in(&self, speeds: &[f64], share: f64) -> u64 {
        let slowest = speeds.iter().copied().fold(f64::INFINITY, f64::min);
        let all = median(speeds).min(slowest * SLOWEST) * self.options.commit_time.as_secs_f64() * share;
        let most = FILE_MAX.min(self.free / 2) / self.room().max(1);
        (all as u64 / self.slots as u64).min(most).max(FEWEST)
    }

    /// Bytes that a record of each slot takes of the file, at most, of any way's.
    fn room(&self) -> u64 {
        let of_record = self.ways.iter().map(|way| way.room(self.size)).max().unwrap_or(0);
        (of_record * self.slots) as u64
    }

    /// Commits by one way.
    fn commit(&self, way: Part<dyn LogWay>, records: Records, verify: bool) -> Result<(Sample, Option<u64>)> {
        let turn = Turn { way: way.name(), table: self.table, case: &self.name, cancel: self.cancel };
        let (in_flight, cancel) = (if way.pipelines() { self.in_flight } else { 1 }, self.cancel);
        let (writers, commits) = (self.slots / in_flight, self.commits * in_flight as u64);
        let all = commits * writers as u64;
        let room = way.room(self.size) as u64 * all;
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                no_room(room, self.limits, self.dir, &error.to_string())
            }
            _ => turn.failed(error),
        };
        let mut file = testfile::create_nameless(self.dir)?;
        fill(&mut file, room, self.cancel).map_err(failed)?;
        // Else the first direct write to a page would have to drop it.
        if way.direct() && !turn.interrupted() {
            sys::drop_cache(&file).map_err(failed)?;
        }
        if turn.interrupted() {
            return Err(Error::interrupted());
        }
        let path = sys::path_of(&file);
        let (folder, size) = (self.dir, self.size);
        let job = Commits {
            file: &file,
            path: &path,
            folder,
            writers,
            in_flight,
            size,
            commits,
            pace: None,
            records,
            cancel,
        };
        let found = Mutex::new(HashSet::new());
        let holds = |number: u64, record: &[u8]| {
            found.lock().unwrap_or_else(PoisonError::into_inner).insert(number);
            records.holds(number, record)
        };
        let check: Option<&Check<'_>> = if verify { Some(&holds) } else { None };
        let before = Transfers::under(&file);
        let outcome = alone(check, |round| way.commits(&job, round));
        let after = Transfers::under(&file);
        let (sample, bytes) = turn.sample(outcome, failed)?;
        turn.require("commits", &sample, (all, all * self.size as u64))?;
        let differs =
            |found: &&Sampled| found.len != self.size || found.crc != records.checksum(self.size, found.offset);
        if let Some(number) = sample.wrong.or_else(|| Some(sample.sampled.iter().find(differs)?.offset)) {
            let (writer, sequence) = (number >> 32, number & u64::from(u32::MAX));
            return Err(turn.failed(format!("record {sequence} of writer {writer} is not where it should be")));
        }
        let found = found.into_inner().unwrap_or_else(PoisonError::into_inner).len() as u64;
        if verify && found != all {
            return Err(turn.failed(format!("it found {found} of its {all} records")));
        }
        if !verify && room > 0 && sample.sampled.is_empty() {
            return Err(turn.failed("it found none of its records in a timed round"));
        }
        turn.require_on_device(sample.bytes, before, after)?;
        // Now, and not on the clock of whoever comes next.
        file.set_len(0).and_then(|()| file.sync_all()).map_err(failed)?;
        Ok((sample, bytes))
    }
}

/// Writes `room` real zeros and syncs them: room that is only allocated is written to as slowly as
/// a file that grows.
pub(in crate::table) fn fill(file: &mut File, room: u64, cancel: &AtomicBool) -> io::Result<()> {
    let zeros = vec![0; 1 << 20];
    for offset in (0..room).step_by(zeros.len()) {
        if cancel.load(Ordering::Relaxed) {
            return Ok(());
        }
        file.write_all(&zeros[..zeros.len().min((room - offset) as usize)])?;
        if (offset + zeros.len() as u64) % SYNC_EVERY == 0 {
            file.sync_data()?;
        }
    }
    file.sync_all()
}
