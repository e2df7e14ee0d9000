//! Bytes of a file that stay in place while they are used.
//!
//! `unsafe` here: a pointer that is a pin or a copy, and the bytes that it keeps in place.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, Range};
use std::ptr::NonNull;
use std::sync::Arc;

use nowait::Buf;

use crate::frame::Record;
use crate::shared::Pin;

/// Bytes of a file: a range of a pinned page, or of a copy.
///
/// The bytes neither change nor move until the lease is dropped, even if the file is
/// [invalidated](crate::CachedFile::invalidate) or the cache is dropped. A range within one page
/// pins the page: the cache cannot reuse its frame. A clone pins it again, and costs as much as a
/// hit. A longer range, and every range of a [gather](crate::CachedFile::gather), is a copy and
/// pins nothing. All leases of a gather share one buffer, which the last of them frees.
///
/// A lease can be dropped on any thread. Leaking it (`std::mem::forget`) leaks its frame.
///
/// In a forked child, an inherited lease reads zeros unless it is a copy.
pub struct Lease {
    /// The record of a pinned frame, or an `Arc<Copied>` marked by [`COPY`]. A lease is two words,
    /// so that it moves in registers. A larger one would move through memory, and wait there for
    /// the pin's atomics.
    hold: NonNull<()>,
    /// Start and length in the page, in the high and low half. Unused for a copy.
    range: u64,
}

/// Lowest bit of the address of a copy.
const COPY: usize = 1;

struct Copied {
    buffer: Arc<Buf>,
    range: Range<usize>,
}

// SAFETY: a lease is a `Pin` or an `Arc<Copied>`, which are `Send` and `Sync`, as the bound checks.
unsafe impl Send for Lease where (Pin, Arc<Copied>): Send + Sync {}
// SAFETY: as above.
unsafe impl Sync for Lease where (Pin, Arc<Copied>): Send + Sync {}

impl Lease {
    /// A range within a pinned page.
    #[inline(always)]
    pub(crate) fn page(pin: Pin, start: usize, length: usize) -> Lease {
        debug_assert!(start + length <= pin.len());
        let hold = pin.into_raw().cast::<()>();
        // SAFETY: records are aligned to 64 bytes. The compiler then omits the case of a copy where it
        // sees the whole life of a lease.
        unsafe { std::hint::assert_unchecked(hold.addr().get() & COPY == 0) };
        // The page has at most 1 MiB.
        Lease { hold, range: (start as u64) << 32 | length as u64 }
    }

    /// A range of a buffer.
    pub(crate) fn copy(buffer: &Arc<Buf>, range: Range<usize>) -> Lease {
        let copied = Arc::into_raw(Arc::new(Copied { buffer: buffer.clone(), range }));
        // SAFETY: `Arc::into_raw` never returns null.
        let hold = unsafe { NonNull::new_unchecked(copied.cast_mut().map_addr(|address| address | COPY)) };
        Lease { hold: hold.cast(), range: 0 }
    }

    /// True if the lease is a copy: it pins no page.
    #[inline]
    pub fn is_copy(&self) -> bool {
        self.hold.addr().get() & COPY != 0
    }

    fn copied(&self) -> *const Copied {
        self.hold.as_ptr().map_addr(|address| address & !COPY).cast()
    }

    /// Returns a lease of a part.
    ///
    /// # Panics
    /// If the range is not within the lease.
    pub fn slice(&self, range: Range<usize>) -> Lease {
        assert!(range.start <= range.end && range.end <= self.len(), "{range:?} of a lease of {} bytes", self.len());
        if self.is_copy() {
            // SAFETY: the lease holds the copy.
            let Copied { buffer, range: whole } = unsafe { &*self.copied() };
            return Lease::copy(buffer, whole.start + range.start..whole.start + range.end);
        }
        let start = (self.range >> 32) + range.start as u64;
        let lease = ManuallyDrop::new(self.clone());
        Lease { hold: lease.hold, range: start << 32 | range.len() as u64 }
    }
}

impl Clone for Lease {
    #[inline]
    fn clone(&self) -> Lease {
        if self.is_copy() {
            // SAFETY: from `Arc::into_raw`, and the lease holds it.
            unsafe { Arc::increment_strong_count(self.copied()) };
        } else {
            // SAFETY: the lease holds the pin, which stays in place.
            let pin = ManuallyDrop::new(unsafe { Pin::from_raw(self.hold.cast()) });
            let _ = Pin::clone(&pin).into_raw();
        }
        Lease { hold: self.hold, range: self.range }
    }
}

impl Drop for Lease {
    #[inline(always)]
    fn drop(&mut self) {
        if self.is_copy() {
            // SAFETY: from `Arc::into_raw`; the lease held one count.
            drop(unsafe { Arc::from_raw(self.copied()) });
        } else {
            // SAFETY: from `Pin::into_raw`, and taken over once.
            drop(unsafe { Pin::from_raw(self.hold.cast()) });
        }
    }
}

impl Deref for Lease {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        if self.is_copy() {
            // SAFETY: the lease holds the copy.
            let Copied { buffer, range } = unsafe { &*self.copied() };
            return &buffer[range.clone()];
        }
        // SAFETY: the record of a pinned frame.
        let record = unsafe { self.hold.cast::<Record>().as_ref() };
        let (start, length) = ((self.range >> 32) as usize, self.range as u32 as usize);
        // SAFETY: within the length of the page, as `page` and `slice` checked; the pin keeps its
        // bytes in place.
        unsafe { std::slice::from_raw_parts(record.start().as_ptr().add(start), length) }
    }
}

impl AsRef<[u8]> for Lease {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

// SAFETY: the bytes stay at their address until the lease and its clones are dropped, wherever the
// lease moves: they are in a pinned frame, or in a buffer behind an `Arc`.
#[cfg(feature = "stable-deref")]
unsafe impl stable_deref_trait::StableDeref for Lease {}

/// The bytes of the lease, without a copy.
#[cfg(feature = "bytes")]
impl From<Lease> for bytes::Bytes {
    fn from(lease: Lease) -> bytes::Bytes {
        bytes::Bytes::from_owner(lease)
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("len", &self.len()).field("is_copy", &self.is_copy()).finish()
    }
}
