//! How far bytes on their way between a file and memory have come.
//!
//! `unsafe` here: filling segments, and copying from them.

use super::segments::Segments;

/// Bytes still to move: their place in the file, and their memory.
#[derive(Debug)]
pub(crate) struct Cursor {
    pub(crate) segments: Segments,
    /// The next byte's place in the file.
    pub(crate) position: u64,
    /// Bytes still to come.
    pub(crate) left: usize,
    /// Bytes that have arrived.
    pub(crate) done: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Read,
    Write,
}

impl Cursor {
    #[inline]
    pub(crate) fn new(segments: Segments, position: u64) -> Cursor {
        let left = segments.len();
        Cursor { segments, position, left, done: 0 }
    }

    /// Notes that `n` bytes have arrived.
    #[inline]
    pub(crate) fn advance(&mut self, n: usize) {
        // A kernel that reports more than it was asked for must not lead us past the buffer.
        let n = n.min(self.left);
        self.segments.advance(n);
        self.position += n as u64;
        self.left -= n;
        self.done += n;
    }

    /// Copies the first bytes of `bytes` into the segments, as a kernel would; returns how many.
    pub(crate) fn fill(&mut self, bytes: &[u8]) -> usize {
        let n = bytes.len().min(self.left);
        let mut rest = &bytes[..n];
        for segment in self.segments.rest() {
            let (now, later) = rest.split_at(rest.len().min(segment.iov_len));
            // SAFETY: a segment is writable memory of its length that only the transfer's party
            // uses (see `Transfer`), and `now` is borrowed from elsewhere, so that they do not
            // overlap.
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
                // SAFETY: a segment is initialised memory of its length that is not written to
                // meanwhile (see `Transfer`).
                let bytes = unsafe { std::slice::from_raw_parts(segment.iov_base.cast(), length) };
                out[done..done + length].copy_from_slice(bytes);
            }
            done += length;
        }
        done
    }
}
