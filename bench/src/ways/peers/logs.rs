//! Logs, and engines that have one. Each writer is a thread that appends a record and waits until
//! it is durable. After the round the log is closed and reopened, and its records are compared.
//!
//! All create their own files before the clock starts; prepared files are on stable storage by
//! then.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use crate::measure::meter::Round;

/// Segment size of a log, as of `nowait-log`.
pub(super) const SEGMENT_BYTES: u64 = 64 << 20;

/// Larger than the records of a round. So an engine with a memory table keeps all records there,
/// and only its log is measured.
#[cfg_attr(not(feature = "rocksdb"), allow(dead_code))]
pub(super) const TABLE_BYTES: usize = 1 << 30;

/// Syncs all files below this directory, so that the first commit does not pay for zeros that a log
/// has written ahead.
pub(super) fn settle(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            settle(&path)?;
        }
        File::open(&path)?.sync_all()?;
    }
    Ok(())
}

/// Reports a record that was read back, which begins with its number.
pub(super) fn found(round: &mut Round<'_>, record: &[u8]) {
    let number = record.first_chunk().map_or(u64::MAX, |number| u64::from_le_bytes(*number));
    round.tally.verify(number, record);
}
