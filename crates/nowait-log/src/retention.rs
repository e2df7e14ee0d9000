//! Rules by which a log automatically drops its oldest records.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

/// Rule by which a log removes its oldest records without
/// [`Log::truncate_prefix`](super::Log::truncate_prefix).
///
/// Records are removed by whole segments, the oldest first. The log keeps a segment that is not
/// durable, or pinned by a reader ([`Reader::pin`](super::Reader::pin)), and its newest segment.
/// The rule is applied when a segment ends. A rule by age is also applied while the log is idle.
#[derive(Clone, Default)]
pub struct Retention(pub(crate) Rule);

#[derive(Clone, Default)]
pub(crate) enum Rule {
    #[default]
    All,
    Bytes(u64),
    Age(Duration),
    Before(Arc<dyn Fn() -> u64 + Send + Sync>),
}

impl Retention {
    /// Keeps everything; only `truncate_prefix` removes records.
    pub fn all() -> Retention {
        Retention(Rule::All)
    }

    /// Keeps the newest `bytes` of blocks, and removes segments before them. So a log larger than
    /// `bytes` keeps at least `bytes`, and less than one segment more.
    pub fn bytes(bytes: u64) -> Retention {
        Retention(Rule::Bytes(bytes))
    }

    /// Removes segments whose last record is older than `age`, but never the last one that contains
    /// records. While the log is open, ages follow the monotonic clock. Ages of segments from an
    /// earlier opening are computed from the times in their blocks.
    ///
    /// Setting the wall clock makes no record older. If one time is earlier than the previous one,
    /// their difference counts as zero. A difference of more than a year also counts as zero
    /// ([`Event::ClockDoubted`](super::Event::ClockDoubted)).
    pub fn age(age: Duration) -> Retention {
        Retention(Rule::Age(age))
    }

    /// Removes segments that contain only records before the LSN that `first` returns, which is
    /// that of the first record still needed. The maintenance thread calls `first`, with no lock
    /// held, when a segment ends, and at most once a second while the log is written. If `first`
    /// panics, nothing is removed.
    pub fn before(first: impl Fn() -> u64 + Send + Sync + 'static) -> Retention {
        Retention(Rule::Before(Arc::new(first)))
    }
}

/// Calls the application's function for the first record that it needs; returns 0 if it panics.
pub(crate) fn first_needed(first: &(dyn Fn() -> u64 + Send + Sync)) -> u64 {
    // Dropping the payload of a panic runs user code, and may panic again.
    catch_unwind(AssertUnwindSafe(first)).unwrap_or_else(|payload| {
        std::mem::forget(payload);
        0
    })
}

impl fmt::Debug for Retention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Rule::All => f.write_str("All"),
            Rule::Bytes(bytes) => f.debug_tuple("Bytes").field(bytes).finish(),
            Rule::Age(age) => f.debug_tuple("Age").field(age).finish(),
            Rule::Before(_) => f.write_str("Before(..)"),
        }
    }
}
