//! A Ballista cluster whose scheduler, executors and client read `nowait:///` through nowait's store,
//! and `file:///` through the stock one.
//!
//! `nowait-ballista` alone starts a scheduler and executors as processes on loopback, has them answer
//! queries over many Parquet files, compares the answers with those of a single process, kills an
//! executor in the middle of a query, and ends all of it. `scheduler` and `executor` are the same
//! processes by themselves, for as many machines as there are.

mod cluster;
mod node;
mod tables;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use nowait_bench::{Error, ErrorKind, Result};
use nowait_measure::{Contest, Files, Options, Run, State};
use tokio::runtime::Runtime;

use crate::cluster::{Cluster, Turns};
use crate::tables::{QUERIES, Query};

/// Queries on a Ballista cluster that reads through nowait's store.
///
/// Without a command: a cluster on loopback, started, used, robbed of an executor and ended by this one.
#[derive(Debug, Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    node: Option<Node>,

    #[command(flatten)]
    options: Options,

    /// Parquet files of the large table, of a million rows each (about 28 MiB)
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u64).range(2..=10_000))]
    files: u64,

    /// Executors
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(2..=64))]
    executors: u64,

    /// The longest that one query may take, in seconds
    #[arg(long, value_name = "S", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,

    /// Small files, one round: whether it works, not how fast
    #[arg(long, conflicts_with_all = ["files", "rounds"])]
    smoke: bool,
}

#[derive(Debug, Subcommand)]
enum Node {
    /// Run a scheduler, until it is ended
    Scheduler(node::Scheduler),
    /// Run an executor, until it is ended
    Executor(node::Executor),
}

const TABLE: &str = "ballista";

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = runtime().and_then(|runtime| match &arguments.node {
        Some(Node::Scheduler(scheduler)) => runtime.block_on(scheduler.run()),
        Some(Node::Executor(executor)) => runtime.block_on(executor.run()),
        None => run(arguments, &runtime),
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nowait-ballista: {error}");
            ExitCode::from(error.kind().exit_code())
        }
    }
}

fn runtime() -> Result<Runtime> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.map_err(|error| failed("start a runtime of tokio", &error))
}

fn failed(what: &str, error: &dyn std::fmt::Display) -> Error {
    Error::new(ErrorKind::Other, format!("cannot {what}: {error}"))
}

fn run(mut arguments: Arguments, runtime: &Runtime) -> Result<()> {
    let mut rows_of_file = 1_000_000;
    if arguments.smoke {
        (arguments.files, arguments.options.rounds, rows_of_file) = (16, 1, 20_000);
    }
    let mut run = Run::new(&arguments.options)?;
    run.heed_signals()?;
    let measured = measure(&arguments, rows_of_file, runtime, &mut run);
    run.finish(measured)
}

fn measure(arguments: &Arguments, rows_of_file: u64, runtime: &Runtime, run: &mut Run) -> Result<()> {
    let folder = run.folder()?;
    run.begin("making tables")?;
    runtime.block_on(tables::make(&folder, arguments.files, rows_of_file))?;
    let files = Files::below(&[&folder.join("events"), &folder.join("customers")])?;
    run.describe_files(files.bytes(), "Parquet made for this run, written and synced");
    run.begin("starting the cluster")?;
    let patience = Duration::from_secs(arguments.timeout);
    let mut cluster = runtime.block_on(Cluster::start(&folder, arguments.executors as usize, patience))?;
    for query in &QUERIES {
        run.begin(&format!("{}: one process", query.name))?;
        let expected = runtime.block_on(tables::alone(&folder, query))?;
        for state in State::ALL {
            let case = format!("{} {}", query.name, state.name());
            let work =
                Turns { runtime, cluster: &cluster, folder: &folder, files: &files, query, state, expected: &expected };
            Contest { table: TABLE, case, ways: &["stock", "nowait"], work }.measure(run)?;
        }
    }
    let query: &Query = &QUERIES[0];
    run.begin(&format!("{}: an executor is killed", query.name))?;
    let expected = runtime.block_on(tables::alone(&folder, query))?;
    let told = runtime.block_on(cluster.survive(&folder, &files, query, &expected))?;
    println!("{told}");
    run.begin("ending the cluster")?;
    runtime.block_on(cluster.end())
}
