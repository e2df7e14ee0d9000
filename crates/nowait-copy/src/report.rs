//! Result, events and progress of a copy.

use std::path::Path;
use std::time::Duration;

use crate::error::Failure;

/// How a file's data came to the target.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The blocks are shared with the source (`FICLONE`).
    Clone,
    /// The kernel, or the server, copied them (`copy_file_range`).
    KernelCopy,
    /// Direct requests, several in flight, past the page cache.
    Direct,
    /// Direct reads, several in flight, and writes through the page cache.
    DirectRead,
    /// Through the page cache, and out of it at once (`RWF_DONTCACHE`).
    Uncached,
    /// Reads and writes through the page cache.
    Plain,
    /// There were no data.
    Empty,
    /// A hard link to a file that this copy had made.
    HardLink,
    /// No regular file: a symbolic link, a FIFO, a socket, a device.
    Node,
}

impl Way {
    /// A word for it.
    pub fn name(self) -> &'static str {
        match self {
            Way::Clone => "clone",
            Way::KernelCopy => "copy_file_range",
            Way::Direct => "direct",
            Way::DirectRead => "direct read",
            Way::Uncached => "uncached",
            Way::Plain => "plain",
            Way::Empty => "empty",
            Way::HardLink => "hard link",
            Way::Node => "node",
        }
    }
}

/// Result of a copy.
#[non_exhaustive]
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Regular files copied.
    pub files: u64,
    /// Directories made, or found in the target.
    pub directories: u64,
    /// Symbolic links, FIFOs, sockets and devices made.
    pub nodes: u64,
    /// Hard links made.
    pub hard_links: u64,
    /// Bytes of data in the files copied, holes left out.
    pub bytes: u64,
    /// Bytes that an earlier, interrupted run had copied, and that were not copied again:
    /// [`Options::resume`](crate::Options::resume).
    pub resumed_bytes: u64,
    /// Files left out: by a pattern, or since they exist in the target.
    pub skipped: u64,
    /// Files whose copy was read back and found right.
    pub verified: u64,
    /// Entries that could not be copied.
    pub failures: Vec<Failure>,
    /// Entries that were copied, but changed meanwhile, or lost some of their metadata.
    pub warnings: Vec<Failure>,
    /// The copy was cancelled before its end.
    pub is_cancelled: bool,
    /// Time that it took.
    pub elapsed: Duration,
}

impl Report {
    /// Entries of the target that this copy made.
    pub fn entries(&self) -> u64 {
        self.files + self.directories + self.nodes + self.hard_links
    }

    /// True if everything was copied as asked.
    pub fn is_complete(&self) -> bool {
        self.failures.is_empty() && self.warnings.is_empty() && !self.is_cancelled
    }
}

/// An event of a copy; see [`Options::on_event`](crate::Options::on_event).
#[non_exhaustive]
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// A file has its name in the target.
    #[non_exhaustive]
    Copied {
        /// Path of the source.
        source: &'a Path,
        /// Path of the target.
        target: &'a Path,
        /// How its data came there.
        way: Way,
        /// Why that way.
        why: &'a str,
        /// Bytes of data.
        bytes: u64,
    },
    /// A directory of the target is there.
    #[non_exhaustive]
    Directory {
        /// Path of the source.
        source: &'a Path,
        /// Path of the target.
        target: &'a Path,
        /// False if it existed.
        is_new: bool,
    },
    /// A file would be copied: [`Options::dry_run`](crate::Options::dry_run).
    #[non_exhaustive]
    Planned {
        /// Path of the source.
        source: &'a Path,
        /// Path of the target.
        target: &'a Path,
        /// Size of the source.
        bytes: u64,
    },
    /// A file is left out.
    #[non_exhaustive]
    Skipped {
        /// Path of the source.
        source: &'a Path,
        /// Why.
        why: &'a str,
    },
    /// A file could not be copied.
    Failed(&'a Failure),
    /// A file was copied, but changed meanwhile, or lost some of its metadata.
    Warning(&'a Failure),
}

/// How far a copy is.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes copied so far.
    pub bytes: u64,
    /// Files finished so far.
    pub files: u64,
    /// Bytes found so far in files to copy.
    pub bytes_found: u64,
    /// Files found so far.
    pub files_found: u64,
    /// All sources are walked: the numbers found are the totals.
    pub is_walked: bool,
    /// Time since the start.
    pub elapsed: Duration,
}

impl Progress {
    /// Bytes per second since the start.
    pub fn bytes_per_second(&self) -> f64 {
        let seconds = self.elapsed.as_secs_f64();
        if seconds > 0.0 { self.bytes as f64 / seconds } else { 0.0 }
    }

    /// Time until the end at the rate so far; `None` until the total is known.
    pub fn time_left(&self) -> Option<Duration> {
        let rate = self.bytes_per_second();
        let left = self.bytes_found.saturating_sub(self.bytes) as f64;
        (self.is_walked && rate > 0.0).then(|| Duration::try_from_secs_f64(left / rate).unwrap_or(Duration::MAX))
    }
}
