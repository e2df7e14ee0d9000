//! The ring that a thread submitted to last. A cold read of a future finds its thread's ring there,
//! and takes no lock that all threads share. A thread that alternates between engines takes that
//! lock each time.
//!
//! A thread keeps no ring alive. The weak share costs the memory of a [`Queue`], without the ring's
//! memory and descriptor, until the thread ends or uses another engine.

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

thread_local!(static LAST: RefCell<Option<(Key, Weak<Queue>)>> = const { RefCell::new(None) });

/// Returns the ring that this thread used last, if it is one of `key`; else what `look_up` finds,
/// which is remembered.
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
    let find = |last: &Option<(Key, Weak<Queue>)>| last.as_ref().filter(|(known, _)| *known == key)?.1.upgrade();
    LAST.try_with(|last| find(&last.borrow())).ok().flatten()
}

fn remember(key: Key, queue: &Arc<Queue>) {
    // A thread that is being torn down remembers nothing.
    let _ = LAST.try_with(|last| last.replace(Some((key, Arc::downgrade(queue)))));
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
