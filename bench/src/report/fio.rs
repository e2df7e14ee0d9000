//! The same work for fio: a job file of the cases that it can do, and what it then says, as rows
//! beside ours.
//!
//! A job is named after its case and its engine, `reads: depth=32: io_uring`, by which its figures
//! find their way back. The jobs run one after the other. What fio cannot do (half-cached blocks,
//! gathers, stalls, copies, logs) is left out.

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;

use crate::report::notes::Code;
use crate::report::{Cpu, Latency, Report, Row};
use crate::stats::median;

/// Builds a job file for fio.
pub struct Jobs {
    text: String,
}

/// The file that fio reads, and its size. fio makes it if it is missing.
pub struct Source<'a> {
    pub path: &'a Path,
    pub bytes: u64,
    pub direct: bool,
}

/// For the file that fio makes before it reads: no block like another. Of a job that writes it
/// would be most of the processor time.
const LAYOUT: &str = "refill_buffers\n";

const ENGINES: [&str; 3] = ["psync", "io_uring", "libaio"];

/// Plain calls have no depth.
fn engines(depth: usize) -> impl Iterator<Item = &'static str> {
    ENGINES.into_iter().filter(move |engine| *engine != "psync" || depth == 1)
}

/// The shortest run of a case: fio's clock counts milliseconds.
pub const TIME: Duration = Duration::from_secs(1);

/// Files and directory of the jobs.
pub struct Place<'a> {
    pub source: Source<'a>,
    pub dir: &'a Path,
    pub filesystem: &'a str,
}

/// Random reads.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub state: State,
    pub block: usize,
    pub depth: usize,
    pub callers: usize,
}

/// The page cache before a job.
#[derive(Debug, Clone, Copy)]
pub enum State {
    Cold,
    Cached,
}

impl Jobs {
    /// `seed`: of fio's own offsets. They are others than ours, spread as evenly.
    pub fn new(command: &str, seed: u64) -> Self {
        let text = format!(
            "; {command}\n; Run it:        fio --output-format=json --output=fio.json THIS\n; Show it beside: nowait bench ... --with-fio fio.json\n\n\
             [global]\nrandseed={seed}\nrandrepeat=1\nthread\ngroup_reporting\nlat_percentiles=1\nclat_percentiles=0\n\
             percentile_list=50:99:99.9:99.99\n"
        );
        Self { text }
    }

    /// Random reads, from a file that is cold or cached. `time`: that they take at
    /// most.
    pub fn reads(&mut self, table: &str, case: &str, source: &Source<'_>, shape: Shape, time: Duration) {
        let Shape { state, block, depth, callers } = shape;
        let time = format!("runtime={}ms\n", time.as_millis());
        let state = match state {
            // Once around is enough where it is all there; else no block is read twice.
            State::Cached => format!("pre_read=1\ninvalidate=0\nnorandommap\ntime_based\n{time}"),
            State::Cold => format!("invalidate=1\n{time}"),
        };
        for engine in engines(depth) {
            self.job(table, case, engine);
            let direct = u8::from(source.direct);
            let _ = write!(
                self.text,
                "rw=randread\n{LAYOUT}bs={block}\niodepth={depth}\nnumjobs={callers}\ndirect={direct}\nfadvise_hint=random\n{state}filename={}\nsize={}\n",
                quoted(source.path),
                source.bytes
            );
        }
    }

    /// A file that grows, in `folder`.
    pub fn writes(&mut self, table: &str, case: &str, block: usize, depth: usize, folder: &Path, bytes: u64) {
        for engine in engines(depth) {
            self.job(table, case, engine);
            let _ = write!(self.text, "rw=write\nbs={block}\niodepth={depth}\n{}", new_file(folder, bytes));
        }
    }

    fn job(&mut self, table: &str, case: &str, engine: &str) {
        let _ = write!(self.text, "\n[{table}: {case}: {engine}]\nstonewall\nioengine={engine}\n");
    }

    /// `None` if there is no case that fio can do.
    pub fn finish(self) -> Option<String> {
        self.text.contains("stonewall").then_some(self.text)
    }
}

/// Empty at first, and gone at the end.
fn new_file(folder: &Path, bytes: u64) -> String {
    let path = folder.join("nowait-fio-new.data");
    format!("filename={}\nsize={bytes}\nfallocate=none\ncreate_on_open=1\nunlink=1\n", quoted(&path))
}

/// fio takes a colon for the end of a name.
fn quoted(path: &Path) -> String {
    path.display().to_string().replace('\\', r"\\").replace(':', r"\:")
}

/// The part of the output of `fio --output-format=json` that is shown.
#[derive(Debug, Deserialize)]
pub struct Output {
    #[serde(rename = "fio version", default)]
    version: String,
    jobs: Vec<Job>,
}

#[derive(Debug, Deserialize)]
struct Job {
    jobname: String,
    #[serde(default)]
    error: i64,
    read: Io,
    write: Io,
    usr_cpu: f64,
    sys_cpu: f64,
    #[serde(default)]
    ctx: f64,
}

#[derive(Debug, Deserialize)]
struct Io {
    iops: f64,
    bw_bytes: f64,
    total_ios: u64,
    runtime: f64,
    lat_ns: Latencies,
}

#[derive(Debug, Deserialize)]
struct Latencies {
    max: f64,
    #[serde(default)]
    percentile: Percentiles,
}

#[derive(Debug, Default, Deserialize)]
struct Percentiles {
    #[serde(rename = "50.000000", default)]
    p50: u64,
    #[serde(rename = "99.000000", default)]
    p99: u64,
    #[serde(rename = "99.900000", default)]
    p999: u64,
    #[serde(rename = "99.990000", default)]
    p9999: u64,
}

impl Report {
    /// Adds what fio measured to the cases that are here, as ways named after its engines. Each
    /// output is a round.
    pub fn add_fio(&mut self, outputs: &[Output]) {
        let mut found: Vec<(&str, Vec<&Job>)> = Vec::new();
        for job in outputs.iter().flat_map(|output| &output.jobs) {
            match found.iter_mut().find(|(name, _)| *name == job.jobname) {
                Some((_, jobs)) => jobs.push(job),
                None => found.push((&job.jobname, vec![job])),
            }
        }
        let mut left_out = Vec::new();
        let mut rows = Vec::new();
        for (name, jobs) in &found {
            let parts: Vec<&str> = name.split(": ").collect();
            let known = |table: &str, case: &str| self.rows.iter().any(|row| row.table == table && row.case == case);
            match parts.as_slice() {
                [table, case, engine] if known(table, case) && jobs.iter().all(|job| job.error == 0) => {
                    rows.push(row(table, case, engine, jobs));
                }
                _ => left_out.push(*name),
            }
        }
        self.rows.extend(rows);
        if let Some(output) = outputs.first() {
            let runs = outputs.len();
            let text = format!(
                "the ways fio-… were measured by {} in {runs} runs of its own, on its own clock",
                output.version
            );
            self.note(Code::Fio, text);
        }
        if !left_out.is_empty() {
            self.note(
                Code::FioUnmatched,
                format!("these jobs of fio match no case, or failed: {}", left_out.join("; ")),
            );
        }
    }
}

fn row(table: &str, case: &str, engine: &str, jobs: &[&Job]) -> Row {
    let of = |value: fn(&Job, &Io) -> f64| -> Vec<f64> {
        let direction = |job: &Job| if job.read.total_ios > 0 { value(job, &job.read) } else { value(job, &job.write) };
        jobs.iter().map(|job| direction(job)).collect()
    };
    let middle = |value: fn(&Job, &Io) -> f64| median(&of(value));
    let at = |value: fn(&Percentiles) -> u64| {
        let all = jobs.iter().map(|job| if job.read.total_ios > 0 { &job.read } else { &job.write });
        median(&all.map(|direction| value(&direction.lat_ns.percentile) as f64).collect::<Vec<_>>()) as u64
    };
    // Of the thread that submits: what its requests cost elsewhere fio does not count.
    let caller =
        middle(|job, io| (job.usr_cpu + job.sys_cpu) / 100.0 * io.runtime * 1e3 / (io.total_ios.max(1) as f64));
    let rounds = of(|_, io| io.iops);
    Row {
        table: table.to_owned(),
        case: case.to_owned(),
        way: format!("fio-{engine}"),
        ops_per_s: median(&rounds),
        bytes_per_s: middle(|_, io| io.bw_bytes),
        latency_ns: Some(Latency {
            p50: at(|all| all.p50),
            p99: at(|all| all.p99),
            p999: at(|all| all.p999),
            p9999: Some(at(|all| all.p9999)),
            max: of(|_, io| io.lat_ns.max).into_iter().fold(0.0, f64::max) as u64,
        }),
        cpu_us_per_op: Cpu { caller, total: caller, ..Cpu::default() },
        context_switches_per_op: middle(|job, io| job.ctx / io.total_ios.max(1) as f64),
        rounds,
        ..Row::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::options::Options;
    use crate::table::by_name;

    fn output(name: &str, iops: f64) -> Output {
        let io = |ios: u64| {
            serde_json::json!({
                "iops": iops, "bw_bytes": iops * 4096.0, "total_ios": ios, "runtime": 1000,
                "lat_ns": {"max": 5000.0, "percentile": {"50.000000": 70, "99.000000": 80, "99.900000": 90, "99.990000": 95}},
            })
        };
        let job = serde_json::json!({
            "jobname": name, "error": 0, "read": io(10_000), "write": io(0), "usr_cpu": 10.0, "sys_cpu": 20.0, "ctx": 5000,
        });
        serde_json::from_value(serde_json::json!({"fio version": "fio-3.33", "jobs": [job]})).unwrap()
    }

    #[test]
    fn a_job_s_figures_find_their_case_and_others_are_told() {
        let (table, case) = ("reads".to_owned(), "depth=1".to_owned());
        let mut report = Report { rows: vec![Row { table, case, ..Row::default() }], ..Report::default() };
        let name = "reads: depth=1: io_uring";
        report.add_fio(&[output(name, 10.0), output(name, 30.0), output(name, 20.0), output("mine", 1.0)]);
        let row = report.rows.last().unwrap();
        assert_eq!((row.way.as_str(), row.ops_per_s, row.rounds.len()), ("fio-io_uring", 20.0, 3));
        assert_eq!(row.latency_ns.unwrap().p999, 90);
        assert!((row.cpu_us_per_op.total - 30.0).abs() < 0.001 && row.context_switches_per_op == 0.5);
        assert_eq!(row.punts_per_op, None);
        assert!(report.notes[1].text.ends_with("failed: mine"), "{:?}", report.notes);
    }

    #[test]
    fn what_fio_cannot_do_has_no_job() {
        let source = Source { path: Path::new("/a:b"), bytes: 1 << 20, direct: false };
        let place = Place { source, dir: Path::new("/"), filesystem: "ext4" };
        let options = Options { depths: vec![1, 32], records: vec![8], ..Options::new(false, 7) };
        let jobs = |table| {
            let mut jobs = Jobs::new("nowait bench", 7);
            (by_name(table).unwrap().fio)(&options, &place, &mut jobs);
            jobs.finish()
        };
        assert_eq!(jobs("gather"), None);
        let cached = jobs("cached").unwrap();
        assert!(cached.contains("[cached: threads=2: psync]") && !cached.contains("half"), "{cached}");
        let reads = jobs("reads").unwrap();
        assert!(reads.contains("[reads: depth=32: io_uring]") && !reads.contains("depth=32: psync"), "{reads}");
        assert!(reads.contains(r"filename=/a\:b"));
    }
}
