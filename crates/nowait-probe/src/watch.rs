//! Kernel workers of a running program: their submitters, their runs, and the bytes that they read
//! and write.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::PROBE;
use super::kernel::Passes;
use super::tracepoints;
use super::twin::errno_of;
use super::workers::{self, Thread};
use nowait::Error;

/// Activity of io_uring's kernel threads in a process, over a period.
#[non_exhaustive]
#[derive(Clone, Debug, Default)]
pub struct Watched {
    /// Duration of the observation.
    pub elapsed: Duration,
    /// Threads that existed at the end.
    pub threads: Vec<KernelThread>,
    /// Requests that the threads present at the start gave to workers, counted by the kernel's
    /// tracepoint. `None` if it could not be counted.
    pub punts: Option<u64>,
    /// Reason why the requests could not be counted, for example that tracefs is not mounted.
    pub untraced: Option<String>,
}

/// Activity of one thread during the observation.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelThread {
    /// Thread ID.
    pub number: i32,
    /// Name: `iou-wrk-N` is a worker of thread N, `iou-sqp-N` polls a submission queue of thread N.
    /// N is a thread ID in the first pid namespace.
    pub name: String,
    /// Number of times the thread ran. A worker runs about once per request, and once more for each
    /// wait.
    pub runs: u64,
    /// Processor time.
    pub on_processor: Duration,
    /// Bytes that the thread read from and wrote to devices; `None` if this process may not read
    /// these counters.
    pub read_and_written: Option<(u64, u64)>,
}

/// Observes the kernel workers of a process, and the threads that poll its submission queues, for
/// `time`. Blocks meanwhile.
///
/// # Errors
/// [`ErrorKind::NotFound`](nowait::ErrorKind::NotFound) if the process does not exist; those of
/// `proc(5)`.
pub fn watch(process: u32, time: Duration) -> nowait::Result<Watched> {
    let folder = PathBuf::from(format!("/proc/{process}"));
    let failed = |error: std::io::Error| Error::from_raw_os_error(PROBE, errno_of(&error).raw_os_error()).at(&folder);
    let passes = count_punts(&folder).map_err(failed)?;
    let before = look(&folder).map_err(failed)?;
    let punts_before = sum(&passes);
    let begun = Instant::now();
    std::thread::sleep(time);
    let after = look(&folder).map_err(failed)?;
    let elapsed = begun.elapsed();
    let punts = sum(&passes).zip(punts_before).map(|(after, before)| after.saturating_sub(before));
    let untraced = passes.err().or_else(|| punts.is_none().then(|| "its count cannot be read".to_owned()));
    let threads = after.into_iter().map(|(number, (thread, moved))| {
        let old = before.get(&number).filter(|(old, _)| old.name == thread.name);
        let (runs, nanoseconds) = old.map_or((0, 0), |(old, _)| (old.runs, old.on_processor_ns));
        let moved_before = old.map_or(Some((0, 0)), |(_, moved)| *moved);
        KernelThread {
            number,
            name: thread.name,
            runs: thread.runs.saturating_sub(runs),
            on_processor: Duration::from_nanos(thread.on_processor_ns.saturating_sub(nanoseconds)),
            read_and_written: moved
                .zip(moved_before)
                .map(|(after, before)| (after.0.saturating_sub(before.0), after.1.saturating_sub(before.1))),
        }
    });
    Ok(Watched { elapsed, threads: threads.collect(), punts, untraced })
}

type Look = BTreeMap<i32, (Thread, Option<(u64, u64)>)>;

fn look(process: &Path) -> std::io::Result<Look> {
    let threads = workers::threads(process, &["iou-wrk-", "iou-sqp-"])?;
    Ok(threads.into_iter().map(|thread| (thread.number, (thread.clone(), moved(process, thread.number)))).collect())
}

/// Returns the bytes that a thread has read from and written to devices, from `io` in its directory
/// (`proc_pid_io(5)`).
fn moved(process: &Path, thread: i32) -> Option<(u64, u64)> {
    let text = fs::read_to_string(process.join(format!("task/{thread}/io"))).ok()?;
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    Some((field("read_bytes:")?, field("write_bytes:")?))
}

/// Counts the requests that each thread gives to workers; skips threads that end meanwhile. The
/// inner error states why they cannot be counted.
fn count_punts(process: &Path) -> std::io::Result<Result<Vec<Passes>, String>> {
    let numbers = fs::read_dir(process.join("task"))?.flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let (mut passes, mut why) = (Vec::new(), "the process has no threads any more".to_owned());
    for counted in numbers.map(tracepoints::count_punts) {
        match counted {
            Ok(counted) => passes.push(counted),
            Err(refused) => why = refused,
        }
    }
    Ok(if passes.is_empty() { Err(why) } else { Ok(passes) })
}

fn sum(passes: &Result<Vec<Passes>, String>) -> Option<u64> {
    passes.as_ref().ok()?.iter().map(|passes| passes.so_far().ok()).sum()
}
