//! Each writer on its own: it writes its record and has it flushed. And what all ways of the log
//! share: the threads of the writers, the search for what they have written, and a directory for
//! those that make files of their own.
//!
//! `append-fdatasync`: a write and an `fdatasync(2)` through the page cache, one writer after the
//! other. `direct-dsync`: the floor, for one writer. Its record alone in whole blocks, in one call
//! past the page cache.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Instant;

use rustix::io::{Errno, ReadWriteFlags, pwritev2};

use crate::measure::meter::{Round, Tally};
use crate::measure::pace::Schedule;
use crate::measure::work::{Buffer, Commits};
use crate::ways::threads::{Meetings, joined};
use crate::ways::{Does, LogWay, Way};

/// Direct writes are a multiple of it, here as in most logs: it suits nearly all devices.
pub(super) const BLOCK: usize = 4096;

pub(crate) struct AppendFdatasync;

pub(crate) static APPEND_FDATASYNC: Way =
    Way::new("append-fdatasync", "each writer: a lock, a write, an fdatasync", &[Does::Commits(&AppendFdatasync)])
        .hue(0);

impl LogWay for AppendFdatasync {
    fn direct(&self) -> bool {
        false
    }

    fn room(&self, size: usize) -> usize {
        size
    }

    fn commits(&self, job: &Commits<'_>, round: &mut Round<'_>) -> io::Result<Option<u64>> {
        let end = Mutex::new(0);
        let places = by_writers(
            job,
            round,
            || Ok(()),
            |(), block| {
                let mut end = end.lock().unwrap_or_else(PoisonError::into_inner);
                let place = *end;
                job.file.write_all_at(&block[..job.size], place)?;
                job.file.sync_data()?;
                *end = place + job.size as u64;
                Ok(place)
            },
        )?;
        find(job, round, &places)?;
        Ok(Some(end.into_inner().unwrap_or_else(PoisonError::into_inner)))
    }
}

pub(crate) struct DirectDsync;

pub(crate) static DIRECT_DSYNC: Way = Way::new(
    "direct-dsync",
    "one writer: pwritev2(RWF_DSYNC) of whole blocks past the page cache",
    &[Does::Commits(&DirectDsync)],
)
.hue(2);

impl LogWay for DirectDsync {
    fn direct(&self) -> bool {
        true
    }

    fn alone(&self) -> bool {
        true
    }

    fn room(&self, size: usize) -> usize {
        size.next_multiple_of(BLOCK)
    }

    fn commits(&self, job: &Commits<'_>, round: &mut Round<'_>) -> io::Result<Option<u64>> {
        let file = open_direct(job.path)?;
        let places = by_writers(
            job,
            round,
            || Ok(0),
            |end, block| {
                let place = *end;
                write_durable(&file, block, place)?;
                *end = place + block.len() as u64;
                Ok(place)
            },
        )?;
        find(job, round, &places)?;
        Ok(Some(job.commits * self.room(job.size) as u64))
    }
}

pub(super) fn open_direct(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(path)
}

/// All of `blocks`, on stable storage when it returns.
pub(in crate::ways) fn write_durable(file: &File, mut blocks: &[u8], mut offset: u64) -> io::Result<()> {
    while !blocks.is_empty() {
        match pwritev2(file, &[IoSlice::new(blocks)], offset, ReadWriteFlags::DSYNC) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => {
                blocks = &blocks[count..];
                offset += count as u64;
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// The number of each record, and where it is.
pub type Places = Vec<(u64, u64)>;

/// Runs the writers of `job`, each on a thread of its own with what `prepare` has made for it
/// there. `commit` is given a record, filled up with zeros to whole blocks; it returns when the
/// record is on stable storage, and says where.
pub fn by_writers<T>(
    job: &Commits<'_>,
    round: &mut Round<'_>,
    prepare: impl Fn() -> io::Result<T> + Sync,
    commit: impl Fn(&mut T, &mut [u8]) -> io::Result<u64> + Sync,
) -> io::Result<Places> {
    by_pipelines(job, round, prepare, commit, Ok)
}

/// The same with `job.in_flight` records of each writer under way: it hands over as many, waits for
/// the oldest, and hands over the next. `append` hands a record over, and says by what to wait for
/// it; `wait` returns when that record is on stable storage, and says where. Latency ends when the
/// writer learns of it. Records that arrive are the writers' that are free.
pub(super) fn by_pipelines<T, K>(
    job: &Commits<'_>,
    round: &mut Round<'_>,
    prepare: impl Fn() -> io::Result<T> + Sync,
    append: impl Fn(&mut T, &mut [u8]) -> io::Result<K> + Sync,
    wait: impl Fn(K) -> io::Result<u64> + Sync,
) -> io::Result<Places> {
    let (arrived, schedule) = (AtomicU64::new(0), OnceLock::new());
    let next = |writer: usize, own: u64| match job.pace {
        None => job.number(writer, own).map(|number| (number, None)),
        Some(pace) => {
            let index = arrived.fetch_add(1, Ordering::Relaxed);
            let number = job.number(0, index)?;
            Some((number, Some(schedule.get_or_init(|| Schedule::new(Some(pace))).wait(index as usize))))
        }
    };
    let write = |writer: usize, own: &mut T, block: &mut [u8], tally: &mut Tally<'_>| {
        let (mut under_way, mut sequence) = (VecDeque::with_capacity(job.in_flight), 0);
        let mut places = Vec::with_capacity(job.commits as usize);
        loop {
            while under_way.len() < job.in_flight {
                let Some((number, due)) = next(writer, sequence) else { break };
                job.records.make(&mut block[..job.size], number);
                let started = due.unwrap_or_else(Instant::now);
                under_way.push_back((number, started, append(own, block)?));
                sequence += 1;
            }
            let Some((number, started, oldest)) = under_way.pop_front() else { return Ok(places) };
            places.push((number, wait(oldest)?));
            tally.committed(job.size, started, Instant::now());
        }
    };
    let gate = Barrier::new(job.writers + 1);
    thread::scope(|scope| {
        let writers = (0..job.writers).map(|writer| {
            let mut tally = round.new_tally();
            let (gate, prepare, write) = (&gate, &prepare, &write);
            scope.spawn(move || {
                let mut block = Buffer::new(job.size.next_multiple_of(BLOCK));
                block.bytes().fill(0);
                // All are prepared; they begin; they are done.
                let mut meetings = Meetings::new(gate, 3);
                let prepared = prepare();
                meetings.attend();
                meetings.attend();
                let places = prepared.and_then(|mut own| write(writer, &mut own, block.bytes(), &mut tally));
                meetings.attend();
                io::Result::Ok((tally, places?))
            })
        });
        let writers: Vec<_> = writers.collect();
        gate.wait();
        round.start();
        gate.wait();
        gate.wait();
        round.stop();
        let mut all = Vec::new();
        for outcome in joined(writers) {
            let (tally, places) = outcome?;
            round.tally.merge(&tally);
            all.extend(places);
        }
        Ok(all)
    })
}

/// Reads records at the places that were told: every one if this round verifies, else some.
pub(super) fn find(job: &Commits<'_>, round: &mut Round<'_>, places: &Places) -> io::Result<()> {
    let all = round.tally.verifies();
    let mut record = vec![0; job.size];
    for &(number, place) in places.iter().filter(|(number, _)| all || job.is_sampled(*number)) {
        job.file.read_exact_at(&mut record, place)?;
        round.tally.found(number, &record);
    }
    Ok(())
}

/// A directory of its own, removed when dropped.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new(folder: &Path) -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!(".nowait-bench-log-{}-{number}", std::process::id()));
        fs::create_dir(&path)?;
        Ok(Self(path))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Nothing is to be done about what cannot be removed.
        let _ = fs::remove_dir_all(&self.0);
    }
}
