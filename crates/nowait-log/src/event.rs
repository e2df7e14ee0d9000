//! Events of a log, for whoever exports them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use nowait::Error;

/// An event of a log; see [`Options::on_event`](super::Options::on_event).
#[non_exhaustive]
#[derive(Clone, Debug)]
pub enum Event {
    /// The next segment is ready.
    #[non_exhaustive]
    SegmentPrepared {
        /// Number of the segment.
        number: u64,
        /// Its size.
        bytes: u64,
        /// It was made from one that was no longer needed.
        is_recycled: bool,
        /// Time that this took.
        elapsed: Duration,
    },
    /// The next segment cannot be prepared, such as on a full disk. It is tried again.
    #[non_exhaustive]
    SegmentFailed {
        /// Why.
        error: Error,
    },
    /// A segment that was no longer needed was removed.
    #[non_exhaustive]
    SegmentRemoved {
        /// Number of the segment.
        number: u64,
        /// Its size.
        bytes: u64,
    },
    /// An append has waited for room: its thread was blocked, or its future pending.
    #[non_exhaustive]
    Stalled {
        /// Time that it waited.
        elapsed: Duration,
    },
    /// When the log was opened, retention by age ([`Retention::age`](super::Retention::age)) found
    /// that the wall clock had been set: successive times, or the last one and now, differ by a
    /// step back, or by more than a year ahead. Such a step makes no record older.
    #[non_exhaustive]
    ClockDoubted {
        /// Number of such steps.
        steps: u64,
    },
    /// A write failed: nothing more is acknowledged.
    #[non_exhaustive]
    Failed {
        /// Error of the write.
        error: Error,
    },
}

/// Callback for events.
#[derive(Clone)]
pub(crate) struct Observer(pub(crate) Arc<dyn Fn(&Event) + Send + Sync>);

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Observer(..)")
    }
}
