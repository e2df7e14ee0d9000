//! Kinds of requests that the probe makes.

use crate::kernel::PAGE;
use crate::ring::Ask;
use crate::twin::PART;

/// Kind of request, and state of its pages.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Case {
    /// Read of a cached page.
    CachedRead,
    /// Read of a page that is not cached.
    ColdRead,
    /// Overwrite of a cached page whose blocks are allocated.
    CachedOverwrite,
    /// Overwrite of a part of a page that is not cached.
    ColdPartialWrite,
    /// Write of a page at the end of the file.
    Append,
    /// Write of a page at the end of the file, into allocated space.
    AppendAllocated,
    /// Direct read of a page.
    DirectRead,
    /// Direct overwrite of a page.
    DirectOverwrite,
    /// Direct write of a page at the end of the file.
    DirectAppend,
    /// Direct write of a page into space that is allocated and was never written.
    DirectUnwritten,
    /// Sync of written data (`fdatasync(2)`).
    Sync,
    /// Control: read of a cached page, forced onto a kernel worker (`IOSQE_ASYNC`).
    ForcedRead,
}

impl Case {
    /// All cases, in the order of a report.
    pub const ALL: [Case; 12] = [
        Case::CachedRead,
        Case::ColdRead,
        Case::CachedOverwrite,
        Case::ColdPartialWrite,
        Case::Append,
        Case::AppendAllocated,
        Case::DirectRead,
        Case::DirectOverwrite,
        Case::DirectAppend,
        Case::DirectUnwritten,
        Case::Sync,
        Case::ForcedRead,
    ];

    /// Returns the name, such as `cold-read`.
    pub fn name(self) -> &'static str {
        match self {
            Case::CachedRead => "cached-read",
            Case::ColdRead => "cold-read",
            Case::CachedOverwrite => "cached-overwrite",
            Case::ColdPartialWrite => "cold-partial-write",
            Case::Append => "append",
            Case::AppendAllocated => "append-allocated",
            Case::DirectRead => "direct-read",
            Case::DirectOverwrite => "direct-overwrite",
            Case::DirectAppend => "direct-append",
            Case::DirectUnwritten => "direct-unwritten",
            Case::Sync => "sync",
            Case::ForcedRead => "forced-read",
        }
    }

    pub(crate) fn is_cold(self) -> bool {
        matches!(self, Case::ColdRead | Case::ColdPartialWrite | Case::DirectRead | Case::DirectOverwrite)
    }

    pub(crate) fn is_direct(self) -> bool {
        matches!(self, Case::DirectRead | Case::DirectOverwrite | Case::DirectAppend | Case::DirectUnwritten)
    }

    pub(crate) fn is_read(self) -> bool {
        matches!(self, Case::CachedRead | Case::ColdRead | Case::DirectRead | Case::ForcedRead)
    }

    pub(crate) fn grows(self) -> bool {
        matches!(self, Case::Append | Case::AppendAllocated | Case::DirectAppend | Case::DirectUnwritten)
    }

    /// Bytes of a single request; none for a sync.
    pub(crate) fn bytes(self) -> Option<u32> {
        match self {
            Case::Sync => None,
            Case::ColdPartialWrite => Some(PART as u32),
            _ => Some(PAGE as u32),
        }
    }

    /// True if the case is also measured at other depths. False for syncs, which io_uring always
    /// gives to a worker, and for the control.
    pub(crate) fn has_depths(self) -> bool {
        !matches!(self, Case::Sync | Case::ForcedRead)
    }

    /// True if the case is also measured at other sizes. A write to part of a page has one size.
    pub(crate) fn has_sizes(self) -> bool {
        self.has_depths() && self != Case::ColdPartialWrite
    }

    pub(crate) fn ask(self, offset: u64, length: usize) -> Ask {
        match self {
            Case::Sync => Ask::Sync,
            case if case.is_read() => Ask::Read { offset, length, forced: case == Case::ForcedRead },
            _ => Ask::Write { offset, length },
        }
    }
}
