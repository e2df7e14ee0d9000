//! Memory of another owner: of a language's runtime, of a C program, of an allocator.
//!
//! `unsafe` here: an owner behind a pointer, and the bytes that it vouches for.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Buffer in memory of any owner, for reads and writes; compare `bytes::Bytes::from_owner`.
///
/// The owner keeps the bytes at their address until it is dropped. The owner is dropped with this
/// buffer. If an abandoned operation holds the buffer, the owner is dropped when the kernel is
/// done. The drop may run on any thread, with no lock held.
///
/// ```
/// # fn main() -> nowait::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("table.dat");
/// # std::fs::write(&path, vec![7; 8192]).unwrap();
/// use nowait::Lent;
///
/// let file = nowait::File::open(&path).wait()?;
/// let page = file.read_exact_at(Lent::new([0; 4096]), 4096).wait()?;
/// assert_eq!(page[..4], [7; 4]);
/// # Ok(())
/// # }
/// ```
pub struct Lent {
    start: NonNull<u8>,
    len: usize,
    /// From `Box::into_raw`: a `Box` that is moved claims its contents, which `start` points into.
    owner: NonNull<dyn Send>,
}

// SAFETY: the owner is `Send`, and only this uses its bytes, which travel with it.
unsafe impl Send for Lent {}
// SAFETY: as above; shared access only reads bytes, and never touches the owner.
unsafe impl Sync for Lent {}

impl Lent {
    /// Makes a buffer of all bytes of an owner. Calls `as_mut` once.
    pub fn new<T: AsMut<[u8]> + Send + 'static>(owner: T) -> Lent {
        let owner: *mut T = Box::into_raw(Box::new(owner));
        // Freed also if `as_mut` panics.
        struct Guard<T>(*mut T);
        impl<T> Drop for Guard<T> {
            fn drop(&mut self) {
                // SAFETY: from `Box::into_raw`, and owned by the guard until it is forgotten.
                drop(unsafe { Box::from_raw(self.0) });
            }
        }
        let guard = Guard(owner);
        // SAFETY: from `Box::into_raw`, and used by nothing else. The reference ends here; the bytes
        // stay where they are while the owner is neither touched nor dropped.
        let bytes = unsafe { &mut *owner }.as_mut();
        let (start, len) = (NonNull::from(&mut *bytes).cast(), bytes.len());
        std::mem::forget(guard);
        // SAFETY: `Box::into_raw` never gives null.
        let owner = unsafe { NonNull::new_unchecked(owner as *mut dyn Send) };
        Lent { start, len, owner }
    }

    /// Makes a buffer of the `len` bytes at `start`, and drops `owner` when they are no longer
    /// used.
    ///
    /// # Safety
    /// Until the owner is dropped:
    ///
    /// * the bytes are valid for reads, and for writes if the buffer is changed or passed to a
    ///   read;
    /// * no other code changes them, nor reads them if the buffer is changed or passed to a read.
    ///
    /// The bytes are treated as initialised, like memory from outside of Rust.
    pub unsafe fn from_raw<T: Send + 'static>(start: NonNull<u8>, len: usize, owner: T) -> Lent {
        // SAFETY: `Box::into_raw` never gives null.
        let owner = unsafe { NonNull::new_unchecked(Box::into_raw(Box::new(owner)) as *mut dyn Send) };
        Lent { start, len, owner }
    }

    pub(super) fn pointer(&self) -> *mut u8 {
        self.start.as_ptr()
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // SAFETY: from `Box::into_raw`, and freed once.
        drop(unsafe { Box::from_raw(self.owner.as_ptr()) });
    }
}

impl Deref for Lent {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the owner's bytes, which nothing else uses.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Lent {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Lent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lent").field("len", &self.len).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// Bytes within the owner itself, and a count of drops.
    struct Owner([u8; 8], Arc<AtomicU32>);

    impl AsMut<[u8]> for Owner {
        fn as_mut(&mut self) -> &mut [u8] {
            &mut self.0
        }
    }

    impl Drop for Owner {
        fn drop(&mut self) {
            self.1.fetch_add(self.0[0].into(), Ordering::Relaxed);
        }
    }

    #[test]
    fn bytes_stay_in_their_place_and_the_owner_is_dropped_once() {
        let drops = Arc::new(AtomicU32::new(0));
        let mut lent = Lent::new(Owner([0; 8], drops.clone()));
        let start = lent.pointer();
        lent[0] = 5;
        let moved = std::thread::spawn(move || lent).join().unwrap();
        assert_eq!((moved.pointer(), moved.len(), moved[0]), (start, 8, 5));
        drop(moved);
        // The owner saw what was written.
        assert_eq!(drops.load(Ordering::Relaxed), 5);
    }

    #[test]
    fn raw_memory_is_kept_by_what_stands_for_its_owner() {
        let mut memory = [1_u8, 2, 3, 4];
        let owner = Arc::new(());
        // SAFETY: `memory` is here until the end, and is looked at only when the owner is dropped.
        let mut lent = unsafe { Lent::from_raw(NonNull::from(&mut memory).cast(), 3, owner.clone()) };
        lent[2] = 9;
        assert_eq!((&lent[..], Arc::strong_count(&owner)), (&[1, 2, 9][..], 2));
        drop(lent);
        assert_eq!((memory, Arc::strong_count(&owner)), ([1, 2, 9, 4], 1));
    }
}
