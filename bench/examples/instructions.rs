//! Work to be counted under callgrind by `make bench-check`: `instructions CASE OPERATIONS DIR`. A
//! fourth argument divides the operations among so many threads (docs/scaling.md).
//!
//! The instructions of a run with 2n operations less those of a run with n are those of n
//! operations, without start-up and warm-up. What the kernel executes is not counted, so neither
//! the machine's load nor its disk matters. The selector listens to the clock, and takes
//! callgrind's slowness for a disk's, so the clock is one of our own. A run in which operations
//! left the cached path fails. `gather-plan` is the opposite: nothing is cached on its disk, which
//! is a simulated one, so that every range is planned.
//!
//! `unsafe`: that clock, `clock_gettime` in libc's place.

use std::future::Future;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::atomic::{AtomicI64, Ordering};
use std::task::{Context, Poll, Waker};
use std::{env, error, fs, process};

use nowait::sim::{Faults, Sim};
use nowait::{Buf, Engine, File, Nowait, OpenOptions, Stats, block_on};
use nowait_bench::random::Random;

const BLOCK: usize = 4 << 10;
const BLOCKS: u64 = 1 << 10;
/// Ranges of each gather.
const RECORDS: usize = 64;
const RECORD: usize = 1 << 10;
const SEED: u64 = 7;

type Result<T> = std::result::Result<T, Box<dyn error::Error>>;

fn main() -> process::ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let (case, operations, dir, threads) = match arguments.as_slice() {
        [case, operations, dir] => (case, operations, dir, "1"),
        [case, operations, dir, threads] => (case, operations, dir, threads.as_str()),
        _ => {
            eprintln!(
                "usage: instructions read-into|read-wait|read-future|read-range|gather|gather-future|gather-plan|\
                 cold|cold-shared|write|append \
                 OPERATIONS DIR [THREADS]"
            );
            return process::ExitCode::from(2);
        }
    };
    let counts = || Ok((operations.parse()?, threads.parse()?));
    match counts().and_then(|(operations, threads)| run(case, operations, Path::new(dir), threads)) {
        Ok(()) => process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("instructions {case}: {error}");
            process::ExitCode::FAILURE
        }
    }
}

fn run(case: &str, operations: u64, dir: &Path, threads: NonZeroU64) -> Result<()> {
    match case {
        "gather-plan" => return plan(operations),
        "cold" | "cold-shared" | "write" => return slow(case, operations, dir),
        "append" => return append(operations, dir),
        _ => {}
    }
    let nowait = Nowait::builder().build()?;
    let scratch = Scratch::new(dir)?;
    let file = OpenOptions::new().read(true).open_in(&nowait, &scratch.path).wait()?;
    let before = nowait.stats();
    std::thread::scope(|scope| {
        let work = |_| scope.spawn(|| work(case, &file, operations / threads).map_err(|error| error.to_string()));
        let threads: Vec<_> = (0..threads.get()).map(work).collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or(Err("a thread panicked".into())))
    })?;
    if file.nowait_reads() == Some(false) {
        return Err(format!(
            "{} takes no reads that do not wait; name a directory on ext4, xfs or btrfs",
            dir.display()
        )
        .into());
    }
    stayed(&before, &nowait.stats())
}

/// One thread's operations.
fn work(case: &str, file: &File, operations: u64) -> Result<()> {
    let mut random = Random::new(SEED);
    let mut places = move || random.below(BLOCKS) * BLOCK as u64;
    match case {
        "read-into" => {
            let mut block = vec![0; BLOCK];
            for _ in 0..operations {
                file.read_exact_into(&mut block, places())?;
            }
        }
        "read-wait" => {
            let mut block = Buf::zeroed(BLOCK);
            for _ in 0..operations {
                (_, block) = file.read_at(block, places()).wait()?;
            }
        }
        "read-future" => block_on(futures(file, operations, &mut places))?,
        "read-range" => {
            for _ in 0..operations {
                drop(file.read_range(places(), BLOCK).wait()?);
            }
        }
        "gather" => {
            let mut output = vec![0; RECORDS * RECORD];
            let ranges: Vec<_> = (0..RECORDS).map(|_| (places(), RECORD)).collect();
            for _ in 0..operations {
                let exceptions = file.gather_into(&ranges, &mut output)?;
                if !exceptions.is_empty() {
                    return Err(format!("a gather came short: {exceptions:?}").into());
                }
            }
        }
        "gather-future" => {
            let ranges: Vec<_> = (0..RECORDS).map(|_| (places(), RECORD)).collect();
            block_on(gathers(file, operations, &ranges))?;
        }
        _ => return Err("no such case".into()),
    }
    Ok(())
}

async fn gathers(file: &File, operations: u64, ranges: &[(u64, usize)]) -> nowait::Result<()> {
    let mut output = Buf::zeroed(RECORDS * RECORD);
    for _ in 0..operations {
        output = file.gather(ranges).into_buffer(output).await?.into_buffer();
    }
    Ok(())
}

/// Operations that leave the cached path: direct reads, and writes.
fn slow(case: &str, operations: u64, dir: &Path) -> Result<()> {
    let nowait = Nowait::builder().build()?;
    let scratch = Scratch::new(dir)?;
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).direct(case != "write").open_in(&nowait, &scratch.path).wait()?;
    let place = |number: u64| number % BLOCKS * BLOCK as u64;
    let reads = async {
        for number in 0..operations {
            drop(file.read_range(place(number), BLOCK).await?);
        }
        Ok::<(), nowait::Error>(())
    };
    match case {
        "cold" => block_on(reads)?,
        "cold-shared" => smol::block_on(reads)?,
        _ => smol::block_on(async {
            let mut block = vec![7; BLOCK];
            for number in 0..operations {
                block = file.write_all_at(block, place(number)).await?;
            }
            Ok::<(), nowait::Error>(())
        })?,
    }
    Ok(())
}

/// Records of a log, each awaited until it is durable.
fn append(operations: u64, dir: &Path) -> Result<()> {
    let folder = tempfile::tempdir_in(dir)?;
    let options = nowait_log::Options::new().create(true).segment_bytes(16 << 20);
    let (log, _) = nowait_log::Log::open(folder.path().join("log"), &options).wait()?;
    for _ in 0..operations {
        log.append(b"0123456789").wait()?.wait()?;
    }
    log.close().wait()?;
    Ok(())
}

/// Gathers of ranges of which none is cached. The disk completes a read when it is told to, on this
/// thread.
fn plan(operations: u64) -> Result<()> {
    let sim = Sim::manual(SEED);
    let mut faults = Faults::default();
    faults.not_now = 1.0;
    sim.set_faults(faults);
    sim.create("/data", vec![7; BLOCK * BLOCKS as usize]);
    let nowait = Nowait::builder().engine(Engine::Sim(sim.clone())).build()?;
    let file = OpenOptions::new().read(true).open_in(&nowait, "/data").wait()?;
    let mut random = Random::new(SEED);
    let ranges: Vec<_> = (0..RECORDS).map(|_| (random.below(BLOCKS) * BLOCK as u64, RECORD)).collect();
    for _ in 0..operations {
        let mut gather = pin!(file.gather(&ranges[..]));
        let gathered = loop {
            match gather.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(gathered) => break gathered?,
                Poll::Pending if sim.step() => {}
                Poll::Pending => return Err("a gather waits for nothing".into()),
            }
        };
        if !gathered.exceptions().is_empty() {
            return Err("a gather came short".into());
        }
    }
    Ok(())
}

/// Each read asks the selector before it is tried, and tells it afterwards.
async fn futures(file: &File, operations: u64, places: &mut impl FnMut() -> u64) -> nowait::Result<()> {
    let mut block = Buf::zeroed(BLOCK);
    for _ in 0..operations {
        (_, block) = file.read_at(block, places()).await?;
    }
    Ok(())
}

fn stayed(before: &Stats, after: &Stats) -> Result<()> {
    let served = (after.inline + after.blocking) - (before.inline + before.blocking);
    let astray = (after.misses + after.stalls + after.ring + after.pool + after.failed)
        - (before.misses + before.stalls + before.ring + before.pool + before.failed);
    if served == 0 || astray > 0 {
        return Err(
            format!("{astray} operations left the path that is counted, {served} did not; is memory short?").into()
        );
    }
    Ok(())
}

/// In libc's place for all of this program: every look at the clock finds a microsecond more,
/// whatever the machine does.
///
/// # Safety
/// `time` points to a timespec, as clock_gettime(2) asks of its callers.
#[unsafe(no_mangle)]
unsafe extern "C" fn clock_gettime(_: libc::clockid_t, time: *mut libc::timespec) -> libc::c_int {
    static LOOKS: AtomicI64 = AtomicI64::new(0);
    let micros = LOOKS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the caller's pointer is good for a timespec.
    unsafe { time.write(libc::timespec { tv_sec: micros / 1_000_000, tv_nsec: micros % 1_000_000 * 1_000 }) };
    0
}

/// A cached file of this process's own, removed at the end.
struct Scratch {
    path: PathBuf,
}

impl Scratch {
    fn new(dir: &Path) -> Result<Self> {
        let scratch = Self { path: dir.join(format!(".nowait-instructions-{}", process::id())) };
        fs::write(&scratch.path, vec![7; BLOCK * BLOCKS as usize])
            .map_err(|error| format!("{} cannot be written: {error}", scratch.path.display()))?;
        Ok(scratch)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Nothing can be done about a file that stays.
        let _ = fs::remove_file(&self.path);
    }
}
