//! Readers are asked in every way: waiting, awaiting, and now one, now the other.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::yield_now;

use nowait::{Result, block_on};
use nowait_log::{Reader, Record};

/// Ways to ask a reader for records.
#[derive(Clone, Copy)]
pub(crate) struct Asking(u64);

impl Asking {
    /// A way that differs from the one before.
    pub(crate) fn next_way() -> Asking {
        static WAYS: AtomicU64 = AtomicU64::new(0);
        Asking(WAYS.fetch_add(1, Relaxed))
    }

    /// Gives the next record. `step` has a read go on, where it does not by itself.
    pub(crate) fn next(self, reader: &mut Reader, step: impl Fn()) -> Result<Option<Record<'_>>> {
        let waits = match self.0 % 3 {
            0 => true,
            1 => false,
            _ => reader.next_lsn() % 2 == 0,
        };
        let mut next = reader.next();
        if waits {
            return next.wait();
        }
        block_on(poll_fn(|context| {
            step();
            let answer = Pin::new(&mut next).poll(context);
            if answer.is_pending() {
                context.waker().wake_by_ref();
                yield_now();
            }
            answer
        }))
    }
}
