//! Cells that are written once, and values that belong to one process.
//!
//! `unsafe` here: the value of a cell that any thread may read while another one writes it.

use std::fmt;
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{AcqRel, Acquire};

use super::fork_generation;

/// Cell that is written once, like std's `OnceLock`, but no thread waits for another thread's
/// write. A child of a fork would wait without end for a thread that only its parent has.
pub(crate) struct WriteOnce<T> {
    value: AtomicPtr<T>,
    /// It is sent and shared as one that owns a `T`, and gives it to any thread.
    owns: PhantomData<std::sync::OnceLock<T>>,
}

impl<T> WriteOnce<T> {
    pub(crate) const fn new() -> Self {
        WriteOnce { value: AtomicPtr::new(ptr::null_mut()), owns: PhantomData }
    }

    #[inline]
    pub(crate) fn get(&self) -> Option<&T> {
        // SAFETY: null, or from `Box::into_raw` in `set`. It stays valid and unchanged until this is
        // dropped. The release in `set` precedes.
        unsafe { self.value.load(Acquire).as_ref() }
    }

    /// Writes the value; returns it if there is one.
    pub(crate) fn set(&self, value: T) -> Result<(), T> {
        let new = Box::into_raw(Box::new(value));
        match self.value.compare_exchange(ptr::null_mut(), new, AcqRel, Acquire) {
            Ok(_) => Ok(()),
            // SAFETY: from `Box::into_raw` above, and nothing else has seen it.
            Err(_) => Err(*unsafe { Box::from_raw(new) }),
        }
    }

    /// Returns the value. If there is none, makes one; several threads may do so, and one value is
    /// kept.
    #[inline]
    pub(crate) fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        match self.get() {
            Some(value) => value,
            None => self.init(make),
        }
    }

    #[cold]
    fn init(&self, make: impl FnOnce() -> T) -> &T {
        drop(self.set(make()));
        self.get().unwrap_or_else(|| unreachable!("it was written"))
    }

    pub(crate) fn take(&mut self) -> Option<T> {
        let value = std::mem::replace(self.value.get_mut(), ptr::null_mut());
        // SAFETY: from `Box::into_raw` in `set`; with this cell borrowed mutably nothing refers to it.
        (!value.is_null()).then(|| *unsafe { Box::from_raw(value) })
    }
}

impl<T> Default for WriteOnce<T> {
    fn default() -> Self {
        WriteOnce::new()
    }
}

impl<T: fmt::Debug> fmt::Debug for WriteOnce<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

impl<T> Drop for WriteOnce<T> {
    fn drop(&mut self) {
        drop(self.take());
    }
}

/// Value that belongs to one process. After a fork the child makes a new one. The child neither
/// uses nor drops the parent's value: threads that the child lacks may hold its locks.
///
/// ```
/// use nowait::embed::PerProcess;
/// use std::sync::Mutex;
///
/// static NAMES: PerProcess<Mutex<Vec<String>>> = PerProcess::new();
///
/// NAMES.get(Default::default).lock().unwrap().push("parent".to_owned());
/// ```
#[derive(Debug)]
pub struct PerProcess<T> {
    value: WriteOnce<(u64, T)>,
    /// The child's.
    next: WriteOnce<PerProcess<T>>,
}

impl<T> PerProcess<T> {
    /// Makes an empty cell.
    pub const fn new() -> Self {
        PerProcess { value: WriteOnce::new(), next: WriteOnce::new() }
    }

    /// Returns the value of this process. The first call in each process creates the value. If
    /// several calls create values at the same time, one value is kept and the others are dropped.
    #[inline]
    pub fn get(&self, make: impl FnOnce() -> T) -> &T {
        let here = fork_generation();
        match self.value.get() {
            Some((generation, value)) if *generation == here => value,
            _ => self.get_or_make(here, make),
        }
    }

    #[cold]
    fn get_or_make(&self, here: u64, make: impl FnOnce() -> T) -> &T {
        let mut node = self;
        while let Some((generation, value)) = node.value.get() {
            if *generation == here {
                return value;
            }
            node = node.next.get_or_init(PerProcess::new);
        }
        &node.value.get_or_init(|| (here, make())).1
    }
}

impl<T> Default for PerProcess<T> {
    fn default() -> Self {
        PerProcess::new()
    }
}

impl<T> Drop for PerProcess<T> {
    fn drop(&mut self) {
        if let Some(value) = self.value.take().filter(|(generation, _)| *generation != fork_generation()) {
            std::mem::forget(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::channel;

    use super::*;

    /// Symptom: a child of a fork waited for a thread of its parent that was writing the cell.
    #[test]
    fn no_thread_waits_for_another_that_writes_a_cell() {
        let cell = Arc::new(WriteOnce::new());
        let values = [Arc::new(1), Arc::new(2)];
        let (begins, begun) = channel();
        let (goes_on, go_on) = channel();
        let (late, first) = (cell.clone(), values[0].clone());
        let thread = std::thread::spawn(move || {
            let make = || {
                begins.send(()).unwrap();
                go_on.recv().unwrap();
                first
            };
            **late.get_or_init(make)
        });
        begun.recv().unwrap();
        assert_eq!(**cell.get_or_init(|| values[1].clone()), 2);
        goes_on.send(()).unwrap();
        assert_eq!(thread.join().unwrap(), 2);
        assert_eq!(cell.set(values[0].clone()).unwrap_err(), values[0]);
        drop(cell);
        assert!(values.iter().all(|value| Arc::strong_count(value) == 1));
    }
}
