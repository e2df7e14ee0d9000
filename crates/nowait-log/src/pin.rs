//! Pins, by which readers keep records that they have not read.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::commit::Shared;
use nowait::{ErrorKind, ErrorOp, Result};

/// Keeps the segment of a reader's next record, and later ones, until dropped.
pub(super) struct ReaderPin {
    shared: Arc<Shared>,
    next_lsn: Arc<AtomicU64>,
}

impl ReaderPin {
    pub(super) fn new(shared: &Arc<Shared>, lsn: u64) -> Result<ReaderPin> {
        if shared.is_forked() {
            return Err(shared.forked());
        }
        let pinned = shared.state().pin(lsn);
        match pinned {
            Ok(next_lsn) => Ok(ReaderPin { shared: shared.clone(), next_lsn }),
            Err(first) => {
                let text =
                    format!("record {lsn} cannot be pinned: it was cut off the log; the first record is {first}");
                Err(shared.error(ErrorOp::Read, ErrorKind::NoSuchRecord, text))
            }
        }
    }

    /// Pins all records of the log.
    pub(super) fn of_all(shared: &Arc<Shared>) -> Result<ReaderPin> {
        if shared.is_forked() {
            return Err(shared.forked());
        }
        let mut state = shared.state();
        let first = state.first_lsn();
        // Pinning the first record never fails.
        let next_lsn = state.pin(first).unwrap_or_default();
        drop(state);
        Ok(ReaderPin { shared: shared.clone(), next_lsn })
    }

    /// Releases records before `lsn`.
    pub(super) fn follow(&self, lsn: u64) {
        // If another thread sees the value late, a segment only stays longer.
        self.next_lsn.store(lsn, Ordering::Relaxed);
    }
}

impl Drop for ReaderPin {
    fn drop(&mut self) {
        if self.shared.is_forked() {
            // In a forked child, a thread that does not exist there may hold the lock.
            return;
        }
        self.follow(u64::MAX);
        let mut state = self.shared.state();
        self.shared.wake_maintenance(&mut state);
    }
}
