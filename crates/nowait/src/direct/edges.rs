//! A transfer made of whole blocks. Blocks that the caller wants in part, or whose memory is not
//! aligned for the device, go to memory of ours.

use crate::sys::Errno;

use super::device::Alignment;
use super::plan::Plan;
use crate::buf::{Buf, Direction, TransferCursor};

/// The memory of a transfer of whole blocks: first block or blocks, the caller's memory, last
/// block. Meanwhile the transfer's cursor is that of the blocks.
#[derive(Debug)]
pub(crate) struct Edges {
    direction: Direction,
    first: Option<Buf>,
    /// Bytes of the blocks that go to the caller's memory.
    middle: usize,
    last: Option<Buf>,
    /// Bytes of the first block before the first that was asked for.
    skip: usize,
    /// The caller's cursor.
    asked: TransferCursor,
}

impl Edges {
    /// Makes `cursor` that of whole blocks. A write has to be of whole blocks already.
    pub(crate) fn widen(
        cursor: &mut TransferCursor,
        alignment: Alignment,
        direction: Direction,
    ) -> Result<Edges, Errno> {
        if direction == Direction::Write && !alignment.suits_place(cursor.position, cursor.left) {
            // Whole blocks of it would bring back what lies beside it, or anything.
            return Err(Errno::INVAL);
        }
        let address = match cursor.segments() {
            [one] if direction == Direction::Read => Some(one.iov_base as usize),
            _ => None,
        };
        let plan = Plan::new(alignment, cursor.position, cursor.left, address).ok_or(Errno::OVERFLOW)?;
        let memory = |length: usize| (length > 0).then(|| Buf::uncleared(length).ok_or(Errno::NOMEM)).transpose();
        let (mut first, mut last) = (memory(plan.first)?, memory(plan.last)?);
        if direction == Direction::Write {
            first.as_deref_mut().map(|first| cursor.copy_to(first));
        }
        let skip = (cursor.position - plan.start) as usize;
        let mut blocks = TransferCursor::at(plan.start);
        let mut push = |buf: &mut Option<Buf>| buf.as_mut().map(|buf| blocks.push(buf.as_mut_ptr(), buf.len()));
        push(&mut first);
        if plan.middle > 0 {
            let moved = plan.first - skip;
            let from = address.map_or(std::ptr::null_mut(), |_| cursor.segments()[0].iov_base.cast::<u8>());
            blocks.push(from.wrapping_add(moved), plan.middle);
        }
        let mut push = |buf: &mut Option<Buf>| buf.as_mut().map(|buf| blocks.push(buf.as_mut_ptr(), buf.len()));
        push(&mut last);
        let asked = std::mem::replace(cursor, blocks);
        Ok(Edges { direction, first, middle: plan.middle, last, skip, asked })
    }

    /// Bytes that the blocks have beyond those asked for.
    pub(crate) fn more(&self, blocks: &TransferCursor) -> usize {
        // Less, at the largest place that a file can have.
        blocks.left.saturating_sub(self.asked.left)
    }

    /// Makes `cursor` the caller's again, and moves the bytes that have arrived to their places.
    pub(crate) fn settle(self, cursor: &mut TransferCursor) {
        let Edges { direction, first, middle, last, skip, asked } = self;
        let done = cursor.done.saturating_sub(skip).min(asked.left);
        let before = asked.done;
        *cursor = asked;
        if direction == Direction::Write {
            return cursor.advance(done);
        }
        let first = first.as_deref().unwrap_or_default();
        let (n, rest) = (first.len().saturating_sub(skip).min(done), last.as_deref().unwrap_or_default());
        cursor.fill(&first[skip.min(first.len())..][..n]);
        cursor.advance(n);
        let n = middle.min(done - n);
        cursor.advance(n);
        let n = done - (cursor.done - before);
        cursor.fill(&rest[..n]);
        cursor.advance(n);
    }
}
