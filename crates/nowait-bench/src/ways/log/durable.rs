//! `nowait-log`, as its users use it: each writer appends its record and waits for the ticket.
//!
//! `nowait`: as it is, with the usual options. `nowait-rotating`: with segments of 4 MiB, so that a round goes through
//! several, which are prepared meanwhile. `nowait-refused`: as where io_uring is refused.

use std::io;

use nowait::{Engine, Nowait};
use nowait_log::{Log, Options};

use super::commit::{Folder, by_writers};
use crate::measure::meter::Round;
use crate::measure::work::{Commits, Records};
use crate::ways::{LogWay, Way};

pub(crate) struct Durable {
    name: &'static str,
    options: fn(Options) -> nowait::Result<Options>,
}

pub(crate) const USUAL: Durable = Durable { name: "nowait", options: Ok };
pub(crate) const ROTATING: Durable =
    Durable { name: "nowait-rotating", options: |usual| Ok(usual.segment_bytes(4 << 20)) };
pub(crate) const REFUSED: Durable = Durable {
    name: "nowait-refused",
    options: |usual| Ok(usual.instance(&Nowait::builder().engine(Engine::Pool).build()?)),
};

impl Durable {
    pub(super) fn options(&self) -> nowait::Result<Options> {
        (self.options)(Options::new().create(true))
    }
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

    /// It makes files of its own.
    fn commits(&self, job: &Commits<'_>, round: &mut Round<'_>) -> io::Result<Option<u64>> {
        let folder = Folder::new(job)?;
        let options = self.options()?;
        let (log, _) = Log::open(folder.path(), &options).wait()?;
        // The next segment is ready, as in a log that has run for a while. The wait for it, and the
        // calibration before it, are in what the round tells as prepared.
        while log.stats().spares == 0 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let lsns = by_writers(job, round, || Ok(()), |(), block| Ok(log.append(&block[..job.size]).wait()?.wait()?))?;
        let bytes = log.stats().written_bytes;
        if round.tally.verifies() {
            let mut reader = log.reader(1);
            let mut records = vec![Vec::new()];
            while let Some(record) = reader.next().wait()? {
                records.push(record.bytes.to_vec());
            }
            for (writer, lsns) in lsns.iter().enumerate() {
                for (sequence, &lsn) in (0..).zip(lsns) {
                    let record = records.get(lsn as usize).map_or(&[][..], Vec::as_slice);
                    round.tally.verify(Records::number(writer, sequence), record);
                }
            }
        }
        log.close().wait()?;
        Ok(Some(bytes))
    }
}
