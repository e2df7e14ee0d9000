//! Handles: numbers that C uses instead of pointers.
//!
//! A closed pointer cannot be distinguished from an open one. A handle can: it contains the number
//! of a slot in a table, and the generation of the slot. So a second close, a use after the close,
//! and a handle of another kind return errors.
//!
//! ```text
//! bits 63..56  kind
//! bits 55..32  slot in the table
//! bits 31..0   generation of the slot
//! ```
//!
//! A slot keeps its value until the handle is closed and no call uses it. A use costs two atomic
//! operations on the slot, and takes no lock.
//!
//! `unsafe` here: a value is read through a shared reference while the state of its slot guarantees
//! that it exists.

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};

use nowait::embed::PerProcess;

use crate::failure::{Failure, Result};

const SLOT_BITS: u32 = 24;
const FIRST_CHUNK: usize = 64;
/// Each chunk has twice the slots of the one before: enough for `1 << SLOT_BITS` slots.
const CHUNKS: usize = 19;

/// State of a slot: generation, `OPEN`, and the number of its users.
const OPEN: u64 = 1 << 31;
const USERS: u64 = OPEN - 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum HandleKind {
    Instance = 1,
    File,
    Queue,
    Log,
    Reader,
    Copy,
    Cache,
    Cached,
}

impl HandleKind {
    fn name(self) -> &'static str {
        match self {
            HandleKind::Instance => "instance",
            HandleKind::File => "file",
            HandleKind::Queue => "queue",
            HandleKind::Log => "log",
            HandleKind::Reader => "log reader",
            HandleKind::Copy => "copy",
            HandleKind::Cache => "cache",
            HandleKind::Cached => "cached file",
        }
    }

    fn of(handle: u64) -> Option<HandleKind> {
        let kinds = [
            HandleKind::Instance,
            HandleKind::File,
            HandleKind::Queue,
            HandleKind::Log,
            HandleKind::Reader,
            HandleKind::Copy,
            HandleKind::Cache,
            HandleKind::Cached,
        ];
        kinds.into_iter().find(|kind| *kind as u64 == handle >> 56)
    }
}

/// All open handles of one kind.
pub(crate) struct Table<T> {
    kind: HandleKind,
    /// Slots are never moved or freed, so that a stale handle can always be looked up.
    chunks: [OnceLock<Box<[HandleSlot<T>]>>; CHUNKS],
    /// Number of slots ever used.
    made: AtomicU32,
    /// Slots that are free again. The slot that has been free longest is used next, so generations
    /// grow slowly. A forked child has a new list: a thread that the child lacks may hold the lock.
    vacant: PerProcess<Mutex<VecDeque<u32>>>,
}

struct HandleSlot<T> {
    state: AtomicU64,
    /// The value, and the fork generation of the process that opened it. Written only by the slot's
    /// sole owner: the call that opens it, or its last user after the close. Read by users, of
    /// which none exist at these times.
    value: UnsafeCell<Option<(T, u64)>>,
}

// SAFETY: users share the value by reference (`T: Sync`), and the last user takes it, on any thread
// (`T: Send`). The transitions of `state` in `Table` order these accesses.
unsafe impl<T: Send + Sync> Sync for HandleSlot<T> {}

impl<T: Send + Sync> Table<T> {
    pub(crate) const fn new(kind: HandleKind) -> Table<T> {
        let chunks = [const { OnceLock::new() }; CHUNKS];
        Table { kind, chunks, made: AtomicU32::new(0), vacant: PerProcess::new() }
    }

    /// Opens a slot for `value`; returns its handle, which is never 0.
    pub(crate) fn insert(&self, value: T) -> Result<u64> {
        let vacant = self.vacant().pop_front();
        let number = vacant.map_or_else(|| self.make_slot(), Ok)?;
        let (chunk, at) = chunk_of(number);
        let slots =
            self.chunks[chunk].get_or_init(|| (0..FIRST_CHUNK << chunk).map(|_| HandleSlot::default()).collect());
        let slot = &slots[at];
        // SAFETY: the slot was vacant, and only this call has `number`; no call uses the value
        // before `OPEN` is stored.
        unsafe { *slot.value.get() = Some((value, nowait::embed::fork_generation())) };
        let generation = slot.state.load(Ordering::Relaxed) >> 32;
        slot.state.store(generation << 32 | OPEN, Ordering::Release);
        Ok((self.kind as u64) << 56 | u64::from(number) << 32 | generation)
    }

    fn make_slot(&self) -> Result<u32> {
        let more = |made: u32| (made >> SLOT_BITS == 0).then_some(made + 1);
        self.made.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).map_err(|_| {
            let text = format!("{} handles are open, which is the maximum; close some", 1 << SLOT_BITS);
            Failure::new(libc::EMFILE, text)
        })
    }

    /// Returns the value of a handle; the value stays while the result exists.
    #[inline]
    pub(crate) fn get(&self, handle: u64) -> Result<Used<'_, T>> {
        self.enter(handle, 0)
    }

    /// As `get`, but only for a handle that this process opened. Its value has threads, or locks
    /// that another thread of the parent may have held at the fork.
    pub(crate) fn get_own(&self, handle: u64) -> Result<Used<'_, T>> {
        let used = self.get(handle)?;
        if used.is_parents() {
            let text = format!(
                "the {} was opened before a fork and belongs to the parent; open one in the child",
                self.kind.name()
            );
            return Err(Failure::new(libc::EINVAL, text));
        }
        Ok(used)
    }

    /// Closes a handle and returns its value. Returns `None` if another thread uses the value now;
    /// that thread drops it afterwards.
    pub(crate) fn close(&self, handle: u64) -> Result<Option<T>> {
        let used = self.enter(handle, OPEN)?;
        let value = self.leave(used.number, used.slot);
        std::mem::forget(used);
        Ok(value)
    }

    /// Adds a user, and clears the flags `closes`. Fails if the handle is not open.
    #[inline]
    fn enter(&self, handle: u64, closes: u64) -> Result<Used<'_, T>> {
        let number = (handle >> 32) as u32 & ((1 << SLOT_BITS) - 1);
        let slot = match handle >> 56 == self.kind as u64 {
            true => self.slot(number),
            false => None,
        };
        let Some(slot) = slot else { return Err(self.stale(handle)) };
        let mut state = slot.state.load(Ordering::Relaxed);
        loop {
            if state >> 32 != handle & u64::from(u32::MAX) || state & OPEN == 0 {
                return Err(self.stale(handle));
            }
            let entered = (state & !closes) + 1;
            // Acquire: the value was written before `OPEN` was stored.
            match slot.state.compare_exchange_weak(state, entered, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Ok(Used { table: self, number, slot }),
                Err(now) => state = now,
            }
        }
    }

    /// Removes a user. If it was the last one of a closed handle, vacates the slot and returns the
    /// value.
    #[inline]
    fn leave(&self, number: u32, slot: &HandleSlot<T>) -> Option<T> {
        // Release: this use comes before the last user takes the value. Acquire: as that user.
        let before = slot.state.fetch_sub(1, Ordering::AcqRel);
        if before & (OPEN | USERS) == 1 { self.vacate(number, slot, before) } else { None }
    }

    #[cold]
    fn vacate(&self, number: u32, slot: &HandleSlot<T>, state: u64) -> Option<T> {
        // SAFETY: the handle is closed, so no further call enters, and the last user has left.
        let value = unsafe { (*slot.value.get()).take() }.map(|(value, _)| value);
        let generation = ((state >> 32) as u32).wrapping_add(1);
        slot.state.store(u64::from(generation) << 32, Ordering::Release);
        self.vacant().push_back(number);
        value
    }

    #[inline]
    fn slot(&self, number: u32) -> Option<&HandleSlot<T>> {
        let (chunk, at) = chunk_of(number);
        self.chunks.get(chunk)?.get()?.get(at)
    }

    fn vacant(&self) -> MutexGuard<'_, VecDeque<u32>> {
        self.vacant.get(Mutex::default).lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    #[cold]
    fn stale(&self, handle: u64) -> Failure {
        let name = self.kind.name();
        let text = match HandleKind::of(handle) {
            _ if handle == 0 => format!("the {name} handle is 0: nothing was opened"),
            Some(kind) if kind != self.kind => {
                format!("the handle {handle:#x} belongs to a {}, not to a {name}", kind.name())
            }
            Some(_) => format!("the {name} handle {handle:#x} was already closed"),
            None => format!("{handle:#x} is not a handle"),
        };
        Failure::new(libc::EBADF, text)
    }
}

impl<T> Default for HandleSlot<T> {
    fn default() -> HandleSlot<T> {
        HandleSlot { state: AtomicU64::new(0), value: UnsafeCell::new(None) }
    }
}

/// Returns the chunk of a slot, and its index in the chunk.
fn chunk_of(number: u32) -> (usize, usize) {
    let number = number as usize + FIRST_CHUNK;
    let chunk = (number / FIRST_CHUNK).ilog2() as usize;
    (chunk, number - (FIRST_CHUNK << chunk))
}

/// A value in use: closing its handle does not drop it.
pub(crate) struct Used<'t, T: Send + Sync> {
    table: &'t Table<T>,
    number: u32,
    slot: &'t HandleSlot<T>,
}

impl<T: Send + Sync> Used<'_, T> {
    /// True if the handle was opened before the fork that created this process.
    pub(crate) fn is_parents(&self) -> bool {
        self.held().1 != nowait::embed::fork_generation()
    }

    #[inline]
    fn held(&self) -> &(T, u64) {
        // SAFETY: `enter` counted this user while the slot was open, and the value stays until the
        // last user leaves.
        match unsafe { &*self.slot.value.get() } {
            Some(held) => held,
            None => unreachable!("an open slot has a value"),
        }
    }
}

impl<T: Send + Sync> Deref for Used<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.held().0
    }
}

impl<T: Send + Sync> Drop for Used<'_, T> {
    #[inline]
    fn drop(&mut self) {
        drop(self.table.leave(self.number, self.slot));
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::c_int;
    use std::sync::Arc;

    use super::*;

    fn errno<T>(result: Result<T>) -> Option<i32> {
        result.err().map(|failure| failure.errno)
    }

    #[test]
    fn a_handle_is_open_until_it_is_closed() {
        let table = Table::new(HandleKind::File);
        let one = table.insert("one").unwrap();
        let two = table.insert("two").unwrap();
        assert_ne!(one, two);
        assert_eq!((*table.get(one).unwrap(), *table.get(two).unwrap()), ("one", "two"));
        assert_eq!(table.close(one).unwrap(), Some("one"));
        assert_eq!(errno(table.get(one)), Some(libc::EBADF));
        assert_eq!(errno(table.close(one)), Some(libc::EBADF));
        // The slot is reused under another handle.
        let three = table.insert("three").unwrap();
        assert_eq!(three & !u64::from(u32::MAX), one & !u64::from(u32::MAX));
        assert_eq!(errno(table.get(one)), Some(libc::EBADF));
        assert_eq!(*table.get(three).unwrap(), "three");
    }

    #[test]
    fn numbers_that_are_no_handles_are_refused() {
        let table = Table::new(HandleKind::File);
        let open = table.insert(()).unwrap();
        for bad in [0, 1, u64::MAX, open + 1, open + (1 << 32), open + (1 << 56), open | 0xff << 56, open ^ 1 << 31] {
            assert_eq!(errno(table.get(bad)), Some(libc::EBADF), "{bad:#x}");
            assert_eq!(errno(table.close(bad)), Some(libc::EBADF), "{bad:#x}");
        }
        table.get(open).unwrap();
    }

    #[test]
    fn slots_are_found_in_chunks_of_growing_size() {
        for (number, slot) in [(0, (0, 0)), (63, (0, 63)), (64, (1, 0)), (191, (1, 127)), (192, (2, 0))] {
            assert_eq!(chunk_of(number), slot);
        }
        let last = (1 << SLOT_BITS) - 1;
        assert!(chunk_of(last).0 < CHUNKS);
        let table = Table::new(HandleKind::Log);
        let handles: Vec<u64> = (0..1000).map(|number| table.insert(number).unwrap()).collect();
        for (number, handle) in handles.iter().enumerate() {
            assert_eq!(*table.get(*handle).unwrap(), number);
        }
    }

    #[test]
    fn a_value_that_is_used_outlives_its_handle() {
        let table = Table::new(HandleKind::File);
        let value = Arc::new(());
        let handle = table.insert(value.clone()).unwrap();
        let used = table.get(handle).unwrap();
        assert!(table.close(handle).unwrap().is_none());
        assert_eq!(errno(table.get(handle)), Some(libc::EBADF));
        assert_eq!(Arc::strong_count(&used), 2);
        drop(used);
        assert_eq!(Arc::strong_count(&value), 1);
    }

    #[test]
    fn a_child_opens_handles_although_its_parent_had_the_lock() {
        let table = Table::new(HandleKind::File);
        let parents = table.insert("parent's").unwrap();
        let lock = table.vacant();
        // SAFETY: the child calls only the table and libc, and ends without running destructors.
        match unsafe { libc::fork() } {
            0 => {
                // SAFETY: alarm(2) has no memory arguments. It ends the child if the child waits
                // for the lock.
                unsafe { libc::alarm(30) };
                let own = table.insert("child's").and_then(|own| table.get(own).map(|value| *value));
                let inherited = table.get(parents).map(|value| *value);
                let is_right =
                    own.is_ok_and(|own| own == "child's") && inherited.is_ok_and(|value| value == "parent's");
                // SAFETY: ends the child without running destructors.
                unsafe { libc::_exit(c_int::from(!is_right)) }
            }
            child => {
                let mut status = 0;
                // SAFETY: `status` is this call's.
                assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
                assert_eq!(status, 0);
            }
        }
        drop(lock);
    }

    /// Checks that no handle returns another handle's value, and that each value is closed exactly
    /// once.
    #[test]
    fn threads_open_use_and_close() {
        struct Value(AtomicU64, Arc<AtomicU64>);
        impl Drop for Value {
            fn drop(&mut self) {
                self.1.fetch_add(1, Ordering::Relaxed);
            }
        }
        let table: Table<Value> = Table::new(HandleKind::File);
        let cells: Vec<AtomicU64> = (0..8).map(|_| AtomicU64::new(0)).collect();
        let (opened, dropped) = (AtomicU64::new(0), Arc::new(AtomicU64::new(0)));
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (table, cells, opened, dropped) = (&table, &cells, &opened, &dropped);
                scope.spawn(move || {
                    for round in 0..20_000 {
                        let cell = &cells[(round * 7 + thread * 3) % cells.len()];
                        let handle = cell.load(Ordering::Acquire);
                        if let Ok(value) = table.get(handle) {
                            assert_eq!(value.0.load(Ordering::Relaxed), handle);
                        }
                        if round % 3 == thread % 3 {
                            let new = table.insert(Value(AtomicU64::new(0), dropped.clone())).unwrap();
                            table.get(new).unwrap().0.store(new, Ordering::Relaxed);
                            opened.fetch_add(1, Ordering::Relaxed);
                            let old = cell.swap(new, Ordering::AcqRel);
                            if old != 0 {
                                table.close(old).unwrap();
                                assert_eq!(errno(table.close(old)), Some(libc::EBADF));
                            }
                        }
                    }
                });
            }
        });
        for cell in &cells {
            table.close(cell.load(Ordering::Relaxed)).unwrap();
        }
        assert_eq!(dropped.load(Ordering::Relaxed), opened.into_inner());
    }
}
