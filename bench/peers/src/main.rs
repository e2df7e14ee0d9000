//! The command: options to tables, tables to a report, and that as JSON, which
//! `nowait bench --from` shows.

#![forbid(unsafe_code)]

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{Parser, ValueEnum};
use nowait_bench::machine::environment::Environment;
use nowait_bench::machine::load::Watch;
use nowait_bench::machine::testfile::{SMALLEST, TestFile};
use nowait_bench::measure::options::{Logged, Options as Asked};
use nowait_bench::measure::progress::{At, Course, Plan, Progress};
use nowait_bench::measure::work::Records;
use nowait_bench::random::fresh_seed;
use nowait_bench::report::Report;
use nowait_bench::report::figures::parse_bytes;
use nowait_bench::report::preflight;
use nowait_bench::sys::PAGE;
use nowait_bench::table::{self, Phase, Run, Table, log};
use nowait_bench::{Error, ErrorKind, Result, ways};
use nowait_bench_peers::peers;

const RECORDS: [usize; 4] = [1, 8, 64, 512];
const QUICK_ROUND: Duration = Duration::from_millis(50);

/// Do the work of `nowait bench` with other runtimes and logs, beside nowait and what is written by
/// hand.
///
/// The figures are written as JSON. `nowait bench --from FILE` shows them as tables, and with
/// --report as a page. Exit codes are those of `nowait bench`.
#[derive(Parser)]
struct Options {
    /// The tables to measure [default: all]
    #[arg(value_parser = table_names())]
    tables: Vec<String>,

    /// Fewer depths, fewer and shorter rounds
    #[arg(long)]
    quick: bool,

    /// Where to make files: on the disk that you want to know
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,

    /// The size of the file that is read, such as 512M or 4G
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = parse_size)]
    size: u64,

    /// Read past the page cache (O_DIRECT): the table `reads` only
    #[arg(long)]
    direct: bool,

    /// Timed rounds of each way in each case [default: 3 to 15, as fit in two minutes a table,
    /// with --quick in 20 s]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,

    /// Only these ways
    #[arg(long, value_delimiter = ',', value_name = "WAY", value_parser = PossibleValuesParser::new(peers::names()))]
    ways: Vec<String>,

    /// Only these depths in `reads` and `writes` [default: 1,4,16,32, with --quick 1,16]
    #[arg(long, value_delimiter = ',', value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    depths: Vec<u32>,

    /// Only these numbers of threads in `log` [default: 1,8,64, with records in flight 1,2,8]
    #[arg(long, value_delimiter = ',', value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    writers: Vec<u32>,

    /// Only these sizes of records in `log` [default: 128,256,4K, of records in flight 128; with --quick 128,4K]
    #[arg(long, value_delimiter = ',', value_name = "SIZE", value_parser = parse_record)]
    sizes: Vec<usize>,

    /// Only this in `log`: threads that wait for each record, threads with several in flight, or tasks
    /// [default: all; with --quick threads]
    #[arg(long, value_delimiter = ',', value_enum, value_name = "KIND")]
    logs: Vec<LogKind>,

    /// Only these numbers of a thread's records in flight in `log --logs pipelined` [default: 1,8,32]
    #[arg(long, value_delimiter = ',', value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    in_flight: Vec<u32>,

    /// Only these numbers of tasks in `log --logs tokio` [default: 64,256]
    #[arg(long, value_delimiter = ',', value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    tasks: Vec<u32>,

    /// Where the figures go; stdout if it is -
    #[arg(long, value_name = "FILE", default_value = "-")]
    json: PathBuf,

    /// Repeat the offsets of an earlier run
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum LogKind {
    Threads,
    Pipelined,
    Tokio,
}

impl LogKind {
    fn logged(self) -> Logged {
        match self {
            Self::Threads => Logged::Threads,
            Self::Pipelined => Logged::Pipelined,
            Self::Tokio => Logged::Tokio,
        }
    }
}

/// The tables in which a peer takes part.
fn table_names() -> PossibleValuesParser {
    let here = peers::tables(false, |_| true).into_iter().filter(|table| table.name() == table.asked_as());
    PossibleValuesParser::new(
        here.map(|table| PossibleValue::new(table.name()).help(table.about())).collect::<Vec<_>>(),
    )
}

/// Parses a size of whole pages, so that the file can also be read past the page cache.
fn parse_size(text: &str) -> std::result::Result<u64, String> {
    match parse_bytes(text)? {
        size if (SMALLEST..=i64::MAX as u64).contains(&size) && size % PAGE == 0 => Ok(size),
        _ => Err(format!("not a multiple of {PAGE} bytes, or less than {} MiB", SMALLEST >> 20)),
    }
}

fn parse_record(text: &str) -> std::result::Result<usize, String> {
    match usize::try_from(parse_bytes(text)?) {
        Ok(size) if (Records::SMALLEST..=log::SIZE_MAX).contains(&size) => Ok(size),
        _ => Err(format!("less than {} bytes, or more than {} MiB", Records::SMALLEST, log::SIZE_MAX >> 20)),
    }
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-peers: {error}");
            ExitCode::from(error.kind().exit_code())
        }
    }
}

fn run(options: &Options) -> Result<()> {
    let cancel = interrupt_flag()?;
    let asked = asked(options);
    if options.direct && options.tables != ["reads"] {
        return Err(Error::new(ErrorKind::Usage, "--direct is for the table reads only; name it, and no other"));
    }
    let tables = tables(options);
    if tables.is_empty() {
        return Err(Error::new(
            ErrorKind::Usage,
            "none of --ways is in these tables; name others, or leave out --ways",
        ));
    }

    let place = Environment::of(&options.dir);
    let watch = Watch::begin(place.device.as_deref());
    let reads = tables.iter().any(|table| table.file_size(&asked).is_some());
    let plan = table::plan(&tables, &asked, reads.then_some(options.size));
    eprintln!("about {:.0} s", plan.seconds());
    let mut course = Course::new(plan, Told::default());
    let make = || {
        course.begin("making the file to read", Plan::writing_s(options.size), options.size);
        TestFile::make(&options.dir, options.size, asked.seed, &cancel, |bytes| course.step(bytes))
    };
    let file = reads.then(make).transpose()?;
    let file = file.map(|file| if options.direct { file.past_the_cache() } else { Ok(file) }).transpose()?;
    let environment = Environment { load: watch.load(), ..environment(place, file.as_ref(), asked.seed) };
    let mut report = Report { environment: environment.clone(), ..Report::default() };
    if let Some(file) = &file {
        preflight::look_at_file(file, &mut report)?;
    }
    let writes = tables.iter().any(|table| table.writes_into(&asked).is_some());
    preflight::look_at_system(&environment, writes, false, &mut report);

    let mut measure = |file: Option<&TestFile>, phases: &[Phase]| {
        let (options, dir, cancel, report) = (&asked, &*options.dir, &*cancel, &mut report);
        let mut run = Run { options, asked: Vec::new(), file, dir, cancel, course: &mut course, report };
        run.measure(&tables, phases)
    };
    let ran = measure(file.as_ref(), &[Phase::File]);
    // Its memory and its room on the disk are free again before anything is written.
    drop(file);
    let ran = ran.and_then(|()| measure(None, &[Phase::Directory]));
    report.environment.load = watch.load();
    preflight::look_at_load(&mut report);
    preflight::look_at_rows(&mut report);
    let measured: Vec<String> = report.ways().into_iter().map(str::to_owned).collect();
    report.ways = peers::meanings().into_iter().filter(|(way, _)| measured.contains(way)).collect();
    // After an error, too: what is complete is worth having.
    report.partial = ran.as_ref().err().map(ToString::to_string);
    let written = if report.rows.is_empty() { Ok(()) } else { write(&report, &options.json) };
    ran.and(written)
}

/// The tables that are wanted, as far as they have one of the ways that are.
fn tables(options: &Options) -> Vec<&'static dyn Table> {
    let chosen = |way: &str| options.ways.is_empty() || options.ways.iter().any(|name| name == way);
    let named =
        |table: &dyn Table| options.tables.is_empty() || options.tables.iter().any(|name| name == table.asked_as());
    let mut tables = peers::tables(options.direct, chosen);
    tables.retain(|table| named(*table) && !table.ways().is_empty());
    tables
}

fn asked(options: &Options) -> Asked {
    let numbers = |numbers: &[u32]| numbers.iter().map(|&number| number as usize).collect::<Vec<_>>();
    let seed = options.seed.unwrap_or_else(fresh_seed);
    let usual = Asked::new(options.quick, seed);
    let depths: &[usize] = if options.quick { &[1, 16] } else { &[1, 4, 16, 32] };
    Asked {
        rounds: options.rounds.map(|rounds| rounds as usize),
        round_time: if options.quick { QUICK_ROUND } else { usual.round_time },
        direct: options.direct,
        depths: if options.depths.is_empty() { depths.into() } else { numbers(&options.depths) },
        records: RECORDS.into(),
        writers: numbers(&options.writers),
        sizes: options.sizes.clone(),
        logs: options.logs.iter().map(|kind| kind.logged()).collect(),
        in_flight: numbers(&options.in_flight),
        tasks: numbers(&options.tasks),
        ..usual
    }
}

fn environment(place: Environment, file: Option<&TestFile>, seed: u64) -> Environment {
    let (file_bytes, file_origin) = match file {
        Some(file) => (file.size(), file.origin().to_owned()),
        None => (log::FILE_MAX, "at most; a new one for each round".to_owned()),
    };
    Environment {
        commit: option_env!("NOWAIT_COMMIT").map(str::to_owned),
        io_uring: ways::io_uring_state(),
        file_bytes,
        file_origin,
        seed,
        ..place
    }
}

/// Set by Ctrl-C, SIGTERM and SIGHUP.
fn interrupt_flag() -> Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    let handler = Arc::clone(&flag);
    ctrlc::set_handler(move || handler.store(true, Ordering::Relaxed))
        .map_err(|error| Error::new(ErrorKind::Other, format!("cannot handle Ctrl-C: {error}")))?;
    Ok(flag)
}

fn write(report: &Report, path: &Path) -> Result<()> {
    let text = report.to_json();
    let written = if path == Path::new("-") { io::stdout().write_all(text.as_bytes()) } else { fs::write(path, text) };
    written.map_err(|error| {
        let text = format!("cannot write the figures to {}: {error}; give --json another path", path.display());
        Error::new(ErrorKind::Other, text)
    })
}

/// Names on stderr what is done now, and the time that is left.
#[derive(Default)]
struct Told(String);

impl Progress for Told {
    fn show(&mut self, at: &At<'_>) {
        if self.0 != at.what {
            eprintln!("{} (table {} of {}, {:.0} s left)", at.what, at.table, at.tables, at.seconds_left);
            at.what.clone_into(&mut self.0);
        }
    }
}
