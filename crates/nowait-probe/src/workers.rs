//! The kernel's workers in `/proc`: threads of the process, named after the thread that they work
//! for.
//!
//! The name ends in the number that this thread has in the first pid namespace, which a container
//! does not know. So a thread finds its workers' name by giving them work.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

const NAME: &str = "iou-wrk-";
/// Interval of two checks: if both find the same, no worker is about to sleep.
const LOOK_AGAIN: Duration = Duration::from_micros(50);
const QUIET_WITHIN: Duration = Duration::from_secs(1);

/// Number of runs of each worker, by its thread number: the third figure in `schedstat`
/// (Documentation/scheduler/sched-stats.rst).
pub(super) type Runs = BTreeMap<i32, u64>;

/// A thread of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Thread {
    pub(super) number: i32,
    pub(super) name: String,
    pub(super) asleep: bool,
    pub(super) runs: u64,
    pub(super) on_processor_ns: u64,
}

/// Returns the threads of a process (`/proc/N`) whose names begin with one of these prefixes. Skips
/// threads that end meanwhile.
pub(super) fn threads(process: &Path, prefixes: &[&str]) -> std::io::Result<Vec<Thread>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(process.join("task"))? {
        let folder = entry?.path();
        let read = |file: &str| fs::read_to_string(folder.join(file)).ok();
        let thread = || {
            let name = read("comm")?.trim_end().to_owned();
            if !prefixes.iter().any(|prefix| name.starts_with(prefix)) {
                return None;
            }
            let number = folder.file_name()?.to_str()?.parse().ok()?;
            let stat = read("stat")?;
            // The state follows the name, which may contain brackets.
            let asleep = stat.rsplit_once(") ")?.1.starts_with('S');
            let schedstat = read("schedstat")?;
            let mut figures = schedstat.split_whitespace().map(|figure| figure.parse().ok());
            let on_processor_ns = figures.next()??;
            let runs = figures.nth(1)??;
            Some(Thread { number, name, asleep, runs, on_processor_ns })
        };
        found.extend(thread());
    }
    Ok(found)
}

/// The workers of this thread.
#[derive(Debug)]
pub(super) struct Workers {
    name: String,
}

impl Workers {
    /// Forces requests on workers, and finds the threads that run. `None` if no thread runs, or
    /// other threads run as often.
    pub(super) fn find<E>(requests: u32, mut force: impl FnMut() -> Result<(), E>) -> Result<Option<Workers>, E> {
        let mut names = BTreeMap::new();
        for _ in 0..requests {
            // A busy worker must go to sleep before its next run is counted.
            std::thread::sleep(20 * LOOK_AGAIN);
            let before = all();
            force()?;
            let ran =
                all().into_iter().filter(|(number, (_, runs))| before.get(number).is_none_or(|old| *runs > old.1));
            let ran: BTreeSet<String> = ran.map(|(_, (name, _))| name).collect();
            ran.into_iter().for_each(|name| *names.entry(name).or_insert(0) += 1);
        }
        let most = names.values().copied().max().unwrap_or(0);
        names.retain(|_, times| *times == most && most > requests / 2);
        // If other workers are always busy, uses the thread number in this process's own namespace.
        if names.len() > 1 {
            let own = format!("{NAME}{}", rustix::thread::gettid());
            names.retain(|name, _| *name == own);
        }
        Ok(names.pop_first().map(|(name, _)| Workers { name }))
    }

    /// Waits until all workers sleep, and returns their numbers of runs. `None` if they do not
    /// become idle.
    pub(super) fn at_rest(&self) -> Option<Runs> {
        let until = Instant::now() + QUIET_WITHIN;
        let mut last = None;
        loop {
            let threads = self.threads();
            // A worker that was preempted before it sleeps looks asleep, so check twice.
            let runs = threads.iter().all(|thread| thread.asleep).then(|| runs(threads));
            if runs.is_some() && runs == last {
                return runs;
            }
            if Instant::now() > until {
                return None;
            }
            last = runs;
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// Returns the workers that have run since.
    pub(super) fn ran_since(&self, before: &Runs) -> Vec<i32> {
        let mut now = runs(self.threads());
        now.retain(|number, runs| before.get(number).is_none_or(|before| *runs > *before));
        now.into_keys().collect()
    }

    fn threads(&self) -> Vec<Thread> {
        let mut threads = threads(Path::new("/proc/self"), &[&self.name]).unwrap_or_default();
        threads.retain(|thread| thread.name == self.name);
        threads
    }
}

fn runs(threads: Vec<Thread>) -> Runs {
    threads.into_iter().map(|thread| (thread.number, thread.runs)).collect()
}

fn all() -> BTreeMap<i32, (String, u64)> {
    let threads = threads(Path::new("/proc/self"), &[NAME]).unwrap_or_default();
    threads.into_iter().map(|thread| (thread.number, (thread.name, thread.runs))).collect()
}
