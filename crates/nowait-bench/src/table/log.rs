//! The table `log`: many writers, each of which makes a small record, waits until it is on stable storage, and makes the next.
//!
//! Every round has a new file without a name, as long as the way may need it, which is filled with zeros and synced before the clock runs:
//! so no way pays for room, nor for a file that grows. All ways of a case make the same number of commits a round, of which the middling
//! way makes as many in the time that a round should take. A way's records are found and compared once for each case, before
//! it is timed.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, Mutex, PoisonError};
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::machine::testfile;
use crate::measure::meter::{Check, Round, Sample};
use crate::measure::run::Progress;
use crate::measure::work::{Commits, Records};
use crate::report::notes::Code;
use crate::report::{Report, Row, median};
use crate::sys;
use crate::table::dd::{allows_direct, short};
use crate::table::writes::{free_bytes, no_room, require_room};
use crate::ways::LogWay;

pub const TABLE: &str = "log";

/// What to measure.
#[derive(Clone)]
pub struct Plan {
    pub ways: Vec<&'static dyn LogWay>,
    pub writers: Vec<usize>,
    pub sizes: Vec<usize>,
    pub rounds: usize,
    /// What a round should take at a middling way's speed.
    pub round_time: Duration,
    pub seed: u64,
}

pub const WRITERS: [usize; 3] = [1, 8, 64];
pub const SIZES: [usize; 3] = [128, 256, 4096];

/// The largest record.
pub const SIZE_MAX: usize = 1 << 20;

/// How many commits all writers make together when they are verified, and the fewest of one writer.
const VERIFIED: u64 = 256;
const FEWEST: u64 = 4;
/// How much longer than it should a round may take for the slowest way, and how much shorter the one that tells the speeds is.
const SLOWEST: f64 = 4.0;
const WARM_UP: f64 = 0.2;
/// The largest file of a round.
pub const FILE_MAX: u64 = 1 << 30;
/// Synced in steps, so that an interrupt is obeyed soon.
const SYNC_EVERY: u64 = 64 << 20;

impl Plan {
    /// Measures in `dir`. What is complete is in `report`, even after an error or an interrupt.
    pub fn run(&self, dir: &Path, cancel: &AtomicBool, progress: &mut dyn Progress, report: &mut Report) -> Result<()> {
        let probe = testfile::create_nameless(dir)?;
        let free = free_bytes(&probe, dir)?;
        let direct =
            allows_direct(&path_of(&probe)).map_err(|error| Error::io("open with O_DIRECT in", dir, &error))?;
        drop(probe);
        let mut ways = self.ways.clone();
        ways.retain(|way| {
            let refused = match way.refused() {
                None if way.direct() && !direct => {
                    Some((Code::DirectRefused, "this file system refuses O_DIRECT".to_owned()))
                }
                refused => refused.map(|why| (Code::WayLeftOut, why)),
            };
            if let Some((code, why)) = &refused {
                report.note(*code, format!("{TABLE}: {} is left out: {why}", way.name()));
            }
            refused.is_none()
        });
        if self.writers.iter().any(|&writers| writers > 1) {
            for way in ways.iter().filter(|way| way.alone()) {
                report.note(Code::OneWriter, format!("{TABLE}: {} is only measured with one writer", way.name()));
            }
        }
        let cases: Vec<Case<'_>> = self
            .writers
            .iter()
            .flat_map(|&writers| self.sizes.iter().map(move |&size| (writers, size)))
            .map(|(writers, size)| {
                let ways = ways.iter().copied().filter(|way| writers == 1 || !way.alone()).collect();
                Case { plan: self, ways, writers, size, free, dir, cancel }
            })
            .collect();
        let turns: usize = cases.iter().map(|case| case.ways.len()).sum();
        progress.begin(TABLE, (turns * (self.rounds + 2)) as u64);
        for case in cases {
            progress.now(&case.name());
            report.rows.extend(case.measure(progress)?);
        }
        Ok(())
    }
}

/// By which this process can open a file again that has no name.
fn path_of(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

struct Case<'a> {
    plan: &'a Plan,
    ways: Vec<&'static dyn LogWay>,
    writers: usize,
    size: usize,
    free: u64,
    dir: &'a Path,
    cancel: &'a AtomicBool,
}

impl Case<'_> {
    fn name(&self) -> String {
        format!("writers={} size={}", self.writers, short(self.size))
    }

    fn measure(&self, progress: &mut dyn Progress) -> Result<Vec<Row>> {
        let few = (VERIFIED / self.writers as u64).max(FEWEST);
        require_room(self.free, self.room() * few, "--writers or --sizes", self.dir)?;
        let mut speeds = Vec::new();
        for (number, &way) in (1..).zip(&self.ways) {
            // Other records for each, so that none finds those of the one before.
            let records = Records::new(self.plan.seed.wrapping_add(number));
            speeds.push(self.round(way, few, records, true)?.0.per_second());
            progress.step(1);
        }
        let commits = self.commits(&speeds, WARM_UP);
        let records = Records::new(self.plan.seed);
        for (way, speed) in self.ways.iter().zip(&mut speeds) {
            *speed = self.round(*way, commits, records, false)?.0.per_second();
            progress.step(1);
        }
        let commits = self.commits(&speeds, 1.0);
        let mut samples = vec![Vec::new(); self.ways.len()];
        let mut file_bytes = vec![Some(0); self.ways.len()];
        for round in 0..self.plan.rounds {
            for turn in 0..self.ways.len() {
                let which = (round + turn) % self.ways.len();
                let (sample, bytes) = self.round(self.ways[which], commits, records, false)?;
                samples[which].push(sample);
                file_bytes[which] = file_bytes[which].zip(bytes).map(|(sum, bytes)| sum + bytes);
                progress.step(1);
            }
        }
        let name = self.name();
        let row = |((way, samples), bytes): ((&&dyn LogWay, &Vec<Sample>), Option<u64>)| {
            Row::of(TABLE, &name, way.name(), samples).with_log(samples, bytes)
        };
        Ok(self.ways.iter().zip(&samples).zip(file_bytes).map(row).collect())
    }

    /// How many commits each writer makes in such a share of a round's time, at these speeds of the ways.
    fn commits(&self, speeds: &[f64], share: f64) -> u64 {
        let slowest = speeds.iter().copied().fold(f64::INFINITY, f64::min);
        let all = median(speeds).min(slowest * SLOWEST) * self.plan.round_time.as_secs_f64() * share;
        let most = FILE_MAX.min(self.free / 2) / self.room().max(1);
        (all as u64 / self.writers as u64).min(most).max(FEWEST)
    }

    /// What a record of each writer takes of the file, of any way's.
    fn room(&self) -> u64 {
        let of_record = self.ways.iter().map(|way| way.room(self.size)).max().unwrap_or(0);
        (of_record * self.writers) as u64
    }

    /// One way, once, and how many bytes of the file it took, if it knows.
    fn round(&self, way: &dyn LogWay, commits: u64, records: Records, verify: bool) -> Result<(Sample, Option<u64>)> {
        let failed = |why: &str| {
            let (way, case) = (way.name(), self.name());
            Error::new(ErrorKind::Other, format!("{way} failed in {TABLE} {case}: {why}; leave it out with --ways"))
        };
        let all = commits * self.writers as u64;
        let room = way.room(self.size) as u64 * all;
        let io_failed = |error: io::Error| match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                no_room(room, "--writers or --sizes", self.dir, &error.to_string())
            }
            _ => failed(&error.to_string()),
        };
        let mut file = testfile::create_nameless(self.dir)?;
        self.fill(&mut file, room, way.direct()).map_err(io_failed)?;
        if self.cancel.load(Ordering::Relaxed) {
            return Err(Error::interrupted());
        }
        let path = path_of(&file);
        let job = Commits {
            file: &file,
            path: &path,
            folder: self.dir,
            writers: self.writers,
            size: self.size,
            commits,
            records,
            cancel: self.cancel,
        };
        let found = Mutex::new(HashSet::new());
        let holds = |number: u64, record: &[u8]| {
            found.lock().unwrap_or_else(PoisonError::into_inner).insert(number);
            records.holds(number, record)
        };
        let check: Option<&Check<'_>> = if verify { Some(&holds) } else { None };
        let gate = Barrier::new(1);
        let mut round = Round::new(&gate, check);
        let result = way.commits(&job, &mut round);
        if self.cancel.load(Ordering::Relaxed) {
            return Err(Error::interrupted());
        }
        let bytes = result.map_err(io_failed)?;

        let sample = Sample::of(&[round]).ok_or_else(|| failed("it did not run its clock"))?;
        let (done, wanted) = ((sample.operations, sample.bytes), (all, all * self.size as u64));
        if done != wanted {
            return Err(failed(&format!("(commits, bytes) are {done:?} instead of {wanted:?}")));
        }
        if let Some(number) = sample.wrong {
            let (writer, sequence) = (number >> 32, number & u64::from(u32::MAX));
            return Err(failed(&format!("record {sequence} of writer {writer} is not where it should be")));
        }
        let found = found.into_inner().unwrap_or_else(PoisonError::into_inner).len() as u64;
        if verify && found != all {
            return Err(failed(&format!("it found {found} of its {all} records")));
        }
        // Now, and not on the clock of whoever comes next.
        file.set_len(0).and_then(|()| file.sync_all()).map_err(io_failed)?;
        Ok((sample, bytes))
    }

    /// Real zeros: room that is only allocated is written to as slowly as a file that grows.
    fn fill(&self, file: &mut File, room: u64, direct: bool) -> io::Result<()> {
        let zeros = vec![0; 1 << 20];
        for offset in (0..room).step_by(zeros.len()) {
            if self.cancel.load(Ordering::Relaxed) {
                return Ok(());
            }
            file.write_all(&zeros[..zeros.len().min((room - offset) as usize)])?;
            if (offset + zeros.len() as u64) % SYNC_EVERY == 0 {
                file.sync_data()?;
            }
        }
        file.sync_all()?;
        // Else the first direct write to a page would have to drop it.
        if direct { sys::drop_cache(file) } else { Ok(()) }
    }
}
