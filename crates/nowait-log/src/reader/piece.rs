//! A segment, or part of one, that a reader has open.

use std::ops::Range;

use super::block::BlockCursor;
use crate::dir::{Blocks, Sought};
use crate::format::PAGE;
use nowait::{Error, Result};

pub(super) struct OpenPiece {
    pub(super) blocks: Blocks,
    /// Last valid record. It may be lowered while the segment is written.
    pub(super) limit: u64,
    /// The next block was not intact, and is being read again, since its page may have been read
    /// before it was written.
    is_second_look: bool,
    /// Search for the next block after a damaged block.
    search: Option<Search>,
}

struct Search {
    /// Offset of the damaged block.
    from: u64,
    /// Bytes not searched yet.
    left: Range<u64>,
    /// First record after these bytes.
    end_lsn: u64,
    /// The device's error, if it is the cause.
    error: Option<Error>,
}

/// Bytes without an intact block.
pub(super) struct Hole {
    pub(super) bytes: Range<u64>,
    /// First record after these bytes.
    pub(super) end_lsn: u64,
    /// The device's error, if it is the cause.
    pub(super) error: Option<Error>,
}

/// Result of a search for the next intact block.
pub(super) enum Passed {
    Hole(Hole),
    /// These bytes must be read first.
    Lacks((u64, usize)),
}

/// Result of loading the next block.
pub(super) enum Advance {
    Loaded,
    /// These bytes must be read first.
    Lacks((u64, usize)),
    /// There is no next block.
    NotHere,
}

impl OpenPiece {
    pub(super) fn new(blocks: Blocks, limit: u64) -> OpenPiece {
        OpenPiece { blocks, limit, is_second_look: false, search: None }
    }

    /// Begins a search for the block after the next block, which is damaged. Blocks end at `end`,
    /// and the first record after `end` is `end_lsn`.
    pub(super) fn begin_search(&mut self, end: u64, end_lsn: u64) {
        let error = self.blocks.read_error();
        // Bytes in memory may have been read before they were written.
        self.blocks.forget();
        let from = self.blocks.offset;
        self.search = Some(Search { from, left: from + PAGE as u64..end, end_lsn, error });
    }

    /// Continues a search, and moves to the block that it finds. None if there is no search.
    pub(super) fn pass_hole(&mut self) -> Result<Option<Passed>> {
        let Some(Search { from, left, end_lsn, error }) = &mut self.search else { return Ok(None) };
        let (end, end_lsn) = match self.blocks.seek_header(left)? {
            Sought::Lacks(place) => return Ok(Some(Passed::Lacks(place))),
            Sought::Found(header) => (header.offset, header.first_lsn),
            Sought::Nothing => (left.end.max(*from), *end_lsn),
        };
        let hole = Hole { bytes: *from..end, end_lsn, error: error.take() };
        self.search = None;
        self.blocks.go_to(end, end_lsn);
        Ok(Some(Passed::Hole(hole)))
    }

    /// Loads the next block, if it is in memory.
    pub(super) fn next(&mut self, into: &mut BlockCursor) -> Result<Advance> {
        loop {
            if let Some(place) = self.blocks.lacks()? {
                return Ok(Advance::Lacks(place));
            }
            let (header, block, parts) = match self.blocks.next()? {
                Some((header, block)) => (header, block, None),
                None if !self.is_second_look => {
                    self.blocks.forget();
                    self.is_second_look = true;
                    continue;
                }
                // Only the damaged records are lost.
                None => match self.blocks.next_in_part()? {
                    Some((header, block, parts)) => (header, block, Some(parts)),
                    None => return Ok(Advance::NotHere),
                },
            };
            into.load(&header, block, parts, self.limit);
            self.is_second_look = false;
            return Ok(Advance::Loaded);
        }
    }
}
