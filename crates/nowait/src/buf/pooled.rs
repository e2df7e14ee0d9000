//! The library's own buffer, [`Buf`], and its pool.
//!
//! `unsafe` here: allocations and mappings. Each buffer is the only owner of its memory.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::cell::RefCell;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard};

use crate::sync::lock;
use crate::sys::{self, MemoryAdvice, PerProcess};

/// Alignment of every [`Buf`] in bytes: a page, which suffices for direct I/O on all tested
/// devices.
pub const BUF_ALIGNMENT: usize = 4096;

/// The smallest and the largest pooled capacity. Capacities between them are powers of two; each is
/// a class. The largest serves results of gathers: in fresh memory, page faults took as long as the
/// copy from the page cache.
const CLASS_MIN: usize = 4096;
const CLASS_MAX: usize = 16 << 20;
const CLASSES: usize = (CLASS_MAX / CLASS_MIN).ilog2() as usize + 1;
/// Most idle bytes of each class: in ordinary pages, and in huge pages. With the idle bytes of
/// threads, they bound the pool's memory.
const CLASS_BYTES_MAX: usize = 4 << 20;
const HUGE_CLASS_BYTES_MAX: usize = 16 << 20;

/// Number of the smallest classes of which each thread keeps idle buffers, so that a cached read
/// takes no lock. In a longer read the time of a lock is negligible.
const OWN_CLASSES: usize = ((64 << 10) / CLASS_MIN).ilog2() as usize + 1;
/// Most idle bytes of each of these classes per thread; at least one buffer is kept.
const OWN_BYTES_MAX: usize = 32 << 10;

/// Smallest capacity that is cut from regions of [`HUGE_BYTES`], for which the kernel is asked for
/// huge pages. A huge page is contiguous for the device: a direct read of 1 MiB has one segment
/// instead of 256, and is twice as fast on a virtio disk
/// (docs/measurements/2026-11-22-huge-pages). 64 KiB is also the largest base page size of a kernel,
/// so each buffer can be unmapped separately.
const HUGE_CLASS_MIN: usize = 64 << 10;
/// Size of a huge page on most machines. On others, and without huge pages, a region is ordinary
/// memory.
const HUGE_BYTES: usize = 2 << 20;

/// Owned, page-aligned buffer. Its memory comes from a small pool, and returns there when the
/// buffer is dropped.
///
/// The capacity of a pooled buffer is a power of two, up to 16 MiB. For each capacity the pool
/// keeps up to 4 MiB below 64 KiB, and up to 16 MiB from 64 KiB on, until the process ends. Larger
/// buffers are freed at once.
///
/// A buffer dereferences to its `len()` bytes. Memory is not cleared between uses within a process:
/// bytes that a read did not fill may be those of an earlier read.
///
/// Buffers of 64 KiB and more use huge pages if `transparent_hugepage/enabled` allows them
/// (`madvise(2)`, `MADV_HUGEPAGE`). Buffers of one size share regions of 2 MiB, so the first one
/// allocates 2 MiB. Huge pages make direct I/O up to twice as fast, for half the processor time.
pub struct Buf {
    pub(super) start: NonNull<u8>,
    /// All of it is initialised, since it was allocated cleared: a page fault costs the same, and
    /// no byte need be tracked.
    capacity: usize,
    pub(super) len: usize,
}

// SAFETY: a `Buf` owns its memory alone, like a `Vec<u8>`.
unsafe impl Send for Buf {}
// SAFETY: as above; shared access only reads.
unsafe impl Sync for Buf {}

impl Buf {
    /// Returns a buffer of `len` zero bytes.
    ///
    /// # Panics
    /// If memory is short.
    pub fn zeroed(len: usize) -> Buf {
        Buf::try_zeroed(len).unwrap_or_else(|| panic!("no memory for a buffer of {len} bytes"))
    }

    /// Returns a buffer of `len` zero bytes, or `None` if memory is short. A buffer that is too
    /// large for the pool takes no memory until it is written to.
    pub fn try_zeroed(len: usize) -> Option<Buf> {
        let capacity = round_up(len)?;
        if class_of(capacity).is_none() {
            // New from the kernel, or from `alloc_zeroed`.
            let mut buf = Buf::new(capacity)?;
            buf.len = len;
            return Some(buf);
        }
        let mut buf = Buf::uncleared(len)?;
        buf.fill(0);
        Some(buf)
    }

    /// Returns a buffer of `len` bytes left by an earlier use, or `None` if memory is short.
    pub fn uncleared(len: usize) -> Option<Buf> {
        let capacity = round_up(len)?;
        let pooled = class_of(capacity).and_then(take);
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
        if capacity >= HUGE_BYTES {
            return map(capacity).map(buf);
        }
        let class = class_of(capacity)?;
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

    /// Returns the allocated size, in bytes.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Shortens the buffer to its first `len` bytes; has no effect if `len` is larger.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
}

fn round_up(capacity: usize) -> Option<usize> {
    let pages = capacity.max(1).checked_next_multiple_of(BUF_ALIGNMENT)?;
    match pages {
        pages if pages <= CLASS_MAX => Some(pages.next_power_of_two()),
        // A mapping is given back by whole pages of the kernel.
        pages => pages.checked_next_multiple_of(HUGE_CLASS_MIN),
    }
}

fn layout(capacity: usize) -> Option<Layout> {
    Layout::from_size_align(capacity, BUF_ALIGNMENT).ok()
}

fn class_of(capacity: usize) -> Option<usize> {
    (capacity.is_power_of_two() && (CLASS_MIN..=CLASS_MAX).contains(&capacity))
        .then(|| (capacity / CLASS_MIN).ilog2() as usize)
}

/// Returns whether a buffer is a separate mapping, in huge pages if possible, instead of allocator
/// memory.
fn is_mapped(capacity: usize) -> bool {
    sys::MAPS_BUFFERS && capacity >= HUGE_CLASS_MIN
}

/// Zeros that begin where a huge page can.
fn map(bytes: usize) -> Option<NonNull<u8>> {
    let base = map_plain(bytes.checked_add(HUGE_BYTES)?)?.as_ptr();
    let before = base.align_offset(HUGE_BYTES);
    let start = base.wrapping_add(before);
    for (start, length) in [(base, before), (start.wrapping_add(bytes), HUGE_BYTES - before)] {
        if length > 0 {
            // SAFETY: nothing refers to this part of the mapping. If the call fails, the part costs
            // addresses but no memory.
            let _ = NonNull::new(start).map(|start| unsafe { sys::unmap(start, length) });
        }
    }
    // SAFETY: the mapping is ours, and its contents stay what they are. Refused by a kernel without
    // huge pages.
    let _ = unsafe { sys::advise_memory(start, bytes, MemoryAdvice::HugePages) };
    NonNull::new(start)
}

/// Zeros that begin anywhere.
fn map_plain(bytes: usize) -> Option<NonNull<u8>> {
    sys::map_zeros(bytes).ok()
}

/// One class's idle buffers that no thread keeps. A plain lock: held to move a few.
fn pool(class: usize) -> MutexGuard<'static, Vec<Buf>> {
    static POOL: PerProcess<[Mutex<Vec<Buf>>; CLASSES]> = PerProcess::new();
    lock(&POOL.get(|| [const { Mutex::new(Vec::new()) }; CLASSES])[class])
}

thread_local! {
    /// Idle buffers of this thread. When it ends they are dropped, and so go to the pool.
    static OWN: RefCell<[Vec<Buf>; OWN_CLASSES]> = const { RefCell::new([const { Vec::new() }; OWN_CLASSES]) };
}

/// How many buffers of a class a thread keeps.
fn own_max(class: usize) -> usize {
    (OWN_BYTES_MAX / (CLASS_MIN << class)).max(1)
}

/// Takes an idle buffer of this thread, or of the pool.
fn take(class: usize) -> Option<Buf> {
    if class >= OWN_CLASSES {
        return pool(class).pop();
    }
    let taken = OWN.try_with(|own| {
        let own = &mut own.borrow_mut()[class];
        own.pop().or_else(|| {
            // Some at once, and some are left at once in `keep`: a thread that only takes, or only
            // keeps, locks for one buffer of several.
            let mut idle = pool(class);
            let rest = idle.len().saturating_sub((own_max(class) / 2).max(1));
            own.extend(idle.drain(rest..));
            own.pop()
        })
    });
    // A thread that is being torn down keeps none.
    taken.unwrap_or_else(|_| pool(class).pop())
}

/// Keeps an idle buffer for this thread, or in the pool. Returns it if there is no room.
fn keep(class: usize, buf: Buf) -> Option<Buf> {
    let most = if is_mapped(buf.capacity) { HUGE_CLASS_BYTES_MAX } else { CLASS_BYTES_MAX } / buf.capacity;
    let mut buf = Some(buf);
    if class < OWN_CLASSES {
        let _ = OWN.try_with(|own| {
            let own = &mut own.borrow_mut()[class];
            if own.len() >= own_max(class) {
                let mut idle = pool(class);
                let some = (own.len() - own_max(class) / 2).min(most.saturating_sub(idle.len()));
                // The oldest, which are no longer in the processor's caches.
                idle.extend(own.drain(..some));
            }
            if own.len() < own_max(class) {
                own.extend(buf.take());
            }
        });
    }
    let buf = buf?;
    let mut idle = pool(class);
    if idle.len() < most {
        idle.push(buf);
        return None;
    }
    Some(buf)
}

impl Drop for Buf {
    fn drop(&mut self) {
        if let Some(class) = class_of(self.capacity) {
            // The new `Buf` owns the memory. If the pool has no room for it, the memory is freed below.
            match keep(class, Buf { start: self.start, capacity: self.capacity, len: 0 }) {
                Some(buf) => std::mem::forget(buf),
                None => return,
            }
        }
        if is_mapped(self.capacity) {
            // SAFETY: ours alone, and not used any more.
            if unsafe { sys::unmap(self.start, self.capacity) }.is_err() {
                // The process has as many mappings as it may have, and a hole makes one more. The
                // memory goes, the addresses stay.
                // SAFETY: as above.
                let _ = unsafe { sys::advise_memory(self.start.as_ptr(), self.capacity, MemoryAdvice::Discard) };
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

/// Copies the bytes.
///
/// # Panics
/// If memory is short, as for a `Vec`.
impl From<&[u8]> for Buf {
    fn from(bytes: &[u8]) -> Buf {
        let Some(mut buf) = Buf::uncleared(bytes.len()) else {
            panic!("no memory for a buffer of {} bytes", bytes.len())
        };
        buf.copy_from_slice(bytes);
        buf
    }
}

/// Shares the bytes without a copy. The memory returns to the pool when the last share is dropped.
#[cfg(feature = "bytes")]
impl From<Buf> for bytes::Bytes {
    fn from(buf: Buf) -> bytes::Bytes {
        bytes::Bytes::from_owner(buf)
    }
}

/// Copies the bytes: a vector's memory is not aligned.
///
/// # Panics
/// If memory is short.
impl From<Vec<u8>> for Buf {
    fn from(bytes: Vec<u8>) -> Buf {
        Buf::from(&*bytes)
    }
}

/// Returns an empty buffer, without memory.
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

#[cfg(test)]
mod tests {
    use super::*;

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

    /// Buffers of each class that this thread keeps.
    fn own() -> [usize; OWN_CLASSES] {
        OWN.with_borrow(|own| own.each_ref().map(Vec::len))
    }

    #[test]
    fn a_thread_keeps_few_bufs_and_leaves_them_when_it_ends() {
        let class = OWN_CLASSES - 2;
        let length = CLASS_MIN << class;
        let start = std::thread::spawn(move || {
            for class in 0..OWN_CLASSES {
                drop((0..100).map(|_| Buf::zeroed(CLASS_MIN << class)).collect::<Vec<_>>());
            }
            let bytes: usize = own().iter().enumerate().map(|(class, count)| count * (CLASS_MIN << class)).sum();
            assert!(own().iter().all(|count| *count > 0) && bytes <= 256 << 10, "{:?}", own());
            let start = Buf::zeroed(length).start.as_ptr() as usize;
            assert_eq!(Buf::zeroed(length).start.as_ptr() as usize, start, "the last one is the next one");
            start
        });
        let start = start.join().unwrap();
        let is_idle = pool(class).iter().any(|buf| buf.start.as_ptr() as usize == start);
        assert!(is_idle || pool(class).len() >= CLASS_BYTES_MAX / length);
    }

    #[test]
    fn bufs_dropped_by_another_thread_are_found_again() {
        // More than a thread keeps.
        let bufs: Vec<Buf> = (0..64).map(|_| Buf::zeroed(CLASS_MIN)).collect();
        std::thread::scope(|scope| scope.spawn(|| drop(bufs)).join().unwrap());
        assert!(pool(0).len() >= 32, "{} are in the pool", pool(0).len());
        let before = own()[0];
        drop((0..=before).map(|_| Buf::zeroed(CLASS_MIN)).collect::<Vec<_>>());
        assert!(own()[0] > before, "some are taken at once");
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
        let largest = Buf::zeroed(CLASS_MAX - 1).start;
        assert!(pool(class_of(CLASS_MAX).unwrap()).iter().any(|buf| buf.start == largest), "it is kept");
        for length in [CLASS_MAX + 1, CLASS_MAX + HUGE_BYTES] {
            let mut buf = Buf::uncleared(length).unwrap();
            assert_eq!(buf.start.as_ptr() as usize % HUGE_BYTES, 0);
            assert!(buf.iter().all(|byte| *byte == 0), "fresh memory is zeros");
            buf.fill(1);
        }
    }
}
