//! Devices: what a file lies on, the limits of its queue, and the alignment of direct I/O.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::fs::{AtFlags, FileType, OFlags, StatxFlags, major, makedev, minor};
use rustix::io::Errno;

use super::{MNT_ID_UNIQUE, is_block_device};
use crate::sys::QueueLimits;

/// Multiple for direct I/O that suits every device met so far.
const PAGE_BYTES: u32 = 4096;

/// Returns the number of a block device, or of the device that a file lies on, and that of the mount.
/// A stream has no device. None if `statx(2)` is refused. Makes no request to a file server.
pub(crate) fn device_of(fd: BorrowedFd<'_>) -> Option<(Option<u64>, u64)> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = rustix::fs::statx(fd, "", flags, StatxFlags::TYPE | MNT_ID_UNIQUE).ok()?;
    let number = match FileType::from_raw_mode(stat.stx_mode.into()) {
        FileType::BlockDevice => Some(makedev(stat.stx_rdev_major, stat.stx_rdev_minor)),
        FileType::RegularFile | FileType::Directory => Some(makedev(stat.stx_dev_major, stat.stx_dev_minor)),
        _ => None,
    };
    // Zero on a kernel without such numbers.
    let is_unique = stat.stx_mask & MNT_ID_UNIQUE.bits() != 0;
    Some((number, if is_unique { stat.stx_mnt_id } else { 0 }))
}

/// Returns whether a device has a queue: file systems without a block device have none.
pub(crate) fn has_queue(number: u64) -> bool {
    major(number) != 0
}

/// Returns a block device's limits. Each limit of a device made of others is the smallest of theirs. An
/// error reports a shortage, which may pass.
pub(crate) fn queue_limits(number: u64) -> io::Result<QueueLimits> {
    let device = format!("/sys/dev/block/{}:{}", major(number), minor(number));
    let parts = if_present(std::fs::read_dir(format!("{device}/slaves")))?.into_iter().flatten().flatten();
    let parts: Vec<_> = parts.map(|part| part.path().to_string_lossy().into_owned()).collect();
    let limit = |attribute: &str| -> io::Result<Option<u32>> {
        let mut smallest = None;
        for part in &parts {
            smallest = smallest.into_iter().chain(queue_attribute(part, attribute)?).min();
        }
        Ok(smallest.or(queue_attribute(&device, attribute)?))
    };
    let by_length = limit("max_sectors_kb")?.map(|kilobytes| kilobytes.saturating_mul(1024));
    let by_segments = limit("max_segments")?.map(|segments| segments.saturating_mul(PAGE_BYTES));
    let request_bytes = by_length.into_iter().chain(by_segments).min().map(|bytes| bytes.max(PAGE_BYTES));
    Ok(QueueLimits { held_requests: limit("nr_requests")?, request_bytes })
}

/// Returns a number that sysfs reports for a block device's queue. A partition uses its disk's queue.
/// Errors are those of [`if_present`].
fn queue_attribute(device: &str, attribute: &str) -> io::Result<Option<u32>> {
    for queue in ["queue", "../queue"] {
        if let Some(text) = if_present(std::fs::read_to_string(format!("{device}/{queue}/{attribute}")))? {
            return Ok(text.trim().parse().ok());
        }
    }
    Ok(None)
}

/// Returns `None` for an entry that is absent or hidden. An error reports a shortage, which may pass.
fn if_present<T>(answer: io::Result<T>) -> io::Result<Option<T>> {
    match answer {
        Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => {
            Err(error)
        }
        answer => Ok(answer.ok()),
    }
}

/// Returns whether reads and writes of a descriptor bypass the page cache.
pub(crate) fn is_direct(fd: BorrowedFd<'_>) -> bool {
    rustix::fs::fcntl_getfl(fd).is_ok_and(|flags| flags.contains(OFlags::DIRECT))
}

/// Makes reads and writes bypass the page cache; EINVAL if the file has no direct I/O.
pub(crate) fn make_direct(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    rustix::fs::fcntl_setfl(fd, rustix::fs::fcntl_getfl(fd)? | OFlags::DIRECT)
}

/// Sets or clears `O_DIRECT`. The descriptor had the other state before, so the calls cannot fail.
pub(crate) fn set_direct(fd: BorrowedFd<'_>, direct: bool) {
    if let Ok(mut flags) = rustix::fs::fcntl_getfl(fd) {
        flags.set(OFlags::DIRECT, direct);
        let _ = rustix::fs::fcntl_setfl(fd, flags);
    }
}

/// `STATX_DIOALIGN` of linux/stat.h (6.1).
const DIOALIGN: u32 = 0x2000;

/// Returns the alignment of memory, and of offsets and lengths. None if the file has no direct I/O,
/// even if `open(2)` accepted the flag.
pub(crate) fn direct_alignment(fd: BorrowedFd<'_>) -> Option<(u32, u32)> {
    let power = |n: u32| n.is_power_of_two().then_some(n);
    let stat = rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::from_bits_retain(DIOALIGN));
    if let Some(stat) = stat.ok().filter(|stat| stat.stx_mask & DIOALIGN != 0) {
        return Some((power(stat.stx_dio_mem_align)?, power(stat.stx_dio_offset_align)?));
    }
    looked_up(fd)
}

/// The same for kernels that do not report it (before 6.1; for block devices, before 6.11).
fn looked_up(fd: BorrowedFd<'_>) -> Option<(u32, u32)> {
    let power = |n: u32| n.is_power_of_two().then_some(n);
    // tmpfs and ramfs accept the flag (mm/shmem.c, 6.6), and still use the page cache.
    const IN_MEMORY: [rustix::fs::FsWord; 2] = [0x0102_1994, 0x8584_58f6];
    // For a device, `fstatfs(2)` describes the file system of its name: devtmpfs, which reports itself
    // as tmpfs.
    let in_memory = || rustix::fs::fstatfs(fd).is_ok_and(|system| IN_MEMORY.contains(&system.f_type));
    if !is_block_device(fd) && in_memory() {
        return None;
    }
    Some(device_block(fd).and_then(power).map_or((PAGE_BYTES, PAGE_BYTES), |block| (block, block)))
}

/// The size of the device's logical blocks.
fn device_block(fd: BorrowedFd<'_>) -> Option<u32> {
    let stat = rustix::fs::fstat(fd).ok()?;
    if FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice {
        return rustix::fs::ioctl_blksszget(fd).ok();
    }
    let (major, minor) = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
    let device = format!("/sys/dev/block/{major}:{minor}");
    queue_attribute(&device, "logical_block_size").ok()?
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::path::Path;

    use super::*;

    /// Symptom: before 6.11, block devices had no direct I/O, since devtmpfs, which contains their names,
    /// reports itself as tmpfs. Tests the route of those kernels.
    #[test]
    fn a_block_device_is_not_what_its_name_lies_in() {
        let devices = std::fs::read_dir("/sys/class/block").into_iter().flatten().flatten();
        let opened = devices.filter_map(|device| std::fs::File::open(Path::new("/dev").join(device.file_name())).ok());
        let opened: Vec<_> = opened.collect();
        if opened.is_empty() {
            return eprintln!("skipped: no block device can be opened");
        }
        for device in opened {
            let found = looked_up(device.as_fd());
            assert!(found.is_some_and(|alignment| alignment.1 >= 512), "{device:?}: {found:?}");
        }
        if let Ok(memory) = tempfile::tempfile_in("/dev/shm") {
            assert_eq!(looked_up(memory.as_fd()), None, "tmpfs has no direct I/O");
        }
    }
}
