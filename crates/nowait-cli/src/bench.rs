//! `nowait bench`: options to plan, plan to report, report to tables, JSON and a page.

use std::fs::{self, File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use nowait_bench::machine::environment::Environment;
use nowait_bench::machine::testfile::TestFile;
use nowait_bench::measure::run::{Plan, Progress};
use nowait_bench::random::fresh_seed;
use nowait_bench::report::Report;
use nowait_bench::report::fio;
use nowait_bench::report::notes::Code;
use nowait_bench::report::page::page;
use nowait_bench::report::preflight;
use nowait_bench::table::dd::{self as streams, Kind};
use nowait_bench::table::log;
use nowait_bench::table::prefault;
use nowait_bench::table::writes;
use nowait_bench::table::{DEPTHS, RECORDS, Table};
use nowait_bench::ways::{self, StreamWay, Way, WriteWay};
use nowait_bench::{Error, ErrorKind, Result};

use crate::cli;
use crate::show::{self, Colour};

const QUICK_SIZE: u64 = 64 << 20;
const QUICK_STREAM_SIZE: u64 = 32 << 20;
const FULL_SIZE: u64 = 1 << 30;
/// Half an hour for all of `dd` on a middling disk: every round takes the whole file.
const FULL_STREAM_SIZE: u64 = 256 << 20;
const QUICK_WRITE_SIZE: u64 = 8 << 20;
const FULL_WRITE_SIZE: u64 = 64 << 20;
const QUICK_STALL_SIZE: u64 = 64 << 20;
const MEMORY_LIMIT: u64 = 128 << 20;
const MEMORY_LIMIT_MIN: u64 = 16 << 20;
const QUICK_DEPTHS: [usize; 3] = [1, 4, 32];
const QUICK_WRITE_DEPTHS: [usize; 2] = [1, 16];
const QUICK_BLOCKS: [usize; 3] = [16 << 10, 128 << 10, 1 << 20];
const TOUR_BLOCKS: [usize; 2] = [16 << 10, 1 << 20];
const QUICK_STREAM_DEPTHS: [usize; 2] = [1, 16];
const QUICK_WRITERS: [usize; 2] = [1, 64];
const QUICK_LOG_SIZES: [usize; 2] = [128, 4096];
const QUICK_RECORDS: [usize; 4] = [1, 8, 64, 512];
/// For the timed rounds of a quick run, at a middling way's speed. The slow ways take as long again.
const QUICK_BUDGET: Duration = Duration::from_secs(12);
const FULL_ROUND: Duration = Duration::from_millis(300);
/// What fio takes for a case, at least: its clock counts milliseconds.
const FIO_TIME: Duration = Duration::from_secs(1);
const QUICK_LOG_ROUND: Duration = Duration::from_millis(150);
const FULL_LOG_ROUND: Duration = Duration::from_millis(700);

pub fn run(options: &cli::Bench) -> Result<()> {
    let tour = tour(options);
    let options = tour.as_ref().unwrap_or(options);
    if let Some(code) = options.explain.as_ref().and_then(|code| Code::by_name(code.as_deref()?)) {
        return print_to(io::stdout().lock(), &show::explanation(code));
    }
    let cancel = interrupt_flag()?;
    let results = Results::open(options)?;
    let output = Output { to_stderr: results.on_stdout() };
    let fio: Vec<fio::Output> = options.with_fio.iter().map(|path| fio_output(path)).collect::<Result<_>>()?;
    if let Some(path) = &options.from {
        let mut report = earlier(path)?;
        report.add_fio(&fio);
        output.print(&show::environment(&report.environment))?;
        return results.show(&report, options, &output);
    }
    let seed = options.seed.unwrap_or_else(fresh_seed);
    let (plan, write_plan, stream_plan) = (plan(options, seed), write_plan(options, seed), stream_plan(options, seed));
    let (log_plan, prefault_plan) = (log_plan(options, seed), prefault_plan(options, seed));
    check_usage(options, &plan, &write_plan, stream_plan.as_ref(), prefault_plan.as_ref())?;
    check_log_usage(options, log_plan.as_ref())?;
    if let Some(path) = &options.emit_fio {
        return emit_fio(options, path, &plan, &write_plan, stream_plan.as_ref());
    }
    let mut bar = Bar::new();

    let usual_size = usual_size(options, &plan, prefault_plan.is_some());
    let wanted = !plan.tables.is_empty() || stream_plan.is_some() || prefault_plan.is_some();
    let file = wanted.then(|| test_file(options, usual_size, seed, &cancel, &mut bar)).transpose()?;
    let mut report =
        Report { environment: environment(options, file.as_ref(), &write_plan, seed), ..Report::default() };
    bar.hide();
    output.print(&show::environment(&report.environment))?;
    if let Some(file) = &file {
        preflight::look_at_file(file, &mut report)?;
    }
    let writes = !write_plan.tables.is_empty() || log_plan.is_some();
    let environment = report.environment.clone();
    preflight::look_at_system(&environment, writes, stream_plan.is_some(), &mut report);

    let mut ran = Ok(());
    if let Some(file) = &file {
        ran = plan.run(file, &cancel, &mut bar, &mut report);
        bar.hide();
        if let Some(plan) = &stream_plan {
            ran = ran.and_then(|()| plan.run(file, &options.dir, &cancel, &mut bar, &mut report));
            bar.hide();
        }
        if let Some(plan) = &prefault_plan {
            ran = ran.and_then(|()| plan.run(file, &cancel, &mut bar, &mut report));
            bar.hide();
        }
    }
    // Its memory and its room on the disk are free again before anything is written.
    drop(file);
    if !write_plan.tables.is_empty() {
        ran = ran.and_then(|()| write_plan.run(&options.dir, &cancel, &mut bar, &mut report));
        bar.hide();
    }
    if let Some(plan) = &log_plan {
        ran = ran.and_then(|()| plan.run(&options.dir, &cancel, &mut bar, &mut report));
        bar.hide();
    }
    preflight::look_at_rows(&mut report);
    report.add_fio(&fio);
    // After an error, too: what is complete is worth having.
    report.partial = ran.as_ref().err().map(|error| match error.kind() {
        ErrorKind::Interrupted => "interrupted".to_owned(),
        _ => error.to_string(),
    });
    let shown = results.show(&report, options, &output);
    ran.and(shown)
}

/// Writes what fio can do of the plans.
fn emit_fio(
    options: &cli::Bench,
    path: &Path,
    plan: &Plan,
    write_plan: &writes::Plan,
    stream_plan: Option<&streams::Plan>,
) -> Result<()> {
    let destination = Destination::open(path, "--emit-fio")?;
    let environment = Environment::of(&options.dir);
    let made = options.dir.join("nowait-fio.data");
    let bytes = match &options.file {
        Some(path) => TestFile::existing(path)?.size(),
        None => options.size.unwrap_or(usual_size(options, plan, false)),
    };
    let source = fio::Source { path: options.file.as_deref().unwrap_or(&made), bytes, direct: options.direct };
    let mut jobs = fio::Jobs::new(&environment.command, plan.seed);
    let time = plan.round_time.max(FIO_TIME);
    plan.cases().iter().for_each(|case| jobs.reads(case, &source, time));
    if write_plan.tables.contains(&writes::Table::Writes) {
        let place = environment.filesystem.as_deref().unwrap_or("unknown");
        write_plan.depths.iter().for_each(|&depth| jobs.writes(place, depth, &options.dir, write_plan.bytes));
    }
    if let Some(plan) = stream_plan {
        for (&kind, &block) in plan.kinds.iter().flat_map(|kind| plan.blocks.iter().map(move |block| (kind, block))) {
            plan.depths.iter().for_each(|&depth| jobs.stream(kind, block, depth, &source, &options.dir));
        }
    }
    let text = jobs.finish().ok_or_else(|| {
        Error::new(
            ErrorKind::Usage,
            "there is nothing in these tables that fio can do; name reads, cached, writes or dd",
        )
    })?;
    destination.write(&text)
}

fn fio_output(path: &Path) -> Result<fio::Output> {
    let unusable = |why: String| {
        let text =
            format!("cannot use {}: {why}; give --with-fio what `fio --output-format=json` wrote", path.display());
        Error::new(ErrorKind::BadFile, text)
    };
    let text = fs::read_to_string(path).map_err(|error| unusable(error.to_string()))?;
    // Before it, fio writes what it has to say to the user.
    let begins = text.find('{').unwrap_or(0);
    serde_json::from_str(&text[begins..]).map_err(|error| unusable(error.to_string()))
}

/// Of the file to read, where none is given.
fn usual_size(options: &cli::Bench, plan: &Plan, maps: bool) -> u64 {
    match (options.quick, plan.tables.is_empty() && !maps) {
        (true, false) => QUICK_SIZE,
        (true, true) => QUICK_STREAM_SIZE,
        (false, false) => FULL_SIZE,
        (false, true) => FULL_STREAM_SIZE,
    }
}

/// What an earlier run has written with --json.
fn earlier(path: &Path) -> Result<Report> {
    let unusable = |why: String| {
        let text = format!("cannot use {}: {why}; give --from what `nowait bench --json` wrote", path.display());
        Error::new(ErrorKind::BadFile, text)
    };
    let text = fs::read_to_string(path).map_err(|error| unusable(error.to_string()))?;
    let report: Report = serde_json::from_str(&text).map_err(|error| unusable(error.to_string()))?;
    if report.rows.is_empty() { Err(unusable("it has no rows".to_owned())) } else { Ok(report) }
}

/// Of one who names no table: all of them, so shortened that they take minutes. `None` for who does, or says what else is wanted.
fn tour(options: &cli::Bench) -> Option<cli::Bench> {
    let wanted = options.quick || options.direct || options.rate.is_some() || !options.ways.is_empty();
    let other = options.file.is_some() || options.from.is_some() || options.emit_fio.is_some();
    if !options.tables.is_empty() || wanted || other {
        return None;
    }
    let mut tour = options.clone();
    tour.tables = cli::TableName::value_variants().to_vec();
    tour.quick = true;
    if tour.streams.is_empty() {
        tour.streams = vec![cli::StreamName::Read];
    }
    if tour.blocks.is_empty() {
        tour.blocks = TOUR_BLOCKS.into();
    }
    Some(tour)
}

fn plan(options: &cli::Bench, seed: u64) -> Plan {
    let quick = options.quick;
    let mut plan = Plan {
        tables: tables(options),
        ways: reading_ways(options).iter().copied().filter(|way| chosen(way.name(), &options.ways)).collect(),
        depths: if quick { QUICK_DEPTHS.into() } else { DEPTHS.into() },
        records: if quick { QUICK_RECORDS.into() } else { RECORDS.into() },
        rounds: options.rounds.unwrap_or(if quick { 3 } else { 5 }) as usize,
        round_time: FULL_ROUND,
        rate: options.rate,
        seed,
    };
    if !options.depths.is_empty() {
        plan.depths = asked_depths(options);
    }
    if !options.records.is_empty() {
        plan.records = sorted(options.records.iter().map(|&records| records as usize).collect());
    }
    if quick {
        plan.fit(QUICK_BUDGET);
    }
    plan
}

fn write_plan(options: &cli::Bench, seed: u64) -> writes::Plan {
    let quick = options.quick;
    let asked: Vec<_> = options.tables.iter().filter_map(|name| name.writing()).collect();
    let of = |ways: &[&'static dyn WriteWay]| {
        ways.iter().copied().filter(|way| chosen(way.name(), &options.ways)).collect::<Vec<_>>()
    };
    let usual_depths: &[usize] = if quick { &QUICK_WRITE_DEPTHS } else { &writes::DEPTHS };
    let root = rustix::process::geteuid().is_root();
    writes::Plan {
        tables: writes::Table::ALL.into_iter().filter(|table| asked.contains(table)).collect(),
        writers: of(ways::writers()),
        stallers: of(ways::stallers()),
        overwriters: of(ways::overwriters()),
        depths: if options.depths.is_empty() { usual_depths.into() } else { asked_depths(options) },
        rounds: options.rounds.unwrap_or(if quick { 3 } else { 5 }) as usize,
        bytes: options.size.unwrap_or(if quick { QUICK_WRITE_SIZE } else { FULL_WRITE_SIZE }),
        stall_bytes: options.stall_size.or(quick.then_some(QUICK_STALL_SIZE)),
        memory_limit: (root && !quick)
            .then(|| options.stall_size.map_or(MEMORY_LIMIT, |bytes| (bytes / 2).max(MEMORY_LIMIT_MIN))),
        own_file_systems: root && !quick,
        lower_dirty_limit: root && !quick,
        seed,
    }
}

fn reading_ways(options: &cli::Bench) -> &'static [&'static dyn Way] {
    if options.direct { ways::direct() } else { ways::all() }
}

/// `None` if its table is not asked for.
fn stream_plan(options: &cli::Bench, seed: u64) -> Option<streams::Plan> {
    if !options.tables.iter().any(|name| matches!(name, cli::TableName::Dd)) {
        return None;
    }
    let quick = options.quick;
    let usual_depths: &[usize] = if quick { &QUICK_STREAM_DEPTHS } else { &streams::DEPTHS };
    let usual_blocks: &[usize] = if quick { &QUICK_BLOCKS } else { &streams::BLOCKS };
    let asked: Vec<Kind> = options.streams.iter().map(|name| name.kind()).collect();
    let kinds: Vec<Kind> = Kind::ALL.into_iter().filter(|kind| asked.is_empty() || asked.contains(kind)).collect();
    Some(streams::Plan {
        ways: streamers(&kinds).filter(|way| chosen(way.name(), &options.ways)).collect(),
        kinds,
        blocks: if options.blocks.is_empty() { usual_blocks.into() } else { sorted(options.blocks.clone()) },
        depths: if options.depths.is_empty() { usual_depths.into() } else { asked_depths(options) },
        rounds: options.rounds.unwrap_or(if quick { 3 } else { 5 }) as usize,
        seed,
    })
}

/// `None` if its table is not asked for.
fn log_plan(options: &cli::Bench, seed: u64) -> Option<log::Plan> {
    if !options.tables.iter().any(|name| matches!(name, cli::TableName::Log)) {
        return None;
    }
    let quick = options.quick;
    let usual_writers: &[usize] = if quick { &QUICK_WRITERS } else { &log::WRITERS };
    let usual_sizes: &[usize] = if quick { &QUICK_LOG_SIZES } else { &log::SIZES };
    let asked_writers = || sorted(options.writers.iter().map(|&writers| writers as usize).collect());
    Some(log::Plan {
        ways: ways::loggers().iter().copied().filter(|way| chosen(way.name(), &options.ways)).collect(),
        writers: if options.writers.is_empty() { usual_writers.into() } else { asked_writers() },
        sizes: if options.sizes.is_empty() { usual_sizes.into() } else { sorted(options.sizes.clone()) },
        rounds: options.rounds.unwrap_or(if quick { 3 } else { 5 }) as usize,
        round_time: if quick { QUICK_LOG_ROUND } else { FULL_LOG_ROUND },
        seed,
    })
}

/// `None` if none of its tables is asked for, or they have other ways only.
fn prefault_plan(options: &cli::Bench, seed: u64) -> Option<prefault::Plan> {
    let asked: Vec<_> = options.tables.iter().filter_map(|name| name.mapping()).collect();
    let tables: Vec<_> = prefault::Table::ALL.into_iter().filter(|table| asked.contains(table)).collect();
    let plan = prefault::Plan {
        populators: ways::populators().iter().copied().filter(|way| chosen(way.name(), &options.ways)).collect(),
        indexers: ways::indexers().iter().copied().filter(|way| chosen(way.name(), &options.ways)).collect(),
        rows: prefault::ROWS,
        rounds: options.rounds.unwrap_or(if options.quick { 3 } else { 5 }) as usize,
        tables,
        seed,
    };
    let rows = plan.tables.contains(&prefault::Table::Prefault) && !plan.indexers.is_empty();
    (rows || !plan.tables.is_empty() && !plan.populators.is_empty()).then_some(plan)
}

/// Those that take part in any of these.
fn streamers(kinds: &[Kind]) -> impl Iterator<Item = &'static dyn StreamWay> {
    ways::streamers().iter().copied().filter(|&way| kinds.iter().any(|kind| kind.suits(way)))
}

fn asked_depths(options: &cli::Bench) -> Vec<usize> {
    sorted(options.depths.iter().map(|&depth| depth as usize).collect())
}

/// Each once.
fn sorted(mut numbers: Vec<usize>) -> Vec<usize> {
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

/// What the command line alone cannot rule out.
fn check_usage(
    options: &cli::Bench,
    plan: &Plan,
    write_plan: &writes::Plan,
    stream_plan: Option<&streams::Plan>,
    prefault_plan: Option<&prefault::Plan>,
) -> Result<()> {
    let usage = |text: String| Err(Error::new(ErrorKind::Usage, text));
    if !options.records.is_empty() && !plan.tables.contains(&Table::Gather) {
        return usage("--records is of the table gather; name it".to_owned());
    }
    let by_depth = plan.tables.contains(&Table::Reads) || write_plan.tables.contains(&writes::Table::Writes);
    if !options.depths.is_empty() && !by_depth && stream_plan.is_none() {
        return usage("--depths is of the tables reads, writes and dd; name one of them".to_owned());
    }
    if options.stall_size.is_some() && !write_plan.tables.contains(&writes::Table::Stall) {
        return usage("--stall-size is of the table stall; name it".to_owned());
    }
    if options.file.is_some() && !write_plan.tables.is_empty() {
        return usage("--file is only read; leave it out for the tables that write, or name others".to_owned());
    }
    if options.direct && options.tables.iter().any(|name| name.reading() != Some(Table::Reads)) {
        return usage("--direct is for the table reads only; leave it out, or the others".to_owned());
    }
    let paced = |name: &cli::TableName| matches!(name.reading(), Some(Table::Reads | Table::Cached));
    if options.rate.is_some() && !options.tables.iter().all(paced) {
        return usage("--rate is for the tables reads and cached only; leave it out, or the others".to_owned());
    }
    if options.rate.is_some() && !plan.ways.iter().any(|way| way.paced()) {
        let all: Vec<_> = reading_ways(options).iter().filter(|way| way.paced()).map(|way| way.name()).collect();
        return usage(format!("none of --ways can be paced; choose among {}", all.join(", ")));
    }
    let names = |ways: &[&dyn WriteWay]| ways.iter().map(|way| way.name()).collect::<Vec<_>>().join(", ");
    if !plan.tables.is_empty() && plan.ways.is_empty() {
        let all = reading_ways(options).iter().map(|way| way.name()).collect::<Vec<_>>().join(", ");
        return usage(format!("none of --ways reads; choose among {all}"));
    }
    let populators = || ways::populators().iter().map(|way| way.name());
    for table in &write_plan.tables {
        let (chosen, all) = match table {
            writes::Table::Writes => (&write_plan.writers, names(ways::writers())),
            writes::Table::Stall if write_plan.memory_limit.is_some() && !write_plan.overwriters.is_empty() => continue,
            writes::Table::Stall if prefault_plan.is_some_and(|plan| !plan.populators.is_empty()) => continue,
            writes::Table::Stall => {
                let populators = populators().collect::<Vec<_>>().join(", ");
                (&write_plan.stallers, format!("{}, {populators}", names(ways::stallers())))
            }
        };
        if chosen.is_empty() {
            return usage(format!("none of --ways is in the table {}; choose among {all}", table.name()));
        }
    }
    if prefault_plan.is_none() && options.tables.iter().any(|name| matches!(name, cli::TableName::Prefault)) {
        let all: Vec<_> = populators().chain(ways::indexers().iter().map(|way| way.name())).collect();
        return usage(format!("none of --ways is in the table prefault; choose among {}", all.join(", ")));
    }
    let Some(plan) = stream_plan else {
        let unused = !options.blocks.is_empty() || !options.streams.is_empty();
        return if unused { usage("--blocks and --streams are of the table dd; name it".to_owned()) } else { Ok(()) };
    };
    if options.file.is_some() && plan.kinds.iter().any(|kind| kind.writes()) {
        return usage("--file is only read; leave it out of dd, or say --streams read".to_owned());
    }
    if plan.ways.is_empty() {
        let all = streamers(&plan.kinds).map(|way| way.name()).collect::<Vec<_>>().join(", ");
        return usage(format!("none of --ways does this in the table {}; choose among {all}", streams::TABLE));
    }
    let most = |numbers: &[usize]| numbers.iter().max().copied().unwrap_or(0);
    if most(&plan.blocks) * most(&plan.depths) > streams::IN_FLIGHT_MAX {
        let most = streams::IN_FLIGHT_MAX >> 20;
        return usage(format!("the largest of --blocks times the largest of --depths is more than {most} MiB"));
    }
    Ok(())
}

fn check_log_usage(options: &cli::Bench, plan: Option<&log::Plan>) -> Result<()> {
    let usage = |text: String| Err(Error::new(ErrorKind::Usage, text));
    let Some(plan) = plan else {
        let unused = !options.writers.is_empty() || !options.sizes.is_empty();
        return if unused { usage("--writers and --sizes are of the table log; name it".to_owned()) } else { Ok(()) };
    };
    if options.file.is_some() {
        return usage("--file is only read; leave it out of log".to_owned());
    }
    if !plan.ways.iter().any(|way| !way.alone() || plan.writers.contains(&1)) {
        let all = ways::loggers().iter().map(|way| way.name()).collect::<Vec<_>>().join(", ");
        let table = log::TABLE;
        return usage(format!("none of --ways is in the table {table} with these --writers; choose among {all}"));
    }
    Ok(())
}

fn chosen(way: &str, names: &[String]) -> bool {
    names.is_empty() || names.iter().any(|name| name == way)
}

/// Those that read, in their usual order, each once.
fn tables(options: &cli::Bench) -> Vec<Table> {
    let asked: Vec<Table> = options.tables.iter().filter_map(|name| name.reading()).collect();
    let usual = |table: &Table| {
        let possible = !options.direct || *table == Table::Reads;
        options.tables.is_empty() && possible && (options.rate.is_none() || *table != Table::Gather)
    };
    Table::ALL.into_iter().filter(|table| usual(table) || asked.contains(table)).collect()
}

fn test_file(options: &cli::Bench, usual_size: u64, seed: u64, cancel: &AtomicBool, bar: &mut Bar) -> Result<TestFile> {
    let file = match &options.file {
        Some(path) => TestFile::existing(path),
        None => {
            let size = options.size.unwrap_or(usual_size);
            bar.begin("making the test file", size);
            TestFile::make(&options.dir, size, seed, cancel, |bytes| bar.step(bytes))
        }
    }?;
    if options.direct { file.past_the_cache() } else { Ok(file) }
}

fn environment(options: &cli::Bench, file: Option<&TestFile>, writes: &writes::Plan, seed: u64) -> Environment {
    let (bytes, origin) = match file {
        Some(file) => (file.size(), file.origin()),
        None if writes.tables.is_empty() => {
            (log::FILE_MAX, "at most; a new one for each round, filled with zeros, without a name")
        }
        None => (writes.bytes, "a new one for each round, without a name"),
    };
    Environment {
        commit: option_env!("NOWAIT_COMMIT").map(str::to_owned),
        io_uring: ways::io_uring_state(),
        file_bytes: bytes,
        file_origin: origin.to_owned(),
        seed,
        ..Environment::of(options.file.as_deref().unwrap_or(&options.dir))
    }
}

/// Set by Ctrl-C, SIGTERM and SIGHUP. The run looks at it before every operation.
fn interrupt_flag() -> Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    let handler = Arc::clone(&flag);
    ctrlc::set_handler(move || handler.store(true, Ordering::Relaxed))
        .map_err(|error| Error::new(ErrorKind::Other, format!("cannot handle Ctrl-C: {error}")))?;
    Ok(flag)
}

/// Where the tables go.
struct Output {
    to_stderr: bool,
}

impl Output {
    fn colour(&self) -> Colour {
        let terminal = if self.to_stderr { io::stderr().is_terminal() } else { io::stdout().is_terminal() };
        // https://no-color.org: set and not empty.
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        if terminal && !refused { Colour::On } else { Colour::Off }
    }

    fn print(&self, text: &str) -> Result<()> {
        if self.to_stderr { print_to(io::stderr().lock(), text) } else { print_to(io::stdout().lock(), text) }
    }
}

/// A reader that went away (`| head`) is not an error.
fn print_to(mut to: impl Write, text: &str) -> Result<()> {
    match to.write_all(text.as_bytes()).and_then(|()| to.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Error::new(ErrorKind::Other, format!("cannot print the result: {error}")))
        }
        _ => Ok(()),
    }
}

/// What is written besides the tables.
struct Results {
    json: Option<Destination>,
    page: Option<Destination>,
}

impl Results {
    fn open(options: &cli::Bench) -> Result<Self> {
        let open =
            |path: &Option<PathBuf>, option| path.as_deref().map(|path| Destination::open(path, option)).transpose();
        let results = Self { json: open(&options.json, "--json")?, page: open(&options.report, "--report")? };
        match (&results.json, &results.page) {
            (Some(json), Some(page)) if json.is_stdout() && page.is_stdout() => Err(Error::new(
                ErrorKind::Usage,
                "--json and --report cannot both go to stdout; give one of them a path",
            )),
            (Some(json), Some(page)) if json.is_same(page) => Err(Error::new(
                ErrorKind::Usage,
                "--json and --report are the same file; give one of them another path",
            )),
            _ => Ok(results),
        }
    }

    fn on_stdout(&self) -> bool {
        [&self.json, &self.page].into_iter().flatten().any(Destination::is_stdout)
    }

    /// Prints the tables, and writes what is wanted as a file if there are figures.
    fn show(self, report: &Report, options: &cli::Bench, output: &Output) -> Result<()> {
        output.print(&show::report(report, options.details || options.rate.is_some(), output.colour()))?;
        if options.explain.is_some() {
            output.print(&show::explanations(report))?;
        }
        if report.rows.is_empty() && report.partial.is_some() {
            let kept = [&self.json, &self.page].into_iter().flatten().filter_map(Destination::kept);
            let note = |path: &Path| format!("nothing was measured to its end: {} is left as it was\n", path.display());
            return kept.map(note).try_for_each(|note| print_to(io::stderr().lock(), &note));
        }
        if let Some(json) = self.json {
            json.write(&(serde_json::to_string_pretty(report).expect("a report is plain data") + "\n"))?;
        }
        self.page.map_or(Ok(()), |destination| destination.write(&page(report)))
    }
}

/// Where a result goes. Opened before the measuring, so that minutes are not lost to a wrong path; an existing
/// file keeps its content until there is something new, and a new one is removed if there is nothing.
struct Destination {
    option: &'static str,
    /// `None` for stdout.
    file: Option<(File, PathBuf)>,
    remove: bool,
}

impl Destination {
    fn open(path: &Path, option: &'static str) -> Result<Self> {
        if path == Path::new("-") {
            return Ok(Self { option, file: None, remove: false });
        }
        let remove = fs::symlink_metadata(path).is_err();
        let opened = OpenOptions::new().write(true).create(true).truncate(false).open(path);
        let file = opened.map_err(|error| cannot_write(path, option, &error))?;
        Ok(Self { option, file: Some((file, path.to_owned())), remove })
    }

    fn is_stdout(&self) -> bool {
        self.file.is_none()
    }

    /// Two names of one file, or one name.
    fn is_same(&self, other: &Self) -> bool {
        let about = |destination: &Self| {
            let about = destination.file.as_ref()?.0.metadata().ok()?;
            about.is_file().then(|| (about.dev(), about.ino()))
        };
        about(self).is_some_and(|mine| Some(mine) == about(other))
    }

    /// The path of a file that was there before.
    fn kept(&self) -> Option<&Path> {
        self.file.as_ref().filter(|_| !self.remove).map(|(_, path)| path.as_path())
    }

    fn write(mut self, text: &str) -> Result<()> {
        let Some((file, path)) = &mut self.file else { return print_to(io::stdout().lock(), text) };
        let regular = file.metadata().is_ok_and(|about| about.is_file());
        let emptied = if regular { file.set_len(0) } else { Ok(()) };
        let written = emptied.and_then(|()| file.write_all(text.as_bytes()));
        written.map_err(|error| cannot_write(path, self.option, &error))?;
        self.remove = false;
        Ok(())
    }
}

impl Drop for Destination {
    fn drop(&mut self) {
        if let (Some((_, path)), true) = (&self.file, self.remove) {
            let _ = fs::remove_file(path);
        }
    }
}

fn cannot_write(path: &Path, option: &str, error: &io::Error) -> Error {
    let text = format!("cannot write the result to {}: {error}; give {option} another path, or -", path.display());
    Error::new(ErrorKind::Other, text)
}

/// A progress bar on stderr; indicatif draws nothing where that is no terminal.
struct Bar(ProgressBar);

impl Bar {
    fn new() -> Self {
        Self(ProgressBar::hidden())
    }

    fn hide(&mut self) {
        self.0.finish_and_clear();
    }
}

impl Progress for Bar {
    fn begin(&mut self, what: &str, steps: u64) {
        let style = ProgressStyle::with_template("{prefix} {bar:30} {percent:>3} % {elapsed}, {eta} to go  {msg}");
        self.0 = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::stderr())
            .with_style(style.expect("the template is a constant"))
            .with_prefix(what.to_owned());
    }

    fn step(&mut self, steps: u64) {
        self.0.inc(steps);
    }

    fn now(&mut self, what: &str) {
        self.0.set_message(what.to_owned());
    }
}
