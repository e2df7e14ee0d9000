//! Result, events and progress of a copy.

use std::path::Path;
use std::time::Duration;

use crate::error::Failure;

/// Method by which a file's data was copied.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Sharing of blocks with the source (`FICLONE`).
    Clone,
    /// Copy in the kernel or on the server (`copy_file_range`).
    KernelCopy,
    /// Direct reads and writes, several in flight.
    Direct,
    /// Direct reads, several in flight, and writes through the page cache.
    DirectRead,
    /// Writes that leave no pages in the page cache (`RWF_DONTCACHE`).
    Uncached,
    /// Reads and writes through the page cache.
    Plain,
    /// No data to copy.
    Empty,
    /// Hard link to a file that this copy made.
    HardLink,
    /// Creation of a symbolic link, a FIFO, a socket or a device.
    Node,
}

impl Way {
    /// Returns the name of the method, one word.
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
    /// Regular files to copy, if all sources were walked. `None` if the copy was cancelled before.
    pub files_found: Option<u64>,
    /// Directories created, or found in the target.
    pub directories: u64,
    /// Symbolic links, FIFOs, sockets and devices created.
    pub nodes: u64,
    /// Hard links created.
    pub hard_links: u64,
    /// Bytes of data in the copied files, without holes.
    pub bytes: u64,
    /// Bytes copied by an earlier, interrupted run, and not copied again; see
    /// [`Options::resume`](crate::Options::resume).
    pub resumed_bytes: u64,
    /// Files skipped because of a pattern, or because they exist in the target.
    pub skipped: u64,
    /// Files whose copy was read back and matched.
    pub verified: u64,
    /// Entries that could not be copied.
    pub failures: Vec<Failure>,
    /// Entries that were copied, but changed meanwhile, or lost some of their metadata.
    pub warnings: Vec<Failure>,
    /// True if the copy was cancelled.
    pub is_cancelled: bool,
    /// Duration of the copy.
    pub elapsed: Duration,
}

impl Report {
    /// Returns the number of entries that this copy created in the target.
    pub fn entries(&self) -> u64 {
        self.files + self.directories + self.nodes + self.hard_links
    }

    /// Returns true if everything was copied as requested.
    pub fn is_complete(&self) -> bool {
        self.failures.is_empty() && self.warnings.is_empty() && !self.is_cancelled
    }
}

/// Event of a copy; see [`Options::on_event`](crate::Options::on_event).
#[non_exhaustive]
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// A file was copied, and has its final name.
    #[non_exhaustive]
    Copied {
        /// Path of the source.
        source: &'a Path,
        /// Path of the target.
        target: &'a Path,
        /// Method by which the data was copied.
        way: Way,
        /// Reason for that method.
        why: &'a str,
        /// Bytes of data copied.
        bytes: u64,
    },
    /// A directory of the target was created or found.
    #[non_exhaustive]
    Directory {
        /// Path of the source.
        source: &'a Path,
        /// Path of the target.
        target: &'a Path,
        /// True if this copy created the directory; false if it existed.
        is_new: bool,
    },
    /// A file would be copied: [`Options::dry_run`](crate::Options::dry_run).
    #[non_exhaustive]
    Planned {
        /// Path of the source.
        source: &'a Path,
        /// Path of the target.
        target: &'a Path,
        /// Size of the source, in bytes.
        bytes: u64,
    },
    /// A file was skipped.
    #[non_exhaustive]
    Skipped {
        /// Path of the source.
        source: &'a Path,
        /// Reason.
        why: &'a str,
    },
    /// A file could not be copied.
    Failed(&'a Failure),
    /// A file was copied, but changed meanwhile, or lost some of its metadata.
    Warning(&'a Failure),
}

/// Progress of a copy.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes copied so far.
    pub bytes: u64,
    /// Files finished so far.
    pub files: u64,
    /// Bytes of the files to copy, found so far.
    pub bytes_found: u64,
    /// Files to copy, found so far.
    pub files_found: u64,
    /// True if all sources are walked, so that the numbers found are the totals.
    pub is_walked: bool,
    /// Time since the start.
    pub elapsed: Duration,
}

impl Progress {
    /// Returns the average rate since the start, in bytes per second.
    pub fn bytes_per_second(&self) -> f64 {
        let seconds = self.elapsed.as_secs_f64();
        if seconds > 0.0 { self.bytes as f64 / seconds } else { 0.0 }
    }

    /// Returns the estimated time left at that rate; `None` until the total is known.
    pub fn time_left(&self) -> Option<Duration> {
        let rate = self.bytes_per_second();
        let left = self.bytes_found.saturating_sub(self.bytes) as f64;
        (self.is_walked && rate > 0.0).then(|| Duration::try_from_secs_f64(left / rate).unwrap_or(Duration::MAX))
    }
}
