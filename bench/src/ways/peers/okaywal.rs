//! okaywal: writers append one after the other. A writer that finds no running sync makes one for
//! all appended records.

use std::io;
use std::sync::mpsc::{Sender, channel};

use crate::measure::meter::Round;
use crate::measure::work::Commits;
use crate::ways::{Does, Folder, LogWay, Way, by_writers};
use okaywal::{Configuration, Entry, EntryId, LogManager, SegmentReader, WriteAheadLog};

use super::logs::{SEGMENT_BYTES, found, settle};

pub(crate) static OKAYWAL: Way = Way::new(
    "okaywal",
    concat!("okaywal ", env!("VERSION_OKAYWAL"), ": commit of an entry"),
    &[Does::Commits(&OkayWal), Does::Pipelines(&OkayWal), Does::TaskCommits(&OkayWal)],
);

pub(super) struct OkayWal;

impl LogWay for OkayWal {
    fn direct(&self) -> bool {
        false
    }

    fn commits(&self, job: &Commits<'_>, round: &mut Round<'_>) -> io::Result<Option<u64>> {
        let folder = Folder::new(job.folder)?;
        let configuration = || {
            Configuration::default_for(folder.path())
                .preallocate_bytes(SEGMENT_BYTES as u32)
                // Before a segment is full, as the documentation requires.
                .checkpoint_after_bytes(SEGMENT_BYTES / 8 * 7)
        };
        let (seen, recovered) = channel();
        let log = configuration().open(Reader(seen.clone()))?;
        settle(folder.path())?;
        by_writers(
            job,
            round,
            || Ok(()),
            |(), block| {
                let mut entry = log.begin_entry()?;
                entry.write_chunk(&block[..job.size])?;
                Ok(entry.commit()?.0)
            },
        )?;
        log.shutdown()?;
        if round.tally.verifies() {
            configuration().open(Reader(seen))?.shutdown()?;
            recovered.try_iter().for_each(|record| found(round, &record));
        }
        Ok(None)
    }
}

/// Passes on the records that are read when the log is opened.
#[derive(Debug)]
struct Reader(Sender<Vec<u8>>);

impl LogManager for Reader {
    fn recover(&mut self, entry: &mut Entry<'_>) -> io::Result<()> {
        for record in entry.read_all_chunks()?.into_iter().flatten() {
            // The receiver outlives the log.
            let _ = self.0.send(record);
        }
        Ok(())
    }

    /// Does nothing: the records are not needed after they were logged.
    fn checkpoint_to(&mut self, _: EntryId, _: &mut SegmentReader, _: &WriteAheadLog) -> io::Result<()> {
        Ok(())
    }
}
