//! Copies a regular file: stages and fills a new file, verifies it, sets its metadata, syncs it if
//! requested, and renames it atomically. If a step before the rename fails, the old file keeps its
//! name.

mod direct;
mod ends;
mod extents;
mod fill;
mod instance;
mod journal;
mod kernel;
mod ladder;
mod pass;
mod plain;
mod stage;
#[cfg(test)]
mod tests;
mod verify;

use std::borrow::Cow;
use std::ffi::{CStr, CString};
use std::os::fd::BorrowedFd;
use std::path::Path;

use nowait::ErrorKind;
use rustix::fs::{Mode, Stat};
use rustix::io::retry_on_intr;

use self::ends::{Endpoint, Ends};
use self::fill::{Earlier, Filled, Size};
use self::journal::{Journal, Resumed};
use self::ladder::Choice;
use self::stage::{Destination, Stage};
use crate::error::{Failure, FailureKind, Operation, Result};
use crate::options::{Reflink, SyncPolicy};
use crate::os::name;
use crate::report::Way;
use crate::shared::Shared;

pub(crate) use self::instance::copy_by_instance;

/// Minimum size of a file for which an interrupted copy is kept for `resume`.
const RESUME_BYTES_MIN: u64 = 8 << 20;

/// Copies metadata to a staged file, and returns warnings. Called after the data was copied, and
/// before the rename. Arguments: source, staged file.
pub(crate) type Metadata<'a> = &'a dyn Fn(BorrowedFd<'_>, BorrowedFd<'_>) -> Result<Vec<Failure>>;

/// A regular file to copy.
pub(crate) struct FileJob<'a> {
    /// The source, open for reading (`O_NOFOLLOW`, blocking).
    pub source: BorrowedFd<'a>,
    /// Metadata of the source when it was opened.
    pub stat: &'a Stat,
    /// Path of the source, for messages.
    pub source_path: &'a Path,
    /// Directory of the target.
    pub target_dir: BorrowedFd<'a>,
    /// Device of the target's directory.
    pub target_device: u64,
    /// Name of the target in its directory.
    pub target_name: &'a CStr,
    /// Path of the target, for messages.
    pub target_path: &'a Path,
    /// True if no other machine writes to the target's file system, and `close(2)` reports no new
    /// error there.
    pub target_is_local: bool,
    /// Returns a name in the target's directory that no other copy uses.
    pub temporary_name: &'a dyn Fn() -> CString,
    /// True if the name is certainly free, since this copy created the directory. If the name
    /// exists nevertheless (`RENAME_NOREPLACE`), two source names collide (`NameCollision`).
    pub is_new: bool,
    /// Copies metadata.
    pub metadata: Metadata<'a>,
}

/// Result of copying a regular file. At any time, the name refers to the old target or to the
/// complete new one.
pub(crate) struct FileOutcome {
    /// Method by which the data was copied.
    pub way: Way,
    /// Reason for that method, for `--explain`.
    pub why: Cow<'static, str>,
    /// Bytes of data copied, without holes.
    pub bytes: u64,
    /// Bytes that an earlier run had copied.
    pub resumed_bytes: u64,
    /// True if the copy was read back and matches.
    pub is_verified: bool,
    /// Warnings: the source changed meanwhile, or metadata was lost.
    pub warnings: Vec<Failure>,
}

pub(crate) fn copy_file(job: &FileJob<'_>, shared: &Shared) -> Result<FileOutcome> {
    let place = Destination {
        directory: job.target_dir,
        device: job.target_device,
        name: job.target_name,
        path: job.target_path,
        is_new: job.is_new,
        unnamed_mode: unnamed_mode(job.stat),
        temporary_name: job.temporary_name,
    };
    if shared.meter.is_cancelled() {
        return Err(Failure::new(Operation::Copy, job.source_path, FailureKind::Cancelled));
    }
    let (stage, filled, kept) = stage(job, shared, place)?;
    let mut warnings = Vec::new();
    warnings.extend(changed(job)?);
    warnings.extend((job.metadata)(job.source, stage.fd())?);
    let (is_synced, is_name_synced) = match shared.options.sync {
        SyncPolicy::None => (false, false),
        SyncPolicy::File => (true, true),
        // New files are synced at the end of the tree. A file that replaces an old one is synced
        // now, so that a power loss keeps one of the two.
        SyncPolicy::All => (!job.is_new, false),
    };
    if is_synced {
        let synced = retry_on_intr(|| rustix::fs::fsync(stage.fd()));
        synced.map_err(|errno| Failure::from_errno(Operation::Sync, job.target_path, errno))?;
    }
    stage.publish()?;
    shared.meter.file_done();
    if let Some((_locked, journal_name)) = kept {
        // A failure is harmless: the journal's file no longer has its staged name.
        let _ = name::remove(job.target_dir, &journal_name);
    } else if !job.is_new {
        discard_resumable(job.target_dir, job.target_name, job.stat);
    }
    if is_name_synced {
        let synced = name::sync_directory(job.target_dir);
        synced.map_err(|errno| Failure::from_errno(Operation::Sync, job.target_path, errno))?;
    }
    let Filled { way, why, bytes, resumed_bytes, is_verified } = filled;
    Ok(FileOutcome { way, why, bytes, resumed_bytes, is_verified, warnings })
}

/// Returns the mode with which an unnamed copy is created: the source's, so that it need not be
/// set, if the owner may open the file again by `/proc` to write to it.
fn unnamed_mode(source: &Stat) -> Mode {
    let mode = Mode::from_raw_mode(source.st_mode & 0o7777);
    if mode.contains(name::STAGED) && mode.bits() & 0o7000 == 0 { mode } else { name::STAGED }
}

/// Removes the files that an interrupted run kept, since the target is complete.
pub(crate) fn discard_resumable(target_dir: BorrowedFd<'_>, target_name: &CStr, source: &Stat) {
    // Copies of shorter files are not kept.
    if source.st_size as u64 >= RESUME_BYTES_MIN {
        journal::discard(target_dir, target_name);
    }
}

/// A filled staged file, and its journal with the journal's name, if any. The journal stays locked
/// until the file has its final name, so that no other process uses the staged file's name.
type Staged<'a> = (Stage<'a>, Filled, Option<(Journal, CString)>);

/// Creates and fills the staged file.
fn stage<'a>(job: &FileJob<'_>, shared: &'a Shared, place: Destination<'a>) -> Result<Staged<'a>> {
    let size = Size {
        bytes: u64::try_from(job.stat.st_size).unwrap_or(0),
        stored_bytes: u64::try_from(job.stat.st_blocks).ok().map(|blocks| blocks.saturating_mul(512)),
    };
    let mut refused: Vec<Choice> = Vec::new();
    let mut empty = None;
    if ladder::wants_clone(shared, size.bytes, (job.stat.st_dev, place.device)) {
        let stage = Stage::new(shared, place, size.bytes)?;
        let cloned = fill::clone(shared, &ends(job, shared, &stage), size)?;
        match cloned {
            Ok(filled) => return Ok((stage, filled, None)),
            Err(_) if shared.options.reflink == Reflink::Always => return Err(not_cloned(job)),
            Err(refusal) => refused.push(refusal),
        }
        empty = Some(stage);
    }
    if shared.options.resume && size.bytes >= RESUME_BYTES_MIN {
        let resumed = journal::open(place.directory, place.name, job.stat);
        let resumed = resumed.map_err(|errno| Failure::from_errno(Operation::Journal, job.target_path, errno))?;
        // `None` if another process has the files open.
        if let Some(resumed) = resumed {
            return resume(job, shared, place, size, resumed, refused);
        }
    }
    let stage = match empty {
        Some(stage) => stage,
        None => Stage::new(shared, place, size.bytes)?,
    };
    let filled = fill(job, shared, &stage, size, None, refused)?;
    Ok((stage, filled, None))
}

/// Continues the copy of an earlier run, or starts one that a later run can continue.
fn resume<'a>(
    job: &FileJob<'_>,
    shared: &'a Shared,
    place: Destination<'a>,
    size: Size,
    resumed: Resumed,
    refused: Vec<Choice>,
) -> Result<Staged<'a>> {
    let Resumed { mut journal, file, name, journal_name, claimed } = resumed;
    let mut stage = Stage::kept(shared, place, file, name);
    let earlier = Some(Earlier { journal: &mut journal, claimed });
    let filled = fill(job, shared, &stage, size, earlier, refused);
    match filled {
        Ok(filled) => Ok((stage, filled, Some((journal, journal_name)))),
        Err(failure) => {
            if failure.kind() == FailureKind::VerificationFailed {
                stage.is_worthless();
                // The journal does not match the file. The verification failure is reported, not a
                // failure to remove the journal.
                let _ = name::remove(place.directory, &journal_name);
            }
            Err(failure)
        }
    }
}

/// Fills a staged file, and makes its file system report delayed errors.
fn fill(
    job: &FileJob<'_>,
    shared: &Shared,
    stage: &Stage<'_>,
    size: Size,
    earlier: Option<Earlier<'_>>,
    refused: Vec<Choice>,
) -> Result<Filled> {
    let ends = ends(job, shared, stage);
    let filled = fill::fill(shared, &ends, size, earlier, refused)?;
    if !job.target_is_local {
        ends.target.hand_over()?;
    }
    Ok(filled)
}

fn ends<'e>(job: &'e FileJob<'_>, shared: &'e Shared, stage: &'e Stage<'_>) -> Ends<'e> {
    Ends {
        source: Endpoint::of_descriptor(job.source_path, job.stat.st_dev, job.source, &shared.instance),
        target: Endpoint::of_descriptor(job.target_path, job.target_device, stage.fd(), &shared.instance),
    }
}

fn not_cloned(job: &FileJob<'_>) -> Failure {
    let kind = FailureKind::System(ErrorKind::Unsupported);
    Failure::new(Operation::Clone, job.target_path, kind)
        .with_detail("the copy cannot share blocks with the source")
        .with_advice("copy within one file system that supports reflinks, or allow other methods (reflink: auto)")
}

/// Returns a warning if the source changed since it was opened.
fn changed(job: &FileJob<'_>) -> Result<Option<Failure>> {
    let now = retry_on_intr(|| rustix::fs::fstat(job.source));
    let now = now.map_err(|errno| Failure::from_errno(Operation::Stat, job.source_path, errno))?;
    let then = job.stat;
    let what = if now.st_size != then.st_size {
        "its size changed while it was copied"
    } else if (now.st_mtime, now.st_mtime_nsec) != (then.st_mtime, then.st_mtime_nsec) {
        "it was written to while it was copied"
    } else if (now.st_ctime, now.st_ctime_nsec) != (then.st_ctime, then.st_ctime_nsec) {
        "it, or its metadata, changed while it was copied"
    } else {
        return Ok(None);
    };
    let failure = Failure::new(Operation::Copy, job.source_path, FailureKind::SourceChanged);
    Ok(Some(failure.with_detail(what)))
}
