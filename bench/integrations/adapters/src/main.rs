//! Adapters of nowait beside what they replace, in the same process and in turns: redb, SQLite, tantivy
//! and openraft.

mod openraft;
mod redb;
mod sqlite;
mod tantivy;

use std::fmt::Display;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use nowait_bench::random::Random;
use nowait_bench::{Error, ErrorKind, Result};
use nowait_measure::{Contest, Options, Run, Work};

/// Compare nowait's adapters with what they replace.
#[derive(Parser)]
#[command(mut_arg("rounds", |rounds| rounds.default_value("7")))]
struct Arguments {
    #[command(flatten)]
    options: Options,

    /// Only cases whose name contains one of these texts, such as redb or "sqlite scan"
    #[arg(value_name = "TEXT")]
    only: Vec<String>,
}

/// Both ways of all cases: what the project ships, and the adapter.
const WAYS: [&str; 2] = ["stock", "nowait"];
const STOCK: usize = 0;

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nowait-adapters: {error}");
            ExitCode::from(error.kind().exit_code())
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    let mut run = Run::new(&arguments.options)?;
    run.heed_signals()?;
    let mut cases = Cases { run: &mut run, only: &arguments.only };
    let adapters = [redb::measure, sqlite::measure, tantivy::measure, openraft::measure];
    let measured = adapters.into_iter().try_for_each(|measure| measure(&mut cases));
    run.finish(measured)
}

/// The chosen cases of a run.
struct Cases<'a> {
    run: &'a mut Run,
    only: &'a [String],
}

impl Cases<'_> {
    /// Returns whether any case of an adapter is chosen, so that its data is needed.
    fn any(&self, adapter: &str, cases: &[&str]) -> bool {
        cases.iter().any(|case| self.is_chosen(adapter, case))
    }

    fn is_chosen(&self, adapter: &str, case: &str) -> bool {
        let name = format!("{adapter} {case}");
        self.only.is_empty() || self.only.iter().any(|text| name.contains(text.as_str()))
    }

    /// Measures a case, if it is chosen.
    fn measure(&mut self, adapter: &str, case: &str, work: impl Work) -> Result<()> {
        match self.is_chosen(adapter, case) {
            true => Contest { table: adapter, case: case.to_owned(), ways: &WAYS, work }.measure(self.run),
            false => Ok(()),
        }
    }

    /// Makes a directory for the files of an adapter.
    fn dir(&self, name: &str) -> Result<std::path::PathBuf> {
        let dir = self.run.folder()?.join(name);
        fs::create_dir_all(&dir).map_err(|error| Error::io("make the directory", &dir, &error))?;
        Ok(dir)
    }
}

/// Makes a directory anew, with nothing left to write back on its file system.
fn make_anew(dir: &Path) -> Result<()> {
    let made = || -> io::Result<()> {
        match fs::remove_dir_all(dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => fs::create_dir_all(dir)?,
        }
        Ok(rustix::fs::syncfs(File::open(dir)?)?)
    };
    made().map_err(|error| Error::io("make anew", dir, &error))
}

/// Returns some of the numbers below `count`, in random order: the same for all ways of a round.
fn places(seed: u64, round: u64, count: u64, wanted: u64) -> Vec<u64> {
    let mut random = Random::of(seed, round);
    (0..wanted).map(|_| random.below(count)).collect()
}

/// Returns the bytes of a row, different for each number.
fn row(number: u64, length: usize) -> Vec<u8> {
    let mut random = Random::new(number);
    (0..length.div_ceil(8)).flat_map(|_| random.number().to_le_bytes()).take(length).collect()
}

/// Errors of the projects.
trait OrFailed<T> {
    fn or_failed(self, what: &str) -> Result<T>;
}

impl<T, E: Display> OrFailed<T> for std::result::Result<T, E> {
    fn or_failed(self, what: &str) -> Result<T> {
        self.map_err(|error| Error::new(ErrorKind::Other, format!("cannot {what}: {error}")))
    }
}
