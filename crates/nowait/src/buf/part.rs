//! Parts of one memory, each filled by a separate operation.
//!
//! `unsafe` here: slices of memory that several parts share.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use super::cursor::TransferCursor;
use super::memory::Memory;

/// A part of one memory, used by one party: like a `Vec<u8>` that can be split, filled by different
/// operations, and put together again.
pub(crate) struct Part {
    whole: Arc<Whole>,
    start: usize,
    pub(super) len: usize,
}

struct Whole {
    base: NonNull<u8>,
    /// None when the memory is lent (`Part::lend`). Only kept: it is not touched while there are
    /// parts.
    owner: Option<Mutex<Memory>>,
    /// The owner's destructor is a user's.
    runs_code_of_users: bool,
}

// SAFETY: `base` points into `owner`, which is `Send`, or to memory lent to whoever has the parts;
// only parts use it, each its own bytes.
unsafe impl Send for Whole {}
// SAFETY: as above: sharing the whole gives no access to bytes.
unsafe impl Sync for Whole {}

impl Part {
    /// All of a buffer.
    pub(crate) fn of(mut memory: Memory) -> Part {
        let mut cursor = TransferCursor::at(0);
        memory.segments(&mut cursor);
        let (base, len) = match cursor.segments() {
            [one] => (one.iov_base.cast(), one.iov_len),
            many => unreachable!("a part is cut from one piece, not from {}", many.len()),
        };
        // An empty buffer has no address worth having.
        let base = NonNull::new(base).unwrap_or(NonNull::dangling());
        let runs_code_of_users = memory.runs_code_of_users();
        let whole = Whole { base, owner: Some(Mutex::new(memory)), runs_code_of_users };
        Part { whole: Arc::new(whole), start: 0, len }
    }

    /// Lends a slice to `use_it`, and waits until every part cut from it is gone before the slice
    /// is free again, whatever `use_it` did with them, and also if it panics.
    pub(crate) fn lend<T>(slice: &mut [u8], use_it: impl FnOnce(Part) -> T) -> T {
        struct Loan(Arc<Whole>);
        impl Drop for Loan {
            fn drop(&mut self) {
                // Normally no other part is left. Otherwise the kernel still uses one, and this can
                // only wait.
                while Arc::strong_count(&self.0) > 1 {
                    std::thread::sleep(std::time::Duration::from_micros(50));
                }
                // Makes the writes to the parts visible here.
                std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
            }
        }
        let whole = Arc::new(Whole { base: NonNull::from(&mut *slice).cast(), owner: None, runs_code_of_users: false });
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

    /// The destructor of the memory may be a user's, and run with this part's.
    pub(super) fn runs_code_of_users(&self) -> bool {
        self.whole.runs_code_of_users
    }

    pub(super) fn pointer(&self) -> *mut u8 {
        self.whole.base.as_ptr().wrapping_add(self.start)
    }
}

impl Deref for Part {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: parts lie inside the whole, are initialised memory, and do not overlap: they come
        // from one part by cutting.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buf::Buf;

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
}
