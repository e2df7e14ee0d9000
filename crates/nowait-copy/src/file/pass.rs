//! One pass over a file's data: checks and records that are common to all ways.

use std::borrow::Cow;
use std::ops::Range;

use rustix::io::retry_on_intr;

use super::ends::Ends;
use super::journal::{Check, Journal};
use crate::error::{Failure, FailureKind, Operation, Result};
use crate::shared::Shared;

/// Result of a way.
pub(crate) enum Done {
    /// The way copied all data up to the end of the source.
    All,
    /// The way was refused, perhaps after a part: another way must copy from the beginning.
    Refused(Cow<'static, str>),
}

/// Zeros that need not be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Zeros {
    /// Zeros are written like other data.
    Write,
    /// Pieces that contain only zeros are skipped.
    SkipPieces,
    /// Blocks of this many bytes that contain only zeros are skipped.
    SkipBlocks(usize),
}

/// Facts about a piece that was read.
#[derive(Clone, Copy)]
pub(crate) struct Taken {
    pub(crate) crc: Option<u32>,
    /// Bytes up to the last one that must be written; zeros follow.
    pub(crate) data_bytes: u64,
}

impl Taken {
    /// True if no byte of the piece must be written.
    pub(crate) fn is_zero(&self) -> bool {
        self.data_bytes == 0
    }
}

/// A pass over a file's data.
pub(crate) struct Pass<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) ends: &'a Ends<'a>,
    pub(crate) zeros: Zeros,
    /// `Some` if the pieces will be verified.
    pub(crate) checks: Option<Vec<Check>>,
    /// `Some` if a later run may resume.
    pub(crate) journal: Option<&'a mut Journal>,
    /// Bytes in the target, without holes.
    pub(crate) copied_bytes: u64,
    /// End of the source, if it is before the reported size.
    pub(crate) source_end: Option<u64>,
    /// End of the target so far.
    pub(crate) target_end: u64,
    /// Range that this pass left dirty in the page cache.
    dirty: Range<u64>,
}

impl<'a> Pass<'a> {
    pub(crate) fn new(shared: &'a Shared, ends: &'a Ends<'a>, zeros: Zeros) -> Self {
        Pass {
            shared,
            ends,
            zeros,
            checks: shared.options.verify.then(Vec::new),
            journal: None,
            copied_bytes: 0,
            source_end: None,
            target_end: 0,
            dirty: 0..0,
        }
    }

    /// Waits for the rate limit.
    ///
    /// # Errors
    /// [`FailureKind::Cancelled`].
    pub(crate) fn admit(&self, bytes: u64) -> Result<()> {
        if self.shared.meter.admit(bytes) { Ok(()) } else { Err(self.cancelled()) }
    }

    fn cancelled(&self) -> Failure {
        Failure::new(Operation::Copy, self.ends.source.path, FailureKind::Cancelled)
    }

    /// Computes the facts about a piece that was read.
    pub(crate) fn take(&self, bytes: &[u8]) -> Taken {
        let data_bytes = match self.zeros {
            Zeros::SkipPieces if is_zero(bytes) => 0,
            Zeros::SkipBlocks(block) => data_end(bytes, block),
            Zeros::Write | Zeros::SkipPieces => bytes.len(),
        };
        Taken {
            crc: (self.checks.is_some() || self.journal.is_some()).then(|| crc32c::crc32c(bytes)),
            data_bytes: data_bytes as u64,
        }
    }

    /// Records a piece that the target contains completely; `is_dirty` if it is in the page cache.
    pub(crate) fn wrote(&mut self, piece: &Range<u64>, taken: Taken, is_dirty: bool) -> Result<()> {
        let bytes = piece.end - piece.start;
        if let Some(crc) = taken.crc {
            // No piece is longer than a block.
            let check = Check { offset: piece.start, length: u32::try_from(bytes).unwrap_or(u32::MAX), crc };
            if let Some(checks) = &mut self.checks {
                checks.push(check);
            }
            if let Some(journal) = &mut self.journal {
                journal.note(check).map_err(|errno| self.ends.target.failure(Operation::Journal, errno))?;
            }
        }
        self.count(bytes);
        if taken.is_zero() {
            return Ok(());
        }
        self.target_end = self.target_end.max(piece.start + taken.data_bytes);
        if is_dirty { self.dirtied(piece) } else { Ok(()) }
    }

    /// Counts bytes that are in the target.
    pub(crate) fn count(&mut self, bytes: u64) {
        self.copied_bytes += bytes;
        self.shared.meter.copied(bytes);
    }

    /// Begins a pass, or restarts it for another way, with the finished pieces `done` of an earlier
    /// run.
    pub(crate) fn begin(&mut self, done: &[Check]) {
        self.shared.meter.uncopied(self.copied_bytes);
        self.copied_bytes = 0;
        self.source_end = None;
        if let Some(checks) = &mut self.checks {
            checks.clear();
            checks.extend_from_slice(done);
        }
        self.count(done.iter().map(|check| u64::from(check.length)).sum());
    }

    /// Records the end of the source.
    pub(crate) fn ended_at(&mut self, offset: u64) {
        self.source_end = Some(self.source_end.map_or(offset, |end| end.min(offset)));
    }

    /// Enforces the limit on dirty pages.
    pub(crate) fn dirtied(&mut self, piece: &Range<u64>) -> Result<()> {
        let meter = &self.shared.meter;
        if !meter.limits_dirty() {
            return Ok(());
        }
        self.dirty = match self.dirty.is_empty() {
            true => piece.clone(),
            false => self.dirty.start.min(piece.start)..self.dirty.end.max(piece.end),
        };
        if !meter.dirtied(piece.end - piece.start) {
            return Ok(());
        }
        let dirty = std::mem::take(&mut self.dirty);
        let own_bytes = dirty.end - dirty.start;
        let target = &self.ends.target;
        match target.fd() {
            // Most dirty pages belong to other, finished files, so the whole file system is synced.
            Some(fd) if meter.is_mostly_of_others(own_bytes) => {
                retry_on_intr(|| rustix::fs::syncfs(fd)).map_err(|errno| target.failure(Operation::Sync, errno))?;
                meter.all_cleaned();
            }
            _ => {
                target.write_back(dirty.start, own_bytes)?;
                meter.cleaned(own_bytes);
            }
        }
        Ok(())
    }
}

/// Returns the end of the last block that contains a byte other than zero.
fn data_end(bytes: &[u8], block: usize) -> usize {
    let last = bytes.chunks(block).rposition(|part| !is_zero(part));
    last.map_or(0, |last| ((last + 1) * block).min(bytes.len()))
}

/// Returns whether all bytes are zero. Compares a page at a time, so that the compiler uses
/// vectors.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks(4096).all(|page| page.iter().fold(0, |all, byte| all | byte) == 0)
}
