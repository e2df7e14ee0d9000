//! Memory that the kernel may read or write: the library's own aligned, pooled [`Buf`], the buffers
//! that callers bring, and [`Part`]s of one larger memory.
//!
//! All of it moves into the operation and stays there until the completion ([`Memory`]). A buffer's
//! bytes are on the heap, so that moving its owner does not move them. They are initialised at all
//! times.

mod callers;
mod cursor;
pub(crate) mod mapping;
mod memory;
mod part;
mod pooled;
mod segments;
mod vectored;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard};

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
/// fast (docs/measurements/2026-11-22-huge-pages). Also the largest page size of a kernel, so that each can be given back by itself.
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

/// Locks, also after an earlier holder's panic: every critical section of this crate leaves its
/// data whole at each step at which it can panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
