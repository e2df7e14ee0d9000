//! `nowait-log` as in a user's program: each writer appends its record and waits for the ticket. On
//! tokio, each writer is a task that awaits the ticket.
//!
//! The log of [`Durable::Young`] has the default options, and is measured from its first record on.
//! Otherwise the log is configured as after growth: each segment has room for the records of a
//! round, up to 256 MiB. The files of the hand-written ways have the same size before the clock
//! starts. A writer with several records in flight waits for the oldest ticket.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nowait_log::{Log, Options};

use super::commit::{Folder, Places, by_pipelines, room};
use super::tasks::{TOKIO_WORKERS, by_tasks};
use crate::measure::meter::Round;
use crate::measure::work::Commits;
use crate::ways::LogWay;
use crate::ways::runtime::{runtime, with_workers};

/// Kind of a log's writers.
#[derive(PartialEq)]
pub(crate) enum Durable {
    Threads,
    /// Threads, on a new log with default options.
    Young,
    Tokio,
}

/// Minimum and maximum size of a grown log's segments.
const FIRST_BYTES: u64 = 1 << 20;
const GROWN_BYTES: u64 = 256 << 20;

/// Returns options for a grown log: its segments have one size, with room for this number of records, and
/// the next segment exists.
fn options(records: u64, size: usize) -> Options {
    let grown = grown_bytes(records, size);
    Options::new().create(true).segment_bytes(grown).first_segment_bytes(grown)
}

/// Returns the size of a grown log's first segment. It has room for this number of records, each in
/// a separate block, up to the maximum.
fn grown_bytes(records: u64, size: usize) -> u64 {
    records.saturating_mul(alone_bytes(size)).saturating_add(FIRST_BYTES).clamp(FIRST_BYTES, GROWN_BYTES)
}

/// Returns the size of a block with one record.
fn alone_bytes(size: usize) -> u64 {
    const HEADERS: usize = 128; // at most
    room(true, HEADERS + size) as u64
}

/// Opens a new log. The calibration is part of the reported preparation.
fn open(folder: &Path, options: &Options) -> io::Result<(Folder, Log)> {
    let folder = Folder::new(folder)?;
    let (log, _) = Log::open(folder.path(), options).wait()?;
    Ok((folder, log))
}

/// Opens a new log with the options of a grown one, and waits for its next segment.
fn open_grown(folder: &Path, options: &Options) -> io::Result<(Folder, Log)> {
    let (folder, log) = open(folder, options)?;
    await_spare(&log);
    Ok((folder, log))
}

/// Waits until the log's next segment is ready, as in a log that has run for a while. If the
/// segment cannot be prepared, a later append reports the error.
pub(crate) fn await_spare(log: &Log) {
    const PREPARED: Duration = Duration::from_secs(10);
    let began = Instant::now();
    while log.stats().spares == 0 && began.elapsed() < PREPARED {
        thread::sleep(Duration::from_millis(1));
    }
}

/// Reads records back by their LSNs: all if the round verifies, otherwise some.
fn find(job: &Commits<'_>, round: &mut Round<'_>, log: &Log, lsns: &Places) -> io::Result<()> {
    let all = round.tally.verifies();
    let sought = lsns.iter().filter(|(number, _)| all || job.is_sampled(*number));
    let mut sought: BTreeMap<u64, u64> = sought.map(|&(number, lsn)| (lsn, number)).collect();
    let Some((&first, _)) = sought.first_key_value() else { return Ok(()) };
    let mut reader = log.reader(first);
    while !sought.is_empty() {
        let Some(record) = reader.next().wait()? else { break };
        if let Some(number) = sought.remove(&record.lsn) {
            round.tally.found(number, record.bytes);
        }
    }
    // Missing records count as wrong.
    sought.into_values().for_each(|number| round.tally.found(number, &[]));
    Ok(())
}

impl LogWay for Durable {
    /// The log checks for direct I/O.
    fn direct(&self) -> bool {
        false
    }

    fn pipelines(&self) -> bool {
        *self == Self::Threads
    }

    /// The log creates its own files. With a schedule, no thread waits for a record: futures of
    /// this thread append the records, or tasks of the shared runtime.
    fn commits(&self, job: &Commits<'_>, round: &mut Round<'_>) -> io::Result<Option<u64>> {
        let (_folder, log) = match self {
            Self::Young => open(job.folder, &Options::new().create(true)),
            _ => open_grown(job.folder, &options(job.total(), job.size)),
        }?;
        let append = |(): &mut (), block: &mut [u8]| Ok(log.append(&block[..job.size]).wait()?);
        let lsns = match (self, job.pace.is_some()) {
            (Self::Tokio, true) => by_tasks(job, round, &log, Some(runtime())),
            (Self::Tokio, false) => by_tasks(job, round, &log, Some(with_workers(TOKIO_WORKERS))),
            (_, true) => by_tasks(job, round, &log, None),
            (_, false) => by_pipelines(job, round, || Ok(()), append, |ticket| Ok(ticket.wait()?)),
        }?;
        let bytes = log.stats().written_bytes;
        find(job, round, &log, &lsns)?;
        log.close().wait()?;
        Ok(Some(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The records of a round fit into the prepared segment.
    #[test]
    fn a_grown_log_changes_no_segment_in_a_round() {
        const RECORDS: u64 = 400;
        let (_folder, log) = open_grown(&std::env::temp_dir(), &options(RECORDS, 4096)).unwrap();
        let lsns = (0..RECORDS).map(|_| log.append(&[7; 4096]).wait().unwrap().wait().unwrap());
        assert_eq!(lsns.max(), Some(RECORDS));
        assert_eq!(log.stats().rotations, 0);
        log.close().wait().unwrap();
        assert_eq!((grown_bytes(1, 128), grown_bytes(1 << 20, 128)), (FIRST_BYTES + 4096, GROWN_BYTES));
    }
}
