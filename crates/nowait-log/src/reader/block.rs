//! A block in memory, and a reader's position in it.

use std::sync::Arc;

use crate::commit::CachedBlock;
use crate::format::{BLOCK_HEADER_BYTES, BlockHeader, Part, kind_at, record_at};
use nowait::Buf;

/// The block that is being read.
#[derive(Default)]
pub(super) struct BlockCursor {
    /// The block as it was written, if it comes from the tail in memory.
    shared: Option<Arc<Buf>>,
    /// Otherwise its bytes, copied from a window that moves on.
    copy: Vec<u8>,
    /// Offset of the block in the segment, for errors.
    offset: u64,
    /// Intact records of the block, if others are damaged.
    parts: Option<Vec<Part>>,
    /// Offset of the next record.
    at: usize,
    /// Number of remaining records.
    left: u32,
    /// LSN of the next record.
    next_lsn: u64,
    /// Start and length of the last returned record.
    last: (usize, usize),
}

/// Result of a search in a block.
pub(super) enum Lookup {
    Found,
    /// The record is after the block.
    Behind,
    /// The block should contain the record, but the record is damaged.
    NotHere,
}

impl BlockCursor {
    /// Moves to a block from a segment. Records after `limit` are not valid.
    pub(super) fn load(&mut self, header: &BlockHeader, block: &[u8], parts: Option<Vec<Part>>, limit: u64) {
        self.shared = None;
        self.copy.clear();
        self.copy.extend_from_slice(block.get(..BLOCK_HEADER_BYTES + header.length as usize).unwrap_or(block));
        let count = limit.saturating_add(1).saturating_sub(header.first_lsn);
        self.left = u32::try_from(count).unwrap_or(u32::MAX).min(header.records);
        (self.at, self.next_lsn) = (BLOCK_HEADER_BYTES, header.first_lsn);
        (self.offset, self.parts, self.last) = (header.offset, parts, (0, 0));
    }

    /// Moves to a block in memory.
    pub(super) fn share(&mut self, kept: CachedBlock) {
        let CachedBlock { bytes, base, end, first_lsn, records, .. } = kept;
        let length = bytes.len().saturating_sub(base) as u64;
        (self.at, self.left, self.next_lsn) = (base + BLOCK_HEADER_BYTES, records, first_lsn);
        (self.offset, self.parts, self.last) = (end.saturating_sub(length), None, (0, 0));
        self.shared = Some(bytes);
    }

    /// Drops the block's records, except the last returned one.
    pub(super) fn forget(&mut self) {
        (self.left, self.next_lsn) = (0, 0);
    }

    /// Offset of the block in the segment, and the LSN of the next record.
    pub(super) fn begin(&self) -> (u64, u64) {
        (self.offset, self.next_lsn)
    }

    /// True if some records of the block are damaged.
    pub(super) fn is_broken(&self) -> bool {
        self.parts.is_some()
    }

    /// Returns the LSN of the first intact record after the damaged record `lsn`. If there is none,
    /// returns the LSN after the block. None if the block does not contain `lsn`.
    pub(super) fn whole_behind(&self, lsn: u64) -> Option<u64> {
        let end = self.next_lsn + u64::from(self.left);
        let parts = self.parts.as_ref().filter(|_| (self.next_lsn..end).contains(&lsn))?;
        Some(parts.iter().map(|part| part.lsns.start).find(|start| *start > lsn).map_or(end, |start| start.min(end)))
    }

    /// Offset of the next record in the segment.
    pub(super) fn place(&self) -> u64 {
        self.offset + self.at as u64
    }

    /// Advances to record `lsn`.
    pub(super) fn search(&mut self, lsn: u64) -> Lookup {
        if self.next_lsn + u64::from(self.left) <= lsn {
            return Lookup::Behind;
        }
        while self.next_lsn < lsn {
            if self.skip().is_none() {
                return Lookup::NotHere;
            }
        }
        let is_whole = |parts: &Vec<Part>| parts.iter().any(|part| part.lsns.contains(&lsn));
        if self.parts.as_ref().is_none_or(is_whole) { Lookup::Found } else { Lookup::NotHere }
    }

    /// Advances to the next record.
    pub(super) fn skip(&mut self) -> Option<()> {
        if self.left == 0 {
            return None;
        }
        let (start, length) = record_at(self.bytes(), self.at)?;
        self.at = start + length;
        self.left -= 1;
        self.next_lsn += 1;
        self.last = (start, length);
        Some(())
    }

    /// Returns kind and bytes of the last returned record.
    pub(super) fn last(&self) -> (u8, &[u8]) {
        let ((start, length), bytes) = (self.last, self.bytes());
        (kind_at(bytes, start), bytes.get(start..start + length).unwrap_or_default())
    }

    fn bytes(&self) -> &[u8] {
        self.shared.as_deref().map_or(&self.copy, |shared| shared)
    }
}
