//! tokio's multi-thread runtime, with as many workers as the job says. The thread that asks only
//! waits. The heartbeat is a `tokio::time::interval`. tokio's timers go off when a clock of the
//! runtime ticks, once in a millisecond, so a beat comes up to that much late on an idle machine, too.
//! Beats are due a little before a tick, in all rounds and with all ways: the lateness that is told
//! is that of the tasks before it, and not where between two ticks a round happened to begin.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};
use tokio::task::yield_now;
use tokio::time::{Interval, interval_at, sleep};

use super::{Other, Stop, Ticks, heartbeat, tasks};
use crate::measure::meter::Round;
use crate::measure::mixed::{BEAT, Heart, Mixed, Mixture};
use crate::ways::drive::Handle;
use crate::ways::runtime::attached;

/// From when a beat is due to the tick of tokio's clock at which it comes if the worker is idle.
const BEFORE_TICK: Duration = Duration::from_micros(100);

/// A runtime, and one of the ticks of its clock.
#[derive(Clone, Copy)]
struct Ticking {
    runtime: &'static Runtime,
    tick: Instant,
}

impl Ticking {
    /// The last moment that lies [`BEFORE_TICK`] before a tick.
    fn before_tick(self) -> Instant {
        let since = self.tick.elapsed() + BEFORE_TICK;
        self.tick - BEFORE_TICK + BEAT * (since.as_nanos() / BEAT.as_nanos()) as u32
    }
}

/// The runtime with so many workers, the same for all ways and rounds: what is made on first use is
/// there when the clock runs. One that nobody uses sleeps.
fn runtime(workers: usize) -> io::Result<Ticking> {
    static RUNTIMES: Mutex<BTreeMap<usize, Ticking>> = Mutex::new(BTreeMap::new());
    let mut runtimes = RUNTIMES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(ticking) = runtimes.get(&workers) {
        return Ok(*ticking);
    }
    let runtime = attached(Builder::new_multi_thread().worker_threads(workers).enable_all());
    let runtime = &*Box::leak(Box::new(runtime));
    let tick = runtime.block_on(runtime.spawn(tick(workers))).map_err(io::Error::other)?;
    let ticking = Ticking { runtime, tick };
    runtimes.insert(workers, ticking);
    Ok(ticking)
}

/// Finds a tick of the clock of a runtime with so many workers. All are kept awake meanwhile: one
/// that sleeps until a timer goes off sleeps whole milliseconds, from wherever it begins.
async fn tick(workers: usize) -> Instant {
    const SLEEPS: u32 = 20;
    let stop = Stop::default();
    let awake = |stop: Stop| async move {
        while !stop.load(Ordering::Relaxed) {
            yield_now().await;
        }
    };
    let others: Vec<_> = (0..workers).map(|_| tokio::spawn(awake(stop.clone()))).collect();
    let mut earliest: Option<Instant> = None;
    for _ in 0..SLEEPS {
        sleep(BEAT).await;
        let woken = Instant::now();
        // Moved by whole ticks, to be compared.
        let since = earliest.map_or(Duration::ZERO, |tick| woken - tick);
        let moved = woken - BEAT * ((since + BEAT / 2).as_nanos() / BEAT.as_nanos()) as u32;
        earliest = Some(earliest.map_or(moved, |tick| tick.min(moved)));
    }
    stop.store(true, Ordering::Relaxed);
    futures_util::future::join_all(others).await;
    earliest.unwrap_or_else(Instant::now)
}

impl Ticks for Interval {
    async fn tick(&mut self) {
        Interval::tick(self).await;
    }
}

pub(super) fn run<H: Handle>(file: &H, other: Other<H>, job: &Mixed<'_>, round: &mut Round<'_>) -> io::Result<Mixture> {
    let ticking = runtime(job.workers)?;
    let runtime = ticking.runtime;
    let (tasks, stop) = (tasks(file, job, round), Stop::default());
    let _entered = runtime.enter();
    round.start();
    let began = ticking.before_tick();
    // Bursts after a delay, as by default: each beat that was due comes.
    let ticks = || interval_at((began + BEAT).into(), BEAT);
    let heart = runtime.spawn(heartbeat(Heart::new(began), ticks(), stop.clone()));
    let other = runtime.spawn(other.work(ticks(), stop.clone()));
    let tasks: Vec<_> = tasks.into_iter().map(|task| runtime.spawn(task)).collect();
    let seen = runtime.block_on(futures_util::future::join_all(tasks));
    stop.store(true, Ordering::Relaxed);
    let ended = Instant::now();
    round.stop();
    let heart = runtime.block_on(heart).map_err(io::Error::other)?;
    let beside = runtime.block_on(other).map_err(io::Error::other)??;
    let seen: io::Result<_> = seen.into_iter().map(|joined| joined.map_err(io::Error::other)?).collect();
    Ok(Mixture::tell(job, seen?, heart.end(ended), beside, &mut round.tally))
}
