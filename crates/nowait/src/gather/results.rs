//! The result of a gather: its buffer, and which ranges are incomplete.

use std::ops::Range;

use crate::buf::Buf;
use crate::error::Error;

/// Incomplete ranges of a gather; usually none.
#[derive(Clone, Debug, Default)]
pub struct Exceptions {
    pub(super) short: Vec<(usize, usize)>,
    pub(super) errors: Vec<Error>,
}

impl Exceptions {
    /// By index, which `length` relies on.
    pub(super) fn sorted(mut self) -> Self {
        self.short.sort_unstable();
        self.errors.sort_by_key(Error::range_index);
        self
    }

    /// Returns true if every range is complete.
    pub fn is_empty(&self) -> bool {
        self.short.is_empty() && self.errors.is_empty()
    }

    /// Returns the ranges that the end of the file cut short, as pairs of index and bytes read,
    /// sorted by index.
    pub fn short(&self) -> &[(usize, usize)] {
        &self.short
    }

    /// Returns the errors of failed ranges, sorted by [`range_index`](Error::range_index).
    pub fn errors(&self) -> &[Error] {
        &self.errors
    }

    /// Returns the number of bytes read of range `index`, whose length is `length`.
    ///
    /// # Errors
    /// The range's own.
    pub fn length(&self, index: usize, length: usize) -> std::result::Result<usize, &Error> {
        if let Ok(at) = self.errors.binary_search_by_key(&Some(index), Error::range_index) {
            return Err(&self.errors[at]);
        }
        match self.short.binary_search_by_key(&index, |short| short.0) {
            Ok(at) => Ok(self.short[at].1),
            Err(_) => Ok(length),
        }
    }
}

/// Result of a gather: one buffer with the ranges in the caller's order.
#[derive(Debug)]
pub struct Gathered<B = Buf> {
    pub(super) ends: Vec<usize>,
    pub(super) exceptions: Exceptions,
    pub(super) buffer: B,
}

impl<B: AsRef<[u8]>> Gathered<B> {
    /// Returns the number of ranges.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns true if there are no ranges.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns the position of range `index` in the buffer, at its requested length.
    ///
    /// # Panics
    /// When there is no such range.
    pub fn span(&self, index: usize) -> Range<usize> {
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        start..self.ends[index]
    }

    /// Returns the bytes of range `index`; fewer than requested if the file ends inside it.
    ///
    /// # Errors
    /// The range's own.
    ///
    /// # Panics
    /// When there is no such range.
    pub fn get(&self, index: usize) -> std::result::Result<&[u8], &Error> {
        let span = self.span(index);
        let length = self.exceptions.length(index, span.len())?;
        Ok(&self.buffer.as_ref()[span.start..span.start + length])
    }

    /// Iterates over all ranges in the caller's order.
    pub fn iter(&self) -> impl Iterator<Item = std::result::Result<&[u8], &Error>> {
        (0..self.len()).map(|index| self.get(index))
    }

    /// Returns the errors of failed ranges, sorted by index.
    pub fn errors(&self) -> &[Error] {
        self.exceptions.errors()
    }

    /// Returns the incomplete ranges.
    pub fn exceptions(&self) -> &Exceptions {
        &self.exceptions
    }

    /// Returns the buffer, which contains all ranges one after the other. Bytes that were not read
    /// are zero.
    pub fn into_buffer(self) -> B {
        self.buffer
    }
}

#[cfg(feature = "bytes")]
impl Gathered<Buf> {
    /// Returns the ranges as `Bytes`, in the caller's order, without a copy. They share the buffer,
    /// which returns to its pool when the last one is dropped. If the file ends inside a range, its
    /// `Bytes` are shorter.
    ///
    /// # Errors
    /// The error of the first failed range.
    pub fn into_bytes(self) -> crate::error::Result<Vec<bytes::Bytes>> {
        let place = |index| self.get(index).map(|range| self.span(index).start..self.span(index).start + range.len());
        let places = (0..self.len()).map(place).collect::<std::result::Result<Vec<_>, _>>();
        let places = places.map_err(Error::clone)?;
        let all = bytes::Bytes::from(self.buffer);
        Ok(places.into_iter().map(|place| all.slice(place)).collect())
    }
}
