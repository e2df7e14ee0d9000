//! DataFusion over Parquet, its local files read by nowait's store and by the one that it comes with:
//! the same process, queries and files, in interleaved rounds, cold and hot.
//!
//! Three sets of tables are made for a run: `hits`, of ClickBench's kind; those of TPC-H; and `wide`,
//! of which queries read a few columns at random places. A cold round drops all pages of its tables,
//! verifies that, and begins with a new session, which lists files and reads footers. A hot round has
//! all pages cached, and a session that knows its tables. With `--ahead` there are scans that read
//! ahead, too: see `ahead.rs`.

mod ahead;
mod data;
mod engine;
mod queries;

use std::process::ExitCode;

use clap::Parser;
use nowait_bench::{Error, ErrorKind, Result};
use nowait_measure::{Contest, Files, Options, Run, State};

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
    let ways = ways(arguments);
    let engines = Engines::new(&ways)?;
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
