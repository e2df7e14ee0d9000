//! Gathers that arrive at moments of their own, several at work at a time: a pool of threads, or of
//! tokio's blocking ones, of which each reads its records one after the other; tasks and futures
//! with a `gather` of the library each. (The ring's are in [`super::ring`].)

use std::cell::RefCell;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use nowait::Nowait;

use super::GatherWay;
use super::nowait::{Blocking, Session, Tokio, in_full};
use super::runtime::{Seen, blocking, run_on_the_clock};
use super::threads::{Threads, at_once};
use super::tokio::SpawnBlocking;
use crate::measure::meter::{Round, Tally};
use crate::measure::pace::{Arrivals, Schedule};
use crate::measure::work::Gathers;

impl GatherWay for Threads {
    fn gathers(&self, job: &Gathers<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let (next, schedule) = (AtomicUsize::new(0), OnceLock::new());
        let work = |output: &mut [u8], tally: &mut Tally<'_>| {
            let schedule = schedule.get_or_init(|| Schedule::new(Some(job.pace)));
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(offsets) = job.gather(index) else { return Ok(()) };
                let started = schedule.wait(index);
                for (&offset, record) in offsets.iter().zip(output.chunks_mut(job.block)) {
                    job.target.file.read_exact_at(record, offset)?;
                }
                tally.gathered(offsets, output.chunks(job.block), output.len(), (started, Instant::now()));
            }
        };
        at_once(job.depth, job.output_len(), buffer, round, work).map(drop)
    }
}

impl GatherWay for SpawnBlocking {
    fn gathers(&self, job: &Gathers<'_>, _: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let file = Arc::new(job.target.file.try_clone()?);
        let arrivals = Arrivals::new(Some(job.pace), job.count());
        let gathers: Arc<[Arc<[u64]>]> = job.offsets.chunks(job.records).map(Arc::from).collect();
        let block = job.block;
        let tasks: Vec<_> = (0..job.depth)
            .map(|_| {
                let (file, arrivals, gathers) = (file.clone(), arrivals.clone(), gathers.clone());
                let (mut output, mut seen) = (vec![0xa5; job.output_len()], Seen::new(&round.tally));
                async move {
                    while let Some((index, started)) = arrivals.next().await {
                        let (file, offsets) = (file.clone(), gathers[index].clone());
                        output = blocking(move || {
                            let records = output.chunks_mut(block);
                            let mut all = offsets.iter().zip(records);
                            all.try_for_each(|(&offset, record)| file.read_exact_at(record, offset))?;
                            Ok(output)
                        })
                        .await?;
                        seen.add_gather(&gathers[index], &output, started);
                    }
                    io::Result::Ok(seen)
                }
            })
            .collect();
        run_on_the_clock(tasks, round)
    }
}

/// Each gather as the library takes it.
fn extents(job: &Gathers<'_>) -> Vec<Vec<(u64, usize)>> {
    let extents = |offsets: &[u64]| offsets.iter().map(|&offset| (offset, job.block)).collect();
    job.offsets.chunks(job.records).map(extents).collect()
}

impl GatherWay for Blocking {
    fn gathers(&self, job: &Gathers<'_>, _: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let session = Session::reading(Nowait::shared(), job.target)?;
        let (arrivals, extents) = (Arrivals::new(Some(job.pace), job.count()), extents(job));
        let buffers: Vec<Vec<u8>> = vec![vec![0xa5; job.output_len()]; job.depth];
        round.start();
        let tally = RefCell::new(&mut round.tally);
        let loops = buffers.into_iter().map(|mut buffer| {
            let (arrivals, extents, file, tally) = (&arrivals, &extents, &session.file, &tally);
            async move {
                while let Some((index, started)) = arrivals.next().await {
                    let Some(offsets) = job.gather(index) else { break };
                    let gathered = file.gather(&extents[index]).into_buffer(buffer).await?;
                    in_full(gathered.exceptions())?;
                    buffer = gathered.into_buffer();
                    let moments = (started, Instant::now());
                    tally.borrow_mut().gathered(offsets, buffer.chunks(job.block), buffer.len(), moments);
                }
                io::Result::Ok(())
            }
        });
        let result: io::Result<Vec<()>> = nowait::block_on(futures_util::future::join_all(loops)).into_iter().collect();
        round.stop();
        result?;
        session.report(round);
        Ok(())
    }
}

impl GatherWay for Tokio {
    fn gathers(&self, job: &Gathers<'_>, _: &mut [u8], round: &mut Round<'_>) -> io::Result<()> {
        let session = Session::reading(Nowait::shared(), job.target)?;
        let arrivals = Arrivals::new(Some(job.pace), job.count());
        let offsets: Arc<[u64]> = job.offsets.into();
        let (extents, records) = (Arc::new(extents(job)), job.records);
        let tasks: Vec<_> = (0..job.depth)
            .map(|_| {
                let (file, arrivals) = (session.file.clone(), arrivals.clone());
                let (extents, offsets) = (extents.clone(), offsets.clone());
                let (mut buffer, mut seen) = (vec![0xa5; job.output_len()], Seen::new(&round.tally));
                async move {
                    while let Some((index, started)) = arrivals.next().await {
                        let gathered = file.gather(&extents[index]).into_buffer(buffer).await?;
                        in_full(gathered.exceptions())?;
                        buffer = gathered.into_buffer();
                        seen.add_gather(&offsets[index * records..][..records], &buffer, started);
                    }
                    io::Result::Ok(seen)
                }
            })
            .collect();
        run_on_the_clock(tasks, round)?;
        session.report(round);
        Ok(())
    }
}
