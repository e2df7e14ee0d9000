//! raft-engine: the writer at the head of a queue writes for all that have come meanwhile, and makes one sync. Each writer has a raft group
//! of its own, whose entries are its records. Files for recycling are made before the clock runs, so that writes go over what is there.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use nowait_bench::meter::Round;
use nowait_bench::ways::{Folder, LogWay, by_writers};
use nowait_bench::work::Commits;
use protobuf::well_known_types::BytesValue;
use raft_engine::{Config, Engine, LogBatch, MessageExt, ReadableSize};

use super::{SEGMENT_BYTES, found, settle};

pub struct RaftEngine;

/// A record as an entry: it begins with its number, which has the writer above and the sequence below.
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

impl LogWay for RaftEngine {
    fn name(&self) -> &'static str {
        "raft-engine"
    }

    fn direct(&self) -> bool {
        false
    }

    fn room(&self, _size: usize) -> usize {
        0
    }

    fn commits(&self, job: &Commits<'_>, round: &mut Round<'_>) -> io::Result<Option<u64>> {
        let folder = Folder::new(job)?;
        let configuration = || Config {
            dir: folder.path().to_string_lossy().into_owned(),
            target_file_size: ReadableSize(SEGMENT_BYTES),
            batch_compression_threshold: ReadableSize(0),
            prefill_for_recycle: true,
            prefill_limit: Some(ReadableSize(2 * SEGMENT_BYTES)),
            ..Config::default()
        };
        let engine = Engine::open(configuration()).map_err(io::Error::other)?;
        settle(folder.path())?;
        let written = AtomicU64::new(0);
        by_writers(
            job,
            round,
            || Ok(LogBatch::default()),
            |batch, block| {
                let mut entry = BytesValue::new();
                entry.set_value(block[..job.size].to_vec());
                let group = (Record::number(block) >> 32) + 1;
                batch.add_entries::<Record>(group, &[entry]).map_err(io::Error::other)?;
                let bytes = engine.write(batch, true).map_err(io::Error::other)?;
                Ok(written.fetch_add(bytes as u64, Ordering::Relaxed))
            },
        )?;
        drop(engine);
        if round.tally.verifies() {
            let engine = Engine::open(configuration()).map_err(io::Error::other)?;
            for group in engine.raft_groups() {
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
