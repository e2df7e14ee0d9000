//! Rules by which a log gives up its oldest records by itself.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

/// Rule by which a log gives up its oldest records without
/// [`Log::truncate_prefix`](super::Log::truncate_prefix).
///
/// Records go by whole segments, the oldest first. A record stays until it is durable, while a
/// reader has pinned it ([`Reader::pin`](super::Reader::pin)), and as long as the log has no later
/// segment that stands. The rule is applied when a segment ends; by age, while the log is idle, too.
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
    /// Gives up nothing: only `truncate_prefix` does.
    pub fn all() -> Retention {
        Retention(Rule::All)
    }

    /// Keeps the newest `bytes` of blocks, and gives up segments before them. So the log holds that
    /// much, and less than one segment more.
    pub fn bytes(bytes: u64) -> Retention {
        Retention(Rule::Bytes(bytes))
    }

    /// Gives up segments whose last record was written longer ago than `age`, but never the last
    /// one that holds records. While the log is open, ages advance with the time that passes,
    /// whatever the wall clock does. The ages of segments that an earlier opening wrote come from
    /// the times in their blocks. Setting the clock makes no record older. A step back between
    /// successive times, or to the time of the opening, counts as zero, as does a step of more than
    /// a year ahead ([`Event::ClockDoubted`](super::Event::ClockDoubted)).
    pub fn age(age: Duration) -> Retention {
        Retention(Rule::Age(age))
    }

    /// Gives up segments that hold only records before the LSN that `first` returns: the first
    /// record that is still needed. It is called with nothing locked, by the thread that maintains
    /// the log, when a segment ends, and once a second at most while the log is written. A panic
    /// gives up nothing.
    pub fn before(first: impl Fn() -> u64 + Send + Sync + 'static) -> Retention {
        Retention(Rule::Before(Arc::new(first)))
    }
}

/// Asks the application for the first record that it needs; 0 if it panics.
pub(crate) fn first_needed(first: &(dyn Fn() -> u64 + Send + Sync)) -> u64 {
    // The payload of a panic is the user's, too: dropping it may panic again.
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
