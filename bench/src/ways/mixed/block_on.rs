//! `nowait::block_on`, which runs one future on one thread: the tasks are joined. With more workers
//! there are as many threads, each with its share of the tasks and a heartbeat of its own; the
//! neighbour is the first one's.
//!
//! The library has no timer. The heartbeat is one of smol's (async-io), as its users would take it:
//! a thread of that crate waits for the moment and wakes the future.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Barrier, OnceLock};
use std::thread;
use std::time::Instant;

use futures_util::future::{Either, join, join_all, select};

use super::smol::ticks;
use super::{Other, Stop, heartbeat, tasks};
use crate::measure::meter::{Latencies, Round, latencies};
use crate::measure::mixed::{Heart, Mixed, Mixture, Seen};
use crate::ways::drive::Handle;
use crate::ways::threads::{Meetings, joined};

/// Observations of one thread: the reads of its tasks by their numbers, the heartbeat, and the neighbour's
/// writes.
struct Share {
    seen: Vec<(usize, Seen)>,
    late: Latencies,
    beside: u64,
}

pub(super) fn run<H: Handle>(file: &H, other: Other<H>, job: &Mixed<'_>, round: &mut Round<'_>) -> io::Result<Mixture> {
    let threads = job.workers.min(job.plan.tasks.len());
    let mut shares: Vec<Vec<_>> = (0..threads).map(|_| Vec::new()).collect();
    for (number, task) in tasks(file, job, round).into_iter().enumerate() {
        shares[number % threads].push(async move { Ok((number, task.await?)) });
    }
    // Each thread meets the caller when the clock starts, when its tasks are through, and when the
    // clock has stopped.
    let (gate, began) = (Barrier::new(threads + 1), OnceLock::new());
    let mut others = std::iter::once(other).chain(std::iter::repeat_with(|| Other::Nobody));
    let shares: io::Result<Vec<Share>> = thread::scope(|scope| {
        let running: Vec<_> = shares
            .into_iter()
            .zip(&mut others)
            .map(|(tasks, other)| {
                let (gate, began) = (&gate, &began);
                scope.spawn(move || share(tasks, other, gate, began))
            })
            .collect();
        round.start();
        let _ = began.set(Instant::now());
        gate.wait();
        gate.wait();
        round.stop();
        gate.wait();
        joined(running).into_iter().collect()
    });
    let (mut seen, mut late, mut beside) = (Vec::new(), latencies(), 0);
    for share in shares? {
        seen.extend(share.seen);
        late += share.late;
        beside += share.beside;
    }
    seen.sort_by_key(|(number, _)| *number);
    let seen = seen.into_iter().map(|(_, seen)| seen).collect();
    Ok(Mixture::tell(job, seen, late, beside, &mut round.tally))
}

/// Runs the tasks of one thread to their end, and beside them what stops then. The heartbeat of all
/// threads began with the clock.
fn share<H: Handle>(
    tasks: Vec<impl Future<Output = io::Result<(usize, Seen)>>>,
    other: Other<H>,
    gate: &Barrier,
    began: &OnceLock<Instant>,
) -> io::Result<Share> {
    let stop = Stop::default();
    let mut meetings = Meetings::new(gate, 3);
    meetings.attend();
    let began = *began.get_or_init(Instant::now);
    let heart = heartbeat(Heart::new(began), ticks(began), stop.clone());
    let others = pin!(join(heart, other.work(ticks(began), stop.clone())));
    // The heartbeat ends when it is told to, so the tasks come first.
    let (seen, others) = match nowait::block_on(select(pin!(join_all(tasks)), others)) {
        Either::Left((seen, others)) => (seen, others),
        Either::Right(_) => unreachable!("nobody has stopped the heartbeat"),
    };
    stop.store(true, Ordering::Relaxed);
    let ended = Instant::now();
    meetings.attend();
    meetings.attend();
    let (heart, beside) = nowait::block_on(others);
    Ok(Share { seen: seen.into_iter().collect::<io::Result<_>>()?, late: heart.end(ended), beside: beside? })
}
