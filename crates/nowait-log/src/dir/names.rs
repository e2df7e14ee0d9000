//! Lock for changes of names in a log's directory.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use crate::os::lock;

/// A lock that knows which thread holds it.
#[derive(Default)]
pub(crate) struct Names {
    lock: Mutex<()>,
    holder: AtomicUsize,
}

pub(crate) struct NamesGuard<'a> {
    names: &'a Names,
    _guard: MutexGuard<'a, ()>,
}

impl Names {
    /// Takes the lock; None if this thread already holds it.
    pub(crate) fn lock(&self) -> Option<NamesGuard<'_>> {
        if self.is_mine() {
            return None;
        }
        let guard = lock(&self.lock);
        self.holder.store(this_thread(), Ordering::Relaxed);
        Some(NamesGuard { names: self, _guard: guard })
    }

    /// True if this thread holds the lock. Exact without the lock, since only this thread stores
    /// its own mark.
    pub(crate) fn is_mine(&self) -> bool {
        self.holder.load(Ordering::Relaxed) == this_thread()
    }
}

impl Drop for NamesGuard<'_> {
    fn drop(&mut self) {
        self.names.holder.store(0, Ordering::Relaxed);
    }
}

/// Returns a mark of this thread: an address that is unique while the thread lives.
fn this_thread() -> usize {
    thread_local!(static MARK: u8 = const { 0 });
    MARK.with(|mark| std::ptr::from_ref(mark).addr())
}
