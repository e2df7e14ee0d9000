//! The operations of a turn. This file is compiled twice (main.rs): `super::nowait` is the library of
//! `base` or of `tree`. So it contains only calls that both have; README.md lists them.

use std::future::Future;
use std::hint::black_box;
use std::io;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::thread;

use futures_util::future::{Either, join_all, select};
use nowait_bench::measure::meter::{Latencies, latencies};
use nowait_bench::measure::mixed::Planned;
use nowait_bench::sys::PAGE;
use rustix::fs::{Advice, fadvise};
use tokio::runtime::Runtime;

use super::nowait::{Buf, File, Nowait, OpenOptions, block_on};
use crate::cases::{Driver, Job};
use crate::turn::{Heartbeat, Turn, Version};

pub(crate) fn attach(runtime: &Runtime) -> io::Result<()> {
    let _entered = runtime.enter();
    Ok(Nowait::shared().attach_tokio()?)
}

/// Opens the file, and does the work on the clock.
pub(crate) fn turn(job: &Job, driver: Driver, version: &Version, path: &Path) -> io::Result<Turn> {
    let writes = matches!(job, Job::Writes { .. });
    let file = OpenOptions::new().read(!writes).write(writes).open(path).wait()?;
    // Without readahead, a read of one page leaves its neighbours cold.
    fadvise(&file, 0, None, Advice::Random)?;
    Turn::of(job, || match (job, driver) {
        (Job::Reads { plan, .. }, Driver::Blocking) => {
            let mut page = vec![0; PAGE as usize];
            for read in plan.tasks.iter().flat_map(|reads| reads.iter()) {
                file.read_exact_into(&mut page, read.offset())?;
                black_box(&page);
            }
            Ok(latencies())
        }
        (Job::Gathers(batches), Driver::Blocking) => {
            let mut output = vec![0; bytes_max(batches)];
            for batch in batches.iter() {
                file.gather_into(batch, &mut output[..bytes_of(batch)])?;
                black_box(&output);
            }
            Ok(latencies())
        }
        (Job::Reads { plan, with_heartbeat }, _) => {
            let tasks = plan.tasks.iter().map(|reads| read_all(file.clone(), reads.clone())).collect();
            drive(tasks, driver, version, *with_heartbeat)
        }
        (Job::Gathers(batches), _) => drive(vec![gather_all(file.clone(), batches.clone())], driver, version, false),
        (&Job::Writes { pages, tasks, is_durable }, _) => {
            let share = |task| write_all(file.clone(), (task as u64..pages).step_by(tasks), is_durable);
            drive((0..tasks).map(share).collect(), driver, version, false)
        }
    })
}

async fn read_all(file: File, reads: Arc<[Planned]>) -> io::Result<()> {
    let mut page = Buf::zeroed(PAGE as usize);
    for read in reads.iter() {
        page = file.read_at(page, read.offset()).await?.1;
        black_box(&page);
    }
    Ok(())
}

async fn gather_all(file: File, batches: Arc<[Vec<(u64, usize)>]>) -> io::Result<()> {
    let mut output = Buf::zeroed(bytes_max(&batches));
    for batch in batches.iter() {
        output = file.gather(&batch[..]).into_buffer(output).await?.into_buffer();
        black_box(&output);
    }
    Ok(())
}

async fn write_all(file: File, pages: impl Iterator<Item = u64>, is_durable: bool) -> io::Result<()> {
    let mut page = Buf::zeroed(PAGE as usize);
    for number in pages {
        let write = file.write_all_at(page, number * PAGE);
        page = if is_durable { write.durable() } else { write }.await?;
    }
    Ok(())
}

fn bytes_of(batch: &[(u64, usize)]) -> usize {
    batch.iter().map(|(_, bytes)| bytes).sum()
}

fn bytes_max(batches: &[Vec<(u64, usize)>]) -> usize {
    batches.iter().map(|batch| bytes_of(batch)).max().unwrap_or(0)
}

/// Runs the tasks beside a heartbeat, and returns its delays.
fn drive<T>(tasks: Vec<T>, driver: Driver, version: &Version, with_heartbeat: bool) -> io::Result<Latencies>
where
    T: Future<Output = io::Result<()>> + Send + 'static,
{
    match driver {
        Driver::Blocking => in_block_on(tasks, 1, with_heartbeat),
        Driver::BlockOn { threads } => in_block_on(tasks, threads, with_heartbeat),
        Driver::Tokio { workers, is_attached } => {
            on_tokio(tasks, version.runtime(workers, is_attached), with_heartbeat)
        }
    }
}

fn in_block_on<T>(tasks: Vec<T>, threads: usize, with_heartbeat: bool) -> io::Result<Latencies>
where
    T: Future<Output = io::Result<()>> + Send,
{
    let mut shares: Vec<Vec<T>> = (0..threads).map(|_| Vec::new()).collect();
    for (number, task) in tasks.into_iter().enumerate() {
        shares[number % threads].push(task);
    }
    let run = |share: Vec<T>| {
        let heartbeat = Heartbeat::start(with_heartbeat);
        let beat = pin!(heartbeat.clone().beat());
        match block_on(select(beat, join_all(share))) {
            Either::Right((results, _)) => results.into_iter().collect::<io::Result<()>>().map(|()| heartbeat.late()),
            Either::Left((never, _)) => match never {},
        }
    };
    let mut late = latencies();
    thread::scope(|scope| {
        let running: Vec<_> = shares.into_iter().map(|share| scope.spawn(move || run(share))).collect();
        running.into_iter().try_for_each(|thread| {
            late += thread.join().map_err(|_| io::Error::other("a thread panicked"))??;
            Ok(())
        })
    })
    .map(|()| late)
}

fn on_tokio<T>(tasks: Vec<T>, runtime: &Runtime, with_heartbeat: bool) -> io::Result<Latencies>
where
    T: Future<Output = io::Result<()>> + Send + 'static,
{
    let heartbeat = Heartbeat::start(with_heartbeat);
    let beat = runtime.spawn(heartbeat.clone().beat());
    let running: Vec<_> = tasks.into_iter().map(|task| runtime.spawn(task)).collect();
    let ended = runtime.block_on(join_all(running));
    beat.abort();
    let late = heartbeat.late();
    ended.into_iter().try_for_each(|joined| joined.map_err(io::Error::other)?)?;
    Ok(late)
}
