//! Memory that the kernel may read or write: the library's own aligned, pooled [`Buf`], the buffers that callers bring, and
//! [`Part`]s of one larger memory.
//!
//! Whatever it is, it moves into the operation and stays there until the completion arrives ([`Memory`]). A buffer's
//! bytes are on the heap, so that moving its owner does not move them. All of it is initialised at all times.
//!
//! `unsafe` here: allocation and mappings, and slices of memory that several parts share.

pub(crate) mod mapping;
mod vectored;

pub use vectored::{ReadBuffers, WriteBuffers};

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::convert::identity;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{NonNull, null_mut};
use std::sync::{Arc, Mutex};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::sys::PerProcess;

/// Alignment of every [`Buf`]: a page, which is enough for direct I/O on every device met so far.
pub const BUF_ALIGNMENT: usize = 4096;

/// The smallest and the largest capacity that the pool keeps; between them, powers of two.
const CLASS_MIN: usize = 4096;
const CLASS_MAX: usize = 1 << 20;
const CLASSES: usize = (CLASS_MAX / CLASS_MIN).ilog2() as usize + 1;
/// What each class may hold back, in bytes: of those in ordinary pages, and in huge ones. The pool's memory is bounded by the sum.
const CLASS_BYTES_MAX: usize = 4 << 20;
const HUGE_CLASS_BYTES_MAX: usize = 16 << 20;

/// Buffers from this capacity on are cut from memory that the kernel is asked to have in huge pages, [`HUGE_BYTES`] at a time. Its bytes
/// lie together for the device, too: a direct read of 1 MiB is a request of one piece and not of 256. On a virtio disk that is twice as
/// fast (docs/measurements/2026-11-22-huge-pages.md). Also the largest page size of a kernel, so that each can be given back by itself.
const HUGE_CLASS_MIN: usize = 64 << 10;
/// A huge page, on most machines. Where it is not, or there are none, this is memory as any other.
const HUGE_BYTES: usize = 2 << 20;

/// An owned, page-aligned buffer. Comes from a small pool and goes back there when dropped.
///
/// It dereferences to its `len()` bytes. Memory is not cleared between uses within a process; what a read did not fill
/// may hold bytes of an earlier one.
///
/// From 64 KiB on it is memory that the kernel is asked to have in huge pages (`madvise(2)`, `MADV_HUGEPAGE`), 2 MiB at a time, of which
/// buffers of one size share each: so the first one takes 2 MiB, where `transparent_hugepage/enabled` allows that. Direct
/// I/O is up to twice as fast with it, for half the processor time.
pub struct Buf {
    start: NonNull<u8>,
    /// All of it is initialised, since it was allocated cleared: a page fault costs the same, and no byte need be tracked.
    capacity: usize,
    len: usize,
}

// SAFETY: a `Buf` owns its memory alone, like a `Vec<u8>`.
unsafe impl Send for Buf {}
// SAFETY: as above; shared access only reads.
unsafe impl Sync for Buf {}

impl Buf {
    /// A buffer of `len` zero bytes.
    ///
    /// # Panics
    /// When the memory cannot be had.
    pub fn zeroed(len: usize) -> Buf {
        let Some(mut buf) = Buf::uncleared(len) else { panic!("no memory for a buffer of {len} bytes") };
        buf.fill(0);
        buf
    }

    /// A buffer of `len` bytes of whatever an earlier use left there. None when the memory cannot be had.
    pub(crate) fn uncleared(len: usize) -> Option<Buf> {
        let capacity = round_up(len)?;
        let pooled = class_of(capacity).and_then(|class| pool(class).pop());
        let mut buf = match pooled {
            Some(buf) => buf,
            None => Buf::new(capacity)?,
        };
        buf.len = len;
        Some(buf)
    }

    /// One that was not used before, without length.
    fn new(capacity: usize) -> Option<Buf> {
        let buf = |start| Buf { start, capacity, len: 0 };
        if !is_mapped(capacity) {
            let layout = layout(capacity)?;
            // SAFETY: the layout is not of size zero, since `round_up` gives at least a page.
            return Some(buf(NonNull::new(unsafe { alloc_zeroed(layout) })?));
        }
        let Some(class) = class_of(capacity) else { return map(capacity).map(buf) };
        let mut idle = pool(class);
        if let Some(buf) = idle.pop() {
            // Another thread has just cut some.
            return Some(buf);
        }
        let Some(start) = map(HUGE_BYTES) else { return map_plain(capacity).map(buf) };
        for piece in (1..HUGE_BYTES / capacity).rev() {
            // SAFETY: inside the mapping.
            idle.push(buf(unsafe { start.add(piece * capacity) }));
        }
        Some(buf(start))
    }

    /// Number of bytes of memory behind it.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Shortens the buffer to its first `len` bytes; does nothing when it is shorter already.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
}

fn round_up(capacity: usize) -> Option<usize> {
    let pages = capacity.max(1).checked_next_multiple_of(BUF_ALIGNMENT)?;
    match pages {
        pages if pages <= CLASS_MAX => Some(pages.next_power_of_two()),
        // A mapping is given back by whole pages of the kernel.
        pages if pages >= HUGE_BYTES => pages.checked_next_multiple_of(HUGE_CLASS_MIN),
        pages => Some(pages),
    }
}

fn layout(capacity: usize) -> Option<Layout> {
    Layout::from_size_align(capacity, BUF_ALIGNMENT).ok()
}

fn class_of(capacity: usize) -> Option<usize> {
    (capacity.is_power_of_two() && (CLASS_MIN..=CLASS_MAX).contains(&capacity))
        .then(|| (capacity / CLASS_MIN).ilog2() as usize)
}

/// Memory of its own, in huge pages if that can be, and not of the allocator.
fn is_mapped(capacity: usize) -> bool {
    (HUGE_CLASS_MIN..=CLASS_MAX).contains(&capacity) || capacity >= HUGE_BYTES
}

/// Zeros that begin where a huge page can.
fn map(bytes: usize) -> Option<NonNull<u8>> {
    let base = map_plain(bytes.checked_add(HUGE_BYTES)?)?.as_ptr();
    let before = base.align_offset(HUGE_BYTES);
    let start = base.wrapping_add(before);
    for (start, length) in [(base, before), (start.wrapping_add(bytes), HUGE_BYTES - before)] {
        if length > 0 {
            // SAFETY: a part of the mapping that nobody knows. One that stays costs addresses and no memory.
            let _ = unsafe { munmap(start.cast(), length) };
        }
    }
    // SAFETY: the mapping is ours, and its contents stay what they are. Refused by a kernel without huge pages.
    let _ = unsafe { madvise(start.cast(), bytes, Advice::LinuxHugepage) };
    NonNull::new(start)
}

/// Zeros that begin anywhere.
fn map_plain(bytes: usize) -> Option<NonNull<u8>> {
    // SAFETY: no address is asked for, so that nothing is replaced.
    let start = unsafe { mmap_anonymous(null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) };
    NonNull::new(start.ok()?.cast())
}

/// One class's idle buffers. A plain lock: held for a push or a pop.
fn pool(class: usize) -> std::sync::MutexGuard<'static, Vec<Buf>> {
    static POOL: PerProcess<[Mutex<Vec<Buf>>; CLASSES]> = PerProcess::new();
    lock(&POOL.get(|| [const { Mutex::new(Vec::new()) }; CLASSES])[class])
}

/// Runs code of a user (a waker, a callback, a buffer's destructor) on a thread that works for
/// others as well. Its panic ends here: the panic hook has reported it. The payload is leaked,
/// since its destructor could panic again.
pub(crate) fn contained(users: impl FnOnce()) {
    catch_unwind(AssertUnwindSafe(users)).unwrap_or_else(std::mem::forget);
}

/// Locks, whatever happened to an earlier holder: every critical section of this crate leaves its data whole at each step
/// at which it can panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Drop for Buf {
    fn drop(&mut self) {
        let mapped = is_mapped(self.capacity);
        if let Some(class) = class_of(self.capacity) {
            let mut idle = pool(class);
            let most = if mapped { HUGE_CLASS_BYTES_MAX } else { CLASS_BYTES_MAX };
            if (idle.len() + 1) * self.capacity <= most {
                idle.push(Buf { start: self.start, capacity: self.capacity, len: 0 });
                return;
            }
        }
        if mapped {
            let start = self.start.as_ptr().cast();
            // SAFETY: ours alone, and not used any more.
            if unsafe { munmap(start, self.capacity) }.is_err() {
                // The process has as many mappings as it may have, and a hole makes one more. The memory goes, the addresses stay.
                // SAFETY: as above.
                let _ = unsafe { madvise(start, self.capacity, Advice::LinuxDontNeed) };
            }
            return;
        }
        if let Some(layout) = layout(self.capacity).filter(|layout| layout.size() > 0) {
            // SAFETY: allocated in `uncleared` with this layout, and not handed to the pool.
            unsafe { dealloc(self.start.as_ptr(), layout) };
        }
    }
}

impl Deref for Buf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `len <= capacity` bytes, all initialised, ours alone.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

/// A copy of the bytes.
///
/// # Panics
/// When there is no memory for it, as for a `Vec`.
impl From<&[u8]> for Buf {
    fn from(bytes: &[u8]) -> Buf {
        let Some(mut buf) = Buf::uncleared(bytes.len()) else {
            panic!("no memory for a buffer of {} bytes", bytes.len())
        };
        buf.copy_from_slice(bytes);
        buf
    }
}

/// An empty buffer, without memory.
impl Default for Buf {
    fn default() -> Buf {
        Buf { start: NonNull::dangling(), capacity: 0, len: 0 }
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

/// A part of one memory that nobody else has: as a `Vec<u8>` that can be split, filled by different operations, and put
/// together again.
pub(crate) struct Part {
    whole: Arc<Whole>,
    start: usize,
    len: usize,
}

struct Whole {
    base: NonNull<u8>,
    /// None when the memory is lent (`Part::lend`). Only kept: it is not touched while there are parts.
    owner: Option<Mutex<Memory>>,
}

// SAFETY: `base` points into `owner`, which is `Send`, or to memory lent to whoever has the parts; only parts use it, each its
// own bytes.
unsafe impl Send for Whole {}
// SAFETY: as above: sharing the whole gives no access to bytes.
unsafe impl Sync for Whole {}

impl Part {
    /// All of a buffer.
    pub(crate) fn of(mut memory: Memory) -> Part {
        let mut segments = Segments::none();
        memory.segments(&mut segments);
        let (base, len) = match segments.rest() {
            [one] => (one.iov_base.cast(), one.iov_len),
            many => unreachable!("a part is cut from one piece, not from {}", many.len()),
        };
        // An empty buffer has no address worth having.
        let base = NonNull::new(base).unwrap_or(NonNull::dangling());
        Part { whole: Arc::new(Whole { base, owner: Some(Mutex::new(memory)) }), start: 0, len }
    }

    /// Lends a slice to `use_it`, and waits until every part cut from it is gone before the slice is free again, whatever
    /// `use_it` did with them, and also if it panics.
    pub(crate) fn lend<T>(slice: &mut [u8], use_it: impl FnOnce(Part) -> T) -> T {
        struct Loan(Arc<Whole>);
        impl Drop for Loan {
            fn drop(&mut self) {
                // In the ordinary course none is left. Else the kernel still has some, and there is nothing to do but wait.
                while Arc::strong_count(&self.0) > 1 {
                    std::thread::sleep(std::time::Duration::from_micros(50));
                }
                // What was written to the parts is ours to see.
                std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
            }
        }
        let whole = Arc::new(Whole { base: NonNull::from(&mut *slice).cast(), owner: None });
        let loan = Loan(whole.clone());
        let result = use_it(Part { whole, start: 0, len: slice.len() });
        drop(loan);
        result
    }

    /// Cuts off the first `n` bytes.
    pub(crate) fn split_to(&mut self, n: usize) -> Part {
        assert!(n <= self.len, "{n} bytes of a part of {}", self.len);
        let first = Part { whole: self.whole.clone(), start: self.start, len: n };
        self.start += n;
        self.len -= n;
        first
    }

    /// Puts the part that follows this one back on.
    pub(crate) fn join(&mut self, next: Part) {
        assert!(
            Arc::ptr_eq(&self.whole, &next.whole) && self.start + self.len == next.start,
            "parts that are not neighbours"
        );
        self.len += next.len;
    }

    /// The memory it was cut from, when all other parts are gone.
    pub(crate) fn into_memory(self) -> Option<Memory> {
        let whole = Arc::try_unwrap(self.whole).ok()?;
        whole.owner.map(|owner| owner.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }

    fn pointer(&self) -> *mut u8 {
        self.whole.base.as_ptr().wrapping_add(self.start)
    }
}

impl Deref for Part {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: parts lie inside the whole, are initialised memory, and do not overlap: they come from one part by cutting.
        unsafe { std::slice::from_raw_parts(self.pointer(), self.len) }
    }
}

impl DerefMut for Part {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.pointer(), self.len) }
    }
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Part").field("start", &self.start).field("len", &self.len).finish()
    }
}

/// Memory that an operation owns while it runs. The public ways in and out are [`ReadBuffer`] and the methods of `File`.
#[derive(Debug)]
pub(crate) enum Memory {
    None,
    Vec(Vec<u8>),
    /// Was empty, and is as long as its capacity while it is read into.
    Room(Vec<u8>),
    Buf(Buf),
    #[cfg(feature = "bytes")]
    BytesMut(bytes::BytesMut),
    #[cfg(feature = "bytes")]
    BytesRoom(bytes::BytesMut),
    Part(Part),
    Many(Vec<Memory>),
    /// Only to be written from, as are those below.
    Static(&'static [u8]),
    Shared(Arc<[u8]>),
    SharedVec(Arc<Vec<u8>>),
    #[cfg(feature = "bytes")]
    Bytes(bytes::Bytes),
}

impl Memory {
    /// Number of bytes.
    pub(crate) fn len(&self) -> usize {
        match self {
            Memory::None => 0,
            Memory::Vec(vec) | Memory::Room(vec) => vec.len(),
            Memory::Buf(buf) => buf.len,
            #[cfg(feature = "bytes")]
            Memory::BytesMut(bytes) | Memory::BytesRoom(bytes) => bytes.len(),
            Memory::Part(part) => part.len,
            Memory::Many(many) => many.iter().map(Memory::len).sum(),
            Memory::Static(bytes) => bytes.len(),
            Memory::Shared(bytes) => bytes.len(),
            Memory::SharedVec(bytes) => bytes.len(),
            #[cfg(feature = "bytes")]
            Memory::Bytes(bytes) => bytes.len(),
        }
    }

    /// Its destructor is a user's, who may do anything there (`bytes::Bytes::from_owner`).
    pub(crate) fn runs_code_of_users(&self) -> bool {
        match self {
            #[cfg(feature = "bytes")]
            Memory::Bytes(_) => true,
            Memory::Many(many) => many.iter().any(Memory::runs_code_of_users),
            _ => false,
        }
    }

    /// Appends the segments. The pointers stay valid while this `Memory` lives, wherever it is moved. What is only to be written
    /// from must not be written to: [`ReadBuffer`] keeps it out of reads.
    #[inline]
    pub(crate) fn segments(&mut self, out: &mut Segments) {
        match self {
            Memory::None => {}
            Memory::Vec(vec) | Memory::Room(vec) => out.push(vec.as_mut_ptr(), vec.len()),
            Memory::Buf(buf) => out.push(buf.start.as_ptr(), buf.len),
            #[cfg(feature = "bytes")]
            Memory::BytesMut(bytes) | Memory::BytesRoom(bytes) => out.push(bytes.as_mut_ptr(), bytes.len()),
            Memory::Part(part) => out.push(part.pointer(), part.len),
            Memory::Many(many) => many.iter_mut().for_each(|memory| memory.segments(out)),
            Memory::Static(bytes) => out.push(bytes.as_ptr().cast_mut(), bytes.len()),
            Memory::Shared(bytes) => out.push(bytes.as_ptr().cast_mut(), bytes.len()),
            Memory::SharedVec(bytes) => out.push(bytes.as_ptr().cast_mut(), bytes.len()),
            #[cfg(feature = "bytes")]
            Memory::Bytes(bytes) => out.push(bytes.as_ptr().cast_mut(), bytes.len()),
        }
    }
}

/// Where the bytes go: one segment (nearly always) without an allocation, or many. Empty segments are left out.
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

    /// What is left to fill.
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

mod sealed {
    pub trait Sealed {}
}

/// A buffer that a read can be given and that comes back with the result: `Vec<u8>`, `Box<[u8]>`, `[u8; N]` (which an operation
/// moves to the heap meanwhile), [`Buf`], and `bytes::BytesMut` with the `bytes` feature.
///
/// How many bytes `File::read_at` asks for is the buffer's to say:
///
/// * A buffer with bytes in it is filled from its start, over them, up to its length, as by std's positioned reads. Its
///   length does not change, and spare capacity is not used.
/// * An empty `Vec<u8>` or `BytesMut` is filled up to its capacity, and is then as long as what was read. So
///   `Vec::with_capacity(n)` reads up to `n` bytes.
/// * A buffer without room (`Vec::new()`, an empty `Box<[u8]>` or [`Buf`]) asks for nothing and gets 0, wherever in the
///   file.
///
/// So 0 means the end of the file if the buffer had room. A buffer that is cleared and used again has its capacity left:
/// to read a certain number of bytes, which may be none, give it that length, or skip the read of none.
///
/// Memory is cleared before it is lent to the kernel. To read without that use `File::read_range`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no buffer that a read can own",
    note = "give a `Vec<u8>`, a `Box<[u8]>` or a `nowait::Buf`; for a borrowed slice there is `read_into`"
)]
pub trait ReadBuffer: sealed::Sealed + AsRef<[u8]> + Send + Sized + 'static {
    #[doc(hidden)]
    fn into_memory(self) -> Erased;
    #[doc(hidden)]
    fn from_memory(memory: Erased) -> Self;
    /// All that a read may fill.
    #[doc(hidden)]
    #[inline]
    fn into_room(self) -> Erased {
        self.into_memory()
    }
    /// What `into_room` gave, of which the first `n` bytes were read.
    #[doc(hidden)]
    #[inline]
    fn from_room(memory: Erased, _n: usize) -> Self {
        Self::from_memory(memory)
    }
}

/// A buffer that a write can be given and that comes back with the result: every [`ReadBuffer`], and what can only be read from:
/// `&'static [u8]`, `&'static [u8; N]`, `&'static str`, `Arc<[u8]>`, `Arc<Vec<u8>>`, `String`, and `bytes::Bytes` with the `bytes`
/// feature.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no buffer that a write can own",
    note = "give a `Vec<u8>`, a `Box<[u8]>`, a `&'static [u8]`, an `Arc<[u8]>` or a `nowait::Buf`; for a borrowed slice there is `write_from`"
)]
pub trait WriteBuffer: sealed::Sealed + Send + Sized + 'static {
    #[doc(hidden)]
    fn into_memory(self) -> Erased;
    #[doc(hidden)]
    fn from_memory(memory: Erased) -> Self;
}

/// A buffer whose type is put aside while an operation owns it.
#[doc(hidden)]
#[derive(Debug)]
pub struct Erased(pub(crate) Memory);

macro_rules! buffer {
    ($trait:ident, $type:ty, $variant:ident, $into:expr, $back:expr $(, $room:ident)? $(; const $size:ident)?) => {
        impl$(<const $size: usize>)? $trait for $type {
            $(
                #[inline]
                fn into_room(mut self) -> Erased {
                    if !self.is_empty() || self.capacity() == 0 {
                        return ReadBuffer::into_memory(self);
                    }
                    self.resize(self.capacity(), 0);
                    Erased(Memory::$room(self))
                }
                #[inline]
                fn from_room(memory: Erased, n: usize) -> Self {
                    match memory.0 {
                        Memory::$room(mut buffer) => {
                            buffer.truncate(n);
                            buffer
                        }
                        other => ReadBuffer::from_memory(Erased(other)),
                    }
                }
            )?
            #[inline]
            fn into_memory(self) -> Erased {
                Erased(Memory::$variant($into(self)))
            }
            #[inline]
            fn from_memory(memory: Erased) -> Self {
                match memory.0 {
                    Memory::$variant(buffer) => $back(buffer),
                    other => unreachable!("an operation gives back the memory it was given, not {other:?}"),
                }
            }
        }
    };
}

macro_rules! read_and_write_buffer {
    ($type:ty, $variant:ident, $into:expr, $back:expr $(, $room:ident)?) => {
        impl sealed::Sealed for $type {}
        buffer!(ReadBuffer, $type, $variant, $into, $back $(, $room)?);
        buffer!(WriteBuffer, $type, $variant, $into, $back);
    };
}

macro_rules! write_buffer {
    ($type:ty, $variant:ident, $into:expr, $back:expr $(; const $size:ident)?) => {
        impl$(<const $size: usize>)? sealed::Sealed for $type {}
        buffer!(WriteBuffer, $type, $variant, $into, $back $(; const $size)?);
    };
}

read_and_write_buffer!(Vec<u8>, Vec, identity, identity, Room);
// As a `Vec`: a `Box` may not be moved while a pointer into it is in use, a `Vec` may. Neither way allocates.
read_and_write_buffer!(Box<[u8]>, Vec, <[u8]>::into_vec, Vec::into_boxed_slice);
read_and_write_buffer!(Buf, Buf, identity, identity);
// An array has its bytes within itself, and they would move with it.
impl<const N: usize> sealed::Sealed for [u8; N] {}
buffer!(ReadBuffer, [u8; N], Vec, |bytes: Self| bytes.to_vec(), |bytes: Vec<u8>| *as_array(&bytes); const N);
buffer!(WriteBuffer, [u8; N], Vec, |bytes: Self| bytes.to_vec(), |bytes: Vec<u8>| *as_array(&bytes); const N);
#[cfg(feature = "bytes")]
read_and_write_buffer!(bytes::BytesMut, BytesMut, identity, identity, BytesRoom);
write_buffer!(&'static [u8], Static, identity, identity);
write_buffer!(&'static [u8; N], Static, |bytes: Self| bytes.as_slice(), as_array; const N);
write_buffer!(&'static str, Static, str::as_bytes, |bytes| std::str::from_utf8(bytes).unwrap_or_default());
write_buffer!(Arc<Vec<u8>>, SharedVec, identity, identity);
write_buffer!(Arc<[u8]>, Shared, identity, identity);
// The bytes come back unchanged, and so still are text.
write_buffer!(String, Vec, String::into_bytes, |bytes| String::from_utf8(bytes).unwrap_or_default());
#[cfg(feature = "bytes")]
write_buffer!(bytes::Bytes, Bytes, identity, identity);

/// The bytes of an array that was given as a buffer.
fn as_array<const N: usize>(bytes: &[u8]) -> &[u8; N] {
    match bytes.try_into() {
        Ok(array) => array,
        Err(_) => unreachable!("an operation gives back the memory it was given, not {} bytes", bytes.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lens(segments: &Segments) -> Vec<usize> {
        segments.rest().iter().map(|segment| segment.iov_len).collect()
    }

    #[test]
    fn buf_is_aligned_pooled_and_refuses_what_no_machine_has() {
        let mut buf = Buf::zeroed(5000);
        assert_eq!(buf.start.as_ptr() as usize % BUF_ALIGNMENT, 0);
        assert_eq!((buf.len(), buf.capacity()), (5000, 8192));
        buf.fill(7);
        buf.truncate(10);
        assert_eq!(&*buf, [7; 10]);
        drop(buf);
        assert!(Buf::zeroed(5000).iter().all(|byte| *byte == 0));
        assert_eq!(Buf::zeroed(3 << 20).len(), 3 << 20);
        assert_eq!(Buf::zeroed(0).len(), 0);
        assert!(Buf::uncleared(usize::MAX).is_none());
        assert!(Buf::uncleared(isize::MAX as usize - 4096).is_none());
    }

    #[test]
    fn large_bufs_are_cut_from_huge_pages_and_given_back() {
        let capacity = 256 << 10;
        // More than the pool keeps.
        let bufs: Vec<Buf> = (0..100).map(|number| Buf::zeroed(capacity - number)).collect();
        let mut starts: Vec<usize> = bufs.iter().map(|buf| buf.start.as_ptr() as usize).collect();
        starts.sort_unstable();
        assert!(starts.windows(2).all(|pair| pair[1] - pair[0] >= capacity));
        let together = starts.chunk_by(|a, b| a / HUGE_BYTES == b / HUGE_BYTES).map(<[usize]>::len);
        assert!(together.max() == Some(HUGE_BYTES / capacity), "a huge page holds several");
        drop(bufs);
        let class = class_of(capacity).unwrap();
        assert!(pool(class).len() * capacity <= HUGE_CLASS_BYTES_MAX);
        let mut again: Vec<Buf> = (0..100).map(|_| Buf::uncleared(capacity).unwrap()).collect();
        for (number, buf) in again.iter_mut().enumerate() {
            buf.fill(number as u8);
        }
        assert!(again.iter().enumerate().all(|(number, buf)| buf.iter().all(|byte| *byte == number as u8)));
        for length in [HUGE_BYTES, HUGE_BYTES + 1, 5 << 20] {
            let mut buf = Buf::uncleared(length).unwrap();
            assert_eq!(buf.start.as_ptr() as usize % HUGE_BYTES, 0);
            assert!(buf.iter().all(|byte| *byte == 0), "fresh memory is zeros");
            buf.fill(1);
        }
    }

    #[test]
    fn parts_are_cut_filled_apart_and_put_together() {
        let mut rest = Part::of(Memory::Vec(vec![0; 10]));
        let mut first = rest.split_to(3);
        first.fill(1);
        let mut second = rest.split_to(5);
        std::thread::spawn(move || second.fill(2)).join().unwrap();
        rest.fill(3);
        drop(rest);
        assert_eq!(&*first, [1; 3]);
        match first.into_memory() {
            Some(Memory::Vec(vec)) => assert_eq!(vec, [1, 1, 1, 2, 2, 2, 2, 2, 3, 3]),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn parts_join_and_keep_their_memory_while_one_is_left() {
        let mut rest = Part::of(Memory::Buf(Buf::zeroed(8)));
        let mut first = rest.split_to(4);
        let second = rest.split_to(2);
        first.join(second);
        assert_eq!(first.len(), 6);
        assert!(first.into_memory().is_none());
        assert!(rest.into_memory().is_some());
    }

    #[test]
    fn a_loan_lasts_until_the_last_part_is_gone() {
        let mut bytes = [0u8; 4];
        Part::lend(&mut bytes, |mut part| {
            let mut second = part.split_to(2);
            std::thread::spawn(move || {
                std::thread::sleep(std::time::Duration::from_millis(5));
                second.fill(9);
            });
        });
        assert_eq!(bytes, [9, 9, 0, 0]);
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
