//! Reads and writes in turn: for short files, cached files, and files that no other way can copy.

use std::ops::Range;

use nowait::Buf;
use rustix::io::Errno;

use super::extents::Extents;
use super::pass::{Done, Pass, Zeros, is_zero};
use crate::error::{Operation, Result};

/// Bytes per read and write. Longer ones gain nothing; shorter ones cost more calls, and create
/// smaller folios in the page cache.
pub(crate) const BLOCK_BYTES: u64 = 1 << 20;

/// Copies all extents. With `uncached` neither file's pages stay in the page cache.
pub(crate) fn copy(pass: &mut Pass<'_>, extents: &Extents, block: u64, uncached: bool) -> Result<Done> {
    let block = pass.shared.meter.block(block);
    let longest = extents.iter().map(|extent| extent.end - extent.start).max().unwrap_or(0);
    let mut buffer = buffer(pass, block.min(longest))?;
    for piece in extents.pieces(block) {
        let length = piece.end - piece.start;
        pass.admit(length)?;
        let bytes = &mut buffer[..length as usize];
        let n = match pass.ends.source.read(bytes, piece.start, uncached) {
            Err(failure) if uncached && is_unsupported(failure.raw_os_error()) => return Ok(refused()),
            result => result?,
        };
        if !put(pass, &bytes[..n], piece.start, uncached)? {
            return Ok(refused());
        }
        if (n as u64) < length {
            pass.ended_at(piece.start + n as u64);
            break;
        }
    }
    Ok(Done::All)
}

/// Copies until the source ends, regardless of its reported size: files in `/proc` report zero.
pub(crate) fn copy_to_end(pass: &mut Pass<'_>) -> Result<()> {
    const UNKNOWN_BYTES: u64 = 64 << 10;
    let mut buffer = buffer(pass, UNKNOWN_BYTES)?;
    let mut offset = 0;
    loop {
        let n = pass.ends.source.read(&mut buffer, offset, false)?;
        if n > 0 {
            pass.admit(n as u64)?;
            put(pass, &buffer[..n], offset, false)?;
        }
        offset += n as u64;
        if n < buffer.len() {
            pass.ended_at(offset);
            return Ok(());
        }
    }
}

/// Writes a piece; returns false if the target does not support uncached writes.
fn put(pass: &mut Pass<'_>, bytes: &[u8], offset: u64, uncached: bool) -> Result<bool> {
    if bytes.is_empty() {
        return Ok(true);
    }
    let piece = offset..offset + bytes.len() as u64;
    let taken = pass.take(bytes);
    if taken.is_zero() {
        pass.wrote(&piece, taken, false)?;
        return Ok(true);
    }
    for run in runs(bytes, pass.zeros) {
        let at = offset + run.start as u64;
        match pass.ends.target.write(&bytes[run], at, uncached) {
            Err(failure) if uncached && is_unsupported(failure.raw_os_error()) => return Ok(false),
            result => result?,
        }
    }
    pass.wrote(&piece, taken, true)?;
    Ok(true)
}

/// Returns the parts of a piece that must be written. (The length of a file that ends in zeros is
/// set afterwards.)
fn runs(bytes: &[u8], zeros: Zeros) -> Vec<Range<usize>> {
    let Zeros::SkipBlocks(block) = zeros else { return std::iter::once(0..bytes.len()).collect() };
    let mut runs: Vec<Range<usize>> = Vec::new();
    let mut start = 0;
    for part in bytes.chunks(block) {
        let end = start + part.len();
        if !is_zero(part) {
            match runs.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ => runs.push(start..end),
            }
        }
        start = end;
    }
    runs
}

fn buffer(pass: &Pass<'_>, length: u64) -> Result<Buf> {
    let buffer = usize::try_from(length).ok().and_then(Buf::uncleared);
    buffer.ok_or_else(|| pass.ends.source.failure(Operation::Read, Errno::NOMEM))
}

/// Returns whether an errno may mean that uncached I/O is refused: the flag, or the whole call
/// (`preadv2(2)`, `pwritev2(2)`). If the file itself returns EPERM, the call without the flag fails
/// again and reports it.
fn is_unsupported(errno: Option<i32>) -> bool {
    [Errno::OPNOTSUPP, Errno::INVAL, Errno::NOSYS, Errno::PERM]
        .into_iter()
        .any(|refusal| errno == Some(refusal.raw_os_error()))
}

fn refused() -> Done {
    Done::Refused("the file system or kernel has no uncached I/O (RWF_DONTCACHE)".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Symptom: a cache-neutral copy failed if a filter refused `pwritev2`.
    #[test]
    fn uncached_io_is_refused_by_its_flag_or_with_its_call() {
        for errno in [libc::EOPNOTSUPP, libc::EINVAL, libc::ENOSYS, libc::EPERM] {
            assert!(is_unsupported(Some(errno)), "{errno}");
        }
        assert!(![None, Some(libc::EIO), Some(libc::ENOSPC)].into_iter().any(is_unsupported));
    }

    #[test]
    fn blocks_of_zeros_are_no_part_of_what_is_written() {
        let mut bytes = vec![0; 10_000];
        (bytes[0], bytes[4095], bytes[9000]) = (1, 1, 1);
        assert_eq!(runs(&bytes, Zeros::SkipBlocks(4096)), [0..4096, 8192..10_000]);
        assert_eq!(runs(&bytes, Zeros::SkipBlocks(1000)), [0..1000, 4000..5000, 9000..10_000]);
        assert!(runs(&[0; 100], Zeros::SkipBlocks(10)).is_empty());
        assert_eq!(runs(&bytes, Zeros::Write).len(), 1);
    }
}
