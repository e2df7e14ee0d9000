//! The table `mixed`: tasks that share a runtime read 4 KiB each, mostly cached, beside a heartbeat
//! of that runtime.
//!
//! Before each round `mincore` verifies that hot pages are in the page cache and cold pages are
//! not. The reads of each task are drawn by seed and equal for all ways; no cold page is read twice
//! in a round. The first bytes of every read page are compared, and in the first round all its
//! bytes.

use super::reads::file_size_of_reads;
use super::*;
use crate::machine::neighbour::Programs;
use crate::measure::mixed::{Layout, Mixed as Job, Neighbour, Plan};
use crate::measure::options::{Beside, name};
use crate::ways::{Folder, MixedWay, await_spare};

pub static MIXED: Table = Table {
    name: "mixed",
    about: "Cached and cold reads by tasks of one runtime, and the delay of its heartbeat",
    title: "mixed: tasks that share a runtime read 4 KiB, hot (cached) or cold, beside a heartbeat of 1 ms; reads/s",
    unit: "reads/s",
    takes: &["hot", "tasks", "workers", "beside"],
    file_size: file_size_of_reads,
    cases: |options| {
        let case = |shape: MixShape| {
            let open = move |ways, run: &mut Run<'_>| MixedCase::open(ways, shape, run);
            Case::new(shape.name(), ways::mixers(options.roster), Work::For(options.mixed_time), open)
        };
        shapes(options).into_iter().map(case).collect()
    },
    grids: &[
        Grid {
            name: "latencies",
            is_detail: false,
            columns: &[
                Column { name: "hot p50 µs", cell: |row| hot(row, |all| all.p50) },
                Column { name: "p99", cell: |row| hot(row, |all| all.p99) },
                Column { name: "p99.9", cell: |row| hot(row, |all| all.p999) },
                Column { name: "cold p50 µs", cell: |row| cold(row, |all| all.p50) },
                Column { name: "p99", cell: |row| cold(row, |all| all.p99) },
                Column { name: "p99.9", cell: |row| cold(row, |all| all.p999) },
                CPU,
                Column { name: "inline", cell: |row| row.inline_fraction.map(|share| format!("{share:.2}")) },
            ],
        },
        Grid {
            name: "heartbeat",
            is_detail: false,
            columns: &[
                Column { name: "late p50 ms", cell: |row| late(row, |all| all.p50) },
                Column { name: "p99", cell: |row| late(row, |all| all.p99) },
                Column { name: "longest", cell: |row| late(row, |all| all.max) },
                Column {
                    name: "beside/s",
                    cell: |row| Some(row.figure("beside_per_s").map_or_else(|| "–".to_owned(), short)),
                },
            ],
        },
    ],
    findings: heartbeat,
    ..Table::USUAL
};

/// Percentages of hot reads, and the one with which the other axes are varied.
const HOT: [usize; 4] = [50, 90, 99, 100];
const QUICK_HOT: [usize; 2] = [90, 99];
const USUAL_HOT: usize = 90;
const OTHER_TASKS: [usize; 3] = [1, 16, 512];
const USUAL_TASKS: usize = 64;
const WORKERS: [usize; 2] = [1, 2];

/// Segment size of the neighbour's log.
const SEGMENT_BYTES: u64 = 16 << 20;

fn hot(row: &Row, of: fn(&Latency) -> u64) -> Option<String> {
    row.own_latency("hot_latency_ns").map(|all| micro(of(&all)))
}

fn cold(row: &Row, of: fn(&Latency) -> u64) -> Option<String> {
    // A row without cold reads shows a dash, not an unknown figure.
    let none = || row.own_latency("late_ns").map(|_| "–".to_owned());
    row.own_latency("cold_latency_ns").map(|all| micro(of(&all))).or_else(none)
}

fn late(row: &Row, of: fn(&Latency) -> u64) -> Option<String> {
    row.own_latency("late_ns").map(|all| format!("{:.2}", of(&all) as f64 / 1e6))
}

/// Parameters of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct MixShape {
    hot: usize,
    tasks: usize,
    workers: usize,
    beside: Beside,
}

impl MixShape {
    fn name(&self) -> String {
        let Self { hot, tasks, workers, beside } = self;
        let beside = if *beside == Beside::Nobody { String::new() } else { format!(" beside={}", name(*beside)) };
        format!("hot={hot} tasks={tasks} workers={workers}{beside}")
    }
}

/// Returns all combinations of the given options. Without any, varies one axis at a time, with the
/// others at their usual values.
fn shapes(options: &Options) -> Vec<MixShape> {
    let Options { hot, tasks, workers, beside, quick, .. } = options;
    let mut shapes = Vec::new();
    let mut add = |hot: &[usize], tasks: &[usize], workers: &[usize], beside: &[Beside]| {
        for (&beside, &tasks) in beside.iter().flat_map(|beside| tasks.iter().map(move |tasks| (beside, tasks))) {
            for &hot in hot {
                shapes.extend(workers.iter().map(|&workers| MixShape { hot, tasks, workers, beside }));
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
    add(&HOT, &[USUAL_TASKS], &WORKERS, &[Beside::Nobody]);
    add(&[USUAL_HOT], &OTHER_TASKS, &WORKERS, &[Beside::Nobody]);
    add(&[USUAL_HOT], &[USUAL_TASKS], &WORKERS, &[Beside::Writes, Beside::Log, Beside::Cpu, Beside::Tenant]);
    shapes
}

/// Reports the delays of the heartbeat, in the first case that has one.
fn heartbeat(report: &Report) -> Vec<String> {
    let sentence = |(case, rows): (&str, Vec<&Row>)| {
        let delays = from_worst(&rows, "beside", |row| Some(row.own_latency("late_ns")?.p99))?;
        Some(format!("mixed: the p99 delay of a heartbeat is {delays} ({case})."))
    };
    report.cases("mixed").into_iter().find_map(sentence).into_iter().collect()
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
struct MixedCase {
    ways: Vec<Part<dyn MixedWay>>,
    shape: MixShape,
    layout: Layout,
    log: Option<OwnLog>,
    plan: Plan,
}

impl MixedCase {
    fn open(ways: Vec<Part<dyn MixedWay>>, shape: MixShape, run: &mut Run<'_>) -> Result<Option<Self>> {
        let file = run.place().file()?;
        if let Err(why) = programs(shape.beside, file) {
            run.report.note(Code::CaseLeftOut, format!("mixed {}: {why}", shape.name()));
            return Ok(None);
        }
        let layout = Layout::of(file.size());
        if layout.cold_pages() * 100 < (shape.tasks * (100 - shape.hot)) as u64 {
            let text = format!("{} is too small for {} tasks; use a larger --size", file.name(), shape.tasks);
            return Err(Error::new(ErrorKind::Usage, text));
        }
        let log = (shape.beside == Beside::Log).then(|| OwnLog::new(&run.options.dir)).transpose()?;
        Ok(Some(Self { ways, shape, layout, log, plan: Plan::default() }))
    }
}

impl Bench for MixedCase {
    fn prepare(&mut self, place: &Place<'_>, stage: Stage, operations: usize) -> Result<()> {
        let mut random = stage.random(place.options.seed);
        self.plan = Plan::new(self.layout, self.shape.tasks, operations, self.shape.hot, &mut random);
        Ok(())
    }

    fn turn(&mut self, turn: &Turn<'_>) -> Result<Sample> {
        let (file, MixShape { workers, beside, .. }) = (turn.file()?, self.shape);
        file.make_mixed(self.layout.runs())?;
        let matches = |offset: u64, bytes: &[u8]| file.matches(offset, bytes);
        let writes = beside == Beside::Writes;
        let written = writes.then(|| testfile::create_nameless(turn.dir()).map(Arc::new)).transpose()?;
        let path = written.as_ref().map(|file| sys::path_of(file));
        let neighbour = match (&written, &path, &self.log) {
            (Some(file), Some(path), _) => Neighbour::Writer { file, path },
            (_, _, Some(log)) => Neighbour::Log(&log.log),
            _ => Neighbour::Nobody,
        };
        let plan = &self.plan;
        let job = Job { target: Target::of(file), marks: file.marks(), plan, workers, beside: neighbour };
        let programs = programs(beside, file).map_err(|error| turn.failed(error))?;
        let outcome = alone(turn.check(&matches), |round| self.ways[turn.index].mixed(&job, round));
        let reads = programs.as_ref().and_then(Programs::reads);
        drop(programs);
        let (mut sample, told) = turn.complete("reads", (plan.reads(), plan.reads() * PAGE), outcome)?;
        let cold = told.cold.len();
        if cold != plan.cold {
            return Err(turn.failed(format!("it reported {cold} cold reads instead of {}", plan.cold)));
        }
        // Done here, so that the next way does not pay for it.
        if let Some(file) = &written {
            file.set_len(0).map_err(|error| turn.failed(error))?;
        }
        if let Some(log) = &self.log {
            log.log.truncate_prefix(log.log.durable_lsn());
        }
        // Latencies by the planned kind of a read. The row's latencies include all reads.
        sample.tell("hot_latency_ns", Figure::Latency(told.hot));
        sample.tell("cold_latency_ns", Figure::Latency(told.cold));
        // Delays from the scheduled time of each beat until the beat, or the end of the round.
        sample.tell("beats", Figure::Count(told.late.len()));
        sample.tell("late_ns", Figure::Latency(told.late));
        if !matches!(beside, Beside::Nobody | Beside::Cpu) {
            let done = reads.unwrap_or(told.beside) as f64;
            sample.tell("beside_per_s", Figure::Ratio(done, sample.seconds));
        }
        Ok(sample)
    }
}

/// A log in a separate directory, which drop removes.
struct OwnLog {
    log: nowait_log::Log,
    _dir: Folder,
}

impl OwnLog {
    fn new(folder: &Path) -> Result<Self> {
        let failed = |error: io::Error| Error::io("make a log in", folder, &error);
        let dir = Folder::new(folder).map_err(failed)?;
        let options = nowait_log::Options::new().create(true).segment_bytes(SEGMENT_BYTES);
        let (log, _) = nowait_log::Log::open(dir.path(), &options).wait().map_err(|error| failed(error.into()))?;
        await_spare(&log);
        Ok(Self { log, _dir: dir })
    }
}

impl Drop for OwnLog {
    fn drop(&mut self) {
        // A failure to close the log is ignored.
        let _ = self.log.clone().close().wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_has_a_name_of_its_own() {
        let names: Vec<String> = shapes(&Options::new(false, 1)).iter().map(MixShape::name).collect();
        assert_eq!(names.len(), 8 + 6 + 8);
        assert!(names.iter().enumerate().all(|(i, name)| !names[..i].contains(name)), "{names:?}");
        assert!(names.contains(&"hot=90 tasks=64 workers=2 beside=log".to_owned()));
        assert_eq!(shapes(&Options::new(true, 1)).len(), 4);
    }

    #[test]
    fn what_is_asked_for_is_combined_with_the_usual() {
        let asked = |options: Options| shapes(&options).iter().map(MixShape::name).collect::<Vec<_>>();
        let one = Options { hot: vec![100], workers: vec![1], ..Options::new(false, 1) };
        assert_eq!(asked(one), ["hot=100 tasks=64 workers=1"]);
        let besides = Options { tasks: vec![4], beside: vec![Beside::Writes, Beside::Log], ..Options::new(false, 1) };
        assert_eq!(asked(besides).len(), 2 * 2 * 2);
    }
}
