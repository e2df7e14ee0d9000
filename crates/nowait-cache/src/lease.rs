//! Bytes of a file that stay in place while they are used.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

use nowait::Buf;

use crate::shared::Pin;

/// Bytes of a file, in the cache's memory.
///
/// The bytes neither change nor move until the lease is dropped, also if the file is
/// [invalidated](crate::CachedFile::invalidate) or the cache is dropped. A lease of one page pins the
/// page: the cache cannot use its frame for another page meanwhile. A clone pins it again, and costs as
/// much as a hit. A lease of several pages is a copy, which pins nothing and shares its memory with its
/// clones.
///
/// A lease can be dropped on any thread. Leaking it (`std::mem::forget`) leaks its frame.
///
/// In a forked child, leases of the parent must not be read: the cache's memory does not exist there,
/// and the system ends the process (SIGSEGV).
#[derive(Clone)]
pub struct Lease {
    hold: Hold,
    start: usize,
    end: usize,
}

#[derive(Clone)]
enum Hold {
    Page(Pin),
    Copy(Arc<Buf>),
}

impl Lease {
    /// A range of a pinned page, within its length.
    #[inline]
    pub(crate) fn page(pin: Pin, range: Range<usize>) -> Lease {
        Lease { hold: Hold::Page(pin), start: range.start, end: range.end }
    }

    pub(crate) fn copy(buffer: Arc<Buf>, range: Range<usize>) -> Lease {
        Lease { hold: Hold::Copy(buffer), start: range.start, end: range.end }
    }

    /// True if the lease is a copy: it pins no page.
    pub fn is_copy(&self) -> bool {
        matches!(self.hold, Hold::Copy(_))
    }

    /// Returns a lease of a part.
    ///
    /// # Panics
    /// If the range is not within the lease.
    pub fn slice(&self, range: Range<usize>) -> Lease {
        let length = self.end - self.start;
        assert!(range.start <= range.end && range.end <= length, "{range:?} of a lease of {length} bytes");
        Lease { hold: self.hold.clone(), start: self.start + range.start, end: self.start + range.end }
    }
}

impl Deref for Lease {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.hold {
            Hold::Page(pin) => &pin.bytes()[self.start..self.end],
            Hold::Copy(buffer) => &buffer[self.start..self.end],
        }
    }
}

impl AsRef<[u8]> for Lease {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

/// The bytes of the lease, without a copy.
#[cfg(feature = "bytes")]
impl From<Lease> for bytes::Bytes {
    fn from(lease: Lease) -> bytes::Bytes {
        bytes::Bytes::from_owner(lease)
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("len", &(self.end - self.start)).field("is_copy", &self.is_copy()).finish()
    }
}
