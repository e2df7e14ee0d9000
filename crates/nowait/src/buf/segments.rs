//! Segments of memory, as the kernel takes them.

/// The segments of a transfer: one (nearly always) without an allocation, or many. Empty ones are
/// left out.
#[derive(Debug)]
pub(crate) enum Segments {
    One([libc::iovec; 1]),
    /// Behind a pointer, so that the usual case is small: operations are moved about.
    Many(Box<Many>),
}

#[derive(Debug)]
pub(crate) struct Many {
    all: Vec<libc::iovec>,
    first: usize,
}

impl Segments {
    #[inline]
    pub(crate) fn none() -> Segments {
        Segments::one(std::ptr::null_mut(), 0)
    }

    #[inline]
    pub(crate) fn one(start: *mut u8, len: usize) -> Segments {
        Segments::One([libc::iovec { iov_base: start.cast(), iov_len: len }])
    }

    #[inline]
    pub(crate) fn push(&mut self, start: *mut u8, len: usize) {
        if len == 0 {
            return;
        }
        let new = libc::iovec { iov_base: start.cast(), iov_len: len };
        match self {
            Segments::One([only]) if only.iov_len == 0 => *only = new,
            Segments::One([only]) => {
                *self = Segments::Many(Box::new(Many { all: vec![*only, new], first: 0 }));
            }
            Segments::Many(many) => many.all.push(new),
        }
    }

    /// The segments left to fill.
    #[inline]
    pub(crate) fn rest(&self) -> &[libc::iovec] {
        match self {
            Segments::One(one) => one,
            Segments::Many(many) => &many.all[many.first..],
        }
    }

    /// Number of bytes left to fill.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.rest().iter().map(|segment| segment.iov_len).sum()
    }

    /// The first `n` bytes of what is left.
    pub(crate) fn first(&self, mut n: usize) -> Vec<libc::iovec> {
        let mut first = Vec::new();
        for segment in self.rest() {
            let length = n.min(segment.iov_len);
            if length > 0 {
                first.push(libc::iovec { iov_base: segment.iov_base, iov_len: length });
            }
            n -= length;
        }
        first
    }

    /// Leaves out the first `n` bytes of what is left.
    #[inline]
    pub(crate) fn advance(&mut self, mut n: usize) {
        let shorten = |segment: &mut libc::iovec, by: usize| {
            segment.iov_base = segment.iov_base.cast::<u8>().wrapping_add(by).cast();
            segment.iov_len -= by;
        };
        match self {
            Segments::One([only]) => shorten(only, n),
            Segments::Many(many) => {
                let Many { all, first } = &mut **many;
                while *first + 1 < all.len() && n >= all[*first].iov_len {
                    n -= all[*first].iov_len;
                    *first += 1;
                }
                shorten(&mut all[*first], n);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lens(segments: &Segments) -> Vec<usize> {
        segments.rest().iter().map(|segment| segment.iov_len).collect()
    }

    #[test]
    fn segments_advance_across_borders_and_skip_empty_parts() {
        let mut bytes = [0u8; 10];
        let start = bytes.as_mut_ptr();
        let mut segments = Segments::none();
        segments.push(start, 3);
        segments.push(start, 0);
        segments.push(start.wrapping_add(3), 3);
        segments.push(start.wrapping_add(6), 4);
        assert_eq!(lens(&segments), [3, 3, 4]);
        segments.advance(3);
        assert_eq!(lens(&segments), [3, 4]);
        segments.advance(4);
        assert_eq!(lens(&segments), [3]);
        assert_eq!(segments.rest()[0].iov_base as usize, start as usize + 7);
        segments.advance(3);
        assert_eq!(segments.len(), 0);
    }
}
