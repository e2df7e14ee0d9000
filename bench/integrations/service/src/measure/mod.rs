//! Compares both ways of the service: each in a process of its own, requests by wrk(1) on loopback, in
//! interleaved rounds.

mod case;
mod client;
mod server;
mod table;

use std::error::Error;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nowait_bench::machine::environment::Environment;
use nowait_bench::machine::load::Watch;
use nowait_bench::random::{Random, fresh_seed};
use nowait_bench::sys;
use nowait_bench::ways::io_uring_state;

use self::case::{Cache, Case};
use self::client::Round;
use self::server::{Occupied, Server};
use crate::Way;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Directory for the files, on the disk to measure; they are removed at the end
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,

    /// Timed rounds of each way in each case
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    /// Duration of a round, in seconds
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,

    /// Size of the file that is read, a power of two in MiB; a cold round must not read all of it
    #[arg(long, value_name = "N", default_value_t = 4096)]
    mib: u64,

    /// Only cases whose name contains one of these texts
    #[arg(value_name = "TEXT")]
    only: Vec<String>,

    /// Write the figures of all rounds to FILE, separated by tabs
    #[arg(long, value_name = "FILE")]
    tsv: Option<PathBuf>,
}

/// Bytes of the file that cached rounds read.
const CACHED_BYTES: u64 = 256 << 20;
/// Processes that compute beside the service in busy cases.
const BUSY_PROCESSES: usize = 4;
const ATTEMPTS: u32 = 6;

pub(crate) fn run(options: &Options) -> std::result::Result<(), Box<dyn Error>> {
    let cancelled = Arc::new(AtomicBool::new(false));
    let heard = cancelled.clone();
    ctrlc::set_handler(move || heard.store(true, Ordering::Relaxed))?;

    let folder = tempfile::Builder::new().prefix("nowait-service-").tempdir_in(&options.dir)?;
    let place = Environment::of(folder.path());
    let watch = Watch::begin(place.device.as_deref());
    let seed = fresh_seed();
    let mut random = Random::new(seed);
    let bytes = options.mib << 20;
    if !options.mib.is_power_of_two() || bytes < 16 << 20 {
        return Err("--mib takes a power of two, at least 16".into());
    }
    let mut cases = Case::all(bytes, bytes.min(CACHED_BYTES)).filter(|case| case.is_chosen(&options.only)).peekable();
    if cases.peek().is_none() {
        return Err("no case has such a name".into());
    }
    let table = make_table(folder.path(), bytes, &mut random)?;

    let mut rows = Vec::new();
    // After an error, too, the complete cases are shown.
    let measured = cases.try_for_each(|case| {
        eprintln!("{}", case.name());
        let rounds = measure(&case, options, folder.path(), &table, &mut random, &cancelled)?;
        rows.push((case, rounds));
        Ok(())
    });
    let environment = Environment {
        seed,
        load: watch.load(),
        io_uring: io_uring_state(),
        commit: option_env!("NOWAIT_COMMIT").map(str::to_owned),
        file_bytes: bytes,
        file_origin: "random bytes".to_owned(),
        ..place
    };
    for (name, value) in environment.lines() {
        println!("{name:<8} {value}");
    }
    println!("\n{}", table::of(&rows));
    if let Some(path) = &options.tsv {
        fs::write(path, table::tsv(&rows))?;
    }
    measured
}

/// Rounds of both ways, by turns.
fn measure(
    case: &Case,
    options: &Options,
    folder: &Path,
    table: &Table,
    random: &mut Random,
    cancelled: &AtomicBool,
) -> Result<Rounds> {
    let dir = folder.join("service");
    let servers = [Server::start(Way::Nowait, &dir)?, Server::start(Way::Tokio, &dir)?];
    let _occupied = if case.is_busy { Occupied::start(BUSY_PROCESSES)? } else { Occupied::default() };
    let duration = Duration::from_secs(case.seconds(options));
    let mut rounds = Rounds::default();
    for round in 0..=options.rounds {
        // Each way is the first of every second round.
        for turn in 0..2 {
            if cancelled.load(Ordering::Relaxed) {
                return Err("interrupted".into());
            }
            let way = (turn + round as usize) % 2;
            match case.cache {
                Some(Cache::Cold) => table.make_cold()?,
                Some(Cache::Cached) => table.make_cached(case.places * case.bytes)?,
                None => {}
            }
            let cpu_before = servers[way].cpu()?;
            let mut measured = client::round(case, &servers[way], duration, random.below(case.places))?;
            measured.cpu_us = (servers[way].cpu()? - cpu_before).as_secs_f64() * 1e6 / measured.requests as f64;
            if case.cache == Some(Cache::Cold) && measured.requests > case.places {
                return Err("a cold round has read all of the file: choose a larger --mib, or fewer --seconds".into());
            }
            // The first round warms both up.
            if round > 0 {
                rounds.ways[way].push(measured);
            }
        }
    }
    for (server, peak) in servers.iter().zip(&mut rounds.peak_mib) {
        *peak = server.peak_mib()?;
    }
    servers.into_iter().try_for_each(Server::end)?;
    Ok(rounds)
}

/// Figures of a case: of `nowait`, then of `tokio::fs`.
#[derive(Default)]
struct Rounds {
    ways: [Vec<Round>; 2],
    peak_mib: [f64; 2],
}

/// The file that is read.
struct Table {
    file: File,
    bytes: u64,
}

/// Makes the file, of random bytes, and writes it back.
fn make_table(folder: &Path, bytes: u64, random: &mut Random) -> Result<Table> {
    let files = crate::make_dir(&folder.join("service"))?;
    let mut file = File::options().read(true).write(true).create_new(true).open(files.join("table"))?;
    let mut piece = vec![0; 1 << 20];
    for _ in 0..bytes >> 20 {
        piece.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&random.number().to_le_bytes()));
        file.write_all(&piece)?;
    }
    file.sync_all()?;
    Ok(Table { file, bytes })
}

impl Table {
    /// Drops all pages, and verifies that no more than one in a thousand stays.
    fn make_cold(&self) -> Result<()> {
        let mut cached = 0;
        for attempt in 0..ATTEMPTS {
            pause(attempt);
            sys::drop_cache(&self.file)?;
            cached = self.cached_pages(self.bytes)?;
            if cached <= self.bytes / sys::PAGE / 1000 {
                return Ok(());
            }
        }
        Err(format!("{cached} pages of the file stay in the page cache: choose a --dir on a disk").into())
    }

    /// Reads the first bytes, and verifies that their pages are in the page cache.
    fn make_cached(&self, bytes: u64) -> Result<()> {
        let mut piece = vec![0; 1 << 20];
        for attempt in 0..ATTEMPTS {
            pause(attempt);
            if self.cached_pages(bytes)? == bytes / sys::PAGE {
                return Ok(());
            }
            for at in (0..bytes).step_by(piece.len()) {
                self.file.read_exact_at(&mut piece, at)?;
            }
        }
        Err("the file does not stay in the page cache: memory is short".into())
    }

    fn cached_pages(&self, bytes: u64) -> Result<u64> {
        Ok(sys::residency(&self.file, bytes)?.into_iter().filter(|&page| page).count() as u64)
    }
}

/// Waits before another attempt; not before the first.
fn pause(attempt: u32) {
    if attempt > 0 {
        std::thread::sleep(Duration::from_millis(10 << attempt));
    }
}
