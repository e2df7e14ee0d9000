//! The ways that are compared. To add one: implement [`Way`] in a file of its own and add it to [`all`].

mod libaio;
mod nowait;
mod pread;
mod queue;
mod ring;
mod threads;
mod willneed;

use std::io;

use crate::meter::Round;
use crate::work::{Gather, Reads};

pub use ring::io_uring_state;

/// One way of doing the work.
///
/// The rules, the same for all, so that only the ways differ: prepare first, then [`Round::start`], work,
/// [`Round::stop`]. Read the clock once before each submission of an operation (or batch) and once per harvest of
/// completions, and tell the tally of each. Read into the buffer that the caller gives. Do nothing for a particular
/// case: a way does not know whether the file is cached.
pub trait Way: Sync {
    fn name(&self) -> &'static str;

    /// Why this system refuses the way, if it does.
    fn refused(&self) -> Option<String> {
        None
    }

    /// Completes all reads of `job`, `job.depth` of them in flight at a time. `buffer` has a block for each of those.
    fn reads(&self, job: &Reads<'_>, buffer: &mut [u8], round: &mut Round<'_>) -> io::Result<()>;

    /// Completes all batches of `job`, one after the other, each into the start of `output`, its records in order.
    fn gather(&self, job: &Gather<'_>, output: &mut [u8], round: &mut Round<'_>) -> io::Result<()>;
}

/// Every way, in the order of the tables.
pub fn all() -> &'static [&'static dyn Way] {
    &[
        &pread::Pread,
        &threads::Threads,
        &willneed::WillNeed,
        &libaio::Libaio,
        &ring::PLAIN,
        &ring::TUNED,
        &nowait::Blocking,
        &nowait::Tokio,
    ]
}

pub fn names() -> impl Iterator<Item = &'static str> {
    all().iter().map(|way| way.name())
}

pub fn by_name(name: &str) -> Option<&'static dyn Way> {
    all().iter().copied().find(|way| way.name() == name)
}
