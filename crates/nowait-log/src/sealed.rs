//! Sealed blocks, for replication of a log.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use nowait::Buf;

use super::format::{BLOCK_HEADER_BYTES, Entry, kind_at, record_at};

/// Block of records that become durable together; see
/// [`Options::on_sealed`](super::Options::on_sealed) and
/// [`Options::on_durable`](super::Options::on_durable). Clones share the bytes, which stay valid as
/// long as a clone exists.
#[derive(Clone)]
pub struct SealedBlock {
    pub(crate) bytes: Arc<Buf>,
    /// Offset of the block in `bytes`.
    pub(crate) base: usize,
    pub(crate) first_lsn: u64,
    pub(crate) records: u32,
    pub(crate) epoch: u64,
    pub(crate) is_durable: bool,
}

impl SealedBlock {
    /// Returns the LSNs of its records.
    pub fn lsns(&self) -> Range<u64> {
        self.first_lsn..self.first_lsn + u64::from(self.records)
    }

    /// Returns the epoch of the log, which increases with each opening and each truncation of the
    /// log's end. A block of a later epoch replaces all records from its first LSN on.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns true if this and all earlier blocks were durable when the hook was called.
    pub fn is_durable(&self) -> bool {
        self.is_durable
    }

    /// Returns the block as on disk: header, records, padding. `docs/log-format.md` describes the
    /// layout. Checksums are seeded with the log, the segment and the epoch.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(self.base..).unwrap_or_default()
    }

    /// Iterates over the block's records, each with its LSN.
    pub fn records(&self) -> impl Iterator<Item = (u64, Entry<'_>)> {
        let block = self.as_bytes();
        let mut at = BLOCK_HEADER_BYTES;
        self.lsns().map_while(move |lsn| {
            let (start, length) = record_at(block, at)?;
            at = start + length;
            Some((lsn, Entry { kind: kind_at(block, start), bytes: block.get(start..at)? }))
        })
    }
}

impl fmt::Debug for SealedBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut all = f.debug_struct("SealedBlock");
        all.field("lsns", &self.lsns()).field("epoch", &self.epoch).field("is_durable", &self.is_durable).finish()
    }
}

/// Callback for blocks.
#[derive(Clone)]
pub(crate) struct BlockHook(pub(crate) Arc<dyn Fn(&SealedBlock) + Send + Sync>);

impl fmt::Debug for BlockHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BlockHook(..)")
    }
}

/// Callbacks for blocks: before they are durable, and after.
#[derive(Clone, Debug, Default)]
pub(crate) struct BlockHooks {
    pub(crate) sealed: Option<BlockHook>,
    pub(crate) durable: Option<BlockHook>,
}
