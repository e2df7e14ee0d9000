//! Bytes on their way between a file and memory, and what one result of the kernel means for them.
//!
//! `unsafe` here: raw segments that are sent between threads and filled, and transfers over memory that the caller lends.

use rustix::io::Errno;

use crate::buf::{Buf, Memory, Segments};
use crate::direct::{Alignment, Plan};

/// Bytes on their way between a file and memory.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub(super) memory: Memory,
    segments: Segments,
    /// Where in the file the next byte is.
    position: u64,
    left: usize,
    done: usize,
    /// The kernel was told that these bytes will be needed, and has begun to read them.
    pub(crate) announced: bool,
    /// A ring is to say so (EAGAIN) where it would have a kernel worker wait for these bytes.
    pub(crate) attempt: bool,
    /// Made ready for direct I/O in blocks of so many bytes; else zero.
    block: u32,
    /// It moves whole blocks, some of them in memory of ours: position, segments and counts are those of the blocks until it ends.
    edges: Option<Box<Edges>>,
}

/// What direct I/O moves in place of what was asked for: first block or blocks, the caller's memory, last block.
#[derive(Debug)]
struct Edges {
    direction: Direction,
    first: Option<Buf>,
    middle: usize,
    last: Option<Buf>,
    /// Bytes of the first block before the first that was asked for.
    skip: usize,
    /// What was asked for, and moved before.
    asked: usize,
    before: usize,
    segments: Segments,
}

// SAFETY: the segments point into `memory`, which is owned and `Send`, or into a slice that is borrowed as long as the
// transfer is used (`lent`). A transfer is used by one party at a time: its future before submission, then its engine.
unsafe impl Send for Transfer {}

impl Transfer {
    /// Fills `memory` from `offset`, or writes it there.
    #[inline]
    pub(crate) fn new(mut memory: Memory, offset: u64) -> Transfer {
        let mut segments = Segments::none();
        memory.segments(&mut segments);
        let left = segments.len();
        Transfer {
            memory,
            segments,
            position: offset,
            left,
            done: 0,
            announced: false,
            attempt: false,
            block: 0,
            edges: None,
        }
    }

    /// Fills a borrowed slice.
    ///
    /// # Safety
    /// The transfer is not used after the borrow of `slice` has ended; so it is not given to a slot.
    pub(crate) unsafe fn lent(slice: &mut [u8], offset: u64) -> Transfer {
        let segments = Segments::one(slice.as_mut_ptr(), slice.len());
        Transfer { segments, left: slice.len(), ..Transfer::new(Memory::None, offset) }
    }

    /// Writes a borrowed slice.
    ///
    /// # Safety
    /// As for [`Transfer::lent`]; and it is only written from.
    pub(crate) unsafe fn lent_out(slice: &[u8], offset: u64) -> Transfer {
        let segments = Segments::one(slice.as_ptr().cast_mut(), slice.len());
        Transfer { segments, left: slice.len(), ..Transfer::new(Memory::None, offset) }
    }

    /// One that no memory could be had for.
    pub(crate) fn void(offset: u64, length: usize) -> Transfer {
        Transfer { left: length, ..Transfer::new(Memory::None, offset) }
    }

    #[inline]
    pub(crate) fn segments(&self) -> &[libc::iovec] {
        self.segments.rest()
    }

    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Bytes still to come.
    pub(crate) fn left(&self) -> usize {
        self.left
    }

    /// Bytes that have arrived.
    pub(crate) fn done(&self) -> usize {
        self.done
    }

    /// Takes note of `n` bytes that have arrived.
    #[inline]
    pub(crate) fn advance(&mut self, n: usize) {
        // A kernel that reports more than it was asked for must not lead us past the buffer.
        let n = n.min(self.left);
        self.segments.advance(n);
        self.position += n as u64;
        self.left -= n;
        self.done += n;
    }

    /// Copies the first bytes of `bytes` to where they belong, as a kernel would; returns how many.
    pub(crate) fn fill(&mut self, bytes: &[u8]) -> usize {
        let n = bytes.len().min(self.left);
        let mut rest = &bytes[..n];
        for segment in self.segments.rest() {
            let (now, later) = rest.split_at(rest.len().min(segment.iov_len));
            // SAFETY: a segment is writable memory of its length that nobody else uses (see `Transfer`), and `now` is
            // borrowed from elsewhere, so that they do not overlap.
            unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), segment.iov_base.cast(), now.len()) };
            rest = later;
        }
        n
    }

    /// Copies the next bytes to `out`, as a kernel would take them; returns how many.
    pub(crate) fn copy_to(&self, out: &mut [u8]) -> usize {
        let mut done = 0;
        for segment in self.segments.rest() {
            let length = (out.len() - done).min(segment.iov_len);
            if length > 0 {
                // SAFETY: a segment is initialised memory of its length that nobody writes to meanwhile (see `Transfer`).
                let bytes = unsafe { std::slice::from_raw_parts(segment.iov_base.cast(), length) };
                out[done..done + length].copy_from_slice(bytes);
            }
            done += length;
        }
        done
    }

    /// The next `n` bytes.
    pub(crate) fn first(&self, n: usize) -> Vec<libc::iovec> {
        self.segments.first(n)
    }

    /// Whether a write is of whole blocks, or has been made ready.
    pub(crate) fn is_ready_for(&self, alignment: Alignment) -> bool {
        self.block != 0 || alignment.suits_place(self.position, self.left)
    }

    /// Makes it ready for direct I/O: whole blocks, to or from memory that lies as the device needs it. A write has to be of whole
    /// blocks already. Gives the bytes that it moves beyond what was asked for.
    pub(crate) fn align(&mut self, alignment: Alignment, direction: Direction) -> Result<usize, Errno> {
        if self.block != 0 || self.left == 0 {
            return Ok(0);
        }
        if alignment.suits(self.position, self.segments()) {
            self.block = alignment.offset;
            return Ok(0);
        }
        if direction == Direction::Write && !alignment.suits_place(self.position, self.left) {
            // Whole blocks of it would bring back what lies beside it, or anything.
            return Err(Errno::INVAL);
        }
        let address = match self.segments() {
            [one] if direction == Direction::Read => Some(one.iov_base as usize),
            _ => None,
        };
        let plan = Plan::new(alignment, self.position, self.left, address).ok_or(Errno::OVERFLOW)?;
        let memory = |length: usize| (length > 0).then(|| Buf::uncleared(length).ok_or(Errno::NOMEM)).transpose();
        let (mut first, mut last) = (memory(plan.first)?, memory(plan.last)?);
        if direction == Direction::Write {
            first.as_deref_mut().map(|first| self.copy_to(first));
        }
        let skip = (self.position - plan.start) as usize;
        let mut blocks = Segments::none();
        let mut push = |buf: &mut Option<Buf>| buf.as_mut().map(|buf| blocks.push(buf.as_mut_ptr(), buf.len()));
        push(&mut first);
        if plan.middle > 0 {
            let moved = plan.first - skip;
            let from = address.map_or(std::ptr::null_mut(), |_| self.segments()[0].iov_base.cast::<u8>());
            blocks.push(from.wrapping_add(moved), plan.middle);
        }
        let mut push = |buf: &mut Option<Buf>| buf.as_mut().map(|buf| blocks.push(buf.as_mut_ptr(), buf.len()));
        push(&mut last);
        let segments = std::mem::replace(&mut self.segments, blocks);
        let (asked, before) = (self.left, self.done);
        self.edges =
            Some(Box::new(Edges { direction, first, middle: plan.middle, last, skip, asked, before, segments }));
        self.block = alignment.offset;
        self.position = plan.start;
        self.left = self.segments.len();
        self.done = 0;
        // Less, at the largest place that a file can have.
        Ok(self.left.saturating_sub(asked))
    }

    /// It ends, or is to be made ready anew: what was moved of the blocks goes to where it was asked for.
    fn settle(&mut self) {
        self.block = 0;
        let Some(edges) = self.edges.take() else { return };
        let Edges { direction, first, middle, last, skip, asked, before, segments } = *edges;
        let done = self.done.saturating_sub(skip).min(asked);
        self.position = self.position - self.done as u64 + skip as u64;
        self.segments = segments;
        (self.left, self.done) = (asked, before);
        if direction == Direction::Write {
            return self.advance(done);
        }
        let first = first.as_deref().unwrap_or_default();
        let (n, rest) = (first.len().saturating_sub(skip).min(done), last.as_deref().unwrap_or_default());
        self.fill(&first[skip.min(first.len())..][..n]);
        self.advance(n);
        let n = middle.min(done - n);
        self.advance(n);
        let n = done - (self.done - before);
        self.fill(&rest[..n]);
        self.advance(n);
    }

    /// Nothing more may come after a result that ends inside a block: the end of the file.
    fn ends_in_a_block(&self) -> bool {
        self.block != 0 && self.position % u64::from(self.block) != 0
    }

    /// The place of the first byte, and how many bytes were asked for.
    #[inline]
    pub(crate) fn asked(&self) -> (u64, usize) {
        (self.position - self.done as u64, self.done + self.left)
    }

    /// Gives the memory back. The segments point to where it was: this ends the transfer's use.
    #[inline]
    pub(crate) fn take_memory(&mut self) -> Memory {
        self.segments = Segments::none();
        std::mem::replace(&mut self.memory, Memory::None)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Read,
    Write,
}

/// What an engine is to do with a slot after a result for it arrived.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Give the rest to the kernel.
    Again,
    /// Call `finish`.
    Finish(Result<(), Errno>),
}

/// Takes one transfer result (a byte count or an errno) into account. Short transfers and interruptions are dealt with
/// here and nowhere else: only a result of zero bytes, from a call that was allowed to wait, is the end of the file. (Of direct I/O also
/// one that ends inside a block.)
pub(crate) fn step(transfer: &mut Transfer, result: Result<usize, Errno>) -> Step {
    let end = match result {
        Ok(0) => Ok(()),
        Ok(n) => {
            transfer.advance(n);
            if transfer.left() > 0 && !transfer.ends_in_a_block() {
                return Step::Again;
            }
            Ok(())
        }
        Err(Errno::INTR) => return Step::Again,
        Err(errno) => Err(errno),
    };
    transfer.settle();
    Step::Finish(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_results_go_round_and_only_zero_ends_early() {
        let mut transfer = Transfer::new(Memory::Vec(vec![0; 8]), 0);
        assert_eq!(step(&mut transfer, Ok(3)), Step::Again);
        assert_eq!(step(&mut transfer, Err(Errno::INTR)), Step::Again);
        assert_eq!(step(&mut transfer, Ok(4)), Step::Again);
        assert_eq!(step(&mut transfer, Ok(0)), Step::Finish(Ok(())));
        assert_eq!((transfer.done(), transfer.left(), transfer.position()), (7, 1, 7));
        assert_eq!(step(&mut transfer, Ok(100)), Step::Finish(Ok(())), "more than asked for stays inside the buffer");
    }
}
