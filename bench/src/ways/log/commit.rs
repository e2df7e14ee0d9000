//! Logs without group commit: each writer writes and flushes its record. Also the common parts of
//! all log ways: the writers' threads, reading the records back, and a directory for ways that
//! create files.
//!
//! * `append-fdatasync`: a write and an `fdatasync(2)` through the page cache, one writer at a
//!   time.
//! * `direct-dsync`: one record in whole blocks, by one call past the page cache, concurrently with
//!   other writers.
//! * `ring-dsync`: the same by a ring for each writer; one call submits the write and waits for it.
//!   A kernel thread (fs/iomap/direct-io.c, `s_dio_done_wq`) requests the flush; no figure contains
//!   its time.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Instant;

use rustix::io::{Errno, ReadWriteFlags, pwritev2};
use tempfile::TempDir;

use crate::measure::meter::{Round, Tally};
use crate::measure::pace::Schedule;
use crate::measure::work::{Buffer, Commits};
use crate::ways::drive::Operation;
use crate::ways::ring::{desk, refused};
use crate::ways::threads::at_once;
use crate::ways::{Does, LogWay, Way};

/// Unit of direct writes, as in most logs: it suits nearly all devices.
const BLOCK: usize = 4096;

/// Method by which each writer makes its record durable.
#[derive(PartialEq)]
pub(crate) enum EachWriter {
    Fdatasync,
    Dsync,
    Ring,
}

pub(crate) static APPEND_FDATASYNC: Way = Way::new(
    "append-fdatasync",
    "each writer takes a lock, writes, and calls fdatasync",
    &[Does::Commits(&EachWriter::Fdatasync)],
)
.hue(0);

pub(crate) static DIRECT_DSYNC: Way = Way::new(
    "direct-dsync",
    "each writer: pwritev2(RWF_DSYNC) of whole blocks past the page cache; a crash may lose a record and keep a later one",
    &[Does::Commits(&EachWriter::Dsync)],
)
.hue(2);

pub(crate) static RING_DSYNC: Way =
    Way::new("ring-dsync", "direct-dsync by a ring for each writer", &[Does::Commits(&EachWriter::Ring)])
        .hue(5)
        .refused(refused);

impl LogWay for EachWriter {
    fn direct(&self) -> bool {
        *self != Self::Fdatasync
    }

    fn room(&self, size: usize) -> usize {
        room(self.direct(), size)
    }

    fn commits(&self, job: &Commits<'_>, round: &mut Round<'_>) -> io::Result<Option<u64>> {
        let direct = self.direct().then(|| open_direct(job.path)).transpose()?;
        let (file, room, end) = (direct.as_ref().unwrap_or(job.file), self.room(job.size), Mutex::new(0));
        let ring = || (*self == Self::Ring).then(|| desk(file, 1)).transpose();
        let places = by_writers(job, round, ring, |ring, block| {
            let mut end = end.lock().unwrap_or_else(PoisonError::into_inner);
            let place = *end;
            *end += room as u64;
            if !self.direct() {
                file.write_all_at(&block[..room], place)?;
                file.sync_data()?;
                return Ok(place);
            }
            drop(end);
            match ring {
                Some(ring) => ring.one(Operation::durable(place, room), &[], block)?,
                None => write_durable(file, block, place)?,
            }
            Ok(place)
        })?;
        find(job, round, &places)?;
        Ok(Some(end.into_inner().unwrap_or_else(PoisonError::into_inner)))
    }
}

/// Returns the number of bytes that a record takes in the file.
pub(super) fn room(direct: bool, size: usize) -> usize {
    if direct { size.next_multiple_of(BLOCK) } else { size }
}

pub(super) fn open_direct(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(path)
}

/// Writes all of `blocks`, and returns when they are on stable storage.
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

/// Number and place of each record.
pub type Places = Vec<(u64, u64)>;

/// Runs the writers of `job`, each on a thread with a value that `prepare` makes there. `commit`
/// receives a record, padded with zeros to whole blocks. It returns the record's place when the
/// record is on stable storage.
pub fn by_writers<T>(
    job: &Commits<'_>,
    round: &mut Round<'_>,
    prepare: impl Fn() -> io::Result<T> + Sync,
    commit: impl Fn(&mut T, &mut [u8]) -> io::Result<u64> + Sync,
) -> io::Result<Places> {
    by_pipelines(job, round, prepare, commit, Ok)
}

/// As [`by_writers`], with `job.in_flight` records of each writer in flight: a writer appends that
/// many, waits for the oldest, and appends the next. `append` appends a record, and returns a value
/// for `wait`. `wait` returns the record's place when the record is on stable storage, which ends
/// its latency. With a schedule, free writers take arriving records.
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
    let writers = AtomicUsize::new(0);
    let write = |own: &mut T, block: &mut [u8], tally: &mut Tally<'_>| {
        let writer = writers.fetch_add(1, Ordering::Relaxed);
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
    let block = room(true, job.size);
    let mut blocks = Buffer::new(job.writers * block);
    blocks.bytes().fill(0);
    Ok(at_once(job.writers, block, blocks.bytes(), round, prepare, write)?.concat())
}

/// Reads records back at these places: all if the round verifies, otherwise some.
pub(super) fn find(job: &Commits<'_>, round: &mut Round<'_>, places: &Places) -> io::Result<()> {
    let all = round.tally.verifies();
    let mut record = vec![0; job.size];
    for &(number, place) in places.iter().filter(|(number, _)| all || job.is_sampled(*number)) {
        job.file.read_exact_at(&mut record, place)?;
        round.tally.found(number, &record);
    }
    Ok(())
}

/// A temporary directory, which drop removes.
#[derive(Debug)]
pub struct Folder(TempDir);

impl Folder {
    pub fn new(folder: &Path) -> io::Result<Self> {
        // The name contains the process's number, by which the next run finds the directory of a
        // killed one.
        tempfile::Builder::new().prefix(&format!(".nowait-bench-log-{}-", process::id())).tempdir_in(folder).map(Self)
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }
}
