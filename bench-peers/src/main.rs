//! The command: options to plans, plans to a report, and that as JSON, which `nowait bench --from` shows.

#![forbid(unsafe_code)]

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use clap::{Parser, ValueEnum};
use nowait_bench::machine::environment::Environment;
use nowait_bench::machine::testfile::{SMALLEST, TestFile};
use nowait_bench::measure::run::{Plan, Progress};
use nowait_bench::measure::work::Records;
use nowait_bench::random::fresh_seed;
use nowait_bench::report::Report;
use nowait_bench::report::preflight;
use nowait_bench::report::words::parse_bytes;
use nowait_bench::sys::PAGE;
use nowait_bench::table::Table;
use nowait_bench::table::{log, writes};
use nowait_bench::{Error, ErrorKind, Result, ways};
use nowait_bench_peers::peers;

const RECORDS: [usize; 4] = [1, 8, 64, 512];
const WRITE_BYTES: u64 = 64 << 20;
const QUICK_WRITE_BYTES: u64 = 8 << 20;
const FULL_ROUND: Duration = Duration::from_millis(300);
const QUICK_ROUND: Duration = Duration::from_millis(50);
const FULL_LOG_ROUND: Duration = Duration::from_millis(700);
const QUICK_LOG_ROUND: Duration = Duration::from_millis(150);

/// Do the work of `nowait bench` with other runtimes and logs, beside nowait and what is written by hand.
///
/// The figures are written as JSON. `nowait bench --from FILE` shows them as tables, and with --report as a page.
/// Exit codes are those of `nowait bench`.
#[derive(Parser)]
struct Options {
    /// The tables to measure [default: all]
    #[arg(value_enum)]
    tables: Vec<TableName>,

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

    /// Timed rounds of each way in each case [default: 5, with --quick 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,

    /// Only these ways
    #[arg(long, value_delimiter = ',', value_name = "WAY", value_parser = PossibleValuesParser::new(peers::names()))]
    ways: Vec<String>,

    /// Only these depths in `reads` and `writes` [default: 1,4,16,32, with --quick 1,16]
    #[arg(long, value_delimiter = ',', value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    depths: Vec<u32>,

    /// Only these numbers of writers in `log` [default: 1,8,64]
    #[arg(long, value_delimiter = ',', value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    writers: Vec<u32>,

    /// Only these sizes of records in `log` [default: 128,4K]
    #[arg(long, value_delimiter = ',', value_name = "SIZE", value_parser = parse_record)]
    sizes: Vec<usize>,

    /// Where the figures go; stdout if it is -
    #[arg(long, value_name = "FILE", default_value = "-")]
    json: PathBuf,

    /// Repeat the offsets of an earlier run
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum TableName {
    /// Cold random reads of 4 KiB, by depth, and the whole file once
    Reads,
    /// Random reads of what is cached, wholly or half
    Cached,
    /// Batches of small records, cold and cached
    Gather,
    /// A file grows by writes of 4 KiB, by depth
    Writes,
    /// Many writers that wait until their record is on stable storage
    Log,
}

impl TableName {
    fn reading(self) -> Option<Table> {
        match self {
            Self::Reads => Some(Table::Reads),
            Self::Cached => Some(Table::Cached),
            Self::Gather => Some(Table::Gather),
            Self::Writes | Self::Log => None,
        }
    }
}

/// Whole pages, so that it can also be read past the page cache.
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
    let (seed, rounds) = (options.seed.unwrap_or_else(fresh_seed), options.rounds.unwrap_or(rounds(options)) as usize);
    let asked = |table: &TableName| options.tables.is_empty() || options.tables.contains(table);
    let tables: Vec<TableName> = TableName::value_variants().iter().copied().filter(asked).collect();
    if options.direct && options.tables != [TableName::Reads] {
        return Err(Error::new(ErrorKind::Usage, "--direct is for the table reads only; name it, and no other"));
    }
    let plans: Vec<Plan> =
        tables.iter().filter_map(|table| read_plan(options, table.reading()?, rounds, seed)).collect();
    let write_plan = tables.contains(&TableName::Writes).then(|| write_plan(options, rounds, seed));
    let write_plan = write_plan.filter(|plan| !plan.writers.is_empty());
    let log_plan = tables.contains(&TableName::Log).then(|| log_plan(options, rounds, seed));
    let log_plan = log_plan.filter(|plan| !plan.ways.is_empty());
    if plans.is_empty() && write_plan.is_none() && log_plan.is_none() {
        return Err(Error::new(
            ErrorKind::Usage,
            "none of --ways is in these tables; name others, or leave out --ways",
        ));
    }

    let mut told = Told;
    let make = || {
        told.begin("making the file to read", options.size);
        TestFile::make(&options.dir, options.size, seed, &cancel, |_| {})
    };
    let file = (!plans.is_empty()).then(make).transpose()?;
    let file = file.map(|file| if options.direct { file.past_the_cache() } else { Ok(file) }).transpose()?;
    let environment = environment(options, file.as_ref(), seed);
    let mut report = Report { environment: environment.clone(), ..Report::default() };
    if let Some(file) = &file {
        preflight::look_at_file(file, &mut report)?;
    }
    preflight::look_at_system(&environment, write_plan.is_some() || log_plan.is_some(), false, &mut report);

    let mut ran = Ok(());
    if let Some(file) = &file {
        for plan in &plans {
            ran = ran.and_then(|()| plan.run(file, &cancel, &mut told, &mut report));
        }
    }
    // Its memory and its room on the disk are free again before anything is written.
    drop(file);
    if let Some(plan) = &write_plan {
        ran = ran.and_then(|()| plan.run(&options.dir, &cancel, &mut told, &mut report));
    }
    if let Some(plan) = &log_plan {
        ran = ran.and_then(|()| plan.run(&options.dir, &cancel, &mut told, &mut report));
    }
    preflight::look_at_rows(&mut report);
    let measured: Vec<String> = report.ways().into_iter().map(str::to_owned).collect();
    report.ways = peers::meanings().into_iter().filter(|(way, _)| measured.contains(way)).collect();
    // After an error, too: what is complete is worth having.
    report.partial = ran.as_ref().err().map(ToString::to_string);
    let written = if report.rows.is_empty() { Ok(()) } else { write(&report, &options.json) };
    ran.and(written)
}

fn rounds(options: &Options) -> u32 {
    if options.quick { 3 } else { 5 }
}

fn read_plan(options: &Options, table: Table, rounds: usize, seed: u64) -> Option<Plan> {
    let ways = peers::readers(table, options.direct);
    let ways: Vec<_> = ways.into_iter().filter(|way| chosen(options, way.name())).collect();
    (!ways.is_empty()).then(|| Plan {
        tables: vec![table],
        ways,
        depths: depths(options),
        records: RECORDS.into(),
        rounds,
        round_time: if options.quick { QUICK_ROUND } else { FULL_ROUND },
        rate: None,
        seed,
    })
}

fn write_plan(options: &Options, rounds: usize, seed: u64) -> writes::Plan {
    writes::Plan {
        tables: vec![writes::Table::Writes],
        writers: peers::writers().into_iter().filter(|way| chosen(options, way.name())).collect(),
        stallers: Vec::new(),
        overwriters: Vec::new(),
        depths: depths(options),
        rounds,
        bytes: if options.quick { QUICK_WRITE_BYTES } else { WRITE_BYTES },
        stall_bytes: None,
        memory_limit: None,
        own_file_systems: false,
        lower_dirty_limit: false,
        seed,
    }
}

fn log_plan(options: &Options, rounds: usize, seed: u64) -> log::Plan {
    let writers: Vec<usize> = options.writers.iter().map(|&writers| writers as usize).collect();
    log::Plan {
        ways: peers::loggers().into_iter().filter(|way| chosen(options, way.name())).collect(),
        writers: if writers.is_empty() { log::WRITERS.into() } else { writers },
        sizes: if options.sizes.is_empty() { vec![128, 4096] } else { options.sizes.clone() },
        rounds,
        round_time: if options.quick { QUICK_LOG_ROUND } else { FULL_LOG_ROUND },
        seed,
    }
}

fn depths(options: &Options) -> Vec<usize> {
    match (options.depths.is_empty(), options.quick) {
        (true, true) => vec![1, 16],
        (true, false) => vec![1, 4, 16, 32],
        (false, _) => options.depths.iter().map(|&depth| depth as usize).collect(),
    }
}

fn chosen(options: &Options, way: &str) -> bool {
    options.ways.is_empty() || options.ways.iter().any(|name| name == way)
}

fn environment(options: &Options, file: Option<&TestFile>, seed: u64) -> Environment {
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
        ..Environment::of(&options.dir)
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
    let text = serde_json::to_string_pretty(report).expect("a report is plain data") + "\n";
    let written = if path == Path::new("-") { io::stdout().write_all(text.as_bytes()) } else { fs::write(path, text) };
    written.map_err(|error| {
        let text = format!("cannot write the figures to {}: {error}; give --json another path", path.display());
        Error::new(ErrorKind::Other, text)
    })
}

/// What is being done, on stderr.
struct Told;

impl Progress for Told {
    fn begin(&mut self, what: &str, _: u64) {
        eprintln!("{what}");
    }

    fn step(&mut self, _: u64) {}

    fn now(&mut self, what: &str) {
        eprintln!("  {what}");
    }
}
