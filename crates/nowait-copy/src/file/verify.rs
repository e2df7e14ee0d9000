//! Reads a copy back and compares checksums.

use std::collections::VecDeque;

use nowait::{Advice, Buf, File, Moved, Started};
use rustix::io::Errno;

use super::ends::{Endpoint, Ends};
use super::extents::{EXTENT_ALIGNMENT, Extents};
use super::journal::Check;
use crate::error::{Failure, FailureKind, Operation, Result};
use crate::shared::Shared;

/// Computes the checksums of a source whose data did not pass through this process.
pub(crate) fn of_source(shared: &Shared, ends: &Ends<'_>, extents: &Extents, block: u64) -> Result<Vec<Check>> {
    let source = &ends.source;
    let mut buffer = Buf::uncleared(block as usize).ok_or_else(|| source.failure(Operation::Verify, Errno::NOMEM))?;
    let mut checks = Vec::new();
    for piece in extents.pieces(block) {
        if shared.meter.is_cancelled() {
            return Err(Failure::new(Operation::Verify, source.path, FailureKind::Cancelled));
        }
        let n = source.read(&mut buffer[..(piece.end - piece.start) as usize], piece.start, false)?;
        if n > 0 {
            checks.push(Check { offset: piece.start, length: n as u32, crc: crc32c::crc32c(&buffer[..n]) });
        }
    }
    Ok(checks)
}

/// Reads the target, past the page cache if the file system allows it, and compares checksums. The
/// target must be synced before.
///
/// # Errors
/// [`FailureKind::VerificationFailed`], with the offset of the first piece that differs.
pub(crate) fn target(shared: &Shared, target: &Endpoint<'_>, checks: &[Check], depth: usize) -> Result<()> {
    let mut differs = None;
    compare(shared, target, &open(target)?, checks, depth, |check, is_same| {
        differs = (!is_same).then_some(check.offset);
        is_same
    })?;
    match differs {
        None => Ok(()),
        Some(offset) => Err(Failure::new(Operation::Verify, target.path, FailureKind::VerificationFailed).at(offset)),
    }
}

/// Opens the target for reads from the device.
fn open(target: &Endpoint<'_>) -> Result<File> {
    if let Some(file) = target.direct(false) {
        return Ok(file);
    }
    // Without direct I/O, only pages dropped from the page cache are read from the device.
    let file = match target.reopen()? {
        Some(file) => file,
        None => target.file(Operation::Verify)?.clone(),
    };
    // A failure is ignored, since this is advice; on tmpfs the pages are the storage.
    let _ = file.advise(0, 0, Advice::DontNeed).wait();
    Ok(file)
}

/// Reads pieces in order, and calls `next` with each piece and whether it matches its checksum,
/// until `next` returns false. A piece beyond the end of the file does not match.
pub(crate) fn compare(
    shared: &Shared,
    target: &Endpoint<'_>,
    file: &File,
    checks: &[Check],
    depth: usize,
    mut next: impl FnMut(Check, bool) -> bool,
) -> Result<()> {
    nowait::block_on(async {
        let mut reads: VecDeque<(Check, Started<Moved<Buf>>)> = VecDeque::new();
        let mut rest = checks.iter();
        loop {
            while reads.len() < depth {
                let Some(check) = rest.next() else { break };
                let length = (check.length as usize).next_multiple_of(EXTENT_ALIGNMENT as usize);
                let buffer = Buf::uncleared(length).ok_or_else(|| target.failure(Operation::Verify, Errno::NOMEM))?;
                reads.push_back((*check, file.read_at(buffer, check.offset).submit()));
            }
            let Some((check, read)) = reads.pop_front() else { return Ok(()) };
            if shared.meter.is_cancelled() {
                return Err(Failure::new(Operation::Verify, target.path, FailureKind::Cancelled));
            }
            let (n, buffer) = read.await.map_err(|failed| {
                Failure::from_nowait(Operation::Verify, target.path, &failed.error).at(check.offset)
            })?;
            let length = check.length as usize;
            if !next(check, n >= length && crc32c::crc32c(&buffer[..length]) == check.crc) {
                return Ok(());
            }
        }
    })
}
