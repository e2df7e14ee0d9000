//! Events of a log, for export.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use nowait::Error;

/// Event of a log; see [`Options::on_event`](super::Options::on_event).
#[non_exhaustive]
#[derive(Clone, Debug)]
pub enum Event {
    /// The next segment was prepared.
    #[non_exhaustive]
    SegmentPrepared {
        /// Number of the segment.
        number: u64,
        /// Size of the segment, in bytes.
        bytes: u64,
        /// True if an old segment was reused.
        is_recycled: bool,
        /// Duration of the preparation.
        elapsed: Duration,
    },
    /// The next segment cannot be prepared, for example on a full disk. The log tries again.
    #[non_exhaustive]
    SegmentFailed {
        /// Error of the preparation.
        error: Error,
    },
    /// A segment that was no longer needed was removed.
    #[non_exhaustive]
    SegmentRemoved {
        /// Number of the segment.
        number: u64,
        /// Size of the segment, in bytes.
        bytes: u64,
    },
    /// An append had to wait for room: its thread was blocked, or its future pending.
    #[non_exhaustive]
    Stalled {
        /// Duration of the wait.
        elapsed: Duration,
    },
    /// At opening, retention by age ([`Retention::age`](super::Retention::age)) found that the wall
    /// clock had been set. It stepped back, or more than a year ahead, between two blocks or since
    /// the last one. Such a step makes no record older.
    #[non_exhaustive]
    ClockDoubted {
        /// Number of such steps.
        steps: u64,
    },
    /// A write failed. The log acknowledges no further records.
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
