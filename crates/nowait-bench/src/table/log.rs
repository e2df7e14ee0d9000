//! The table `log`: many writers, each of which makes a small record, waits until it is on stable
//! storage, and makes the next.
//!
//! Every round has a new file without a name, as long as the way may need it, filled with zeros and
//! synced before the clock runs. So no way pays for room, nor for a file that grows. What a way
//! makes ready itself before the clock runs is shown apart ("prepared"): for `nowait` it is the
//! calibration of a new log, its first segment and the next. A segment that a writer waits for later
//! is on the clock, in the latency of its record. All ways of a case make as many commits a round as
//! the middling way makes in the time of a round.
//!
//! A way's records are found and compared once for each case, before it is timed, and some of them
//! after each timed round. In all rounds the device must have written as many bytes as the records
//! have, where it counts.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use super::columns::{Column, Grid, LONGEST, Line, P50, P99, P999, cpu, every, prepared};
use super::dd::allows_direct;
use super::new_file::{free_bytes, no_room, require_room};
use super::{Phase, Run, Table, chosen, names, usage};
use crate::error::{Error, Result};
use crate::machine::load::Transfers;
use crate::machine::testfile;
use crate::measure::interleave::{self, Stage, steps};
use crate::measure::meter::{Check, Sample, Sampled};
use crate::measure::options::Options;
use crate::measure::turn::{Turn, alone};
use crate::measure::work::{Commits, Records};
use crate::report::figures::size_of;
use crate::report::notes::Code;
use crate::report::{Row, median};
use crate::sys;
use crate::ways::{self, LogWay};

pub struct Log {
    pub ways: &'static [&'static dyn LogWay],
}

pub static LOG: Log = Log { ways: ways::loggers() };

pub const WRITERS: [usize; 3] = [1, 8, 64];
const QUICK_WRITERS: [usize; 2] = [1, 64];
const SIZES: [usize; 3] = [128, 256, 4096];
const QUICK_SIZES: [usize; 2] = [128, 4096];

/// The largest record.
pub const SIZE_MAX: usize = 1 << 20;

/// Commits of all writers together when they are verified, and the fewest of one writer.
const VERIFIED: u64 = 256;
const FEWEST: u64 = 4;
/// The slowest way's round may take this many times as long as it should; the warm-up takes this
/// share of a round.
const SLOWEST: f64 = 4.0;
const WARM_UP: f64 = 0.2;
/// The largest file of a round.
pub const FILE_MAX: u64 = 1 << 30;
/// Synced in steps, so that an interrupt is obeyed soon.
const SYNC_EVERY: u64 = 64 << 20;

/// Figures of this table's rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Bytes of the file for each logged byte, with what fills up blocks; `None` for a way that
    /// does not know.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_bytes_per_byte: Option<f64>,
}

impl Figures {
    /// `file_bytes`: how far the file was used, over all rounds.
    fn of(samples: &[Sample], file_bytes: Option<u64>) -> Self {
        let logged: u64 = samples.iter().map(|sample| sample.bytes).sum();
        Self { file_bytes_per_byte: file_bytes.map(|bytes| bytes as f64 / logged.max(1) as f64) }
    }
}

const FILE_BYTES: Column = Column {
    name: "file bytes/byte",
    cell: |row| Some(format!("{:.2}", row.figures::<Figures>().file_bytes_per_byte?)),
};

const COLUMNS: &[Column] = &[
    P50,
    P99,
    P999,
    LONGEST,
    Column { name: "CPU µs", cell: cpu },
    Column { name: "switches", cell: |row| Some(format!("{:.2}", row.context_switches_per_op)) },
    FILE_BYTES,
    Column { name: "prepared ms", cell: prepared },
];

impl Log {
    fn writers(options: &Options) -> Vec<usize> {
        options.or_usual(&options.writers, &QUICK_WRITERS, &WRITERS)
    }

    fn sizes(options: &Options) -> Vec<usize> {
        options.or_usual(&options.sizes, &QUICK_SIZES, &SIZES)
    }

    /// Those that can be used in this directory.
    fn usable(&self, writers: &[usize], direct: bool, run: &mut Run<'_>) -> Vec<&'static dyn LogWay> {
        let mut ways = run.usable_in(self.name(), self.ways);
        ways.retain(|way| {
            let refused = way.direct() && !direct;
            if refused {
                let text = format!("{}: {} is left out: this file system refuses O_DIRECT", self.name(), way.name());
                run.report.note(Code::DirectRefused, text);
            }
            !refused
        });
        if writers.iter().any(|&writers| writers > 1) {
            for way in ways.iter().filter(|way| way.alone()) {
                let text = format!("{}: {} is only measured with one writer", self.name(), way.name());
                run.report.note(Code::OneWriter, text);
            }
        }
        ways
    }
}

impl Table for Log {
    fn name(&self) -> &'static str {
        "log"
    }

    fn about(&self) -> &'static str {
        "Durable appends: writers that wait until their record is on stable storage, by number and record size"
    }

    fn title(&self) -> &'static str {
        "log: writers that append a record and wait until it is on stable storage, commits/s"
    }

    fn unit(&self) -> &'static str {
        "commits/s"
    }

    fn ways(&self) -> Vec<&'static str> {
        names(self.ways)
    }

    fn takes(&self) -> &'static [&'static str] {
        &["--writers", "--sizes"]
    }

    fn check(&self, options: &Options) -> Result<()> {
        if options.file.is_some() {
            return Err(usage("--file is only read; leave it out of log"));
        }
        let one = Self::writers(options).contains(&1);
        if !chosen(self.ways, options).iter().any(|way| !way.alone() || one) {
            let (table, all) = (self.name(), names(self.ways).join(", "));
            return Err(usage(format!(
                "none of --ways is in the table {table} with these --writers; choose among {all}"
            )));
        }
        Ok(())
    }

    fn writes_into(&self, _: &Options) -> Option<(u64, &'static str)> {
        Some((FILE_MAX, "at most; a new one for each round, filled with zeros, without a name"))
    }

    fn measure(&self, phase: Phase, run: &mut Run<'_>) -> Result<()> {
        if phase != Phase::Directory {
            return Ok(());
        }
        let (dir, options, cancel, table) = (run.dir, run.options, run.cancel, self.name());
        let probe = testfile::create_nameless(dir)?;
        let free = free_bytes(&probe, dir)?;
        let direct =
            allows_direct(&path_of(&probe)).map_err(|error| Error::io("open with O_DIRECT in", dir, &error))?;
        drop(probe);
        let (writers, sizes) = (Self::writers(options), Self::sizes(options));
        let ways = self.usable(&writers, direct, run);
        let mut cases = Vec::new();
        for &writers in &writers {
            let ways: Vec<_> = ways.iter().copied().filter(|way| writers == 1 || !way.alone()).collect();
            for &size in &sizes {
                let name = format!("writers={writers} size={}", size_of(size));
                let (ways, file_bytes) = (ways.clone(), vec![Some(0); ways.len()]);
                let mut case =
                    Bench { table, name, ways, writers, size, free, dir, options, cancel, commits: 0, file_bytes };
                case.commits = case.few();
                cases.push(case);
            }
        }
        run.progress.begin(table, cases.iter().map(|case| steps(case.ways.len(), options.rounds, true)).sum());
        for mut case in cases {
            require_room(free, case.room() * case.few(), "--writers or --sizes", dir)?;
            let name = case.name.clone();
            let timed = run.case(table, &name, &case.ways.clone(), &mut case)?;
            run.report.rows.extend(case.rows(&timed));
        }
        Ok(())
    }

    fn columns(&self) -> &'static [Grid] {
        const GRIDS: &[Grid] = &[Grid::Rows { name: "a commit", line: Line::UnderCase, has: every, columns: COLUMNS }];
        GRIDS
    }

    fn figures(&self) -> &'static [Column] {
        &[FILE_BYTES]
    }
}

/// A path by which this process can open a file again that has no name.
pub(super) fn path_of(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// One case, ready to be measured.
struct Bench<'a> {
    table: &'a str,
    name: String,
    ways: Vec<&'static dyn LogWay>,
    writers: usize,
    size: usize,
    /// Free bytes of the file system before anything was written.
    free: u64,
    dir: &'a Path,
    options: &'a Options,
    cancel: &'a AtomicBool,
    /// Commits of each writer in the next round.
    commits: u64,
    /// Bytes of the file that each way used in its timed rounds, if it knows.
    file_bytes: Vec<Option<u64>>,
}

impl interleave::Case for Bench<'_> {
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

impl Bench<'_> {
    /// One way, once, and how many bytes of the file it took, if it knows.
    fn turn(&self, way: usize, stage: Stage) -> Result<(Sample, Option<u64>)> {
        let records = match stage {
            // Other records for each, so that none finds those of the one before.
            Stage::Verify => Records::new(self.options.seed.wrapping_add(way as u64 + 1)),
            _ => Records::new(self.options.seed),
        };
        self.commit(self.ways[way], records, stage == Stage::Verify)
    }

    /// Commits of each writer that are verified.
    fn few(&self) -> u64 {
        (VERIFIED / self.writers as u64).max(FEWEST)
    }

    fn rows(&self, timed: &[Vec<Sample>]) -> Vec<Row> {
        let row = |((way, samples), bytes): ((&&dyn LogWay, &Vec<Sample>), &Option<u64>)| {
            Row::of(self.table, &self.name, way.name(), samples).with(Figures::of(samples, *bytes))
        };
        self.ways.iter().zip(timed).zip(&self.file_bytes).map(row).collect()
    }

    /// Commits of each writer in such a share of a round's time, at these speeds of the ways.
    fn commits_in(&self, speeds: &[f64], share: f64) -> u64 {
        let slowest = speeds.iter().copied().fold(f64::INFINITY, f64::min);
        let all = median(speeds).min(slowest * SLOWEST) * self.options.commit_time.as_secs_f64() * share;
        let most = FILE_MAX.min(self.free / 2) / self.room().max(1);
        (all as u64 / self.writers as u64).min(most).max(FEWEST)
    }

    /// Bytes that a record of each writer takes of the file, at most, of any way's.
    fn room(&self) -> u64 {
        let of_record = self.ways.iter().map(|way| way.room(self.size)).max().unwrap_or(0);
        (of_record * self.writers) as u64
    }

    /// Commits by one way.
    fn commit(&self, way: &dyn LogWay, records: Records, verify: bool) -> Result<(Sample, Option<u64>)> {
        let turn = Turn { way: way.name(), table: self.table, case: &self.name, cancel: self.cancel };
        let (commits, cancel) = (self.commits, self.cancel);
        let all = commits * self.writers as u64;
        let room = way.room(self.size) as u64 * all;
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                no_room(room, "--writers or --sizes", self.dir, &error.to_string())
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
        let path = path_of(&file);
        let (folder, writers, size) = (self.dir, self.writers, self.size);
        let job = Commits { file: &file, path: &path, folder, writers, size, commits, records, cancel };
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
pub(super) fn fill(file: &mut File, room: u64, cancel: &AtomicBool) -> io::Result<()> {
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
