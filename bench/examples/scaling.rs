//! The library's own cost of an operation, and how it grows with threads: `scaling FILE DISK [JSON [KIND]]`.
//!
//! Operations of 4 KiB from 1, 2, 8 and 64 threads, on a device that takes nothing, or whose work is
//! not done by this process: cached blocks of FILE, which is made (a page cache that serves
//! attempts: ext4, xfs); and direct I/O on DISK, **whose contents are overwritten** (a file, or a
//! loop device over a file on tmpfs). A thread has blocks of its own, and a `File` of its own where
//! the name does not say otherwise. Each block says which it is: reads are checked as they are made,
//! writes at the end.
//!
//! A run is one round. With JSON, it is added to the rounds that are there, so that two builds can
//! be run in turns. With KIND, only kinds whose names begin so are run. Built with `RUSTFLAGS="--cfg nowait_count"`, it counts locks, too.

use std::cell::Cell;
use std::error::Error;
use std::future::Future;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use std::{env, fs, io, thread};

use futures_util::future::join_all;
use nowait::sim::Sim;
use nowait::{Buf, Engine, File, Nowait, OpenOptions, Route};
use nowait_bench::machine::environment::Environment;
use nowait_bench::report::verdict::to_json;
use nowait_bench::report::{Report, Row};
use nowait_bench::stats::median;
use nowait_bench::sys::Usage;
use serde::{Deserialize, Serialize};

const BLOCK: usize = 4 << 10;
const THREADS: [u64; 4] = [1, 2, 8, 64];
/// Blocks of each thread, which takes them with a step that shares no factor with their number.
const EACH: u64 = 256;
const STEP: u64 = 89;
const BLOCKS: u64 = 64 * EACH;
const DEPTH: usize = 16;
/// Requests that a loop device takes at a time: with more, rings hand what they are refused to the
/// pool, which is another measurement.
const IN_FLIGHT_MAX: usize = 128;
/// Operations of each thread that are not counted.
const WARM: u64 = 200;
const TIME: Duration = Duration::from_millis(150);

type Result<T> = std::result::Result<T, Box<dyn Error>>;

#[derive(Clone, Copy, PartialEq)]
enum On {
    File,
    Disk,
    Simulator,
}

/// A kind of operation.
struct Kind {
    name: &'static str,
    on: On,
    writes: bool,
    route: Option<Route>,
    depth: usize,
    /// By `nowait::block_on`, which drives a ring of the thread's own.
    driven: bool,
    /// All threads use one `File`.
    one_file: bool,
}

const READ: Kind =
    Kind { name: "", on: On::File, writes: false, route: None, depth: DEPTH, driven: true, one_file: false };

const KINDS: [Kind; 11] = [
    Kind { name: "cached read", depth: 1, driven: false, ..READ },
    Kind { name: "cached read (one file)", depth: 1, driven: false, one_file: true, ..READ },
    Kind { name: "buffered write", writes: true, depth: 1, driven: false, ..READ },
    Kind { name: "ring read", route: Some(Route::Ring), ..READ },
    Kind { name: "ring read (reaper)", route: Some(Route::Ring), driven: false, ..READ },
    Kind { name: "pool read", route: Some(Route::Pool), ..READ },
    Kind { name: "direct read", on: On::Disk, ..READ },
    Kind { name: "direct write", on: On::Disk, writes: true, ..READ },
    Kind { name: "direct write (one file)", on: On::Disk, writes: true, one_file: true, ..READ },
    Kind { name: "direct write (reaper)", on: On::Disk, writes: true, driven: false, ..READ },
    Kind { name: "simulated read", on: On::Simulator, route: Some(Route::Ring), ..READ },
];

/// Figures of each round, in order; for an operation, but for the first.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(default)]
struct Figures {
    per_second: Vec<f64>,
    cpu_us_rounds: Vec<f64>,
    switches_rounds: Vec<f64>,
    locks_rounds: Vec<f64>,
    waits_for_locks_rounds: Vec<f64>,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let (file, disk, json, kind) = match &arguments[..] {
        [file, disk] => (file, disk, None, ""),
        [file, disk, json] => (file, disk, Some(Path::new(json)), ""),
        [file, disk, json, kind] => (file, disk, Some(Path::new(json)), kind.as_str()),
        _ => {
            eprintln!("usage: scaling FILE DISK [JSON [KIND]]; what DISK holds is overwritten");
            return ExitCode::from(2);
        }
    };
    let measured = measure(Path::new(file), Path::new(disk), json, kind);
    let _ = fs::remove_file(file);
    match measured {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("scaling {file} {disk}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(file: &Path, disk: &Path, json: Option<&Path>, kind: &str) -> Result<()> {
    let mut report = match json {
        Some(path) if path.exists() => serde_json::from_str(&fs::read_to_string(path)?)?,
        _ => Report::default(),
    };
    report.environment = Environment {
        commit: option_env!("NOWAIT_COMMIT").map(str::to_owned),
        file_bytes: BLOCKS * BLOCK as u64,
        ..Environment::of(disk)
    };
    let sim = Sim::new(1);
    fill(fs::OpenOptions::new().write(true).create(true).truncate(true).open(file)?)?;
    fill(fs::OpenOptions::new().write(true).create(true).truncate(false).open(disk)?)?;
    let kinds = KINDS.iter().filter(|known| known.name.starts_with(kind));
    for (kind, threads) in kinds.flat_map(|kind| THREADS.map(|threads| (kind, threads))) {
        let path = match kind.on {
            On::File => file,
            On::Disk => disk,
            On::Simulator => Path::new("simulated"),
        };
        let case = format!("threads={threads}");
        let figures = round(kind, path, &sim, threads).map_err(|error| format!("{}, {case}: {error}", kind.name))?;
        let row = report.rows.iter().position(|row| row.case == case && row.way == kind.name);
        let row = row.unwrap_or_else(|| {
            let named = |text: &str| text.to_owned();
            report.rows.push(Row { table: named("scaling"), case, way: named(kind.name), ..Row::default() });
            report.rows.len() - 1
        });
        let row = &mut report.rows[row];
        add(row, &figures);
        show(row);
    }
    if let Some(path) = json {
        fs::write(path, to_json(&report))?;
    }
    Ok(())
}

/// Adds a round to a row.
fn add(row: &mut Row, round: &Figures) {
    let own = serde_json::to_value(&row.own).and_then(serde_json::from_value);
    let mut all: Figures = own.unwrap_or_default();
    all.per_second.clone_from(&row.rounds);
    let longer = |values: &mut Vec<f64>, more: &[f64]| {
        values.extend_from_slice(more);
        median(values)
    };
    row.ops_per_s = longer(&mut all.per_second, &round.per_second);
    row.bytes_per_s = row.ops_per_s * BLOCK as f64;
    row.cpu_us_per_op.total = longer(&mut all.cpu_us_rounds, &round.cpu_us_rounds);
    row.context_switches_per_op = longer(&mut all.switches_rounds, &round.switches_rounds);
    let own = [
        ("locks_per_op", longer(&mut all.locks_rounds, &round.locks_rounds)),
        ("waits_for_locks_per_op", longer(&mut all.waits_for_locks_rounds, &round.waits_for_locks_rounds)),
    ];
    row.rounds = std::mem::take(&mut all.per_second);
    for (name, value) in own.into_iter().filter(|_| !all.locks_rounds.is_empty()) {
        row.own.insert(name.to_owned(), value.into());
    }
    *row = std::mem::take(row).with(all);
}

fn show(row: &Row) {
    let of = |name: &str| row.own.get(name).and_then(serde_json::Value::as_f64);
    let (least, most) = row.spread();
    print!(
        "{:24} {:10} {:9.0}/s ({least:.2} to {most:.2}), CPU {:6.0} ns, switches {:.3}",
        row.way,
        row.case,
        row.ops_per_s,
        row.cpu_us_per_op.total * 1e3,
        row.context_switches_per_op
    );
    match (of("locks_per_op"), of("waits_for_locks_per_op")) {
        (Some(locks), Some(waits)) => println!(", locks {locks:.2}, of these contended {waits:.4}"),
        _ => println!(),
    }
}

/// Writes all blocks.
fn fill(file: fs::File) -> io::Result<()> {
    let mut file = io::BufWriter::with_capacity(1 << 20, file);
    for number in 0..BLOCKS {
        let mut block = [0; BLOCK];
        stamp(&mut block, number);
        file.write_all(&block)?;
    }
    file.into_inner()?.sync_all()
}

/// Marks a block, at both ends. The lower half of a mark is the block's number.
fn stamp(block: &mut [u8], mark: u64) {
    block[..8].copy_from_slice(&mark.to_ne_bytes());
    block[BLOCK - 8..].copy_from_slice(&mark.to_ne_bytes());
}

/// Returns the mark; none if the ends differ.
fn mark(block: &[u8]) -> Option<u64> {
    let first = u64::from_ne_bytes(block.first_chunk().copied()?);
    let last = u64::from_ne_bytes(block.last_chunk().copied()?);
    (first == last && block.len() == BLOCK).then_some(first)
}

fn is_of(block: &[u8], number: u64) -> bool {
    mark(block).is_some_and(|mark| mark as u32 == number as u32)
}

fn open(kind: &Kind, nowait: &Nowait, path: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).direct(kind.on == On::Disk);
    let file = options.open_in(nowait, path).wait()?;
    if kind.on == On::Disk && file.direct() == nowait::DirectIo::Refused {
        return Err("no direct I/O".into());
    }
    Ok(file)
}

/// One round of one kind.
fn round(kind: &Kind, path: &Path, sim: &Sim, threads: u64) -> Result<Figures> {
    let builder = Nowait::builder().route(kind.route);
    let nowait = match kind.on {
        On::Simulator => {
            let nowait = Nowait::builder().engine(Engine::Sim(sim.clone())).build()?;
            let mut options = OpenOptions::new();
            let file = options.write(true).create(true).open_in(&nowait, path).wait()?;
            let mut block = vec![0; BLOCK];
            for number in 0..BLOCKS {
                stamp(&mut block, number);
                file.write_all_from(&block, number * BLOCK as u64)?;
            }
            builder.engine(Engine::Sim(sim.clone())).build()?
        }
        On::File | On::Disk => builder.build()?,
    };
    let first = open(kind, &nowait, path)?;
    let files = (0..threads).map(|_| if kind.one_file { Ok(first.clone()) } else { open(kind, &nowait, path) });
    let files = files.collect::<Result<Vec<_>>>()?;
    let (stop, ready, go) =
        (AtomicBool::new(false), Barrier::new(threads as usize + 1), Barrier::new(threads as usize + 1));
    let (ended, figures) = thread::scope(|scope| {
        let work = |(number, file)| {
            let (stop, ready, go) = (&stop, &ready, &go);
            scope.spawn(move || {
                let depth = kind.depth.min(IN_FLIGHT_MAX / threads as usize);
                let first = number * EACH;
                let thread = Worker { kind, depth, file, first, next: Cell::new(0), marks: marks(number) };
                let warmed = thread.run(|done| done >= WARM);
                ready.wait();
                go.wait();
                let done = warmed.and_then(|_| thread.run(|_| stop.load(Relaxed)));
                done.map(|done| (done, thread.marks)).map_err(|error| error.to_string())
            })
        };
        let threads: Vec<_> = (0..).zip(&files).map(work).collect();
        ready.wait();
        let (usage, locks, began) = (Usage::of_process(), locks(), Instant::now());
        go.wait();
        thread::sleep(TIME);
        stop.store(true, Relaxed);
        let ended: Vec<_> = threads.into_iter().map(|thread| thread.join().map_err(|_| "a thread panicked")).collect();
        let seconds = began.elapsed().as_secs_f64();
        (ended, (seconds, Usage::of_process().since(&usage), since(locks)))
    });
    let mut operations = 0;
    let mut written = Vec::new();
    for thread in ended {
        let (done, marks) = thread??;
        operations += done;
        written.push(marks);
    }
    if kind.writes {
        verify(path, &written)?;
    }
    let (seconds, usage, locks) = figures;
    let each = |sum: f64| vec![sum / operations as f64];
    Ok(Figures {
        per_second: vec![operations as f64 / seconds],
        cpu_us_rounds: each(usage.cpu_us()),
        switches_rounds: each(usage.switches),
        locks_rounds: locks.map_or_else(Vec::new, |(taken, _)| each(taken as f64)),
        waits_for_locks_rounds: locks.map_or_else(Vec::new, |(_, waited)| each(waited as f64)),
    })
}

/// Locks that all threads took so far, and those of them that another thread had.
fn locks() -> Option<(u64, u64)> {
    #[cfg(nowait_count)]
    return Some((nowait::embed::locks().1, nowait::embed::contended_locks()));
    #[cfg(not(nowait_count))]
    None
}

fn since(before: Option<(u64, u64)>) -> Option<(u64, u64)> {
    let (before, now) = (before?, locks()?);
    Some((now.0 - before.0, now.1 - before.1))
}

/// The last mark of each block of a thread.
type Marks = Vec<Cell<u64>>;

fn marks(thread: u64) -> Marks {
    (thread * EACH..(thread + 1) * EACH).map(Cell::new).collect()
}

/// A thread's work.
struct Worker<'a> {
    kind: &'a Kind,
    depth: usize,
    file: &'a File,
    /// Its first block.
    first: u64,
    next: Cell<u64>,
    marks: Marks,
}

impl Worker<'_> {
    /// Makes operations until `is_over`, which is asked with their number; returns that.
    fn run(&self, is_over: impl Fn(u64) -> bool) -> nowait::Result<u64> {
        let done = Cell::new(0);
        let all = join_all((0..self.depth).map(|_| async {
            let mut block = Buf::zeroed(BLOCK);
            while !is_over(done.get()) {
                block = self.operation(block).await?;
                done.set(done.get() + 1);
            }
            nowait::Result::Ok(())
        }));
        self.drive(all).into_iter().collect::<nowait::Result<()>>()?;
        Ok(done.get())
    }

    fn drive<T>(&self, future: impl Future<Output = T>) -> T {
        if self.kind.driven { nowait::block_on(future) } else { smol::future::block_on(future) }
    }

    async fn operation(&self, mut block: Buf) -> nowait::Result<Buf> {
        let at = self.next.replace((self.next.get() + STEP) % EACH);
        let number = self.first + at;
        let offset = number * BLOCK as u64;
        if self.kind.writes {
            let known = &self.marks[at as usize];
            known.set(known.get() + (1 << 32));
            stamp(&mut block, known.get());
            return Ok(self.file.write_all_at(block, offset).await?);
        }
        let (n, block) = self.file.read_at(block, offset).await?;
        assert!(n == BLOCK && is_of(&block, number), "block {number} holds {:?}", mark(&block));
        Ok(block)
    }
}

/// Reads all blocks, and compares those that this round wrote with their last marks.
fn verify(path: &Path, written: &[Marks]) -> Result<()> {
    let mut file = fs::File::open(path)?;
    file.seek(SeekFrom::Start(0))?;
    let mut block = [0; BLOCK];
    let mut file = io::BufReader::with_capacity(1 << 20, file);
    let known = written.iter().flatten().map(|mark| Some(mark.get()).filter(|mark| mark >> 32 > 0));
    for (number, last) in (0..BLOCKS).zip(known.chain(std::iter::repeat(None))) {
        file.read_exact(&mut block)?;
        let found = mark(&block);
        if !is_of(&block, number) || last.is_some_and(|last| found != Some(last)) {
            return Err(format!("block {number} holds {found:?}, not {last:?}").into());
        }
    }
    Ok(())
}
