//! RocksDB: a put with `sync`. The writer at the head of a queue writes all records that arrived
//! meanwhile to the WAL, and makes one sync.

use std::io;

use crate::measure::meter::Round;
use crate::measure::work::Commits;
use crate::ways::{Does, Folder, LogWay, Way, by_writers};
use rocksdb::{DB, DBCompressionType, IteratorMode, Options, WriteOptions};

use super::logs::{TABLE_BYTES, found, settle};

pub(crate) static ROCKSDB: Way = Way::new(
    "rocksdb",
    concat!("RocksDB by rocksdb ", env!("VERSION_ROCKSDB"), ": put with sync, without compression"),
    &[Does::Commits(&RocksDb)],
);

pub(super) struct RocksDb;

impl LogWay for RocksDb {
    fn direct(&self) -> bool {
        false
    }

    fn commits(&self, job: &Commits<'_>, round: &mut Round<'_>) -> io::Result<Option<u64>> {
        let folder = Folder::new(job.folder)?;
        let mut options = Options::default();
        options.create_if_missing(true);
        options.set_compression_type(DBCompressionType::None);
        options.set_write_buffer_size(TABLE_BYTES);
        let open = || DB::open(&options, folder.path()).map_err(io::Error::other);
        let database = open()?;
        settle(folder.path())?;
        let mut synced = WriteOptions::default();
        synced.set_sync(true);
        by_writers(
            job,
            round,
            || Ok(()),
            |(), block| {
                let record = &block[..job.size];
                database.put_opt(&record[..8], record, &synced).map_err(io::Error::other)?;
                Ok(0)
            },
        )?;
        drop(database);
        if round.tally.verifies() {
            for record in open()?.iterator(IteratorMode::Start) {
                found(round, &record.map_err(io::Error::other)?.1);
            }
        }
        Ok(None)
    }
}
