//! Records that arrive at moments of their own, each to be on stable storage.
//!
//! `thread-batch`: a pool of threads takes them, and each thread waits for its record. `nowait`, and `nowait-tokio`: no thread waits. Futures of one thread under
//! `block_on`, or tasks of a runtime, append their record and await its ticket.

use std::cell::RefCell;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use nowait_log::Log;

use super::batch::{self, ThreadBatch};
use super::commit::open_direct;
use super::durable::{self, Durable, open, records_of};
use crate::measure::meter::Round;
use crate::measure::pace::{Arrivals, Schedule};
use crate::measure::work::{Appends, Buffer, Records};
use crate::sys::path_of;
use crate::ways::runtime::{Seen, finish, runtime};
use crate::ways::threads::at_once;
use crate::ways::{AppendWay, LogWay};

pub(crate) struct Tasks;

impl AppendWay for ThreadBatch {
    fn direct(&self) -> bool {
        LogWay::direct(self)
    }

    fn room(&self, size: usize) -> usize {
        LogWay::room(self, size)
    }

    fn appends(&self, job: &Appends<'_>, round: &mut Round<'_>) -> io::Result<usize> {
        let direct = LogWay::direct(self);
        let opened = direct.then(|| open_direct(&path_of(job.file))).transpose()?;
        let file = opened.as_ref().unwrap_or(job.file);
        let log = batch::Log::new(job.depth * job.size, direct);
        let (next, schedule) = (AtomicUsize::new(0), OnceLock::new());
        let mut memory = Buffer::new(job.depth * job.size);
        let places = thread::scope(|scope| {
            let thread = scope.spawn(|| log.write(file));
            let places = at_once(job.depth, job.size, memory.bytes(), round, |record, tally| {
                let schedule = schedule.get_or_init(|| Schedule::new(Some(job.pace)));
                let mut places = Vec::new();
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(number) = job.number(index) else { return Ok(places) };
                    job.records.make(record, number);
                    let started = schedule.wait(index);
                    places.push((number, log.commit(record)?));
                    tally.committed(job.size, started, Instant::now());
                }
            });
            log.close();
            let end = thread.join().expect("the thread of the log does not panic");
            // Its error tells more than those of the threads that learned of it.
            end.and(places)
        })?;
        if !round.tally.verifies() {
            return Ok(0);
        }
        let (mut found, mut record) = (0, vec![0; job.size]);
        for (number, place) in places.into_iter().flatten() {
            job.file.read_exact_at(&mut record, place)?;
            round.tally.verify(number, &record);
            found += 1;
        }
        Ok(found)
    }
}

/// Reads the log from its start, if this round verifies: these records, by their LSNs.
fn found(log: &Log, lsns: &[(u64, u64)], round: &mut Round<'_>) -> io::Result<usize> {
    if !round.tally.verifies() {
        return Ok(0);
    }
    let records = records_of(log)?;
    for &(number, lsn) in lsns {
        let record = records.get(lsn as usize).map_or(&[][..], Vec::as_slice);
        round.tally.verify(number, record);
    }
    Ok(lsns.len())
}

impl AppendWay for Durable {
    fn appends(&self, job: &Appends<'_>, round: &mut Round<'_>) -> io::Result<usize> {
        let (_folder, log) = open(job.folder, &self.options(job.count as u64, job.size)?)?;
        let arrivals = Arrivals::new(Some(job.pace), job.count);
        let lsns = RefCell::new(Vec::with_capacity(job.count));
        round.start();
        let tally = RefCell::new(&mut round.tally);
        let loops = (0..job.depth).map(|_| {
            let (arrivals, log, lsns, tally) = (&arrivals, &log, &lsns, &tally);
            async move {
                let mut record = vec![0; job.size];
                while let Some((index, started)) = arrivals.next().await {
                    let Some(number) = job.number(index) else { break };
                    job.records.make(&mut record, number);
                    let lsn = log.append(&record).await?.await?;
                    tally.borrow_mut().committed(job.size, started, Instant::now());
                    lsns.borrow_mut().push((number, lsn));
                }
                io::Result::Ok(())
            }
        });
        let result: io::Result<Vec<()>> = nowait::block_on(futures_util::future::join_all(loops)).into_iter().collect();
        round.stop();
        result?;
        let found = found(&log, &lsns.into_inner(), round)?;
        log.close().wait()?;
        Ok(found)
    }
}

impl AppendWay for Tasks {
    fn appends(&self, job: &Appends<'_>, round: &mut Round<'_>) -> io::Result<usize> {
        let (_folder, log) = open(job.folder, &durable::USUAL.options(job.count as u64, job.size)?)?;
        let arrivals = Arrivals::new(Some(job.pace), job.count);
        let (records, size, count) = (job.records, job.size, job.count);
        let tasks: Vec<_> = (0..job.depth)
            .map(|_| {
                let (arrivals, log, mut seen) = (arrivals.clone(), log.clone(), Seen::new(&round.tally));
                async move {
                    let (mut record, mut lsns) = (vec![0; size], Vec::with_capacity(count));
                    while let Some((index, started)) = arrivals.next().await {
                        let number = Records::number(0, index as u64);
                        records.make(&mut record, number);
                        let lsn = log.append(&record).await?.await?;
                        seen.committed(size, started);
                        lsns.push((number, lsn));
                    }
                    io::Result::Ok((seen, lsns))
                }
            })
            .collect();
        round.start();
        let tasks = tasks.into_iter().map(|task| runtime().spawn(task)).collect();
        let told = finish(tasks);
        round.stop();
        let mut all = Vec::with_capacity(count);
        for (seen, lsns) in told? {
            seen.tell(&mut round.tally);
            all.extend(lsns);
        }
        let found = found(&log, &all, round)?;
        log.close().wait()?;
        Ok(found)
    }
}
