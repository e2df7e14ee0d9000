//! DataFusion over Parquet, its local files read by nowait's store and by the one that it comes with:
//! the same process, queries and files, in interleaved rounds, cold and hot.
//!
//! Three sets of tables are made for a run: `hits`, of ClickBench's kind; those of TPC-H; and `wide`,
//! of which queries read a few columns at random places. A cold round drops all pages of its tables,
//! verifies that, and begins with a new session, which lists files and reads footers. A hot round has
//! all pages cached, and a session that knows its tables. With `--ahead` there are scans that read
//! ahead, too: see `ahead.rs`. With `--cache` the run compares nowait's store without and with a page
//! cache of the process that holds half of the tables.

mod ahead;
mod data;
mod engine;
mod queries;

use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use nowait_bench::{Error, ErrorKind, Result};
use nowait_cache::PageCache;
use nowait_measure::{Contest, Files, Options, Run, State, report_total};

use crate::data::Scale;
use crate::engine::{Engines, Session, Store, Way};
use crate::queries::{Query, Set};

/// Compare DataFusion's queries through nowait's store and through LocalFileSystem.
///
/// The files take about 1.3 GiB (--scale 1).
#[derive(Debug, Parser)]
struct Arguments {
    #[command(flatten)]
    options: Options,

    /// Size of the tables; 1 is about 1.3 GiB in all
    #[arg(long, value_name = "N", default_value_t = 1.0, value_parser = parse_scale)]
    scale: f64,

    /// Only queries whose names begin so, such as tpch or hits-2
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    queries: Vec<String>,

    /// Add the store past the page cache (cold rounds only)
    #[arg(long)]
    direct: bool,

    /// Add scans that read a row group ahead, with either store (cold rounds only)
    #[arg(long)]
    ahead: bool,

    /// Compare instead nowait's store with direct reads, the same through a page cache of half of the
    /// tables' size, and the kernel's cache with all tables; a round is all queries
    #[arg(long, conflicts_with_all = ["direct", "ahead"])]
    cache: bool,

    /// All queries on small tables, one round: whether it works, not how fast
    #[arg(long, conflicts_with_all = ["scale", "rounds"])]
    smoke: bool,
}

fn parse_scale(text: &str) -> std::result::Result<f64, String> {
    match text.parse() {
        Ok(scale) if (0.01..=1000.0).contains(&scale) => Ok(scale),
        _ => Err("not a number from 0.01 to 1000".to_owned()),
    }
}

const TABLE: &str = "datafusion";

fn main() -> ExitCode {
    let mut arguments = Arguments::parse();
    if arguments.smoke {
        (arguments.scale, arguments.options.rounds) = (0.01, 1);
    }
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nowait-datafusion: {error}");
            ExitCode::from(error.kind().exit_code())
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    let queries: Vec<Query> =
        queries::all()?.into_iter().filter(|query| query.is_asked_for(&arguments.queries)).collect();
    if queries.is_empty() {
        return Err(Error::new(ErrorKind::Usage, "no query has such a name; leave out --queries to have all"));
    }
    let mut run = Run::new(&arguments.options)?;
    run.heed_signals()?;
    let measured = measure(arguments, &queries, &mut run);
    run.finish(measured)
}

fn measure(arguments: &Arguments, queries: &[Query], run: &mut Run) -> Result<()> {
    let (folder, scale) = (run.folder()?, Scale(arguments.scale));
    let mut bytes = 0;
    for set in Set::ALL.into_iter().filter(|set| queries.iter().any(|query| query.set == *set)) {
        run.begin(&format!("making the tables of {}", set.name()))?;
        data::make(set, &folder, scale, run.seed())?;
        bytes += Files::below(&[&folder.join(set.name())])?.bytes();
    }
    run.describe_files(bytes, "Parquet made for this run, written and synced");
    if arguments.cache {
        return measure_cached(&folder, scale, queries, run);
    }
    let ways = ways(arguments);
    let engines = Engines::new(&ways, None)?;
    for query in queries {
        let files = Files::below(&[&folder.join(query.set.name())])?;
        for state in State::ALL {
            // Hot, nothing goes past the page cache, and nothing is read ahead.
            let count = if state == State::Cold { ways.len() } else { USUAL };
            let names: Vec<&str> = ways[..count].iter().map(|way| way.name()).collect();
            let sessions = (0..count).map(|_| None).collect();
            let (engines, folder) = (&engines, &folder);
            let work = Session { engines, folder, files: &files, query, state, scale, seed: run.seed(), sessions };
            Contest { table: TABLE, case: format!("{} {}", query.name, state.name()), ways: &names, work }
                .measure(run)?;
        }
    }
    Ok(())
}

/// Table of [`measure_cached`].
const CACHE_TABLE: &str = "datafusion-cache";

/// Compares the store without and with a page cache of the process, which holds half of a set's bytes.
/// A round is all queries of the set. The first round is not timed: it fills the cache. The kernel caches
/// all files, but only the last way reads them there: it has twice the memory.
fn measure_cached(folder: &Path, scale: Scale, queries: &[Query], run: &mut Run) -> Result<()> {
    let ways = [Store::NowaitDirect, Store::NowaitCache, Store::Nowait].map(Way::of);
    let names = ways.map(Way::name);
    for set in Set::ALL {
        let queries: Vec<&Query> = queries.iter().filter(|query| query.set == set).collect();
        if queries.is_empty() {
            continue;
        }
        let files = Files::below(&[&folder.join(set.name())])?;
        let cache = PageCache::builder().capacity_bytes(files.bytes() / 2).build();
        let cache = cache.map_err(|error| Error::new(ErrorKind::Other, error.to_string()))?;
        run.begin(&format!("{CACHE_TABLE} {}: a cache of {} bytes", set.name(), cache.capacity_bytes()))?;
        let engines = Engines::new(&ways, Some(cache.clone()))?;
        let state = State::Hot;
        let case = |query: &Query| format!("{} {}", query.name, state.name());
        let (seed, mut cases) = (run.seed(), Vec::new());
        for query in &queries {
            let sessions = ways.iter().map(|_| None).collect();
            let (engines, files) = (&engines, &files);
            let work = Session { engines, folder, files, query, state, scale, seed, sessions };
            cases.push(Contest { table: CACHE_TABLE, case: case(query), ways: &names, work });
        }
        Contest::measure_all(cases, run)?;
        let cases: Vec<String> = queries.iter().map(|query| case(query)).collect();
        report_total(CACHE_TABLE, &format!("{} total", set.name()), &cases, run);
        eprintln!("{CACHE_TABLE} {}: {:?}", set.name(), cache.stats());
    }
    Ok(())
}

/// So many ways are those of DataFusion's usual configuration, which differ in the store.
const USUAL: usize = 2;

fn ways(arguments: &Arguments) -> Vec<Way> {
    let mut ways = vec![Way::of(Store::Stock), Way::of(Store::Nowait)];
    if arguments.direct {
        ways.push(Way::of(Store::NowaitDirect));
    }
    if arguments.ahead {
        let ahead: Vec<Way> = ways.iter().map(|way| Way { ahead: true, ..*way }).collect();
        ways.extend(ahead);
    }
    ways
}
