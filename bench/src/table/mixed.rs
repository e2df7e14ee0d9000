//! The table `mixed`: tasks that share a runtime read 4 KiB each, from pages of which most are
//! cached, beside a heartbeat of that runtime.
//!
//! Before each round the hot pages are in the page cache and the cold ones are not, verified by
//! `mincore`. The reads of each task are drawn by seed, the same for all ways, and no cold page is
//! read twice in a round. Every page that a round reads is compared by its first bytes, and those
//! of the first round as a whole. All ways of a case make as many reads a round as the middling way
//! makes in the time of a round.

use std::fs;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::columns::{Column, Grid, Line, PageGrid, cpu, every};
use super::{Phase, Run, Table, chosen, names, require_ways, usage};
use crate::error::{Error, Result};
use crate::machine::neighbour::Programs;
use crate::machine::testfile::{self, TestFile};
use crate::measure::interleave::{self, Stage};
use crate::measure::meter::{Check, Latencies, Sample, latencies};
use crate::measure::mixed::{Layout, Mixed as Job, Mixture, Neighbour, Plan};
use crate::measure::options::{Beside, Options};
use crate::measure::turn::{Turn, alone};
use crate::measure::work::Target;
use crate::report::figures::{micro, short};
use crate::report::notes::Code;
use crate::report::{Latency, Report, Row, median};
use crate::sys::PAGE;
use crate::table::reading;
use crate::ways::{self, MixedWay, OURS, Part, Roster, WAYS, await_spare};

pub struct Mixed {
    pub ways: Roster,
}

pub static MIXED: Mixed = Mixed { ways: WAYS };

/// Hot reads in a hundred.
pub const HOT: [usize; 4] = [50, 90, 99, 100];
const QUICK_HOT: [usize; 2] = [90, 99];
/// The share with which the other axes are tried.
const USUAL_HOT: usize = 90;
pub const TASKS: [usize; 4] = [1, 16, 64, 512];
const USUAL_TASKS: usize = 64;
pub const WORKERS: [usize; 2] = [1, 2];
/// More would not find room in the ring of one worker.
pub const TASKS_MAX: usize = 1024;
pub const WORKERS_MAX: usize = 256;

/// Reads that are verified, and that tell a way's speed.
const VERIFIED: usize = 512;
const WARM_UP: usize = 4096;
/// The slowest way's round may take this many times as long as it should.
const SLOWEST: f64 = 4.0;
/// Segments of the log beside the reads.
const SEGMENT_BYTES: u64 = 16 << 20;

/// Figures of this table's rows, over all rounds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Latencies of reads that were to be cached; `None` without any. The row's own are of all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hot_latency_ns: Option<Latency>,
    /// Of those that were not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cold_latency_ns: Option<Latency>,
    /// Time from when a beat of the heartbeat was due until it came, or until the round ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub late_ns: Option<Latency>,
    /// Beats that were due.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beats: Option<u64>,
    /// Writes, records or reads of the neighbour; `None` where there is none, or none that counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beside_per_s: Option<f64>,
}

impl Figures {
    fn of(told: &[(Mixture, f64)], beside: Beside) -> Self {
        let sum = |of: fn(&Mixture) -> &Latencies| {
            let mut sum = latencies();
            told.iter().for_each(|(told, _)| sum += of(told));
            (!sum.is_empty()).then_some(sum)
        };
        let latency = |of| sum(of).as_ref().map(Latency::of);
        let seconds: f64 = told.iter().map(|(_, seconds)| seconds).sum();
        let done: u64 = told.iter().map(|(told, _)| told.beside).sum();
        Self {
            hot_latency_ns: latency(|told| &told.hot),
            cold_latency_ns: latency(|told| &told.cold),
            late_ns: latency(|told| &told.late),
            beats: sum(|told| &told.late).map(|late| late.len()),
            beside_per_s: (!matches!(beside, Beside::Nobody | Beside::Cpu)).then(|| done as f64 / seconds),
        }
    }
}

fn hot(row: &Row, of: fn(&Latency) -> u64) -> Option<String> {
    row.figures::<Figures>().hot_latency_ns.map(|all| micro(of(&all)))
}

fn cold(row: &Row, of: fn(&Latency) -> u64) -> Option<String> {
    // Where none is cold, none is unknown.
    let figures = row.figures::<Figures>();
    figures.cold_latency_ns.map(|all| micro(of(&all))).or_else(|| figures.late_ns.map(|_| "–".to_owned()))
}

fn late(row: &Row, of: fn(&Latency) -> u64) -> Option<String> {
    row.figures::<Figures>().late_ns.map(|all| ms(of(&all)))
}

fn ms(nanoseconds: u64) -> String {
    format!("{:.2}", nanoseconds as f64 / 1e6)
}

fn beside(row: &Row) -> Option<String> {
    Some(row.figures::<Figures>().beside_per_s.map_or_else(|| "–".to_owned(), short))
}

const HOT_P50: Column = Column { name: "hot p50 µs", cell: |row| hot(row, |all| all.p50) };
const HOT_P99: Column = Column { name: "p99", cell: |row| hot(row, |all| all.p99) };
const HOT_P999: Column = Column { name: "p99.9", cell: |row| hot(row, |all| all.p999) };
const COLD_P50: Column = Column { name: "cold p50 µs", cell: |row| cold(row, |all| all.p50) };
const COLD_P99: Column = Column { name: "p99", cell: |row| cold(row, |all| all.p99) };
const COLD_P999: Column = Column { name: "p99.9", cell: |row| cold(row, |all| all.p999) };
const LATE_P50: Column = Column { name: "late p50 ms", cell: |row| late(row, |all| all.p50) };
const LATE_P99: Column = Column { name: "p99", cell: |row| late(row, |all| all.p99) };
const LATE_MAX: Column = Column { name: "longest", cell: |row| late(row, |all| all.max) };
const CPU: Column = Column { name: "CPU µs", cell: cpu };
const INLINE: Column = Column { name: "inline", cell: |row| row.inline_fraction.map(|share| format!("{share:.2}")) };
const BESIDE: Column = Column { name: "beside/s", cell: beside };

const READS: &[Column] = &[HOT_P50, HOT_P99, HOT_P999, COLD_P50, COLD_P99, COLD_P999, CPU, INLINE];
const BEATS: &[Column] = &[LATE_P50, LATE_P99, LATE_MAX, BESIDE];

const ON_PAGE: PageGrid = PageGrid {
    name: "mixed latencies",
    caption: "Latencies of hot and of cold reads, and how late a heartbeat of 1 ms came on the same runtime.",
    columns: &[
        HOT_P50, HOT_P99, HOT_P999, COLD_P50, COLD_P99, COLD_P999, LATE_P50, LATE_P99, LATE_MAX, CPU, INLINE, BESIDE,
    ],
};

/// A case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    pub hot: usize,
    pub tasks: usize,
    pub workers: usize,
    pub beside: Beside,
}

impl Shape {
    fn name(&self) -> String {
        let Self { hot, tasks, workers, beside } = self;
        let beside = if *beside == Beside::Nobody { String::new() } else { format!(" beside={}", beside.name()) };
        format!("hot={hot} tasks={tasks} workers={workers}{beside}")
    }
}

/// Every combination of what is asked for. Where nothing is, each axis by itself, the others at
/// their usual values.
pub fn shapes(options: &Options) -> Vec<Shape> {
    let Options { hot, tasks, workers, beside, quick, .. } = options;
    let mut shapes = Vec::new();
    let mut add = |hot: &[usize], tasks: &[usize], workers: &[usize], beside: &[Beside]| {
        for &beside in beside {
            for &tasks in tasks {
                for &hot in hot {
                    shapes.extend(workers.iter().map(|&workers| Shape { hot, tasks, workers, beside }));
                }
            }
        }
    };
    let asked = !(hot.is_empty() && tasks.is_empty() && workers.is_empty() && beside.is_empty());
    if asked || *quick {
        let or = |asked: &[usize], usual: &[usize]| if asked.is_empty() { usual.to_vec() } else { asked.to_vec() };
        let beside = if beside.is_empty() { vec![Beside::Nobody] } else { beside.clone() };
        add(&or(hot, &QUICK_HOT), &or(tasks, &[USUAL_TASKS]), &or(workers, &WORKERS), &beside);
        return shapes;
    }
    let others: Vec<usize> = TASKS.into_iter().filter(|&tasks| tasks != USUAL_TASKS).collect();
    add(&HOT, &[USUAL_TASKS], &WORKERS, &[Beside::Nobody]);
    add(&[USUAL_HOT], &others, &WORKERS, &[Beside::Nobody]);
    add(&[USUAL_HOT], &[USUAL_TASKS], &WORKERS, &[Beside::Writes, Beside::Log, Beside::Cpu, Beside::Tenant]);
    shapes
}

impl Table for Mixed {
    fn name(&self) -> &'static str {
        "mixed"
    }

    fn about(&self) -> &'static str {
        "Cached and cold reads by tasks that share a runtime, beside its heartbeat"
    }

    fn title(&self) -> &'static str {
        "mixed: tasks that share a runtime read 4 KiB, hot (cached) or cold, beside a heartbeat of 1 ms; reads/s"
    }

    fn unit(&self) -> &'static str {
        "reads/s"
    }

    fn toured(&self) -> bool {
        false
    }

    fn ways(&self) -> Vec<&'static str> {
        names(&ways::mixers(self.ways))
    }

    fn takes(&self) -> &'static [&'static str] {
        &["--hot", "--tasks", "--workers", "--beside"]
    }

    fn check(&self, options: &Options) -> Result<()> {
        require_ways(self.name(), &ways::mixers(self.ways), options)
    }

    fn file_size(&self, options: &Options) -> Option<u64> {
        Some(reading::file_size(options))
    }

    fn case_ways(&self, options: &Options) -> Vec<usize> {
        vec![chosen(&ways::mixers(self.ways), options).len(); shapes(options).len()]
    }

    fn round_time(&self, options: &Options) -> Duration {
        options.mixed_time
    }

    fn measure(&self, phase: Phase, run: &mut Run<'_>) -> Result<()> {
        if phase != Phase::File {
            return Ok(());
        }
        let (file, ways, table) = (run.test_file()?, run.usable(&ways::mixers(self.ways)), self.name());
        if ways.is_empty() {
            return Ok(());
        }
        let shapes = shapes(run.options);
        for shape in shapes {
            if let Err(why) = programs(shape.beside, file) {
                run.report.note(Code::CaseLeftOut, format!("{table} {}: {why}", shape.name()));
                continue;
            }
            let mut bench = Bench::new(table, &ways, shape, file, run)?;
            let timed = run.case(table, &bench.name.clone(), &ways, &mut bench)?;
            run.report.rows.extend(bench.rows(&timed));
        }
        Ok(())
    }

    fn columns(&self) -> &'static [Grid] {
        const GRIDS: &[Grid] = &[
            Grid::Rows { name: "a read", line: Line::UnderCase, has: every, columns: READS },
            Grid::Rows { name: "heartbeat", line: Line::UnderCase, has: every, columns: BEATS },
        ];
        GRIDS
    }

    fn on_page(&self) -> Option<&'static PageGrid> {
        Some(&ON_PAGE)
    }

    /// The heartbeat, in the first case that has one.
    fn findings(&self, report: &Report) -> Vec<String> {
        let p99 = |row: &Row| row.figures::<Figures>().late_ns.map(|late| late.p99);
        let sentence = |(case, rows): (&str, Vec<&Row>)| {
            let mut late: Vec<(u64, &str)> =
                rows.iter().filter_map(|row| Some((p99(row)?, row.way.as_str()))).collect();
            late.sort_unstable();
            let ((least, best), (most, worst)) = (late.first()?, late.last()?);
            let of_ours = late.iter().filter(|(_, way)| way.starts_with(OURS) && way != best && way != worst);
            let ours: String = of_ours.map(|(late, way)| format!(", of {way} {}", ms(*late))).collect();
            let (least, most) = (ms(*least), ms(*most));
            (best != worst).then(|| {
                format!(
                    "mixed: beside reads of {worst} a heartbeat comes {most} ms late at p99, of {best} {least}{ours} ({case})."
                )
            })
        };
        report.cases(self.name()).into_iter().find_map(sentence).into_iter().collect()
    }
}

/// Starts the other programs of a case.
fn programs(beside: Beside, file: &TestFile) -> std::io::Result<Option<Programs>> {
    match beside {
        Beside::Nobody | Beside::Writes | Beside::Log => Ok(None),
        Beside::Cpu => Programs::busy().map(Some),
        Beside::Tenant => Programs::tenant(file.path()).map(Some),
    }
}

/// One case, ready to be measured.
struct Bench<'a> {
    table: &'a str,
    name: String,
    ways: &'a [Part<dyn MixedWay>],
    shape: Shape,
    layout: Layout,
    file: &'a TestFile,
    dir: &'a Path,
    options: &'a Options,
    cancel: &'a AtomicBool,
    log: Option<OwnLog>,
    /// Reads of a timed round.
    reads: usize,
    plan: Plan,
    /// What each way's timed rounds told, and their length.
    told: Vec<Vec<(Mixture, f64)>>,
}

impl<'a> Bench<'a> {
    fn new<'r: 'a>(
        table: &'static str,
        ways: &'a [Part<dyn MixedWay>],
        shape: Shape,
        file: &'a TestFile,
        run: &Run<'r>,
    ) -> Result<Self> {
        let (dir, options, cancel) = (run.dir, run.options, run.cancel);
        let layout = Layout::of(file.size());
        if layout.cold_pages() * 100 < (shape.tasks * (100 - shape.hot)) as u64 {
            return Err(usage(format!("{} is too small for {} tasks; use a larger --size", file.name(), shape.tasks)));
        }
        let log = (shape.beside == Beside::Log).then(|| OwnLog::new(dir)).transpose()?;
        let (plan, told) = (Plan::default(), vec![Vec::new(); ways.len()]);
        let name = shape.name();
        Ok(Self { table, name, ways, shape, layout, file, dir, options, cancel, log, reads: 0, plan, told })
    }

    fn rows(&self, timed: &[Vec<Sample>]) -> Vec<Row> {
        let beside = self.shape.beside;
        let rows = super::rows(self.table, &self.name, self.ways, timed).into_iter();
        rows.zip(&self.told).map(|(row, told)| row.with(Figures::of(told, beside))).collect()
    }

    /// One way, once.
    fn turn(&self, way: Part<dyn MixedWay>, stage: Stage) -> Result<(Sample, Mixture)> {
        self.file.make_mixed(self.layout.runs())?;
        let matches = |offset: u64, bytes: &[u8]| self.file.matches(offset, bytes);
        let check: Option<&Check<'_>> = if stage == Stage::Verify { Some(&matches) } else { None };
        let turn = Turn { way: way.name(), table: self.table, case: &self.name, cancel: self.cancel };
        let written = match self.shape.beside {
            Beside::Writes => Some(Arc::new(testfile::create_nameless(self.dir)?)),
            _ => None,
        };
        let path = written.as_ref().map(|file| PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd())));
        let beside = match (&written, &path, &self.log) {
            (Some(file), Some(path), _) => Neighbour::Writer { file, path },
            (_, _, Some(log)) => Neighbour::Log(&log.log),
            _ => Neighbour::Nobody,
        };
        let (target, marks, plan, workers) = (Target::of(self.file), self.file.marks(), &self.plan, self.shape.workers);
        let job = Job { target, marks, plan, workers, beside };
        let programs = programs(self.shape.beside, self.file).map_err(|error| turn.failed(error))?;
        let outcome = alone(check, |round| way.mixed(&job, round));
        let reads = programs.as_ref().and_then(Programs::reads);
        drop(programs);
        let (sample, mut told) = turn.complete("reads", (plan.reads(), plan.reads() * PAGE), outcome)?;
        told.beside = reads.unwrap_or(told.beside);
        let cold = told.cold.len();
        if cold != plan.cold {
            return Err(turn.failed(format!("it told {cold} cold reads instead of {}", plan.cold)));
        }
        // Now, and not on the clock of whoever comes next.
        if let Some(file) = &written {
            file.set_len(0).map_err(|error| turn.failed(error))?;
        }
        if let Some(log) = &self.log {
            log.log.truncate_prefix(log.log.durable_lsn());
        }
        Ok((sample, told))
    }
}

impl interleave::Case for Bench<'_> {
    fn ways(&self) -> usize {
        self.ways.len()
    }

    fn warms_up(&self) -> bool {
        true
    }

    fn prepare(&mut self, stage: Stage) {
        let reads = match stage {
            Stage::Verify => VERIFIED,
            Stage::WarmUp => WARM_UP,
            Stage::Timed(_) => self.reads,
        };
        let mut random = stage.random(self.options.seed);
        self.plan = Plan::new(self.layout, self.shape.tasks, reads, self.shape.hot, &mut random);
    }

    fn round(&mut self, way: usize, stage: Stage) -> Result<Sample> {
        let (sample, told) = self.turn(self.ways[way], stage)?;
        if let Stage::Timed(_) = stage {
            self.told[way].push((told, sample.seconds));
        }
        Ok(sample)
    }

    fn round_again(&mut self, way: usize, stage: Stage) -> Result<Sample> {
        Ok(self.turn(self.ways[way], stage)?.0)
    }

    fn completed(&mut self, stage: Stage, samples: &[Sample]) {
        if stage == Stage::WarmUp {
            let speeds: Vec<f64> = samples.iter().map(Sample::per_second).collect();
            let slowest = speeds.iter().copied().fold(f64::INFINITY, f64::min);
            self.reads = (median(&speeds).min(slowest * SLOWEST) * self.options.mixed_time.as_secs_f64()) as usize;
        }
    }
}

/// A log in a directory of its own, which is removed with it.
struct OwnLog {
    log: nowait_log::Log,
    dir: PathBuf,
}

impl OwnLog {
    fn new(folder: &Path) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = folder.join(format!(".nowait-bench-mixed-{}-{number}", std::process::id()));
        let failed = |error: &std::io::Error| Error::io("make a log in", &dir, error);
        fs::create_dir(&dir).map_err(|error| failed(&error))?;
        let options = nowait_log::Options::new().create(true).segment_bytes(SEGMENT_BYTES);
        let log = match nowait_log::Log::open(&dir, &options).wait() {
            Ok((log, _)) => log,
            Err(error) => {
                let _ = fs::remove_dir_all(&dir);
                return Err(failed(&error.into()));
            }
        };
        await_spare(&log);
        Ok(Self { log, dir })
    }
}

impl Drop for OwnLog {
    fn drop(&mut self) {
        // Nothing is to be done about what cannot be closed or removed.
        let _ = self.log.clone().close().wait();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_has_a_name_of_its_own() {
        let names: Vec<String> = shapes(&Options::new(false, 1)).iter().map(Shape::name).collect();
        assert_eq!(names.len(), 8 + 6 + 8);
        assert!(names.iter().enumerate().all(|(i, name)| !names[..i].contains(name)), "{names:?}");
        assert!(names.contains(&"hot=90 tasks=64 workers=2 beside=log".to_owned()));
        assert_eq!(shapes(&Options::new(true, 1)).len(), 4);
    }

    #[test]
    fn what_is_asked_for_is_combined_with_the_usual() {
        let asked = |options: Options| shapes(&options).iter().map(Shape::name).collect::<Vec<_>>();
        let one = Options { hot: vec![100], workers: vec![1], ..Options::new(false, 1) };
        assert_eq!(asked(one), ["hot=100 tasks=64 workers=1"]);
        let besides = Options { tasks: vec![4], beside: vec![Beside::Writes, Beside::Log], ..Options::new(false, 1) };
        assert_eq!(asked(besides).len(), 2 * 2 * 2);
    }

    #[test]
    fn figures_of_rounds_are_summed_up() {
        let told = |cold: u64, beside| {
            let mut told = Mixture { hot: latencies(), cold: latencies(), late: latencies(), beside };
            told.hot.record_n(1000, 90).unwrap();
            told.cold.record_n(cold, 10).unwrap();
            told.late.record_n(1_000_000, 5).unwrap();
            (told, 0.5)
        };
        let both = [told(100_000, 100), told(200_000, 300)];
        let figures = Figures::of(&both, Beside::Writes);
        assert_eq!((figures.beats, figures.beside_per_s), (Some(10), Some(400.0)));
        let cold = figures.cold_latency_ns.unwrap();
        assert!(cold.p50 < 110_000 && (190_000..210_000).contains(&cold.p99), "{cold:?}");
        let row = Row::default().with(figures);
        assert_eq!(row.figures::<Figures>(), figures);
        assert_eq!((LATE_P50.cell)(&row).unwrap(), "1.00");
        assert_eq!((BESIDE.cell)(&Row::default()).unwrap(), "–");
        assert_eq!(Figures::of(&both, Beside::Nobody).beside_per_s, None);
    }
}
