//! Bytes of a file that stay in place while they are used.
//!
//! `unsafe` here: a pointer to bytes that a pin or a buffer keeps in place.

use std::fmt;
use std::ops::{Deref, Range};
use std::ptr::NonNull;
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
    start: NonNull<u8>,
    length: usize,
    hold: Hold,
}

#[derive(Clone)]
enum Hold {
    Page(#[expect(dead_code, reason = "held")] Pin),
    Copy(#[expect(dead_code, reason = "held")] Arc<Buf>),
}

// SAFETY: the bytes do not change while the lease exists, whichever threads read them; `Hold` is `Send` and
// `Sync`, as the bound checks.
unsafe impl Send for Lease where Hold: Send + Sync {}
// SAFETY: as above.
unsafe impl Sync for Lease where Hold: Send + Sync {}

impl Lease {
    /// A range of a pinned page; `None` if the page is shorter.
    #[inline]
    pub(crate) fn page(pin: Pin, range: Range<usize>) -> Option<Lease> {
        let bytes = pin.bytes().get(range)?;
        let (start, length) = (NonNull::from(bytes).cast(), bytes.len());
        Some(Lease { start, length, hold: Hold::Page(pin) })
    }

    /// A range of a buffer.
    pub(crate) fn copy(buffer: &Arc<Buf>, range: Range<usize>) -> Lease {
        let bytes = &buffer[range];
        Lease { start: NonNull::from(bytes).cast(), length: bytes.len(), hold: Hold::Copy(buffer.clone()) }
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
        let bytes = &self[range];
        Lease { start: NonNull::from(bytes).cast(), length: bytes.len(), hold: self.hold.clone() }
    }
}

impl Deref for Lease {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: bytes of a pinned page, or of a buffer that nothing changes; the pin and the buffer keep them
        // in place until the lease is dropped.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
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
        f.debug_struct("Lease").field("len", &self.length).field("is_copy", &self.is_copy()).finish()
    }
}
