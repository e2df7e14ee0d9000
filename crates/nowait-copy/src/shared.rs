//! State that the threads of a copy share: options, progress, and refusals of file systems.

use std::any::Any;
use std::collections::hash_map::RandomState;
use std::ffi::CString;
use std::hash::BuildHasher;
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock};

use nowait::Nowait;

use crate::meter::{Meter, lock};
use crate::options::{Observer, Options};
use crate::os::{kind, temporary};
use crate::report::Event;

/// State that threads of a copy share.
pub(crate) struct Shared {
    pub(crate) options: Options,
    pub(crate) meter: Meter,
    pub(crate) learned: Learned,
    /// Serves direct requests; if the caller passed an instance, serves all requests.
    pub(crate) instance: Nowait,
    /// True if `/proc` is available to link unnamed files: not every kernel lets every user do that
    /// by a descriptor alone.
    pub(crate) has_proc: bool,
    /// Part of the names of temporary files, unique to this copy.
    token: u64,
    staged: AtomicU64,
    /// Number of files being copied by direct requests, which share the bytes in flight.
    direct_copies: AtomicUsize,
    /// True after a panic of the observer.
    has_panicked: AtomicBool,
    /// Payload of the observer's first panic.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

impl Shared {
    pub(crate) fn new(options: Options) -> Self {
        let instance = options.instance.clone().unwrap_or_else(|| Nowait::shared().clone());
        Shared {
            meter: Meter::new(&options),
            learned: Learned::default(),
            instance,
            has_proc: std::path::Path::new("/proc/self/fd").exists(),
            // A hasher has random keys. The process's id alone is not unique, since containers may
            // share a directory.
            token: RandomState::new().hash_one(std::process::id()),
            staged: AtomicU64::new(0),
            direct_copies: AtomicUsize::new(0),
            has_panicked: AtomicBool::new(false),
            panic: Mutex::default(),
            options,
        }
    }

    /// Reports an event to the observer, if there is one. Its first panic ends the copy as a
    /// cancellation does: unwinding would leave directories incomplete, and `copy` would panic with the
    /// payload of any thread.
    pub(crate) fn tell(&self, event: &Event<'_>) {
        let Some(Observer(observer)) = &self.options.observer else { return };
        if self.has_panicked.load(Relaxed) {
            return;
        }
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| observer(event))) {
            self.has_panicked.store(true, Relaxed);
            self.meter.cancel();
            let mut first = lock(&self.panic);
            if first.is_none() {
                *first = Some(payload);
            }
        }
    }

    /// Takes the payload of the observer's first panic.
    pub(crate) fn take_panic(&self) -> Option<Box<dyn Any + Send>> {
        lock(&self.panic).take()
    }

    /// Counts a copy by direct requests until the returned guard is dropped.
    pub(crate) fn begin_direct(&self) -> DirectCopy<'_> {
        DirectCopy { count: self.direct_copies.fetch_add(1, Relaxed) + 1, shared: self }
    }

    /// Returns a name for a temporary file that no other copy uses.
    pub(crate) fn temporary_name(&self, is_guarded: bool) -> CString {
        temporary::name(self.token, self.staged.fetch_add(1, Relaxed), is_guarded)
    }
}

/// A copy by direct requests.
pub(crate) struct DirectCopy<'s> {
    /// Number of such copies at its start, itself included.
    pub(crate) count: usize,
    shared: &'s Shared,
}

impl Drop for DirectCopy<'_> {
    fn drop(&mut self) {
        self.shared.direct_copies.fetch_sub(1, Relaxed);
    }
}

/// Abilities that a file system may refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Ability {
    /// Sharing blocks.
    Clone,
    /// `copy_file_range(2)`.
    KernelCopy,
    /// `RWF_DONTCACHE`.
    Uncached,
    /// `O_TMPFILE`.
    TemporaryFile,
    /// Naming a file without a name by its descriptor alone (`AT_EMPTY_PATH`).
    LinkByDescriptor,
    /// `RENAME_NOREPLACE`.
    RenameNew,
}

/// Device numbers of source and target; for an ability of one device, its number twice.
pub(crate) type Devices = (u64, u64);

/// Facts about devices; the first finding is kept. All threads look them up for each file.
#[derive(Debug, Default)]
pub(crate) struct Learned {
    refused: Known<(Ability, Devices), ()>,
    /// True if `copy_file_range(2)` of a device's file system is more than a loop.
    copies: Known<u64, bool>,
    /// True if reflinks on a device are faster from one thread than from several.
    clones_alone: Known<u64, bool>,
    /// A file's data were copied, since not all files can share blocks.
    has_filled: AtomicBool,
    /// Resolution of each device's times, in nanoseconds.
    time_steps_ns: Known<u64, i128>,
}

impl Learned {
    pub(crate) fn is_refused(&self, ability: Ability, devices: Devices) -> bool {
        self.refused.get((ability, devices)).is_some()
    }

    pub(crate) fn refuse(&self, ability: Ability, devices: Devices) {
        self.refused.add((ability, devices), ());
    }

    /// Returns the resolution of a device's times in nanoseconds, if it was measured.
    pub(crate) fn time_step_ns(&self, device: u64) -> Option<i128> {
        self.time_steps_ns.get(device)
    }

    pub(crate) fn keep_time_step(&self, device: u64, step_ns: i128) {
        self.time_steps_ns.add(device, step_ns);
    }

    /// True if `copy_file_range(2)` may do more on a device than reads and writes; `fd` is a file on
    /// this device.
    pub(crate) fn copies_by_itself(&self, device: u64, fd: BorrowedFd<'_>) -> bool {
        self.copies.get_or_find(device, || kind::copies_by_itself(fd).unwrap_or(false))
    }

    /// Called after a reflink: records whether the device is faster from one thread. `fd` is a file
    /// on it.
    pub(crate) fn cloned(&self, device: u64, fd: BorrowedFd<'_>) {
        self.clones_alone.get_or_find(device, || kind::clones_alone(fd).unwrap_or(false));
    }

    /// Called before a file's data are copied.
    pub(crate) fn fills(&self) {
        // No write in the usual case, so that threads share the cache line.
        if !self.has_filled.load(Relaxed) {
            self.has_filled.store(true, Relaxed);
        }
    }

    /// True after a reflink on a device where one thread is faster than several, until a file's data
    /// are copied.
    pub(crate) fn is_one_thread_faster(&self) -> bool {
        !self.has_filled.load(Relaxed) && self.clones_alone.entries().any(|device| device.value)
    }
}

/// Maximum number of entries of a [`Known`]: each lookup may read all of them.
const KNOWN_MAX: usize = 64;

/// Append-only list with lock-free lookups. A copy involves few devices. With more, some facts are
/// found again.
#[derive(Debug)]
struct Known<K, V> {
    first: OnceLock<Box<Entry<K, V>>>,
}

#[derive(Debug)]
struct Entry<K, V> {
    key: K,
    value: V,
    rest: Known<K, V>,
}

impl<K: Copy + PartialEq, V: Copy> Known<K, V> {
    fn entries(&self) -> impl Iterator<Item = &Entry<K, V>> {
        std::iter::successors(self.first.get(), |entry| entry.rest.first.get()).map(|entry| &**entry)
    }

    fn get(&self, key: K) -> Option<V> {
        self.entries().find(|entry| entry.key == key).map(|entry| entry.value)
    }

    fn get_or_find(&self, key: K, find: impl FnOnce() -> V) -> V {
        self.get(key).unwrap_or_else(|| {
            let found = find();
            self.add(key, found);
            found
        })
    }

    /// Adds an entry, unless the list is full or has one with this key.
    fn add(&self, key: K, value: V) {
        let mut new = Box::new(Entry { key, value, rest: Known::default() });
        let mut list = self;
        for _ in 0..KNOWN_MAX {
            let Err(refused) = list.first.set(new) else { return };
            // Occupied: done if the key is the same, otherwise the next place.
            let Some(taken) = list.first.get().filter(|taken| taken.key != refused.key) else { return };
            (list, new) = (&taken.rest, refused);
        }
    }
}

impl<K, V> Default for Known<K, V> {
    fn default() -> Self {
        Known { first: OnceLock::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn concurrent_additions_keep_one_entry_per_key() {
        const KEYS: u64 = KNOWN_MAX as u64;
        let known = Known::default();
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let known = &known;
                scope.spawn(move || (0..KEYS).for_each(|key| known.add(key, thread)));
            }
        });
        let mut keys: Vec<u64> = known.entries().map(|entry| entry.key).collect();
        keys.sort_unstable();
        assert_eq!(keys, Vec::from_iter(0..KEYS));
        assert!((0..KEYS).all(|key| known.get(key).is_some()));
        known.add(KEYS, 0);
        assert_eq!(known.get(KEYS), None, "the list is full");
    }
}
