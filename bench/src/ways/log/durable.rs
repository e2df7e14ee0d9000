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

use super::commit::{BLOCK, Folder, Places, by_pipelines};
use super::tasks::by_tasks;
use crate::measure::meter::Round;
use crate::measure::work::Commits;
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
        self.options(job.total(), job.size)
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

/// Reads records by their LSNs: every one if this round verifies, else some.
pub(super) fn find(job: &Commits<'_>, round: &mut Round<'_>, log: &Log, lsns: &Places) -> io::Result<()> {
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

/// One round: opens a log, has the records of `job` in it by `write`, and looks for them.
pub(super) fn logged(
    job: &Commits<'_>,
    round: &mut Round<'_>,
    options: &Options,
    write: impl FnOnce(&Log, &mut Round<'_>) -> io::Result<Places>,
) -> io::Result<Option<u64>> {
    let (_folder, log) = open(job.folder, options)?;
    let lsns = write(&log, round)?;
    let bytes = log.stats().written_bytes;
    find(job, round, &log, &lsns)?;
    log.close().wait()?;
    Ok(Some(bytes))
}

impl LogWay for Durable {
    /// It finds out by itself.
    fn direct(&self) -> bool {
        false
    }

    fn pipelines(&self) -> bool {
        self.pipelines
    }

    /// It makes files of its own. Where records arrive, no thread waits for one: futures of this
    /// thread append them.
    fn commits(&self, job: &Commits<'_>, round: &mut Round<'_>) -> io::Result<Option<u64>> {
        logged(job, round, &self.options_for(job)?, |log, round| match job.pace {
            Some(_) => by_tasks(job, round, log, None),
            None => {
                let append = |(): &mut (), block: &mut [u8]| Ok(log.append(&block[..job.size]).wait()?);
                by_pipelines(job, round, || Ok(()), append, |ticket| Ok(ticket.wait()?))
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The records of a round fit into the segment that was prepared before.
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
