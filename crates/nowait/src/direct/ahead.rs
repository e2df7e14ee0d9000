//! Space that streams reserve ahead of direct writes, behind the end of a file, and give back.
//!
//! A reservation extends the file beyond the written bytes. [`Ahead`] tracks the file's true end:
//! the end before the reservation, or the end of later writes through this open file. Giving back
//! cuts the file to its true end, for all its streams. If the file's size is not the one that the
//! reservations gave it, others have cut or extended it, and giving back leaves it alone.
//!
//! Both calls take a turn in the order of the file's changes (`op/outstanding.rs`). They never run
//! at the same time, and giving back never runs at the same time as a write.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use crate::sys::{Allocate, BorrowedFd, Errno};

use crate::sys;

/// Nothing is reserved.
const NOTHING: u64 = u64::MAX;

#[derive(Debug)]
pub(crate) struct Ahead {
    /// The file's size, reservations included.
    reserved: AtomicU64,
    /// The file's true end, without reservations. Maintained while something is reserved.
    end: AtomicU64,
}

impl Default for Ahead {
    fn default() -> Ahead {
        Ahead { reserved: AtomicU64::new(NOTHING), end: AtomicU64::new(0) }
    }
}

impl Ahead {
    /// Reserves space, and extends the file to the end of it. Nothing beyond the limit on sizes of
    /// files: no write has asked for that, and the kernel answers with a signal that ends the process.
    pub(crate) fn reserve(&self, fd: BorrowedFd<'_>, offset: u64, length: u64) -> Result<(), Errno> {
        let length = sys::size_limit().map_or(length, |limit| length.min(limit.saturating_sub(offset)));
        if length == 0 {
            return Ok(());
        }
        let known = self.reserved.load(SeqCst);
        if known == NOTHING {
            self.end.store(0, SeqCst);
            // Before the size is read: a write that ends meanwhile shows in the size or in `end`.
            self.reserved.store(0, SeqCst);
        }
        let size = sys::size(fd)?;
        if known != size {
            self.end.fetch_max(size, SeqCst);
        }
        let reserved = sys::allocate(fd, Allocate::Reserve, offset, length);
        // A failed reservation may have extended the file.
        self.reserved.store(sys::size(fd).unwrap_or(NOTHING), SeqCst);
        reserved
    }

    /// Cuts the file to its true end.
    pub(crate) fn give_back(&self, fd: BorrowedFd<'_>) -> Result<(), Errno> {
        let reserved = self.reserved.load(SeqCst);
        let end = self.end.load(SeqCst);
        if reserved != NOTHING && end < reserved && sys::size(fd)? == reserved {
            sys::set_len(fd, end)?;
        }
        self.forget();
        Ok(())
    }

    /// Notes that the file was written, or extended on purpose, up to `end`.
    pub(crate) fn reaches(&self, end: u64) {
        if self.reserved.load(SeqCst) != NOTHING {
            self.end.fetch_max(end, SeqCst);
        }
    }

    /// Notes that the file was given a length on purpose.
    pub(crate) fn forget(&self) {
        self.reserved.store(NOTHING, SeqCst);
    }
}
