//! Bytes on their way between a file and memory, and the effect of one result of the kernel on
//! them.
//!
//! `unsafe` here: raw segments that are sent between threads, and transfers over memory that the
//! caller lends.

use crate::buf::{Direction, Memory, TransferCursor};
use crate::direct::{Alignment, Edges};
use crate::sys::{Errno, IoVec};

/// Bytes on their way between a file and memory.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub(super) memory: Memory,
    cursor: TransferCursor,
    /// The bytes were announced to the kernel, which has begun to read them.
    pub(crate) announced: bool,
    /// A ring returns EAGAIN instead of passing the request to a kernel worker.
    pub(crate) attempt: bool,
    /// Block size in bytes of a transfer prepared for direct I/O; otherwise zero.
    block: u32,
    /// It moves whole blocks, some of them in memory of ours: the cursor is theirs until it ends.
    edges: Option<Box<Edges>>,
}

// SAFETY: the segments point into `memory`, which is owned and `Send`, or into a slice that is
// borrowed as long as the transfer is used (`lent`). A transfer is used by one party at a time: its
// future before submission, then its engine.
unsafe impl Send for Transfer {}
// SAFETY: its parts are `Sync`, except for the segments. Through a shared reference their bytes are
// only read (`copy_to`), and an engine has the transfer to itself.
unsafe impl Sync for Transfer {}

impl Transfer {
    /// Fills `memory` from `offset`, or writes it there.
    #[inline]
    pub(crate) fn new(mut memory: Memory, offset: u64) -> Transfer {
        let mut cursor = TransferCursor::at(offset);
        memory.segments(&mut cursor);
        Transfer { memory, cursor, announced: false, attempt: false, block: 0, edges: None }
    }

    /// Fills a borrowed slice.
    ///
    /// # Safety
    /// The transfer is not used after the borrow of `slice` has ended; so it is not given to a
    /// slot.
    pub(crate) unsafe fn lent(slice: &mut [u8], offset: u64) -> Transfer {
        let mut transfer = Transfer::new(Memory::None, offset);
        transfer.cursor.push(slice.as_mut_ptr(), slice.len());
        transfer
    }

    /// Writes a borrowed slice.
    ///
    /// # Safety
    /// As for [`Transfer::lent`]; and it is only written from.
    pub(crate) unsafe fn lent_out(slice: &[u8], offset: u64) -> Transfer {
        let mut transfer = Transfer::new(Memory::None, offset);
        transfer.cursor.push(slice.as_ptr().cast_mut(), slice.len());
        transfer
    }

    /// A transfer without memory: there was none to allocate.
    pub(crate) fn void(offset: u64, length: usize) -> Transfer {
        let mut transfer = Transfer::new(Memory::None, offset);
        transfer.cursor.left = length;
        transfer
    }

    #[inline]
    pub(crate) fn segments(&self) -> &[IoVec] {
        self.cursor.segments()
    }

    pub(crate) fn position(&self) -> u64 {
        self.cursor.position
    }

    /// Bytes still to come.
    pub(crate) fn left(&self) -> usize {
        self.cursor.left
    }

    /// True if copying the rest takes long, compared to a system call.
    pub(crate) fn is_long(&self) -> bool {
        const LONG_BYTES: usize = 64 << 10;
        self.left() >= LONG_BYTES
    }

    /// Bytes that have arrived.
    pub(crate) fn done(&self) -> usize {
        self.cursor.done
    }

    /// Notes that `n` bytes have arrived.
    #[inline]
    pub(crate) fn advance(&mut self, n: usize) {
        self.cursor.advance(n);
    }

    /// Copies the first bytes of `bytes` to where they belong, as a kernel would; returns how many.
    #[cfg(feature = "sim")]
    pub(crate) fn fill(&mut self, bytes: &[u8]) -> usize {
        self.cursor.fill(bytes)
    }

    /// Copies the next bytes to `out`, as a kernel would take them; returns how many.
    pub(crate) fn copy_to(&self, out: &mut [u8]) -> usize {
        self.cursor.copy_to(out)
    }

    /// The next `n` bytes.
    pub(crate) fn first(&self, n: usize) -> Vec<IoVec> {
        self.cursor.first(n)
    }

    /// Whether a write is of whole blocks, or has been made ready.
    pub(crate) fn is_ready_for(&self, alignment: Alignment) -> bool {
        self.block != 0 || alignment.suits_place(self.position(), self.left())
    }

    /// Makes it ready for direct I/O: whole blocks, to or from memory that lies as the device needs
    /// it. A write has to be of whole blocks already. Returns the bytes that it moves beyond those
    /// asked for.
    pub(crate) fn align(&mut self, alignment: Alignment, direction: Direction) -> Result<usize, Errno> {
        let mut more = 0;
        if self.block != 0 || self.left() == 0 {
            return Ok(more);
        }
        if !alignment.suits(self.position(), self.segments()) {
            let edges = Edges::widen(&mut self.cursor, alignment, direction)?;
            more = edges.more(&self.cursor);
            self.edges = Some(Box::new(edges));
        }
        self.block = alignment.offset;
        Ok(more)
    }

    /// Ends direct I/O, for good or until it is made ready anew: what was moved of the blocks goes
    /// to where it was asked for.
    fn settle(&mut self) {
        self.block = 0;
        if let Some(edges) = self.edges.take() {
            edges.settle(&mut self.cursor);
        }
    }

    /// True if the result ended inside a block. This shows the end of the file: no data follow.
    fn ends_in_a_block(&self) -> bool {
        self.block != 0 && self.position() % u64::from(self.block) != 0
    }

    /// The place of the first byte, and how many bytes were asked for.
    #[inline]
    pub(crate) fn asked(&self) -> (u64, usize) {
        let TransferCursor { position, left, done, .. } = self.cursor;
        (position - done as u64, done + left)
    }

    /// Gives the memory back. The segments point to where it was: this ends the transfer's use.
    #[inline]
    pub(crate) fn take_memory(&mut self) -> Memory {
        self.cursor.clear();
        std::mem::replace(&mut self.memory, Memory::None)
    }
}

/// An engine's next step with a slot after a result.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NextStep {
    /// Give the rest to the kernel.
    Again,
    /// Call `finish`.
    Finish(Result<(), Errno>),
}

/// Takes one transfer result (a byte count or an errno) into account. Short transfers and
/// interruptions are handled here and nowhere else: only a result of zero bytes, from a call that
/// was allowed to wait, is the end of the file. (For direct I/O, also one that ends inside a
/// block.)
#[inline]
pub(crate) fn step(transfer: &mut Transfer, result: Result<usize, Errno>) -> NextStep {
    let end = match result {
        Ok(0) => Ok(()),
        Ok(n) => {
            transfer.advance(n);
            if transfer.left() > 0 && !transfer.ends_in_a_block() {
                return NextStep::Again;
            }
            Ok(())
        }
        Err(Errno::INTR) => return NextStep::Again,
        Err(errno) => Err(errno),
    };
    transfer.settle();
    NextStep::Finish(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_results_go_round_and_only_zero_ends_early() {
        let mut transfer = Transfer::new(Memory::Vec(vec![0; 8]), 0);
        assert_eq!(step(&mut transfer, Ok(3)), NextStep::Again);
        assert_eq!(step(&mut transfer, Err(Errno::INTR)), NextStep::Again);
        assert_eq!(step(&mut transfer, Ok(4)), NextStep::Again);
        assert_eq!(step(&mut transfer, Ok(0)), NextStep::Finish(Ok(())));
        assert_eq!((transfer.done(), transfer.left(), transfer.position()), (7, 1, 7));
        assert_eq!(
            step(&mut transfer, Ok(100)),
            NextStep::Finish(Ok(())),
            "more than asked for stays inside the buffer"
        );
    }
}
