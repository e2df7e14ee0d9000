//! Files that an earlier, interrupted copy has finished.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, Stat};
use rustix::io::{Errno, retry_on_intr};

use super::Tree;
use super::dir::identity;
use super::entry::SourceEntry;
use crate::metadata;
use crate::os::data;

/// Number of bytes compared at a time.
const BLOCK_BYTES: usize = 256 << 10;

impl Tree<'_> {
    /// If `old` is a complete copy, with the entry's size, time and bytes, returns the reason for
    /// skipping the entry. Sets other metadata that differs.
    pub(super) fn finished(&self, entry: &SourceEntry<'_>, old: &Stat) -> Option<&'static str> {
        let source = entry.file.as_ref()?.as_fd();
        let target = self.open_same(entry, source, old)?;
        let target = target.as_fd();
        let subject =
            metadata::Subject { stat: &entry.stat, path: &entry.paths.target, target: None, may_have_acl: true };
        if metadata::is_alike((source, &entry.stat), (target, old), &self.process) {
            return Some("it is complete");
        }
        // The target has other names that the source lacks; do not change the metadata of those.
        if old.st_nlink > entry.stat.st_nlink {
            return None;
        }
        if !self.shared.options.dry_run {
            self.warn(metadata::renew(source, target, &subject, &self.process));
        }
        Some("it is complete except for its metadata")
    }

    /// Opens `old` if it has the entry's size, modification time and bytes. Size and time alone
    /// prove nothing, since timestamps are coarse. Returns none, too, if a file cannot be read.
    fn open_same(&self, entry: &SourceEntry<'_>, source: BorrowedFd<'_>, old: &Stat) -> Option<OwnedFd> {
        let SourceEntry { dir, stat, target_name, .. } = entry;
        if stat.st_size != old.st_size || !self.is_modified_alike(dir, stat, old) {
            return None;
        }
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let target = rustix::fs::openat(dir.target()?, *target_name, flags, Mode::empty()).ok()?;
        let is_old = rustix::fs::fstat(&target).is_ok_and(|found| identity(&found) == identity(old));
        let is_same = is_old && self.has_same_bytes(source, target.as_fd(), size).unwrap_or(false);
        is_same.then_some(target)
    }

    /// Compares two files of `size` bytes. Ranges that are holes in both files are not read.
    fn has_same_bytes(&self, source: BorrowedFd<'_>, target: BorrowedFd<'_>, size: u64) -> Result<bool, Errno> {
        let (mut one, mut other) = (vec![0; BLOCK_BYTES], vec![0; BLOCK_BYTES]);
        let mut offset = 0;
        while !self.shared.meter.is_cancelled() {
            let start = |fd| Ok(data::next_data(fd, offset, size)?.map_or(size, |range| range.start));
            offset = start(source)?.min(start(target)?).max(offset);
            let length = read_full(source, &mut one, offset)?;
            if length != read_full(target, &mut other, offset)? || one[..length] != other[..length] {
                return Ok(false);
            }
            if length < BLOCK_BYTES {
                return Ok(true);
            }
            offset += length as u64;
        }
        Ok(false)
    }
}

/// Reads until the buffer is full or the file ends.
fn read_full(file: BorrowedFd<'_>, buffer: &mut [u8], offset: u64) -> Result<usize, Errno> {
    let mut length = 0;
    while length < buffer.len() {
        match retry_on_intr(|| rustix::io::pread(file, &mut buffer[length..], offset + length as u64))? {
            0 => break,
            read => length += read,
        }
    }
    Ok(length)
}
