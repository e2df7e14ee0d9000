//! smol: one executor, which as many threads as the job has workers run inside `smol::block_on`, so
//! that they take turns in its reactor, too. The thread that asks only waits. The heartbeat is a
//! `smol::Timer`.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Instant;

use ::smol::stream::StreamExt;
use ::smol::{Executor, Timer, channel};

use super::{Other, Stop, Ticks, heartbeat, tasks};
use crate::measure::meter::Round;
use crate::measure::mixed::{BEAT, Heart, Mixed, Mixture};
use crate::ways::drive::Handle;

impl Ticks for Timer {
    async fn tick(&mut self) {
        self.next().await;
    }
}

/// A late one is followed by those that were due meanwhile, at once.
pub(super) fn ticks(began: Instant) -> Timer {
    Timer::interval_at(began + BEAT, BEAT)
}

pub(super) fn run<H: Handle>(file: &H, other: Other<H>, job: &Mixed<'_>, round: &mut Round<'_>) -> io::Result<Mixture> {
    let (tasks, stop) = (tasks(file, job, round), Stop::default());
    let executor = Arc::new(Executor::new());
    let (goes_on, ended) = channel::bounded::<()>(1);
    thread::scope(|scope| {
        // Dropped at the end of this closure, however it ends; then the threads end.
        let goes_on = goes_on;
        for _ in 0..job.workers {
            let (executor, ended) = (executor.clone(), ended.clone());
            thread::Builder::new().spawn_scoped(scope, move || ::smol::block_on(executor.run(ended.recv())))?;
        }
        round.start();
        let began = Instant::now();
        let heart = executor.spawn(heartbeat(Heart::new(began), ticks(began), stop.clone()));
        let other = executor.spawn(other.work(ticks(began), stop.clone()));
        let tasks: Vec<_> = tasks.into_iter().map(|task| executor.spawn(task)).collect();
        // Parks; `smol::block_on` would have this thread take turns in the reactor.
        let seen = ::smol::future::block_on(futures_util::future::join_all(tasks));
        stop.store(true, Ordering::Relaxed);
        let stopped = Instant::now();
        round.stop();
        let heart = ::smol::future::block_on(heart);
        let beside = ::smol::future::block_on(other)?;
        drop(goes_on);
        let seen: io::Result<_> = seen.into_iter().collect();
        Ok(Mixture::tell(job, seen?, heart.end(stopped), beside, &mut round.tally))
    })
}
