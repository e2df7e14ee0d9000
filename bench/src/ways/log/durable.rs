//! `nowait-log`, as its users use it: each writer appends its record and waits for the ticket.
//!
//! `nowait`: a log that has grown, so that each of its segments takes what a round logs, up to 256 MiB.
//! The files of the ways by hand are as long, too, before the clock runs. With several records of a
//! writer under way it waits for the oldest ticket. `nowait-threads`: the same with a thread for
//! each. `nowait-refused`: as where io_uring is refused.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nowait::{Engine, Nowait};
use nowait_log::{Log, Options};

use super::commit::{BLOCK, Folder, by_pipelines};
use crate::measure::meter::Round;
use crate::measure::work::{Commits, Records};
use crate::ways::{Does, LogWay, Way};

pub(crate) struct Durable {
    pipelines: bool,
    options: fn(Options) -> nowait::Result<Options>,
}

pub(crate) const USUAL: Durable = Durable { pipelines: true, options: Ok };

pub(crate) static NOWAIT_THREADS: Way = Way::new(
    "nowait-threads",
    "this library's log, a thread for each record in flight",
    &[Does::Pipelines(&Durable { pipelines: false, options: Ok })],
);

pub(crate) static NOWAIT_REFUSED: Way = Way::new(
    "nowait-refused",
    "this library's log without io_uring",
    &[Does::Commits(&Durable {
        pipelines: true,
        options: |usual| Ok(usual.instance(&Nowait::builder().engine(Engine::Pool).build()?)),
    })],
);

/// Sizes of a grown log's segments: the least and the most.
const FIRST_BYTES: u64 = 1 << 20;
const GROWN_BYTES: u64 = 256 << 20;

impl Durable {
    /// Options for a log that will take so many records.
    pub(super) fn options(&self, records: u64, size: usize) -> nowait::Result<Options> {
        // One that has grown has segments of one size, of which the next is there.
        let grown = grown_bytes(records, size);
        let usual = Options::new().create(true).segment_bytes(grown).first_segment_bytes(grown);
        (self.options)(usual)
    }

    pub(super) fn options_for(&self, job: &Commits<'_>) -> nowait::Result<Options> {
        self.options(job.writers as u64 * job.commits, job.size)
    }
}

/// Size of a grown log's first segment: it has room for so many records, each in a block of its
/// own, if it can.
fn grown_bytes(records: u64, size: usize) -> u64 {
    records.saturating_mul(alone_bytes(size)).saturating_add(FIRST_BYTES).clamp(FIRST_BYTES, GROWN_BYTES)
}

/// Bytes of a block that holds one record.
fn alone_bytes(size: usize) -> u64 {
    const HEADERS: usize = 128; // at most
    (HEADERS + size).next_multiple_of(BLOCK) as u64
}

/// Opens a log of its own. The wait for its first spare segment, and the calibration before that,
/// are in what a round tells as prepared.
pub(super) fn open(folder: &Path, options: &Options) -> io::Result<(Folder, Log)> {
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

/// All records from the log's start on, by their LSNs. The first LSN is 1.
pub(super) fn records_of(log: &Log) -> io::Result<Vec<Vec<u8>>> {
    let mut reader = log.reader(1);
    let mut records = vec![Vec::new()];
    while let Some(record) = reader.next().wait()? {
        records.push(record.bytes.to_vec());
    }
    Ok(records)
}

/// Reads records by their LSNs: every one if this round verifies, else some.
pub(super) fn find(job: &Commits<'_>, round: &mut Round<'_>, log: &Log, lsns: &[Vec<u64>]) -> io::Result<()> {
    let all = round.tally.verifies();
    let numbered = |(writer, lsns): (usize, &Vec<u64>)| {
        (0..).zip(lsns.clone()).map(move |(sequence, lsn)| (lsn, Records::number(writer, sequence)))
    };
    let told = lsns.iter().enumerate().flat_map(numbered);
    let mut sought: BTreeMap<u64, u64> = told.filter(|&(_, number)| all || job.is_sampled(number)).collect();
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
        self.pipelines
    }

    /// It makes files of its own.
    fn commits(&self, job: &Commits<'_>, round: &mut Round<'_>) -> io::Result<Option<u64>> {
        let (_folder, log) = open(job.folder, &self.options_for(job)?)?;
        let lsns = by_pipelines(job, round, |record| Ok(log.append(record).wait()?), |ticket| Ok(ticket.wait()?))?;
        let bytes = log.stats().written_bytes;
        find(job, round, &log, &lsns)?;
        log.close().wait()?;
        Ok(Some(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a round logs fits into the segment that was prepared before.
    #[test]
    fn a_grown_log_changes_no_segment_in_a_round() {
        const RECORDS: u64 = 400;
        let (_folder, log) = open(&std::env::temp_dir(), &USUAL.options(RECORDS, 4096).unwrap()).unwrap();
        let lsns = (0..RECORDS).map(|_| log.append(&[7; 4096]).wait().unwrap().wait().unwrap());
        assert_eq!(lsns.max(), Some(RECORDS));
        assert_eq!(log.stats().rotations, 0);
        log.close().wait().unwrap();
        assert_eq!((grown_bytes(1, 128), grown_bytes(1 << 20, 128)), (FIRST_BYTES + 4096, GROWN_BYTES));
    }
}
