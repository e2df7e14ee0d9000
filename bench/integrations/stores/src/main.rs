//! nowait's `ObjectStore` beside `LocalFileSystem`, in the same process and in turns: many ranges of
//! an object, an object as a stream, and puts.
//!
//! Every call is made by a task of a tokio runtime with a worker for each processor.

mod gets;
mod puts;

use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use nowait_bench::{Error, ErrorKind, Result};
use nowait_measure::{Contest, Options, Run, State};
use nowait_object_store::v0_14::NowaitFileSystem;
use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use tokio::runtime::Runtime;

use crate::gets::{Ranges, Streamed};
use crate::puts::{Large, Small};

/// Compare nowait's ObjectStore with LocalFileSystem.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(flatten)]
    options: Options,

    /// Size of large objects, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 1024)]
    #[arg(value_parser = clap::value_parser!(u64).range(16..=1 << 20))]
    mib: u64,

    /// Only cases whose names begin so, such as ranges or put
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    cases: Vec<String>,
}

const TABLE: &str = "stores";
/// Calls of a way that makes many at a time.
const AT_A_TIME: usize = 32;

/// A store, by the name of its way.
struct Store {
    name: &'static str,
    store: Arc<dyn ObjectStore>,
    /// Ranges are asked for by a call each, [`AT_A_TIME`] under way, and not by `get_ranges`.
    apart: bool,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nowait-stores: {error}");
            ExitCode::from(error.kind().exit_code())
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    let mut run = Run::new(&arguments.options)?;
    run.heed_signals()?;
    let measured = measure(arguments, &mut run);
    run.finish(measured)
}

fn measure(arguments: &Arguments, run: &mut Run) -> Result<()> {
    let folder = run.folder()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| failed("start a runtime of tokio", &error))?;
    let stock = |durable| -> Result<Arc<dyn ObjectStore>> {
        let store =
            LocalFileSystem::new_with_prefix(&folder).map_err(|error| failed("open the stock store", &error))?;
        Ok(Arc::new(store.with_fsync(durable)))
    };
    let ours = |direct, durable| -> Result<Arc<dyn ObjectStore>> {
        let options = nowait_object_store::Options::new().direct(direct).durable(durable);
        let store = NowaitFileSystem::with_prefix(&folder, options);
        Ok(Arc::new(store.map_err(|error| failed("open nowait's store", &error))?))
    };
    let way = |name, store: Result<Arc<dyn ObjectStore>>, apart| Ok(Store { name, store: store?, apart });

    let bytes = arguments.mib << 20;
    let wanted =
        |case: &str| arguments.cases.is_empty() || arguments.cases.iter().any(|name| case.starts_with(name.as_str()));
    let objects = gets::make(&folder, bytes, run)?;
    for state in State::ALL {
        let mut stores = vec![
            way("stock", stock(false), false)?,
            way("stock-32", stock(false), true)?,
            way("nowait-32", ours(false, false), true)?,
        ];
        if state == State::Cold {
            stores.push(way("nowait-direct", ours(true, false), false)?);
        }
        stores.push(way("nowait", ours(false, false), false)?);
        let case = format!("ranges {}", state.name());
        if wanted(&case) {
            let work = Ranges { runtime: &runtime, stores: &stores, files: &objects, state, bytes, seed: run.seed() };
            contest(run, case, &stores, work)?;
        }
        stores.retain(|store| !store.apart);
        let case = format!("stream {}", state.name());
        if wanted(&case) {
            contest(run, case, &stores, Streamed { runtime: &runtime, stores: &stores, files: &objects, state })?;
        }
    }
    for durable in [false, true] {
        let suffix = if durable { " durable" } else { "" };
        let stores = [way("stock", stock(durable), false)?, way("nowait", ours(false, durable), false)?];
        let case = format!("put-large{suffix}");
        if wanted(&case) {
            contest(run, case, &stores, Large::new(&runtime, &stores, &folder, bytes, run.seed()))?;
        }
        let case = format!("put-small{suffix}");
        if wanted(&case) {
            contest(run, case, &stores, Small { runtime: &runtime, stores: &stores, folder: &folder })?;
        }
    }
    Ok(())
}

fn contest<W: nowait_measure::Work>(run: &mut Run, case: String, stores: &[Store], work: W) -> Result<()> {
    let ways: Vec<&str> = stores.iter().map(|store| store.name).collect();
    Contest { table: TABLE, case, ways: &ways, work }.measure(run)
}

fn failed(what: &str, error: &dyn std::error::Error) -> Error {
    Error::new(ErrorKind::Other, format!("cannot {what}: {error}"))
}

/// Runs a task to its end.
fn in_a_task<T: Send + 'static>(
    runtime: &Runtime,
    what: &str,
    task: impl Future<Output = object_store::Result<T>> + Send + 'static,
) -> Result<T> {
    let ended = runtime.block_on(async { runtime.spawn(task).await });
    ended.map_err(|error| failed(what, &error))?.map_err(|error| failed(what, &error))
}
