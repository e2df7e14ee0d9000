//! The table `log-recovery`: a log that was closed is opened, beside `cat` and direct reads of its
//! segments. None of them is cached before a round. An operation is the whole log, and every way is
//! given the bytes of the segments that hold records.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use nowait_log::{Log, inspect};

use super::{place, wants};
use crate::error::{Error, ErrorKind, Result};
use crate::measure::interleave::{self, Stage, steps};
use crate::measure::meter::Sample;
use crate::measure::options::{Logged, Options};
use crate::measure::turn::{Turn, alone};
use crate::measure::work::{Opening, Records};
use crate::report::Row;
use crate::report::figures::mib;
use crate::sys;
use crate::table::columns::{Column, Grid, Line, cpu, every, latency};
use crate::table::new_file::{no_room, require_room};
use crate::table::{Phase, Run, Table, names, rows};
use crate::ways::{self, Folder, OpenWay};

pub struct Recovery {
    pub ways: &'static [&'static dyn OpenWay],
}

pub static RECOVERY: Recovery = Recovery { ways: ways::openers() };

const BYTES: u64 = 1 << 30;
const QUICK_BYTES: u64 = 64 << 20;
const RECORD: usize = 1000;
/// Records of a batch, and batches under way, while the log is made.
const BATCH: usize = 64;
const UNDER_WAY: usize = 8;

/// A log with records of about so many bytes, closed, and what is in it.
struct Made {
    folder: Folder,
    segments: Vec<PathBuf>,
    bytes: u64,
    last_lsn: u64,
}

impl Made {
    fn new(dir: &Path, bytes: u64, seed: u64, cancel: &AtomicBool) -> io::Result<Self> {
        let folder = Folder::new(dir)?;
        let (log, _) = Log::open(folder.path(), &nowait_log::Options::new().create(true)).wait()?;
        let (records, count) = (Records::new(seed), bytes / RECORD as u64);
        let mut batch = vec![vec![0; RECORD]; BATCH];
        let mut under_way = std::collections::VecDeque::with_capacity(UNDER_WAY);
        for first in (0..count).step_by(BATCH) {
            if cancel.load(std::sync::atomic::Ordering::Relaxed) {
                break;
            }
            (first..).zip(&mut batch).for_each(|(number, record)| records.make(record, number));
            under_way.push_back(log.append_batch(batch.iter().map(Vec::as_slice)).wait()?);
            if under_way.len() == UNDER_WAY {
                under_way.pop_front().map_or(Ok(0), |ticket| ticket.wait())?;
            }
        }
        log.close().wait()?;
        let recovery = inspect(folder.path()).wait()?;
        let names = fs::read_dir(folder.path())?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
        let mut segments: Vec<PathBuf> =
            names.into_iter().filter(|path| path.extension().is_some_and(|end| end == "seg")).collect();
        segments.sort_unstable();
        // Those behind are spares, which an open log removes.
        segments.truncate(recovery.segments);
        let lengths = segments.iter().map(|path| Ok(fs::metadata(path)?.len())).collect::<io::Result<Vec<u64>>>()?;
        Ok(Self { folder, segments, bytes: lengths.iter().sum(), last_lsn: recovery.last_lsn })
    }

    /// Drops the segments from the page cache.
    fn make_cold(&self) -> Result<()> {
        for path in &self.segments {
            let failed = |error: io::Error| Error::io("drop from the page cache", path, &error);
            let file = File::open(path).map_err(failed)?;
            file.sync_all().and_then(|()| sys::drop_cache(&file)).map_err(failed)?;
            let length = file.metadata().map_err(failed)?.len();
            if sys::residency(&file, length).map_err(failed)?.contains(&true) {
                let text = format!("{} stays in the page cache; name a directory on a disk with --dir", path.display());
                return Err(Error::new(ErrorKind::NotCold, text));
            }
        }
        Ok(())
    }
}

struct Case<'a> {
    table: &'static str,
    name: String,
    ways: Vec<&'static dyn OpenWay>,
    made: &'a Made,
    cancel: &'a AtomicBool,
}

impl interleave::Case for Case<'_> {
    fn ways(&self) -> usize {
        self.ways.len()
    }

    fn round(&mut self, way: usize, _: Stage) -> Result<Sample> {
        let way = self.ways[way];
        let turn = Turn { way: way.name(), table: self.table, case: &self.name, cancel: self.cancel };
        if turn.interrupted() {
            return Err(Error::interrupted());
        }
        let made = self.made;
        made.make_cold()?;
        let (bytes, last_lsn) = (made.bytes, made.last_lsn);
        let job = Opening { folder: made.folder.path(), segments: &made.segments, bytes, last_lsn };
        let (sample, ()) = turn.complete("logs", (1, bytes), alone(None, |round| way.open(&job, round)))?;
        Ok(sample)
    }
}

impl Table for Recovery {
    fn name(&self) -> &'static str {
        Logged::Recovery.table()
    }

    fn asked_as(&self) -> &'static str {
        "log"
    }

    fn about(&self) -> &'static str {
        "Opening a log, beside reading its segments"
    }

    fn title(&self) -> &'static str {
        "log-recovery: a log that was closed, opened; its segments, read; all cold; MiB/s"
    }

    fn unit(&self) -> &'static str {
        "MiB/s"
    }

    fn compared(&self, row: &Row) -> f64 {
        mib(row.bytes_per_s)
    }

    fn ways(&self) -> Vec<&'static str> {
        names(self.ways)
    }

    fn takes(&self) -> &'static [&'static str] {
        &["--logs"]
    }

    fn writes_into(&self, options: &Options) -> Option<(u64, &'static str)> {
        Some((if options.quick { QUICK_BYTES } else { BYTES }, "a log"))
    }

    fn measure(&self, phase: Phase, run: &mut Run<'_>) -> Result<()> {
        let (options, cancel, dir, table) = (run.options, run.cancel, run.dir, self.name());
        if phase != Phase::Directory || !wants(options, Logged::Recovery) {
            return Ok(());
        }
        let (free, direct) = place(run)?;
        let mut ways = run.usable_in(table, self.ways);
        ways.retain(|way| direct || !way.direct());
        if ways.is_empty() {
            return Ok(());
        }
        let bytes = if options.quick { QUICK_BYTES } else { BYTES };
        require_room(free, bytes * 3 / 2, "--logs", dir)?;
        let name = format!("size={}", if options.quick { "64M" } else { "1G" });
        run.progress.begin(table, steps(ways.len(), options.rounds, false));
        run.progress.now(&format!("{table}: making the log"));
        let made = Made::new(dir, bytes, options.seed, cancel).map_err(|error| match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                no_room(bytes, "--logs", dir, &error.to_string())
            }
            _ => Error::io("make a log in", dir, &error),
        })?;
        let (of_case, case_name) = (ways.clone(), name.clone());
        let mut case = Case { table, name, ways, made: &made, cancel };
        let timed = run.case(table, &case_name, &of_case, &mut case)?;
        run.report.rows.extend(rows(table, &case_name, &of_case, &timed));
        Ok(())
    }

    fn columns(&self) -> &'static [Grid] {
        const COLUMNS: &[Column] = &[
            Column { name: "p50 µs", cell: |row| latency(row, |all| all.p50) },
            Column { name: "longest µs", cell: |row| latency(row, |all| all.max) },
            Column { name: "CPU µs", cell: cpu },
        ];
        const GRIDS: &[Grid] = &[Grid::Rows { name: "a log", line: Line::UnderCase, has: every, columns: COLUMNS }];
        GRIDS
    }
}
