//! A buffer for runtimes that own buffers while a read is in flight: a vector, of which a
//! page-aligned part is used. So direct I/O has its alignment, and no buffer trait, which needs
//! `unsafe`, is implemented.

use std::ops::Range;

const ALIGN: usize = 4096;

pub(super) struct Aligned {
    pub memory: Vec<u8>,
    start: usize,
}

impl Aligned {
    /// Makes a touched, page-aligned buffer.
    pub(super) fn new(len: usize) -> Self {
        let memory = vec![0xa5; len + ALIGN];
        let start = memory.as_ptr().align_offset(ALIGN);
        Self { memory, start }
    }

    /// Restores the buffer from the memory that the runtime returned.
    pub(super) fn returned(memory: Vec<u8>, range: Range<usize>) -> Self {
        Self { memory, start: range.start }
    }

    /// Returns the range of the first `len` bytes in the vector.
    pub(super) fn range(&self, len: usize) -> Range<usize> {
        self.start..self.start + len
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.memory[self.start..]
    }
}
