//! A segment, or a part of one, that a reader has open.

use super::block::Block;
use crate::dir::Blocks;
use nowait::Result;

/// A piece that is open.
pub(super) struct Open {
    pub(super) blocks: Blocks,
    /// Last record that counts. It may be lowered while the segment is written.
    pub(super) limit: u64,
    /// The next block was not whole, and is being read once more: its page may have been read
    /// before it was written.
    is_second_look: bool,
}

/// Answer to the wish for the next block.
pub(super) enum Next {
    Loaded,
    /// These bytes are to be read first.
    Lacks((u64, usize)),
    /// There is none.
    NotHere,
}

impl Open {
    pub(super) fn new(blocks: Blocks, limit: u64) -> Open {
        Open { blocks, limit, is_second_look: false }
    }

    /// Loads the next block, if it is in memory.
    pub(super) fn next(&mut self, into: &mut Block) -> Result<Next> {
        loop {
            if let Some(place) = self.blocks.lacks()? {
                return Ok(Next::Lacks(place));
            }
            let (header, block, parts) = match self.blocks.next()? {
                Some((header, block)) => (header, block, None),
                None if !self.is_second_look => {
                    self.blocks.forget();
                    self.is_second_look = true;
                    continue;
                }
                // Damage costs no more than the records that it hit.
                None => match self.blocks.next_in_part()? {
                    Some((header, block, parts)) => (header, block, Some(parts)),
                    None => return Ok(Next::NotHere),
                },
            };
            into.load(&header, block, parts, self.limit);
            self.is_second_look = false;
            return Ok(Next::Loaded);
        }
    }
}
