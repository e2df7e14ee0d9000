//! raft-engine: the writer at the head of a queue writes all records that arrived meanwhile, and
//! makes one sync. Each writer has its own raft group, whose entries are its records. The engine
//! overwrites recycled files, which it creates and fills when it is opened. Only its first file is
//! new, so that file is filled before the clock starts.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::measure::meter::Round;
use crate::measure::work::Commits;
use crate::ways::{Does, Folder, LogWay, Way, by_writers};
use protobuf::well_known_types::BytesValue;
use raft_engine::{Config, Engine, LogBatch, MessageExt, ReadableSize};

use super::logs::{SEGMENT_BYTES, found, settle};

pub(crate) static RAFT_ENGINE: Way = Way::new(
    "raft-engine",
    concat!("raft-engine ", env!("VERSION_RAFT_ENGINE"), ": write with sync, a raft group for each writer"),
    &[Does::Commits(&RaftEngine), Does::Pipelines(&RaftEngine), Does::TaskCommits(&RaftEngine)],
);

pub(super) struct RaftEngine;

/// Raft group whose entries fill the first file.
const FILLING: u64 = u64::MAX;

/// A record as an entry. It begins with its number: the writer in the high bits, and the sequence
/// in the low ones.
struct Record;

impl Record {
    fn number(entry: &[u8]) -> u64 {
        entry.first_chunk().map_or(0, |number| u64::from_le_bytes(*number))
    }
}

impl MessageExt for Record {
    type Entry = BytesValue;

    fn index(entry: &BytesValue) -> u64 {
        (Record::number(entry.get_value()) & u64::from(u32::MAX)) + 1
    }
}

/// Makes an entry of a group durable; returns the number of written bytes.
fn append(engine: &Engine, batch: &mut LogBatch, group: u64, bytes: Vec<u8>) -> io::Result<usize> {
    let mut entry = BytesValue::new();
    entry.set_value(bytes);
    batch.add_entries::<Record>(group, &[entry]).map_err(io::Error::other)?;
    engine.write(batch, true).map_err(io::Error::other)
}

impl LogWay for RaftEngine {
    fn direct(&self) -> bool {
        false
    }

    fn commits(&self, job: &Commits<'_>, round: &mut Round<'_>) -> io::Result<Option<u64>> {
        let folder = Folder::new(job.folder)?;
        let configuration = || Config {
            dir: folder.path().to_string_lossy().into_owned(),
            target_file_size: ReadableSize(SEGMENT_BYTES),
            batch_compression_threshold: ReadableSize(0),
            prefill_for_recycle: true,
            prefill_limit: Some(ReadableSize(2 * SEGMENT_BYTES)),
            ..Config::default()
        };
        let engine = Engine::open(configuration()).map_err(io::Error::other)?;
        // The first file is full at the second entry, which begins another one.
        for (number, size) in [(0, SEGMENT_BYTES as usize), (1, 8)] {
            let mut filling = vec![0; size];
            filling[0] = number;
            append(&engine, &mut LogBatch::default(), FILLING, filling)?;
        }
        settle(folder.path())?;
        let written = AtomicU64::new(0);
        by_writers(
            job,
            round,
            || Ok(LogBatch::default()),
            |batch, block| {
                let group = (Record::number(block) >> 32) + 1;
                let bytes = append(&engine, batch, group, block[..job.size].to_vec())?;
                Ok(written.fetch_add(bytes as u64, Ordering::Relaxed))
            },
        )?;
        drop(engine);
        if round.tally.verifies() {
            let engine = Engine::open(configuration()).map_err(io::Error::other)?;
            for group in engine.raft_groups().into_iter().filter(|group| *group != FILLING) {
                let (Some(first), Some(last)) = (engine.first_index(group), engine.last_index(group)) else { continue };
                let mut entries = Vec::new();
                let fetched = engine.fetch_entries_to::<Record>(group, first, last + 1, None, &mut entries);
                fetched.map_err(io::Error::other)?;
                entries.iter().for_each(|entry| found(round, entry.get_value()));
            }
        }
        Ok(Some(written.into_inner()))
    }
}
