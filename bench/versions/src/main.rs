//! Compares two versions of `nowait`, which are two crates of this program: `base` and `tree`. `run`
//! builds it, README.md describes it.
//!
//! Read downwards: [`cases`] (names, and the work of a turn, drawn by seed), [`turn`] (clock,
//! heartbeat, runtimes), `jobs` (the operations, for either version), [`table`] (lines and rows).

mod cases;
mod turn;
// The same file for both versions: `super::nowait` in it is the library. (The paths of files in these
// modules begin at src/.)
#[path = "."]
mod base {
    use ::base as nowait;
    #[path = "jobs.rs"]
    pub(crate) mod jobs;
}
#[path = "."]
#[allow(clippy::duplicate_mod)]
mod tree {
    use ::nowait;
    #[path = "jobs.rs"]
    pub(crate) mod jobs;
}
mod table;

use std::fmt;
use std::fs;
use std::io::{IsTerminal, stderr};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use clap::Parser;
use nowait_bench::machine::environment::Environment;
use nowait_bench::machine::load::Watch;
use nowait_bench::machine::testfile::TestFile;
use nowait_bench::measure::mixed::Layout;
use nowait_bench::random::{Random, fresh_seed};
use nowait_bench::report::Report;
use nowait_bench::report::preflight::look_at_load;
use nowait_bench::report::verdict::to_json;
use nowait_bench::ways::io_uring_state;
use nowait_bench::{Error, ErrorKind, Result};

use crate::cases::{Case, Work};
use crate::table::Figures;
use crate::turn::{Turn, Version};

/// Compares the speed of two versions of nowait, in one program
#[derive(Parser)]
#[command(bin_name = "bench/versions/run BASE")]
struct Options {
    /// Directory for the test file, on the disk to measure; the file has no name, so nothing stays behind
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,

    /// Size of the test file in MiB, and the most that a turn writes
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = clap::value_parser!(u64).range(16..=1 << 20))]
    size: u64,

    /// Timed rounds of each case; a claim needs at least 5
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    /// Length of a version's turn in a round
    #[arg(long, value_name = "S", default_value_t = 0.3)]
    seconds: f64,

    /// Repeat the offsets of an earlier run
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// Write the figures of all rounds to FILE, in the form of `nowait bench --json`
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// List the cases and exit
    #[arg(long)]
    list: bool,

    /// Names of cases, or how they begin (default: all)
    #[arg(value_name = "CASE")]
    cases: Vec<String>,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("versions: {error}");
            ExitCode::from(error.kind().exit_code())
        }
    }
}

fn run(options: &Options) -> Result<()> {
    let cases = cases::chosen(&options.cases)?;
    if options.list {
        cases.iter().for_each(|case| println!("{}", case.name));
        return Ok(());
    }
    let seed = options.seed.unwrap_or_else(fresh_seed);
    let place = Environment::of(&options.dir);
    let watch = Watch::begin(place.device.as_deref());
    let file = TestFile::make(&options.dir, options.size << 20, seed, &AtomicBool::new(false), |_| {})?;
    let commits = [("base", env!("NOWAIT_BASE")), ("tree", env!("NOWAIT_COMMIT"))];
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let environment = Environment {
        seed,
        load: watch.load(),
        io_uring: io_uring_state(),
        commit: Some(env!("NOWAIT_COMMIT").to_owned()),
        command: format!("make versions BASE={} ARGS='{}'", env!("NOWAIT_BASE"), arguments.join(" ")),
        file_bytes: file.size(),
        file_origin: file.origin().to_owned(),
        ..place
    };
    for (name, value) in environment.lines() {
        println!("{name:<8} {value}");
    }
    commits.iter().for_each(|(name, commit)| println!("{name:<8} commit {commit}"));
    environment.load.warning().iter().for_each(|warning| println!("{warning}"));
    let ways = commits.map(|(name, commit)| (name.to_owned(), format!("the library of commit {commit}"))).into();
    let mut report = Report { environment, ways, ..Report::default() };

    let versions = [
        Version::new("base", base::jobs::attach, base::jobs::turn)?,
        Version::new("tree", tree::jobs::attach, tree::jobs::turn)?,
    ];
    let bench = Bench { options, seed, file: &file, layout: Layout::of(file.size()), versions: &versions };
    let mut progress = Progress::new(cases.len() as u32 * (options.rounds + 1));
    println!("\n{}", table::HEAD);
    let mut measured = Ok(());
    for case in &cases {
        match bench.measure(case, &mut progress) {
            Ok(figures) => {
                progress.clear();
                println!("{figures}");
                report.rows.extend(figures.rows());
            }
            Err(error) => {
                progress.clear();
                println!("{:<width$} {error}", case.name, width = table::NAME_WIDTH);
                let is_of_case = error.kind() == ErrorKind::NotCold;
                measured = Err(error);
                if !is_of_case {
                    break;
                }
            }
        }
    }
    report.environment.load = watch.load();
    look_at_load(&mut report);
    report.partial = measured.as_ref().err().map(ToString::to_string);
    if let Some(path) = options.json.as_deref().filter(|_| !report.rows.is_empty()) {
        fs::write(path, to_json(&report)).map_err(|error| Error::io("write the figures to", path, &error))?;
    }
    measured
}

struct Bench<'a> {
    options: &'a Options,
    seed: u64,
    file: &'a TestFile,
    layout: Layout,
    versions: &'a [Version; 2],
}

impl Bench<'_> {
    /// Rounds of both versions, each of which is the first of every other round.
    fn measure<'c>(&self, case: &'c Case, progress: &mut Progress) -> Result<Figures<'c>> {
        let mut figures = Figures::new(case);
        progress.round(format_args!("{}, warm-up", case.name));
        let operations = self.operations(case)?;
        self.turn(case, 1, operations, 0)?;
        for round in 1..=self.options.rounds as usize {
            progress.round(format_args!("{}, round {round} of {}", case.name, self.options.rounds));
            for version in [round % 2, 1 - round % 2] {
                figures.turns[version].push(self.turn(case, version, operations, round)?);
            }
        }
        Ok(figures)
    }

    /// The number of operations of a turn, by the speed of `base`. Its turns also warm it up.
    fn operations(&self, case: &Case) -> Result<u64> {
        let seconds = self.options.seconds;
        let mut operations = 512;
        loop {
            let turn = self.turn(case, 0, operations, 0)?;
            // A turn has fewer if the file has no more cold pages.
            if turn.seconds >= seconds / 4.0 || turn.operations < operations {
                return Ok((turn.per_second() * seconds) as u64);
            }
            operations *= 4;
        }
    }

    /// One turn of a version. The work depends on the seed and the round only.
    fn turn(&self, case: &Case, version: usize, operations: u64, round: usize) -> Result<Turn> {
        let job = case.job(self.layout, operations, &mut Random::of(self.seed, round as u64));
        let version = &self.versions[version];
        let failed = |error| Error::new(ErrorKind::Other, format!("{}, {}: {error}", case.name, version.name));
        if let Work::Writes { .. } = case.work {
            // Its blocks are freed here, after the clock has stopped: `written` is the last to be closed.
            let written = tempfile::tempfile_in(&self.options.dir)
                .map_err(|error| Error::io("create a file in", &self.options.dir, &error))?;
            let path = format!("/proc/self/fd/{}", written.as_raw_fd());
            return version.turn(&job, case.driver, Path::new(&path)).map_err(failed);
        }
        self.file.make_mixed(self.layout.runs())?;
        version.turn(&job, case.driver, self.file.path()).map_err(failed)
    }
}

/// The line of a terminal that tells the state of the run.
struct Progress {
    rounds: u32,
    done: u32,
    began: Instant,
}

impl Progress {
    fn new(rounds: u32) -> Self {
        Self { rounds, done: 0, began: Instant::now() }
    }

    /// Begins a round, a warm-up included.
    fn round(&mut self, what: fmt::Arguments<'_>) {
        if stderr().is_terminal() {
            let left =
                self.began.elapsed().as_secs_f64() / f64::from(self.done.max(1)) * f64::from(self.rounds - self.done);
            let left = if self.done == 0 { String::new() } else { format!(", about {left:.0} s left") };
            eprint!("\r\x1b[K{what}{left}");
        }
        self.done += 1;
    }

    fn clear(&self) {
        if stderr().is_terminal() {
            eprint!("\r\x1b[K");
        }
    }
}
