//! One turn of a version: its clock, its heartbeat, and the runtimes of tokio.

use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::mem;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use nowait_bench::measure::meter::{Latencies, latencies};
use nowait_bench::measure::mixed::{BEAT, Heart};
use nowait_bench::measure::pace::{Arrivals, Pace};
use nowait_bench::sys::Usage;
use nowait_bench::{Error, ErrorKind, Result};
use tokio::runtime::{Builder, Runtime};

use crate::cases::{Driver, Job};

/// Figures of a turn.
pub(crate) struct Turn {
    pub(crate) operations: u64,
    pub(crate) seconds: f64,
    /// Processor time of the whole process.
    pub(crate) usage: Usage,
    /// Delays of the heartbeat; empty without one.
    pub(crate) late: Latencies,
}

impl Turn {
    /// Does the work on the clock. It returns the delays of its heartbeat.
    pub(crate) fn of(job: &Job, work: impl FnOnce() -> io::Result<Latencies>) -> io::Result<Turn> {
        let (began, usage) = (Instant::now(), Usage::of_process());
        let late = work()?;
        let (seconds, usage) = (began.elapsed().as_secs_f64(), Usage::of_process().since(&usage));
        Ok(Turn { operations: job.operations(), seconds, usage, late })
    }

    pub(crate) fn per_second(&self) -> f64 {
        self.operations as f64 / self.seconds
    }

    pub(crate) fn cpu_us(&self) -> f64 {
        self.usage.cpu_us() / self.operations as f64
    }
}

/// A version of the library, with its own runtimes. Those that are idle sleep.
pub(crate) struct Version {
    pub(crate) name: &'static str,
    turn: TurnOf,
    /// With one and with two workers.
    attached: [Runtime; 2],
    unattached: Runtime,
}

type TurnOf = fn(&Job, Driver, &Version, &Path) -> io::Result<Turn>;

impl Version {
    pub(crate) fn new(name: &'static str, attach: fn(&Runtime) -> io::Result<()>, turn: TurnOf) -> Result<Version> {
        let runtime = |workers| Builder::new_multi_thread().worker_threads(workers).enable_io().build();
        let attached = |workers| runtime(workers).and_then(|runtime| attach(&runtime).map(|()| runtime));
        let failed = |error: io::Error| Error::new(ErrorKind::Other, format!("a runtime of tokio for {name}: {error}"));
        Ok(Version {
            name,
            turn,
            attached: [attached(1).map_err(failed)?, attached(2).map_err(failed)?],
            unattached: runtime(2).map_err(failed)?,
        })
    }

    pub(crate) fn turn(&self, job: &Job, driver: Driver, path: &Path) -> io::Result<Turn> {
        (self.turn)(job, driver, self, path)
    }

    pub(crate) fn runtime(&self, workers: usize, is_attached: bool) -> &Runtime {
        if is_attached { &self.attached[workers - 1] } else { &self.unattached }
    }
}

/// A heartbeat of one millisecond beside the tasks. A thread wakes it, as an arriving request would.
#[derive(Clone)]
pub(crate) struct Heartbeat(Option<(Arrivals, Arc<Mutex<Heart>>)>);

impl Heartbeat {
    pub(crate) fn start(is_wanted: bool) -> Heartbeat {
        Heartbeat(is_wanted.then(|| {
            let beats = Arrivals::new(Some(&Pace::Every(BEAT)), usize::MAX);
            let heart = Heart::new(beats.begin());
            (beats, Arc::new(Mutex::new(heart)))
        }))
    }

    /// Beats until it is dropped.
    pub(crate) async fn beat(self) -> Infallible {
        let Some((beats, heart)) = self.0 else { return pending().await };
        // The first is due at once, and not counted.
        beats.next().await;
        loop {
            beats.next().await;
            locked(&heart).beat();
        }
    }

    /// Delays of all beats that were due until now.
    pub(crate) fn late(self) -> Latencies {
        let Some((_, heart)) = self.0 else { return latencies() };
        let now = Instant::now();
        mem::replace(&mut *locked(&heart), Heart::new(now)).end(now)
    }
}

fn locked(heart: &Mutex<Heart>) -> MutexGuard<'_, Heart> {
    heart.lock().unwrap_or_else(PoisonError::into_inner)
}
