//! `nowait-log`, as its users use it: each writer appends its record and waits for the ticket.
//!
//! `nowait`: as it is, with the usual options; with several records of a writer under way it waits
//! for the oldest ticket. `nowait-threads`: the same with a thread for each. `nowait-rotating`:
//! with segments of 4 MiB, so that a round goes through several, which are prepared meanwhile.
//! `nowait-refused`: as where io_uring is refused.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nowait::{Engine, Nowait};
use nowait_log::{Log, Options};

use super::commit::{Folder, by_pipelines};
use crate::measure::meter::Round;
use crate::measure::work::{Commits, Records};
use crate::ways::{LogWay, Way};

pub(crate) struct Durable {
    name: &'static str,
    pipelines: bool,
    options: fn(Options) -> nowait::Result<Options>,
}

pub(crate) const USUAL: Durable = Durable { name: "nowait", pipelines: true, options: Ok };
pub(crate) const THREADS: Durable = Durable { name: "nowait-threads", pipelines: false, options: Ok };
pub(crate) const ROTATING: Durable =
    Durable { name: "nowait-rotating", pipelines: true, options: |usual| Ok(usual.segment_bytes(4 << 20)) };
pub(crate) const REFUSED: Durable = Durable {
    name: "nowait-refused",
    pipelines: true,
    options: |usual| Ok(usual.instance(&Nowait::builder().engine(Engine::Pool).build()?)),
};

impl Durable {
    pub(super) fn options(&self) -> nowait::Result<Options> {
        (self.options)(Options::new().create(true))
    }
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

/// Reads records after the LSN `after` by theirs: every one if this round verifies, else some.
pub(super) fn find(
    job: &Commits<'_>,
    round: &mut Round<'_>,
    log: &Log,
    lsns: &[Vec<u64>],
    after: u64,
) -> io::Result<()> {
    let all = round.tally.verifies();
    let numbered = |(writer, lsns): (usize, &Vec<u64>)| {
        (0..).zip(lsns.clone()).map(move |(sequence, lsn)| (lsn, Records::number(writer, sequence)))
    };
    let told = lsns.iter().enumerate().flat_map(numbered);
    let mut sought: BTreeMap<u64, u64> =
        told.filter(|&(lsn, number)| lsn > after && (all || job.is_sampled(number))).collect();
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

impl Way for Durable {
    fn name(&self) -> &'static str {
        self.name
    }
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
        let (_folder, log) = open(job.folder, &self.options()?)?;
        let lsns = by_pipelines(job, round, |record| Ok(log.append(record).wait()?), |ticket| Ok(ticket.wait()?))?;
        let bytes = log.stats().written_bytes;
        find(job, round, &log, &lsns, 0)?;
        log.close().wait()?;
        Ok(Some(bytes))
    }
}
