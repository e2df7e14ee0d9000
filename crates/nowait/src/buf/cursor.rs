//! Bytes on their way between a file and memory: the memory that is left, as the kernel takes it,
//! and the place in the file.
//!
//! `unsafe` here: filling segments, and copying from them.

use crate::sys::IoVec;

/// Bytes still to move: their place in the file, and their memory.
#[derive(Debug)]
pub(crate) struct TransferCursor {
    segments: Segments,
    /// The next byte's place in the file.
    pub(crate) position: u64,
    /// Bytes still to come.
    pub(crate) left: usize,
    /// Bytes that have arrived.
    pub(crate) done: usize,
}

/// One segment (nearly always) without an allocation, or many. Empty ones are left out.
#[derive(Debug)]
enum Segments {
    One([IoVec; 1]),
    /// Behind a pointer, so that the usual case is small: operations are moved about.
    Scattered(Box<Scattered>),
}

#[derive(Debug)]
struct Scattered {
    all: Vec<IoVec>,
    first: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Read,
    Write,
}

impl TransferCursor {
    /// Makes a cursor without memory.
    #[inline]
    pub(crate) fn at(position: u64) -> TransferCursor {
        let none = IoVec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        TransferCursor { segments: Segments::One([none]), position, left: 0, done: 0 }
    }

    /// Adds a segment behind the others.
    #[inline]
    pub(crate) fn push(&mut self, start: *mut u8, len: usize) {
        if len == 0 {
            return;
        }
        self.left += len;
        let new = IoVec { iov_base: start.cast(), iov_len: len };
        match &mut self.segments {
            Segments::One([only]) if only.iov_len == 0 => *only = new,
            Segments::One([only]) => {
                self.segments = Segments::Scattered(Box::new(Scattered { all: vec![*only, new], first: 0 }));
            }
            Segments::Scattered(many) => many.all.push(new),
        }
    }

    /// The segments left to fill.
    #[inline]
    pub(crate) fn segments(&self) -> &[IoVec] {
        match &self.segments {
            Segments::One(one) => one,
            Segments::Scattered(many) => &many.all[many.first..],
        }
    }

    /// Forgets the segments: their memory goes elsewhere.
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.segments = TransferCursor::at(0).segments;
    }

    /// The first `n` bytes of what is left.
    pub(crate) fn first(&self, mut n: usize) -> Vec<IoVec> {
        let mut first = Vec::new();
        for segment in self.segments() {
            let length = n.min(segment.iov_len);
            if length > 0 {
                first.push(IoVec { iov_base: segment.iov_base, iov_len: length });
            }
            n -= length;
        }
        first
    }

    /// Notes that `n` bytes have arrived.
    #[inline]
    pub(crate) fn advance(&mut self, n: usize) {
        // A kernel that reports more than it was asked for must not lead us past the buffer.
        let mut n = n.min(self.left);
        self.position += n as u64;
        self.left -= n;
        self.done += n;
        let shorten = |segment: &mut IoVec, by: usize| {
            segment.iov_base = segment.iov_base.cast::<u8>().wrapping_add(by).cast();
            segment.iov_len -= by;
        };
        match &mut self.segments {
            Segments::One([only]) => shorten(only, n),
            Segments::Scattered(many) => {
                let Scattered { all, first } = &mut **many;
                while *first + 1 < all.len() && n >= all[*first].iov_len {
                    n -= all[*first].iov_len;
                    *first += 1;
                }
                shorten(&mut all[*first], n);
            }
        }
    }

    /// Copies the first bytes of `bytes` into the segments, as a kernel would; returns how many.
    pub(crate) fn fill(&mut self, bytes: &[u8]) -> usize {
        let n = bytes.len().min(self.left);
        let mut rest = &bytes[..n];
        for segment in self.segments() {
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
        for segment in self.segments() {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn lens(cursor: &TransferCursor) -> Vec<usize> {
        cursor.segments().iter().map(|segment| segment.iov_len).collect()
    }

    #[test]
    fn segments_advance_across_borders_and_skip_empty_parts() {
        let mut bytes = [0u8; 10];
        let start = bytes.as_mut_ptr();
        let mut cursor = TransferCursor::at(100);
        cursor.push(start, 3);
        cursor.push(start, 0);
        cursor.push(start.wrapping_add(3), 3);
        cursor.push(start.wrapping_add(6), 4);
        assert_eq!((lens(&cursor), cursor.left), (vec![3, 3, 4], 10));
        cursor.advance(3);
        assert_eq!(lens(&cursor), [3, 4]);
        cursor.advance(4);
        assert_eq!(lens(&cursor), [3]);
        assert_eq!(cursor.segments()[0].iov_base as usize, start as usize + 7);
        cursor.advance(3);
        assert_eq!((lens(&cursor), cursor.position, cursor.left, cursor.done), (vec![0], 110, 0, 10));
    }
}
