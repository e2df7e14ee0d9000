//! Files that an earlier, interrupted copy has finished.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{Mode, OFlags, Stat};
use rustix::io::{Errno, retry_on_intr};

use super::Tree;
use super::entry::{Entry, is_modified_alike};
use crate::os::data;

/// Bytes that are compared at a time.
const BLOCK_BYTES: usize = 256 << 10;

impl Tree<'_> {
    /// True if `old` has the entry's size, times, owner and mode, and its bytes: size and times are
    /// no proof, since clocks of file systems are coarse.
    pub(super) fn is_finished(&self, entry: &Entry<'_>, old: &Stat) -> bool {
        let Entry { dir, stat, target_name, .. } = entry;
        let (Some(source), Some(target_dir)) = (&entry.file, dir.target()) else { return false };
        let is_alike = stat.st_size == old.st_size
            && (stat.st_mode, stat.st_uid, stat.st_gid) == (old.st_mode, old.st_uid, old.st_gid)
            && is_modified_alike(stat, old);
        if !is_alike {
            return false;
        }
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        // What cannot be read is copied anew.
        rustix::fs::openat(target_dir, *target_name, flags, Mode::empty())
            .is_ok_and(|target| self.has_same_bytes(source.as_fd(), target.as_fd(), size).unwrap_or(false))
    }

    /// Compares two files of `size` bytes. What is a hole in both is not read.
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
