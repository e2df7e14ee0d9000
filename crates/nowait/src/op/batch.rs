//! Operations that belong together, for one future that waits for all of them.

use std::task::{Context, Poll, Waker};

use super::watcher;
use crate::stats::thread_number;
use crate::sync::loomed::{Mutex, lock};

/// The common list of operations that belong together: their numbers, in the order in which they
/// finish.
#[derive(Default)]
pub(crate) struct Batch(Mutex<Finished>);

#[derive(Default)]
struct Finished {
    numbers: Vec<usize>,
    waker: Option<Waker>,
    /// The thread that polled last, in whose own queue some may be.
    thread: Option<usize>,
}

impl Batch {
    pub(super) fn add(&self, number: usize) {
        let mut finished = lock(&self.0);
        finished.numbers.push(number);
        let waker = finished.waker.take();
        drop(finished);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Moves the numbers that have finished since the last call into `numbers`; if there are none,
    /// leaves the waker.
    pub(crate) fn poll(&self, context: &mut Context<'_>, numbers: &mut Vec<usize>) -> Poll<()> {
        // A waker's clone and drop may run anything: not under the lock.
        let waker = context.waker().clone();
        let mut finished = lock(&self.0);
        if !finished.numbers.is_empty() {
            std::mem::swap(&mut finished.numbers, numbers);
            drop(finished);
            return Poll::Ready(());
        }
        let old = finished.waker.replace(waker);
        let thread = thread_number();
        let has_moved = finished.thread.replace(thread).is_some_and(|before| before != thread);
        drop(finished);
        if has_moved {
            // A task that moved to another worker is still its runtime's.
            let is_same = old.as_ref().is_some_and(|old| old.will_wake(context.waker()));
            watcher::ask_of(if is_same { watcher::Of::Threads } else { watcher::Of::All });
        }
        drop(old);
        Poll::Pending
    }
}

#[cfg(all(test, nowait_loom))]
mod loom_tests {
    use std::sync::Arc;

    use super::*;
    use crate::op::fixture::slot;
    use crate::op::{Done, Notify};
    use crate::stats::Count;

    #[test]
    fn a_batch_tells_of_each_number_once() {
        loom::model(|| {
            let batch = Arc::new(Batch::default());
            let threads = [0, 1].map(|number| {
                let (slot, _) = slot(Notify::Batch(batch.clone(), number));
                loom::thread::spawn(move || drop(slot.finish(Ok(Done::Nothing), Count::Ring)))
            });
            let mut seen = Vec::new();
            loom::future::block_on(std::future::poll_fn(|context| {
                let mut numbers = Vec::new();
                while seen.len() < 2 {
                    std::task::ready!(batch.poll(context, &mut numbers));
                    seen.append(&mut numbers);
                }
                Poll::Ready(())
            }));
            for thread in threads {
                thread.join().unwrap();
            }
            seen.sort_unstable();
            assert_eq!(seen, [0, 1]);
        });
    }
}
