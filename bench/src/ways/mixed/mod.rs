//! Tasks that share a runtime: what each way has of its own, and what all of them run.
//!
//! A way is an open file ([`Handle`]) and a runtime: tokio ([`tokio`]), smol ([`smol`]), or threads
//! in `nowait::block_on` ([`block_on`]). The tasks, the heartbeat and the neighbour are the same
//! for all ways of a runtime. The heartbeat and the neighbour's pace are timers of that runtime
//! ([`Ticks`]).

mod block_on;
pub(super) mod handles;
pub(super) mod ring;
mod smol;
mod tokio;

use std::fs::File;
use std::future::Future;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use ::nowait::Buf;
use nowait_log::Log;

use crate::measure::meter::Round;
use crate::measure::mixed::{BLOCK, Heart, Mixed, Neighbour, Planned, RECORD, Seen, WRITES_A_BEAT, WRITTEN_BLOCKS};
use crate::ways::drive::Handle;

/// A timer of a runtime, at fixed moments. A tick that is late does not delay those after it.
trait Ticks: Send + 'static {
    fn tick(&mut self) -> impl Future<Output = ()> + Send;
}

/// Told to the heartbeat and the neighbour when the tasks are through.
type Stop = Arc<AtomicBool>;

/// The neighbour, ready to run.
#[derive(Clone)]
enum Other<H> {
    Nobody,
    Writer(H),
    Log(Log),
}

impl<H: Handle> Other<H> {
    fn of(job: &Mixed<'_>, open: impl FnOnce(&Arc<File>, &Path) -> io::Result<H>) -> io::Result<Self> {
        Ok(match job.beside {
            Neighbour::Nobody => Self::Nobody,
            Neighbour::Writer { file, path } => Self::Writer(open(file, path)?),
            Neighbour::Log(log) => Self::Log(log.clone()),
        })
    }

    /// Works until it is stopped; counts its writes, or records. `ticks` are those of the
    /// heartbeat: what could not be written in time is written later.
    async fn work(self, mut ticks: impl Ticks, stop: Stop) -> io::Result<u64> {
        let mut count = 0;
        let goes_on = || !stop.load(Ordering::Relaxed);
        match self {
            Self::Nobody => {}
            Self::Writer(to) => {
                let mut buffer = touched();
                while goes_on() {
                    ticks.tick().await;
                    for _ in 0..WRITES_A_BEAT {
                        if !goes_on() {
                            break;
                        }
                        buffer = to.write(buffer, count % WRITTEN_BLOCKS * BLOCK as u64).await?;
                        count += 1;
                        to.give_way().await;
                    }
                }
            }
            Self::Log(log) => {
                let record = [0xa5; RECORD];
                while goes_on() {
                    log.append(&record).await?.await?;
                    count += 1;
                }
            }
        }
        Ok(count)
    }
}

fn touched() -> Buf {
    let mut buffer = Buf::zeroed(BLOCK);
    buffer.fill(0xa5);
    buffer
}

/// One task: its reads, one after the other.
async fn task(file: impl Handle, mut buffer: Buf, reads: Arc<[Planned]>, mut seen: Seen) -> io::Result<Seen> {
    for read in reads.iter() {
        let (offset, started) = (read.offset(), Instant::now());
        buffer = file.read(buffer, offset).await?;
        seen.add(offset, &buffer, started);
        file.give_way().await;
    }
    Ok(seen)
}

/// All tasks of a round, in the order of the plan.
fn tasks<H: Handle>(
    file: &H,
    job: &Mixed<'_>,
    round: &Round<'_>,
) -> Vec<impl Future<Output = io::Result<Seen>> + Send + use<H>> {
    let of = |reads: &Arc<[Planned]>| {
        let seen = Seen::new(reads, job.marks, &round.tally);
        task(file.clone(), touched(), reads.clone(), seen)
    };
    job.plan.tasks.iter().map(of).collect()
}

/// Beats until it is stopped.
async fn heartbeat(mut heart: Heart, mut ticks: impl Ticks, stop: Stop) -> Heart {
    loop {
        ticks.tick().await;
        if stop.load(Ordering::Relaxed) {
            return heart;
        }
        heart.beat();
    }
}
