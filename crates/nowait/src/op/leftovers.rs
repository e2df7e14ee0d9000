//! Leftovers of ended operations, for a thread that may wait.

use super::file::OpenFile;
use super::request::{Done, Outcome, Owned, Request};
use super::transfer::Transfer;
use crate::buf::{Memory, contained};

/// Leftovers of an operation: the last share of its file, and a buffer or a result that no future
/// takes. Dropping them may wait (`close(2)`, `munmap(2)`, a user's destructor), so no engine drops
/// them under a lock, nor on a thread that notices completions (`pool::let_go`). A destructor that
/// panics is contained.
#[must_use]
#[derive(Default)]
pub(crate) struct Leftovers {
    pub(super) file: Option<Box<OpenFile>>,
    pub(super) unwanted: Option<Box<(Request, Outcome)>>,
}

impl From<OpenFile> for Leftovers {
    fn from(file: OpenFile) -> Leftovers {
        Leftovers { file: Some(Box::new(file)), unwanted: None }
    }
}

impl Leftovers {
    /// Whether the drop may take long.
    pub(crate) fn may_wait(&self) -> bool {
        /// To unmap so much takes tens of microseconds.
        const MEMORY_BYTES_MAX: usize = 256 << 10;
        let waits = |(request, outcome): &(Request, Outcome)| match request {
            Request::Read(Transfer { memory, .. }) | Request::Write(Transfer { memory, .. }, _) => {
                memory.runs_code_of_users() || memory.len() > MEMORY_BYTES_MAX
            }
            Request::Fault { .. } | Request::Call(_) | Request::Close(_) => true,
            _ => matches!(outcome, Ok(Done::Owned(owned)) if matches!(**owned, Owned::Opened(..))),
        };
        self.file.is_some() || self.unwanted.as_deref().is_some_and(waits)
    }
}

impl Drop for Leftovers {
    #[inline]
    fn drop(&mut self) {
        if self.unwanted.is_some() {
            self.unwanted.take().into_iter().for_each(|unwanted| let_go(unwanted.0));
        }
    }
}

/// Drops a request. Each buffer by itself: a second panic on the way out of the first would end the
/// process.
pub(super) fn let_go(request: Request) {
    let (Request::Read(mut transfer) | Request::Write(mut transfer, _)) = request else { return };
    match transfer.take_memory() {
        Memory::Many(buffers) => buffers.into_iter().for_each(|buffer| contained(|| drop(buffer))),
        buffer => contained(|| drop(buffer)),
    }
}
