//! Task queues of the threads of a copy.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, PoisonError};

use crate::meter::lock;

/// A queue for each thread. A thread takes its own newest task, so that a tree is walked depth
/// first and few directories are open. A thread without tasks takes another thread's oldest task,
/// so that two threads rarely work in one directory, whose lock both would need.
pub(super) struct TaskQueue<T> {
    state: Mutex<Tasks<T>>,
    changed: Condvar,
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
        match added.min(state.waiting) {
            0 => {}
            1 => self.changed.notify_one(),
            _ => self.changed.notify_all(),
        }
    }

    /// Takes a task, or waits for one; `None` when all are done.
    pub(super) fn take(&self, thread: usize) -> Option<T> {
        let mut state = lock(&self.state);
        loop {
            if let Some(task) = state.tasks[thread].pop_back() {
                return Some(task);
            }
            if let Some(task) = state.steal(thread) {
                return Some(task);
            }
            if state.outstanding == 0 {
                return None;
            }
            state.waiting += 1;
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.waiting -= 1;
        }
    }

    /// Leaves a thread's tasks to the others; it takes none any more.
    pub(super) fn leave(&self) {
        self.changed.notify_all();
    }

    /// Ends a task, which has queued the tasks that follow from it.
    pub(super) fn done(&self) {
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
    use super::*;

    #[test]
    fn a_thread_takes_its_newest_task_and_another_the_oldest() {
        let queue = TaskQueue::new(2);
        queue.push(0, [1, 2, 3]);
        assert_eq!((queue.take(0), queue.take(1), queue.take(1)), (Some(3), Some(1), Some(2)));
        for _ in 0..3 {
            queue.done();
        }
        assert_eq!(queue.take(0), None);
    }

    /// Symptom: the first thread slept on beside tasks of a thread that had left.
    #[test]
    fn tasks_of_a_thread_that_leaves_are_taken() {
        let queue = TaskQueue::new(3);
        queue.push(1, [1, 2]);
        assert_eq!((queue.take(1), queue.take(2)), (Some(2), Some(1)));
        std::thread::scope(|scope| {
            let first = scope.spawn(|| std::iter::from_fn(|| queue.take(0).inspect(|_| queue.done())).count());
            while lock(&queue.state).waiting == 0 {
                std::thread::yield_now();
            }
            // The wake-up goes to a thread that leaves.
            lock(&queue.state).tasks[1].extend([3, 4]);
            lock(&queue.state).outstanding += 2;
            queue.done();
            queue.leave();
            queue.done();
            assert_eq!(first.join().unwrap(), 2);
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
                    while let Some(depth) = queue.take(thread) {
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
