//! Task queues of the threads of a copy.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::meter::lock;

/// Interval at which a thread that pauses checks whether it is still to pause.
const PAUSE: Duration = Duration::from_millis(10);

/// A queue for each thread. A thread takes its own newest task, so that a tree is walked depth
/// first and few directories are open. A thread without tasks takes another thread's oldest task,
/// so that two threads rarely work in one directory, whose lock both would need.
pub(super) struct TaskQueue<T> {
    state: Mutex<Tasks<T>>,
    changed: Condvar,
}

/// A task that a thread runs.
pub(super) struct Running<'q, T>(&'q TaskQueue<T>);

impl<T> Drop for Running<'_, T> {
    fn drop(&mut self) {
        self.0.done();
    }
}

struct Tasks<T> {
    tasks: Vec<VecDeque<T>>,
    /// Number of tasks queued or running.
    outstanding: usize,
    waiting: usize,
}

impl<T> TaskQueue<T> {
    pub(super) fn new(threads: usize) -> Self {
        let tasks = (0..threads).map(|_| VecDeque::new()).collect();
        TaskQueue { state: Mutex::new(Tasks { tasks, outstanding: 0, waiting: 0 }), changed: Condvar::new() }
    }

    /// Queues tasks of a thread, which takes the last one first.
    pub(super) fn push(&self, thread: usize, tasks: impl IntoIterator<Item = T>) {
        let mut state = lock(&self.state);
        let before = state.tasks[thread].len();
        state.tasks[thread].extend(tasks);
        let added = state.tasks[thread].len() - before;
        state.outstanding += added;
        // All of them, since some may pause.
        if added > 0 && state.waiting > 0 {
            self.changed.notify_all();
        }
    }

    /// Takes a task, or waits for one; `None` when all are done. While `is_alone`, only thread 0
    /// takes tasks.
    pub(super) fn take(&self, thread: usize, is_alone: impl Fn() -> bool) -> Option<T> {
        let mut state = lock(&self.state);
        loop {
            let pauses = thread > 0 && is_alone();
            if !pauses {
                if let Some(task) = state.tasks[thread].pop_back().or_else(|| state.steal(thread)) {
                    return Some(task);
                }
            }
            if state.outstanding == 0 {
                return None;
            }
            state.waiting += 1;
            let time = if pauses { PAUSE } else { Duration::MAX };
            state = self.changed.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0;
            state.waiting -= 1;
        }
    }

    /// Ends a task when the result is dropped, also if the task panics: other threads wait for its
    /// end.
    pub(super) fn running(&self) -> Running<'_, T> {
        Running(self)
    }

    /// Ends a task, which has queued the tasks that follow from it.
    fn done(&self) {
        let mut state = lock(&self.state);
        state.outstanding -= 1;
        if state.outstanding == 0 {
            self.changed.notify_all();
        }
    }
}

impl<T> Tasks<T> {
    fn steal(&mut self, thread: usize) -> Option<T> {
        let threads = self.tasks.len();
        (1..threads).find_map(|distance| self.tasks[(thread + distance) % threads].pop_front())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

    use super::*;

    #[test]
    fn a_thread_takes_its_newest_task_and_another_the_oldest() {
        let queue = TaskQueue::new(2);
        queue.push(0, [1, 2, 3]);
        assert_eq!(
            (queue.take(0, || false), queue.take(1, || false), queue.take(1, || false)),
            (Some(3), Some(1), Some(2))
        );
        for _ in 0..3 {
            queue.done();
        }
        assert_eq!(queue.take(0, || false), None);
    }

    /// Symptom: the first thread slept on while a thread that took no more tasks had some queued.
    #[test]
    fn the_first_thread_takes_all_tasks_while_it_is_alone() {
        let (queue, is_alone) = (TaskQueue::new(3), AtomicBool::new(false));
        queue.push(1, [1, 2]);
        assert_eq!(queue.take(1, || is_alone.load(SeqCst)), Some(2));
        is_alone.store(true, SeqCst);
        let work = |thread| {
            let take = || queue.take(thread, || is_alone.load(SeqCst)).inspect(|_| queue.done());
            std::iter::from_fn(take).count()
        };
        std::thread::scope(|scope| {
            let threads = [0, 2].map(|thread| scope.spawn(move || work(thread)));
            while lock(&queue.state).waiting < 2 {
                std::thread::yield_now();
            }
            queue.push(1, [3]);
            queue.done();
            assert_eq!(threads.map(|thread| thread.join().unwrap()), [2, 0]);
        });
    }

    #[test]
    fn threads_that_paused_take_tasks_again() {
        let (queue, is_alone) = (TaskQueue::new(2), AtomicBool::new(true));
        queue.push(0, [1]);
        std::thread::scope(|scope| {
            let second = scope.spawn(|| queue.take(1, || is_alone.load(SeqCst)));
            while lock(&queue.state).waiting == 0 {
                std::thread::yield_now();
            }
            is_alone.store(false, SeqCst);
            assert_eq!(second.join().unwrap(), Some(1));
        });
    }

    #[test]
    fn all_threads_end_when_the_last_task_is_done() {
        let queue = TaskQueue::new(3);
        queue.push(0, [10_u32]);
        let sum = std::sync::atomic::AtomicU32::new(0);
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let (queue, sum) = (&queue, &sum);
                scope.spawn(move || {
                    while let Some(depth) = queue.take(thread, || false) {
                        sum.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        queue.push(thread, (0..2).filter(|_| depth > 0).map(|_| depth - 1));
                        queue.done();
                    }
                });
            }
        });
        assert_eq!(sum.into_inner(), (1 << 11) - 1);
    }
}
