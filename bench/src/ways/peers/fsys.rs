//! fsys: an append reserves a range and writes it. A writer that finds no running sync makes one
//! for all appended records.

use std::io;

use fsys::{JournalOptions, JournalReader};

use super::logs::{found, settle};
use crate::measure::meter::Round;
use crate::measure::work::Commits;
use crate::ways::{Does, Folder, LogWay, Way, by_writers};

pub(crate) static FSYS: Way = Way::new(
    "fsys",
    concat!("fsys ", env!("VERSION_FSYS"), ": journal, append and sync_through"),
    &[Does::Commits(&Fsys { direct: false })],
);

pub(crate) static FSYS_DIRECT: Way = Way::new(
    "fsys-direct",
    concat!("fsys ", env!("VERSION_FSYS"), ": the same journal with JournalOptions::direct"),
    &[Does::Commits(&Fsys { direct: true })],
);

struct Fsys {
    direct: bool,
}

impl LogWay for Fsys {
    fn direct(&self) -> bool {
        self.direct
    }

    fn commits(&self, job: &Commits<'_>, round: &mut Round<'_>) -> io::Result<Option<u64>> {
        let folder = Folder::new(job.folder)?;
        let path = folder.path().join("journal");
        let system = fsys::builder().build().map_err(io::Error::other)?;
        let journal =
            system.journal_with(&path, JournalOptions::new().direct(self.direct)).map_err(io::Error::other)?;
        // A fallback to the page cache would be another way.
        if self.direct && !journal.is_direct_active() {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "fsys writes through the page cache here"));
        }
        settle(folder.path())?;
        by_writers(
            job,
            round,
            || Ok(()),
            |(), block| {
                let lsn = journal.append(&block[..job.size]).map_err(io::Error::other)?;
                journal.sync_through(lsn).map_err(io::Error::other)?;
                Ok(lsn.as_u64())
            },
        )?;
        journal.close().map_err(io::Error::other)?;
        if round.tally.verifies() {
            let mut reader = JournalReader::open(&path).map_err(io::Error::other)?;
            for record in reader.iter() {
                found(round, &record.map_err(io::Error::other)?.payload);
            }
        }
        Ok(None)
    }
}
