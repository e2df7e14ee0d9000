//! Handles: numbers that C has in the place of pointers.
//!
//! A closed pointer cannot be distinguished from an open one. A handle can: it names a place in a
//! table, and how often that place has been given out. So a second close, a use after the close,
//! and a handle of another kind are errors, not accidents.
//!
//! ```text
//! bits 63..56  kind
//! bits 55..32  place in the table
//! bits 31..0   generation of the place
//! ```
//!
//! A place holds its value until it is closed and no call uses it. A use costs two atomic
//! operations on the place, and takes no lock.
//!
//! `unsafe` here: a value is read through a shared reference, while the state of its place says
//! that it is there.

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};

use nowait::embed::PerProcess;

use crate::failure::{Failure, Result};

const PLACE_BITS: u32 = 24;
const FIRST_CHUNK: usize = 64;
/// Each chunk has twice the places of the one before: enough for `1 << PLACE_BITS` places.
const CHUNKS: usize = 19;

/// State of a place: generation, `OPEN`, and the number of its users.
const OPEN: u64 = 1 << 31;
const USERS: u64 = OPEN - 1;

/// Kind of a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Instance = 1,
    File,
    Queue,
    Log,
    Reader,
    Copy,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Instance => "instance",
            Kind::File => "file",
            Kind::Queue => "queue",
            Kind::Log => "log",
            Kind::Reader => "log reader",
            Kind::Copy => "copy",
        }
    }

    fn of(handle: u64) -> Option<Kind> {
        let kinds = [Kind::Instance, Kind::File, Kind::Queue, Kind::Log, Kind::Reader, Kind::Copy];
        kinds.into_iter().find(|kind| *kind as u64 == handle >> 56)
    }
}

/// All open handles of one kind.
pub(crate) struct Table<T> {
    kind: Kind,
    /// Places are never moved or freed, so that a stale handle can always be looked up.
    chunks: [OnceLock<Box<[Place<T>]>>; CHUNKS],
    /// How many places have been in use.
    made: AtomicU32,
    /// Places that are free again. The place that has been free longest is used next, so generations
    /// grow slowly. A forked child has a new list: a thread that the child lacks may hold the lock.
    vacant: PerProcess<Mutex<VecDeque<u32>>>,
}

struct Place<T> {
    state: AtomicU64,
    /// Written by the only owner of the place: the call that opens it, or, when it is closed, the
    /// last user. Read by users, of which there are none then. With the process that opened it.
    value: UnsafeCell<Option<(T, u64)>>,
}

// SAFETY: users share the value by reference (`T: Sync`), and the last of them takes it, on
// whatever thread (`T: Send`). `state` orders these, as `Table` has it.
unsafe impl<T: Send + Sync> Sync for Place<T> {}

impl<T: Send + Sync> Table<T> {
    pub(crate) const fn new(kind: Kind) -> Table<T> {
        let chunks = [const { OnceLock::new() }; CHUNKS];
        Table { kind, chunks, made: AtomicU32::new(0), vacant: PerProcess::new() }
    }

    /// Opens a place for `value`; returns its handle, which is never 0.
    pub(crate) fn insert(&self, value: T) -> Result<u64> {
        let vacant = self.vacant().pop_front();
        let number = vacant.map_or_else(|| self.make_place(), Ok)?;
        let (chunk, at) = chunk_of(number);
        let places = self.chunks[chunk].get_or_init(|| (0..FIRST_CHUNK << chunk).map(|_| Place::default()).collect());
        let place = &places[at];
        // SAFETY: the place was vacant, and `number` is this call's alone; nobody uses the value
        // before `OPEN` is stored.
        unsafe { *place.value.get() = Some((value, nowait::embed::fork_generation())) };
        let generation = place.state.load(Ordering::Relaxed) >> 32;
        place.state.store(generation << 32 | OPEN, Ordering::Release);
        Ok((self.kind as u64) << 56 | u64::from(number) << 32 | generation)
    }

    fn make_place(&self) -> Result<u32> {
        let more = |made: u32| (made >> PLACE_BITS == 0).then_some(made + 1);
        self.made.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).map_err(|_| {
            let text = format!("{} handles are open, which is the maximum; close some", 1 << PLACE_BITS);
            Failure::new(libc::EMFILE, text)
        })
    }

    /// Returns the value of a handle, which stays while it is used.
    #[inline]
    pub(crate) fn get(&self, handle: u64) -> Result<Used<'_, T>> {
        self.enter(handle, 0)
    }

    /// As `get`, of a handle that this process opened: its value has threads, or locks that another
    /// thread of the parent may have held at the fork.
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

    /// Closes a handle. Returns the value; `None` if another thread uses it at this moment: it is
    /// dropped there when that ends.
    pub(crate) fn close(&self, handle: u64) -> Result<Option<T>> {
        let used = self.enter(handle, OPEN)?;
        let value = self.leave(used.number, used.place);
        std::mem::forget(used);
        Ok(value)
    }

    /// Counts one more user, and takes the flags `closes` off. Refused if the handle is not open.
    #[inline]
    fn enter(&self, handle: u64, closes: u64) -> Result<Used<'_, T>> {
        let number = (handle >> 32) as u32 & ((1 << PLACE_BITS) - 1);
        let place = match handle >> 56 == self.kind as u64 {
            true => self.place(number),
            false => None,
        };
        let Some(place) = place else { return Err(self.stale(handle)) };
        let mut state = place.state.load(Ordering::Relaxed);
        loop {
            if state >> 32 != handle & u64::from(u32::MAX) || state & OPEN == 0 {
                return Err(self.stale(handle));
            }
            let entered = (state & !closes) + 1;
            // Acquire: the value was written before `OPEN` was stored.
            match place.state.compare_exchange_weak(state, entered, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Ok(Used { table: self, number, place }),
                Err(now) => state = now,
            }
        }
    }

    /// Counts one user less. Vacates the place, and returns the value, if that was the last of a
    /// closed handle.
    #[inline]
    fn leave(&self, number: u32, place: &Place<T>) -> Option<T> {
        // Release: this use comes before the last user takes the value. Acquire: as that user.
        let before = place.state.fetch_sub(1, Ordering::AcqRel);
        if before & (OPEN | USERS) == 1 { self.vacate(number, place, before) } else { None }
    }

    #[cold]
    fn vacate(&self, number: u32, place: &Place<T>, state: u64) -> Option<T> {
        // SAFETY: the handle is closed, so that no call enters any more, and the last user has
        // left.
        let value = unsafe { (*place.value.get()).take() }.map(|(value, _)| value);
        let generation = ((state >> 32) as u32).wrapping_add(1);
        place.state.store(u64::from(generation) << 32, Ordering::Release);
        self.vacant().push_back(number);
        value
    }

    #[inline]
    fn place(&self, number: u32) -> Option<&Place<T>> {
        let (chunk, at) = chunk_of(number);
        self.chunks.get(chunk)?.get()?.get(at)
    }

    fn vacant(&self) -> MutexGuard<'_, VecDeque<u32>> {
        self.vacant.get(Mutex::default).lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    #[cold]
    fn stale(&self, handle: u64) -> Failure {
        let name = self.kind.name();
        let text = match Kind::of(handle) {
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

impl<T> Default for Place<T> {
    fn default() -> Place<T> {
        Place { state: AtomicU64::new(0), value: UnsafeCell::new(None) }
    }
}

/// Chunk of a place, and its index there.
fn chunk_of(number: u32) -> (usize, usize) {
    let number = number as usize + FIRST_CHUNK;
    let chunk = (number / FIRST_CHUNK).ilog2() as usize;
    (chunk, number - (FIRST_CHUNK << chunk))
}

/// A value in use: closing its handle does not drop it.
pub(crate) struct Used<'t, T: Send + Sync> {
    table: &'t Table<T>,
    number: u32,
    place: &'t Place<T>,
}

impl<T: Send + Sync> Used<'_, T> {
    /// Whether it was opened before the fork that made this process.
    pub(crate) fn is_parents(&self) -> bool {
        self.held().1 != nowait::embed::fork_generation()
    }

    #[inline]
    fn held(&self) -> &(T, u64) {
        // SAFETY: `enter` counted this user while the place was open, and the value stays until the
        // last user leaves.
        match unsafe { &*self.place.value.get() } {
            Some(held) => held,
            None => unreachable!("an open place has a value"),
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
        drop(self.table.leave(self.number, self.place));
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
        let table = Table::new(Kind::File);
        let one = table.insert("one").unwrap();
        let two = table.insert("two").unwrap();
        assert_ne!(one, two);
        assert_eq!((*table.get(one).unwrap(), *table.get(two).unwrap()), ("one", "two"));
        assert_eq!(table.close(one).unwrap(), Some("one"));
        assert_eq!(errno(table.get(one)), Some(libc::EBADF));
        assert_eq!(errno(table.close(one)), Some(libc::EBADF));
        // The place is used again, under another handle.
        let three = table.insert("three").unwrap();
        assert_eq!(three & !u64::from(u32::MAX), one & !u64::from(u32::MAX));
        assert_eq!(errno(table.get(one)), Some(libc::EBADF));
        assert_eq!(*table.get(three).unwrap(), "three");
    }

    #[test]
    fn numbers_that_are_no_handles_are_refused() {
        let table = Table::new(Kind::File);
        let open = table.insert(()).unwrap();
        for bad in [0, 1, u64::MAX, open + 1, open + (1 << 32), open + (1 << 56), open | 0xff << 56, open ^ 1 << 31] {
            assert_eq!(errno(table.get(bad)), Some(libc::EBADF), "{bad:#x}");
            assert_eq!(errno(table.close(bad)), Some(libc::EBADF), "{bad:#x}");
        }
        table.get(open).unwrap();
    }

    #[test]
    fn places_are_found_in_chunks_of_growing_size() {
        for (number, place) in [(0, (0, 0)), (63, (0, 63)), (64, (1, 0)), (191, (1, 127)), (192, (2, 0))] {
            assert_eq!(chunk_of(number), place);
        }
        let last = (1 << PLACE_BITS) - 1;
        assert!(chunk_of(last).0 < CHUNKS);
        let table = Table::new(Kind::Log);
        let handles: Vec<u64> = (0..1000).map(|number| table.insert(number).unwrap()).collect();
        for (number, handle) in handles.iter().enumerate() {
            assert_eq!(*table.get(*handle).unwrap(), number);
        }
    }

    #[test]
    fn a_value_that_is_used_outlives_its_handle() {
        let table = Table::new(Kind::File);
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
        let table = Table::new(Kind::File);
        let parents = table.insert("parent's").unwrap();
        let lock = table.vacant();
        // SAFETY: the child calls the table and libc alone, and ends without a destructor.
        match unsafe { libc::fork() } {
            0 => {
                // SAFETY: it ends the child if that waits for the lock.
                unsafe { libc::alarm(30) };
                let own = table.insert("child's").and_then(|own| table.get(own).map(|value| *value));
                let inherited = table.get(parents).map(|value| *value);
                let is_right =
                    own.is_ok_and(|own| own == "child's") && inherited.is_ok_and(|value| value == "parent's");
                // SAFETY: ends the child.
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

    /// Symptom that it looks for: a handle that gives another handle's value, or a value that is
    /// closed twice or never.
    #[test]
    fn threads_open_use_and_close() {
        struct Value(AtomicU64, Arc<AtomicU64>);
        impl Drop for Value {
            fn drop(&mut self) {
                self.1.fetch_add(1, Ordering::Relaxed);
            }
        }
        let table: Table<Value> = Table::new(Kind::File);
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
