//! The rings that a thread submitted to last. Each cold read of a future looks its thread's ring
//! up, and takes no lock that all threads share.
//!
//! A thread keeps no ring alive. The weak share costs the memory of a [`Queue`], without the ring's
//! memory and descriptor, until the thread ends or has used other engines.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use super::queue::Queue;

/// An engine of this process, and the runtime whose rings are meant; none: the common ones.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) engine: u64,
    #[cfg(feature = "tokio")]
    pub(super) runtime: Option<tokio::runtime::Id>,
}

impl Key {
    pub(super) fn common(engine: u64) -> Key {
        Key {
            engine,
            #[cfg(feature = "tokio")]
            runtime: None,
        }
    }
}

/// Numbers engines. None has the number of another that this process, or a parent before the fork,
/// has made: a child finds no ring of its parent.
pub(super) fn next_engine() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Rings that a thread remembers: those of a few engines and runtimes.
const KNOWN_MAX: usize = 4;

struct Known {
    entries: [Option<(Key, Weak<Queue>)>; KNOWN_MAX],
    /// The oldest, which the next one replaces.
    oldest: usize,
}

thread_local!(static KNOWN: RefCell<Known> = const {
    RefCell::new(Known { entries: [const { None }; KNOWN_MAX], oldest: 0 })
});

/// Returns the ring that this thread used last for `key`; else what `look_up` finds, which is
/// remembered.
pub(super) fn find_or(key: Key, look_up: impl FnOnce() -> Option<Arc<Queue>>) -> Option<Arc<Queue>> {
    // In this order: if the ring is not retired after its share was taken, `Queues` still had a
    // share then. So a watcher does not mistake the ring for one without submitters.
    if let Some(queue) = recall(key).filter(|queue| !queue.is_retired()) {
        return Some(queue);
    }
    let queue = look_up()?;
    remember(key, &queue);
    Some(queue)
}

fn recall(key: Key) -> Option<Arc<Queue>> {
    KNOWN.try_with(|known| known.borrow().get(key)?.upgrade()).ok().flatten()
}

fn remember(key: Key, queue: &Arc<Queue>) {
    // A thread that is being torn down remembers nothing.
    let _ = KNOWN.try_with(|known| known.borrow_mut().set(key, Arc::downgrade(queue)));
}

impl Known {
    fn get(&self, key: Key) -> Option<&Weak<Queue>> {
        self.entries.iter().flatten().find(|(known, _)| *known == key).map(|(_, queue)| queue)
    }

    fn set(&mut self, key: Key, queue: Weak<Queue>) {
        let same = self.entries.iter().position(|entry| entry.as_ref().is_some_and(|(known, _)| *known == key));
        let at = same.unwrap_or_else(|| {
            let oldest = self.oldest;
            self.oldest = (oldest + 1) % KNOWN_MAX;
            oldest
        });
        self.entries[at] = Some((key, queue));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::watcher::NoticedBy;

    fn queue_or_skip() -> Option<Arc<Queue>> {
        Queue::new(NoticedBy::Watcher, 0)
            .inspect_err(|refusal| eprintln!("skipped: no io_uring ({:?})", refusal.errno))
            .ok()
    }

    #[test]
    fn a_thread_looks_its_ring_up_once_and_keeps_none_alive() {
        let Some(queue) = queue_or_skip() else { return };
        let key = Key::common(next_engine());
        assert!(find_or(key, || Some(queue.clone())).is_some());
        let found = find_or(key, || unreachable!("it is known")).unwrap();
        assert!(Arc::ptr_eq(&found, &queue));
        assert!(find_or(Key::common(next_engine()), || None).is_none(), "another engine's");
        let share = Arc::downgrade(&queue);
        drop((queue, found));
        assert!(share.upgrade().is_none(), "a thread keeps a ring open");
        assert!(find_or(key, || None).is_none());
    }

    #[test]
    fn the_oldest_is_forgotten_first() {
        let Some(queue) = queue_or_skip() else { return };
        let keys: Vec<Key> = (0..=KNOWN_MAX).map(|_| Key::common(next_engine())).collect();
        keys.iter().for_each(|key| drop(find_or(*key, || Some(queue.clone()))));
        assert!(keys[1..].iter().all(|key| recall(*key).is_some()));
        assert!(recall(keys[0]).is_none());
    }

    #[cfg(feature = "tokio")]
    #[test]
    fn a_retired_ring_is_looked_up_again() {
        use crate::engine::queues::Queues;
        let (Some(first), Some(second)) = (queue_or_skip(), queue_or_skip()) else { return };
        let key = Key::common(next_engine());
        let queues = Queues::default();
        queues.add(first.clone());
        find_or(key, || Some(first.clone()));
        // As when a runtime is attached.
        queues.retire();
        let found = find_or(key, || Some(second.clone())).unwrap();
        assert!(Arc::ptr_eq(&found, &second));
        queues.add(second.clone());
        // As when a runtime ends.
        queues.remove(&second);
        assert!(find_or(key, || None).is_none());
    }
}
