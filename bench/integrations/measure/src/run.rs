//! A run: its options, its directory, and its report.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nowait_bench::machine::environment::Environment;
use nowait_bench::machine::load::Watch;
use nowait_bench::random::fresh_seed;
use nowait_bench::report::Report;
use nowait_bench::report::preflight;
use nowait_bench::report::verdict::to_json;
use nowait_bench::ways::io_uring_state;
use nowait_bench::{Error, ErrorKind, Result};
use tempfile::TempDir;

use crate::text;

/// Options of every command here.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Directory for the files, on the disk to be measured; what is made there is removed at the end
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,

    /// Timed rounds of each way in each case
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,

    /// Write all figures to FILE, in the form of `nowait bench --json`
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Repeat the choices of an earlier run
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
}

impl Default for Options {
    fn default() -> Options {
        Options { dir: ".".into(), rounds: 5, json: None, seed: None }
    }
}

pub struct Run {
    pub report: Report,
    options: Options,
    seed: u64,
    folder: TempDir,
    watch: Watch,
    cancel: Arc<AtomicBool>,
}

impl Run {
    /// Makes a folder of the run's own in the directory.
    pub fn new(options: &Options) -> Result<Run> {
        let seed = options.seed.unwrap_or_else(fresh_seed);
        let folder = tempfile::Builder::new().prefix("nowait-integration-").tempdir_in(&options.dir);
        let folder = folder.map_err(|error| Error::io("make a directory in", &options.dir, &error))?;
        let place = Environment::of(&options.dir);
        let watch = Watch::begin(place.device.as_deref());
        let commit = option_env!("NOWAIT_COMMIT").map(str::to_owned);
        let environment = Environment { seed, commit, load: watch.load(), io_uring: io_uring_state(), ..place };
        let report = Report { environment, ..Report::default() };
        Ok(Run { report, options: options.clone(), seed, folder, watch, cancel: Arc::default() })
    }

    /// Has Ctrl-C, SIGTERM and SIGHUP end the run before its next case, with all that it has made
    /// removed. For a command, once.
    pub fn heed_signals(&self) -> Result<()> {
        let cancel = self.cancel.clone();
        ctrlc::set_handler(move || cancel.store(true, Ordering::Relaxed))
            .map_err(|error| Error::new(ErrorKind::Other, format!("cannot handle signals: {error}")))
    }

    /// The run's own folder, by its absolute path.
    pub fn folder(&self) -> Result<PathBuf> {
        let folder = self.folder.path();
        folder.canonicalize().map_err(|error| Error::io("resolve", folder, &error))
    }

    pub fn rounds(&self) -> usize {
        self.options.rounds as usize
    }

    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Names what comes next, unless the run is to end.
    pub fn begin(&self, what: &str) -> Result<()> {
        if self.cancel.load(Ordering::Relaxed) {
            return Err(Error::interrupted());
        }
        eprintln!("{what}");
        Ok(())
    }

    /// Says what the cases read.
    pub fn describe_files(&mut self, bytes: u64, origin: &str) {
        (self.report.environment.file_bytes, self.report.environment.file_origin) = (bytes, origin.to_owned());
    }

    /// Prints the report, and writes its JSON if it was asked for. After an error, too: what is
    /// complete is worth having.
    pub fn finish(mut self, measured: Result<()>) -> Result<()> {
        self.report.environment.load = self.watch.load();
        preflight::look_at_load(&mut self.report);
        self.report.partial = measured.as_ref().err().map(ToString::to_string);
        for (name, value) in self.report.environment.lines() {
            println!("{name:<8} {value}");
        }
        print!("{}", text::of(&self.report));
        if let Some(path) = self.options.json.as_deref().filter(|_| !self.report.rows.is_empty()) {
            write(path, &self.report)?;
        }
        measured
    }
}

fn write(path: &Path, report: &Report) -> Result<()> {
    fs::write(path, to_json(report)).map_err(|error| Error::io("write the figures to", path, &error))
}
