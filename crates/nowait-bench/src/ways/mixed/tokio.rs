//! tokio's multi-thread runtime, with as many workers as the job says. The thread that asks only
//! waits. The heartbeat is a `tokio::time::interval`; tokio's timers have a resolution of a
//! millisecond, so it comes up to that much late on an idle machine, too.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use tokio::runtime::{Builder, Runtime};
use tokio::time::{Interval, interval_at};

use super::{Handle, Other, Stop, Ticks, heartbeat, tasks};
use crate::measure::meter::Round;
use crate::measure::mixed::{BEAT, Heart, Mixed, Mixture};

/// The runtime with so many workers, the same for all ways and rounds: what is made on first use is
/// there when the clock runs. One that nobody uses sleeps.
fn runtime(workers: usize) -> io::Result<&'static Runtime> {
    static RUNTIMES: Mutex<BTreeMap<usize, &'static Runtime>> = Mutex::new(BTreeMap::new());
    let mut runtimes = RUNTIMES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(runtime) = runtimes.get(&workers) {
        return Ok(runtime);
    }
    let runtime = Builder::new_multi_thread().worker_threads(workers).enable_all().build()?;
    let entered = runtime.enter();
    // Where its reactor cannot serve, a thread of the library does.
    let _ = nowait::Nowait::shared().attach_tokio();
    drop(entered);
    let runtime = &*Box::leak(Box::new(runtime));
    runtimes.insert(workers, runtime);
    Ok(runtime)
}

impl Ticks for Interval {
    async fn tick(&mut self) {
        Interval::tick(self).await;
    }
}

pub(super) fn run<H: Handle>(file: &H, other: Other<H>, job: &Mixed<'_>, round: &mut Round<'_>) -> io::Result<Mixture> {
    let runtime = runtime(job.workers)?;
    let (tasks, stop) = (tasks(file, job, round), Stop::default());
    let _entered = runtime.enter();
    round.start();
    let began = Instant::now();
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
