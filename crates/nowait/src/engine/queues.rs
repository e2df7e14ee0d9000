//! Several queues, each of which some threads use, so that the short lock around a submission is
//! rarely contended.

#[cfg(feature = "tokio")]
use std::sync::atomic::Ordering::Release;
use std::sync::{Arc, Mutex};

use super::QueueRefusal;
use super::queue::Queue;
#[cfg(feature = "tokio")]
use crate::op::watcher;
use crate::stats::thread_number;
use crate::sync::lock;

/// Rings that one instance, or one runtime, makes at most: beyond that, threads share. Each costs
/// a descriptor and, with `DEPTH` entries, 28 KiB of memory that counts as locked.
pub(super) const QUEUES_MAX: usize = 64;

/// The queues of an instance or of a runtime, and which thread uses which.
#[derive(Default)]
pub(super) struct Queues(Mutex<Members>);

#[derive(Default)]
struct Members {
    queues: Vec<Arc<Queue>>,
    /// Threads in order of their first submission; a thread's place decides its queue.
    threads: Vec<usize>,
}

impl Members {
    fn of(&self, place: usize) -> Arc<Queue> {
        self.queues[place % self.queues.len()].clone()
    }
}

impl Queues {
    /// Returns this thread's queue. Makes one, for a place, while fewer than `max` exist and each
    /// has a thread, and passes it to `begin`; if that fails, existing ones serve.
    pub(super) fn mine(
        &self,
        max: usize,
        make: impl FnOnce(usize) -> Result<Arc<Queue>, QueueRefusal>,
        begin: impl FnOnce(&Arc<Queue>),
    ) -> Result<Arc<Queue>, QueueRefusal> {
        /// Threads that are remembered; later ones share by number.
        const THREADS_MAX: usize = 256;
        let thread = thread_number();
        let mut members = lock(&self.0);
        let place = match members.threads.iter().position(|known| *known == thread) {
            Some(place) => place,
            None if members.threads.len() < THREADS_MAX => {
                members.threads.push(thread);
                members.threads.len() - 1
            }
            None => thread,
        };
        let count = members.queues.len();
        if place >= count && count < max {
            drop(members);
            // The call may sleep for memory.
            let made = make(count);
            members = lock(&self.0);
            match made {
                Ok(queue) if members.queues.len() < max => {
                    members.queues.push(queue.clone());
                    drop(members);
                    begin(&queue);
                    return Ok(queue);
                }
                Err(refusal) if members.queues.is_empty() => return Err(refusal),
                // Other threads have made as many as are allowed.
                spare => {
                    let mine = members.of(place);
                    drop(members);
                    drop(spare);
                    return Ok(mine);
                }
            }
        }
        Ok(members.of(place))
    }

    pub(super) fn add(&self, queue: Arc<Queue>) {
        lock(&self.0).queues.push(queue);
    }

    pub(super) fn all(&self) -> Vec<Arc<Queue>> {
        lock(&self.0).queues.clone()
    }

    #[cfg(feature = "tokio")]
    pub(super) fn remove(&self, queue: &Arc<Queue>) {
        queue.retired.store(true, Release);
        lock(&self.0).queues.retain(|known| !Arc::ptr_eq(known, queue));
        watcher::leave(queue.clone());
    }

    /// Marks these queues, so that threads which know one look for another.
    #[cfg(feature = "tokio")]
    pub(super) fn retire(&self) {
        lock(&self.0).queues.iter().for_each(|queue| queue.retired.store(true, Release));
    }
}

impl Drop for Queues {
    fn drop(&mut self) {
        // Nothing submits any more: the operations that could have their instance have ended.
        self.all().iter().for_each(Queue::leave);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use crate::sys::Errno;

    use super::*;
    use crate::op::watcher::NoticedBy;

    /// Symptom: a thread that made a ring held the lock that the instance's other threads take to find
    /// theirs.
    #[test]
    fn no_thread_waits_for_another_that_makes_a_ring() {
        let make = |place| Queue::new(NoticedBy::Watcher, place);
        let first = match make(0) {
            Ok(queue) => queue,
            Err(refusal) => return eprintln!("skipped: no io_uring ({:?})", refusal.errno),
        };
        let queues = Arc::new(Queues::default());
        queues.add(first.clone());
        // Its place is that of the first.
        assert!(Arc::ptr_eq(&queues.mine(2, make, |_| ()).unwrap(), &first));
        let ((begins, begun), (go_on, goes_on)) = (channel(), channel());
        let of_others = queues.clone();
        let thread = std::thread::spawn(move || {
            let make_late = |place| {
                begins.send(()).unwrap();
                // Too late, if the main thread waits for the lock.
                goes_on.recv_timeout(Duration::from_secs(120)).map(|()| make(place)).unwrap()
            };
            of_others.mine(2, make_late, |_| ()).unwrap()
        });
        begun.recv().unwrap();
        assert_eq!(queues.all().len(), 1);
        go_on.send(()).unwrap();
        let second = thread.join().unwrap();
        assert!(Arc::ptr_eq(&queues.all()[1], &second));
    }

    /// Symptom: after some rings had been refused, the tasks of a new ring were given another one.
    #[test]
    fn a_new_ring_is_that_of_its_thread() {
        let queues = Arc::new(Queues::default());
        match Queue::new(NoticedBy::Watcher, 0) {
            Ok(first) => queues.add(first),
            Err(refusal) => return eprintln!("skipped: no io_uring ({:?})", refusal.errno),
        }
        let of_new_thread = |is_refused: bool| {
            let queues = queues.clone();
            let refusal = QueueRefusal { errno: Errno::MFILE, entries: 0 };
            let make = move |place| if is_refused { Err(refusal) } else { Queue::new(NoticedBy::Watcher, place) };
            std::thread::spawn(move || {
                let mut new = None;
                let mine = queues.mine(8, make, |queue| new = Some(queue.clone())).unwrap();
                (mine, new)
            })
            .join()
            .unwrap()
        };
        for _ in 0..2 {
            assert!(of_new_thread(true).1.is_none());
        }
        let (mine, new) = of_new_thread(false);
        assert!(Arc::ptr_eq(&mine, &new.unwrap()) && Arc::ptr_eq(&mine, &queues.all()[1]));
    }
}
