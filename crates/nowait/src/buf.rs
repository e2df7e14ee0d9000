//! Memory that the kernel may write to: the library's own aligned, pooled [`Buf`], and the buffers that callers bring.
//!
//! Whatever it is, it moves into the operation and stays there until the completion arrives ([`Memory`]). A buffer's
//! bytes are on the heap, so that moving its owner does not move them.
//!
//! `unsafe` here: allocation, and slices over bytes that a read has filled.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

/// Alignment of every [`Buf`]: a page, which is enough for direct I/O on every device met so far.
pub const BUF_ALIGNMENT: usize = 4096;

/// The smallest and the largest capacity that the pool keeps; between them, powers of two.
const CLASS_MIN: usize = 4096;
const CLASS_MAX: usize = 1 << 20;
const CLASSES: usize = (CLASS_MAX / CLASS_MIN).ilog2() as usize + 1;
/// What each class may hold back, in bytes. The pool's memory is bounded by this times the number of classes.
const CLASS_BYTES_MAX: usize = 4 << 20;

/// An owned, page-aligned buffer. Comes from a small pool and goes back there when dropped.
///
/// It dereferences to its `len()` bytes. Memory is not cleared between uses, and only bytes that a read filled (or that
/// [`Buf::zeroed`] cleared) can be seen.
pub struct Buf {
    start: NonNull<u8>,
    capacity: usize,
    /// Bytes from `start` that are initialised and visible.
    len: usize,
}

// SAFETY: a `Buf` owns its memory alone, like a `Vec<u8>`.
unsafe impl Send for Buf {}
// SAFETY: as above; shared access only reads.
unsafe impl Sync for Buf {}

impl Buf {
    /// A buffer of `len` zero bytes.
    pub fn zeroed(len: usize) -> Buf {
        let mut buf = Buf::with_capacity(len);
        // SAFETY: the memory is `capacity >= len` bytes and ours alone.
        unsafe { buf.start.write_bytes(0, len) };
        buf.len = len;
        buf
    }

    /// An empty buffer with room for at least `capacity` bytes, page-aligned.
    pub(crate) fn with_capacity(capacity: usize) -> Buf {
        let capacity = round_up(capacity);
        if let Some(buf) = class_of(capacity).and_then(|class| pool(class).pop()) {
            return buf;
        }
        let layout = layout(capacity);
        // SAFETY: the layout is not of size zero, since `round_up` gives at least a page.
        let Some(start) = NonNull::new(unsafe { alloc(layout) }) else { handle_alloc_error(layout) };
        Buf { start, capacity, len: 0 }
    }

    /// Number of bytes it can hold without being replaced.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Shortens the buffer to its first `len` bytes; does nothing when it is shorter already.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// The start of the memory, for a read to fill.
    pub(crate) fn spare(&mut self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Sets the visible length.
    ///
    /// # Safety
    /// The first `len <= capacity` bytes were initialised.
    pub(crate) unsafe fn set_len(&mut self, len: usize) {
        debug_assert!(len <= self.capacity);
        self.len = len;
    }
}

fn round_up(capacity: usize) -> usize {
    let pages = capacity.max(1).next_multiple_of(BUF_ALIGNMENT);
    if pages <= CLASS_MAX { pages.next_power_of_two() } else { pages }
}

fn layout(capacity: usize) -> Layout {
    match Layout::from_size_align(capacity, BUF_ALIGNMENT) {
        Ok(layout) => layout,
        Err(_) => panic!("a buffer of {capacity} bytes is larger than the address space"),
    }
}

fn class_of(capacity: usize) -> Option<usize> {
    (capacity.is_power_of_two() && (CLASS_MIN..=CLASS_MAX).contains(&capacity))
        .then(|| (capacity / CLASS_MIN).ilog2() as usize)
}

/// One class's idle buffers. A plain lock: held for a push or a pop.
fn pool(class: usize) -> std::sync::MutexGuard<'static, Vec<Buf>> {
    static POOL: [Mutex<Vec<Buf>>; CLASSES] = [const { Mutex::new(Vec::new()) }; CLASSES];
    lock(&POOL[class])
}

/// Locks, whatever happened to an earlier holder: every critical section of this crate leaves its data whole at each step
/// at which it can panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Drop for Buf {
    fn drop(&mut self) {
        if let Some(class) = class_of(self.capacity) {
            let mut idle = pool(class);
            if (idle.len() + 1) * self.capacity <= CLASS_BYTES_MAX {
                idle.push(Buf { start: self.start, capacity: self.capacity, len: 0 });
                return;
            }
        }
        // SAFETY: allocated in `with_capacity` with this layout, and not handed to the pool.
        unsafe { dealloc(self.start.as_ptr(), layout(self.capacity)) };
    }
}

impl Deref for Buf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the first `len` bytes are initialised (invariant of the field).
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for Buf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buf").field("len", &self.len).field("capacity", &self.capacity).finish()
    }
}

/// Memory that an operation owns while it runs. The public ways in and out are [`ReadBuffer`] and the methods of `File`.
#[derive(Debug)]
pub(crate) enum Memory {
    None,
    Vec(Vec<u8>),
    Buf(Buf),
    #[cfg(feature = "bytes")]
    BytesMut(bytes::BytesMut),
    Many(Vec<Memory>),
    /// Kept alive only: the segments of a lent transfer point into it.
    Shared(Arc<dyn std::any::Any + Send + Sync>),
}

impl Memory {
    /// Appends the writable segments. The pointers stay valid while this `Memory` lives, wherever it is moved.
    pub(crate) fn segments(&mut self, out: &mut Segments) {
        match self {
            Memory::None | Memory::Shared(_) => {}
            Memory::Vec(vec) => out.push(vec.as_mut_ptr(), vec.len()),
            Memory::Buf(buf) => out.push(buf.start.as_ptr(), buf.len),
            #[cfg(feature = "bytes")]
            Memory::BytesMut(bytes) => out.push(bytes.as_mut_ptr(), bytes.len()),
            Memory::Many(many) => many.iter_mut().for_each(|memory| memory.segments(out)),
        }
    }
}

/// Where the bytes go: one segment (nearly always) without an allocation, or many. Empty segments are left out.
#[derive(Debug)]
pub(crate) enum Segments {
    One([libc::iovec; 1]),
    Many { all: Vec<libc::iovec>, first: usize },
}

impl Segments {
    pub(crate) fn none() -> Segments {
        Segments::one(std::ptr::null_mut(), 0)
    }

    pub(crate) fn one(start: *mut u8, len: usize) -> Segments {
        Segments::One([libc::iovec { iov_base: start.cast(), iov_len: len }])
    }

    pub(crate) fn push(&mut self, start: *mut u8, len: usize) {
        if len == 0 {
            return;
        }
        let new = libc::iovec { iov_base: start.cast(), iov_len: len };
        match self {
            Segments::One([only]) if only.iov_len == 0 => *only = new,
            Segments::One([only]) => *self = Segments::Many { all: vec![*only, new], first: 0 },
            Segments::Many { all, .. } => all.push(new),
        }
    }

    /// What is left to fill.
    pub(crate) fn rest(&self) -> &[libc::iovec] {
        match self {
            Segments::One(one) => one,
            Segments::Many { all, first } => &all[*first..],
        }
    }

    /// Number of bytes left to fill.
    pub(crate) fn len(&self) -> usize {
        self.rest().iter().map(|segment| segment.iov_len).sum()
    }

    /// Leaves out the first `n` bytes of what is left.
    pub(crate) fn advance(&mut self, mut n: usize) {
        let shorten = |segment: &mut libc::iovec, by: usize| {
            segment.iov_base = segment.iov_base.cast::<u8>().wrapping_add(by).cast();
            segment.iov_len -= by;
        };
        match self {
            Segments::One([only]) => shorten(only, n),
            Segments::Many { all, first } => {
                while *first + 1 < all.len() && n >= all[*first].iov_len {
                    n -= all[*first].iov_len;
                    *first += 1;
                }
                shorten(&mut all[*first], n);
            }
        }
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A buffer that a read can be given and that comes back with the result: `Vec<u8>`, `Box<[u8]>`, [`Buf`], and
/// `bytes::BytesMut` with the `bytes` feature.
///
/// A read fills the first bytes of `buffer[..buffer.len()]`, as std's positioned reads do; spare capacity is not used
/// and the length never changes. To read without clearing memory first use `File::read_exact_at`.
pub trait ReadBuffer: sealed::Sealed + Send + Sized + 'static {
    #[doc(hidden)]
    fn into_memory(self) -> Erased;
    #[doc(hidden)]
    fn from_memory(memory: Erased) -> Self;
}

/// A buffer whose type is put aside while an operation owns it.
#[doc(hidden)]
#[derive(Debug)]
pub struct Erased(pub(crate) Memory);

macro_rules! read_buffer {
    ($type:ty, $variant:ident, $into:expr, $back:expr) => {
        impl sealed::Sealed for $type {}
        impl ReadBuffer for $type {
            fn into_memory(self) -> Erased {
                Erased(Memory::$variant($into(self)))
            }
            fn from_memory(memory: Erased) -> Self {
                match memory.0 {
                    Memory::$variant(buffer) => $back(buffer),
                    other => unreachable!("an operation gives back the memory it was given, not {other:?}"),
                }
            }
        }
    };
}

read_buffer!(Vec<u8>, Vec, std::convert::identity, std::convert::identity);
// As a `Vec`: a `Box` may not be moved while a pointer into it is in use, a `Vec` may. Neither way allocates.
read_buffer!(Box<[u8]>, Vec, <[u8]>::into_vec, Vec::into_boxed_slice);
read_buffer!(Buf, Buf, std::convert::identity, std::convert::identity);
#[cfg(feature = "bytes")]
read_buffer!(bytes::BytesMut, BytesMut, std::convert::identity, std::convert::identity);

#[cfg(test)]
mod tests {
    use super::*;

    fn lens(segments: &Segments) -> Vec<usize> {
        segments.rest().iter().map(|segment| segment.iov_len).collect()
    }

    #[test]
    fn buf_is_aligned_pooled_and_never_shows_what_was_not_filled() {
        let mut buf = Buf::zeroed(5000);
        assert_eq!(buf.start.as_ptr() as usize % BUF_ALIGNMENT, 0);
        assert_eq!(buf.capacity(), 8192);
        buf.fill(7);
        drop(buf);
        let again = Buf::with_capacity(5000);
        assert!(again.is_empty());
        assert_eq!(Buf::zeroed(3 << 20).len(), 3 << 20);
        assert_eq!(Buf::zeroed(0).len(), 0);
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

    #[test]
    fn every_buffer_type_comes_back_as_itself() {
        fn round_trip<B: ReadBuffer + AsRef<[u8]>>(buffer: B) {
            let len = buffer.as_ref().len();
            let mut memory = buffer.into_memory();
            let mut segments = Segments::none();
            memory.0.segments(&mut segments);
            assert_eq!(segments.len(), len);
            assert_eq!(B::from_memory(memory).as_ref().len(), len);
        }
        round_trip(vec![0u8; 10]);
        round_trip(vec![0u8; 10].into_boxed_slice());
        round_trip(Buf::zeroed(10));
        round_trip(Vec::new());
        #[cfg(feature = "bytes")]
        round_trip(bytes::BytesMut::zeroed(10));
    }
}
