//! fjall: an insert into its journal and memory table, then a separate sync of the journal by each
//! writer.

use std::io;

use crate::measure::meter::Round;
use crate::measure::work::Commits;
use crate::ways::{Does, Folder, LogWay, Way, by_writers};
use fjall::{Database, KeyspaceCreateOptions, PersistMode};

use super::logs::{TABLE_BYTES, found, settle};

pub(crate) static FJALL: Way = Way::new(
    "fjall",
    concat!("fjall ", env!("VERSION_FJALL"), ": insert, then persist(SyncData)"),
    &[Does::Commits(&Fjall)],
);

pub(super) struct Fjall;

impl LogWay for Fjall {
    fn direct(&self) -> bool {
        false
    }

    fn commits(&self, job: &Commits<'_>, round: &mut Round<'_>) -> io::Result<Option<u64>> {
        let folder = Folder::new(job.folder)?;
        let open = || {
            let database = Database::builder(folder.path()).manual_journal_persist(true).open()?;
            let options = || KeyspaceCreateOptions::default().max_memtable_size(TABLE_BYTES as u64);
            let keyspace = database.keyspace("log", options)?;
            fjall::Result::Ok((database, keyspace))
        };
        let (database, keyspace) = open().map_err(io::Error::other)?;
        settle(folder.path())?;
        by_writers(
            job,
            round,
            || Ok(()),
            |(), block| {
                let record = &block[..job.size];
                keyspace.insert(&record[..8], record).map_err(io::Error::other)?;
                database.persist(PersistMode::SyncData).map_err(io::Error::other)?;
                Ok(0)
            },
        )?;
        drop((keyspace, database));
        if round.tally.verifies() {
            let (_database, keyspace) = open().map_err(io::Error::other)?;
            for record in keyspace.iter() {
                found(round, &record.value().map_err(io::Error::other)?);
            }
        }
        Ok(None)
    }
}
