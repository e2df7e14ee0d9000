//! `nowait-log` as in a user's program: each writer appends its record and waits for the ticket. On
//! tokio, each writer is a task that awaits the ticket.
//!
//! The log is as one that has grown: each segment has room for the records of a round, up to 256
//! MiB. The files of the hand-written ways are as large before the clock starts. A writer with
//! several records in flight waits for the oldest ticket.

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

/// Where a log's writers run.
#[derive(PartialEq)]
pub(crate) enum Durable {
    Threads,
    Tokio,
}

/// Sizes of a grown log's segments: the least and the most.
const FIRST_BYTES: u64 = 1 << 20;
const GROWN_BYTES: u64 = 256 << 20;

/// Returns options for a grown log: its segments have one size, with room for this number of records, and
/// the next segment exists.
fn options(records: u64, size: usize) -> Options {
    let grown = grown_bytes(records, size);
    Options::new().create(true).segment_bytes(grown).first_segment_bytes(grown)
}

/// Size of a grown log's first segment: it has room for so many records, each in a block of its
/// own, if it can.
fn grown_bytes(records: u64, size: usize) -> u64 {
    records.saturating_mul(alone_bytes(size)).saturating_add(FIRST_BYTES).clamp(FIRST_BYTES, GROWN_BYTES)
}

/// Bytes of a block that holds one record.
fn alone_bytes(size: usize) -> u64 {
    const HEADERS: usize = 128; // at most
    room(true, HEADERS + size) as u64
}

/// Opens a log of its own. The wait for its first spare segment, and the calibration before that,
/// are in what a round tells as prepared.
fn open(folder: &Path, options: &Options) -> io::Result<(Folder, Log)> {
    let folder = Folder::new(folder)?;
    let (log, _) = Log::open(folder.path(), options).wait()?;
    await_spare(&log);
    Ok((folder, log))
}

/// Waits until the log has its next segment ready, as one that has run for a while. One that cannot
/// be prepared is told by an append.
pub(crate) fn await_spare(log: &Log) {
    const PREPARED: Duration = Duration::from_secs(10);
    let began = Instant::now();
    while log.stats().spares == 0 && began.elapsed() < PREPARED {
        thread::sleep(Duration::from_millis(1));
    }
}

/// Reads records by their LSNs: every one if this round verifies, else some.
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
    // What the log does not have is not as it should be.
    sought.into_values().for_each(|number| round.tally.found(number, &[]));
    Ok(())
}

impl LogWay for Durable {
    /// It finds out by itself.
    fn direct(&self) -> bool {
        false
    }

    fn pipelines(&self) -> bool {
        *self == Self::Threads
    }

    /// It makes files of its own. Where records arrive, no thread waits for one: futures of this
    /// thread append them, or tasks of the runtime that other tables have.
    fn commits(&self, job: &Commits<'_>, round: &mut Round<'_>) -> io::Result<Option<u64>> {
        let (_folder, log) = open(job.folder, &options(job.total(), job.size))?;
        let append = |(): &mut (), block: &mut [u8]| Ok(log.append(&block[..job.size]).wait()?);
        let lsns = match (self, job.pace.is_some()) {
            (Self::Tokio, true) => by_tasks(job, round, &log, Some(runtime())),
            (Self::Tokio, false) => by_tasks(job, round, &log, Some(with_workers(TOKIO_WORKERS))),
            (Self::Threads, true) => by_tasks(job, round, &log, None),
            (Self::Threads, false) => by_pipelines(job, round, || Ok(()), append, |ticket| Ok(ticket.wait()?)),
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

    /// The records of a round fit into the segment that was prepared before.
    #[test]
    fn a_grown_log_changes_no_segment_in_a_round() {
        const RECORDS: u64 = 400;
        let (_folder, log) = open(&std::env::temp_dir(), &options(RECORDS, 4096)).unwrap();
        let lsns = (0..RECORDS).map(|_| log.append(&[7; 4096]).wait().unwrap().wait().unwrap());
        assert_eq!(lsns.max(), Some(RECORDS));
        assert_eq!(log.stats().rotations, 0);
        log.close().wait().unwrap();
        assert_eq!((grown_bytes(1, 128), grown_bytes(1 << 20, 128)), (FIRST_BYTES + 4096, GROWN_BYTES));
    }
}
