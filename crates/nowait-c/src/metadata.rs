//! Metadata of files.
//!
//! `unsafe` here: entry points, and their callers' pointers.

use std::ffi::{c_char, c_int};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::border::{self, Growing, fill, size, status};
use crate::failure::{Failure, Result};
use crate::file::{FILES, FileHandle};
use crate::instance::{InstanceHandle, with_instance};

/// Returns the metadata of a symbolic link itself, not of its target.
pub const NOWAIT_METADATA_OF_LINK: u32 = 1;

/// Metadata of a file (statx(2)). Times are in nanoseconds since 1970, negative before.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Metadata {
    /// sizeof(struct nowait_metadata).
    pub size: usize,
    /// Length of the file in bytes; 0 for a block device (use nowait_file_size).
    pub length: u64,
    /// Allocated storage in bytes: less than `length` if the file has holes, more if space is
    /// reserved.
    pub allocated_bytes: u64,
    /// Device number of the file system (makedev(3)).
    pub device: u64,
    /// Inode number. Two names with the same `device` and `inode` are one file.
    pub inode: u64,
    /// Number of names (hard links). 0: the file was removed, but is still open.
    pub links: u64,
    /// Type and permissions, in the format of st_mode: S_ISREG(mode), mode & 07777.
    pub mode: u32,
    /// User id of the owner.
    pub owner: u32,
    /// Group id.
    pub group: u32,
    /// Preferred request size of the file system in bytes.
    pub block_bytes: u32,
    /// Time of the last read; file systems seldom keep it up to date (relatime, noatime).
    pub accessed_ns: i64,
    /// Time of the last change of the contents.
    pub modified_ns: i64,
    /// Time of the last change of the contents or the metadata.
    pub changed_ns: i64,
    /// Time of creation; INT64_MIN if the file system does not store it.
    pub created_ns: i64,
}

// SAFETY: `repr(C)`, `size` first, numbers only.
unsafe impl Growing for Metadata {
    const FIRST_BYTES: usize = size_of::<Metadata>();
}

/// Stores the metadata of an open file in `metadata`. Returns 0, or a negative errno: -EBADF, those
/// of statx(2). Threads: any.
///
/// # Safety
/// `metadata` points to as many bytes as its size says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_file_metadata(file: FileHandle, metadata: *mut Metadata) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        unsafe { size(metadata, "metadata") }?;
        let known = FILES.get(file)?.metadata().wait()?;
        // SAFETY: the caller's promise.
        unsafe { fill(metadata, &Metadata::from(&known), "metadata") }
    })
}

/// Stores the metadata of a path of any type in `metadata`. `flags` is 0 or
/// NOWAIT_METADATA_OF_LINK; `instance` may be 0. The call needs no permission on the file itself.
///
/// Returns 0, or a negative errno: -ENOENT if the path does not exist; -EINVAL for unknown flags;
/// those of statx(2). Threads: any.
///
/// # Safety
/// `path` is a string, `metadata` points to as many bytes as its size says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_path_metadata(
    instance: InstanceHandle,
    path: *const c_char,
    flags: u32,
    metadata: *mut Metadata,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let path = unsafe { border::path(path, "path") }?;
        // SAFETY: the caller's promise.
        unsafe { size(metadata, "metadata") }?;
        let of_link = follows(flags)?;
        let known = with_instance(instance, |nowait| {
            let known = if of_link { nowait.fs().symlink_metadata(path) } else { nowait.fs().metadata(path) };
            Ok(known.wait()?)
        })?;
        // SAFETY: the caller's promise.
        unsafe { fill(metadata, &Metadata::from(&known), "metadata") }
    })
}

fn follows(flags: u32) -> Result<bool> {
    match flags {
        0 => Ok(false),
        NOWAIT_METADATA_OF_LINK => Ok(true),
        _ => Err(Failure::new(libc::EINVAL, format!("flags are {flags:#x}; give NOWAIT_METADATA_OF_LINK or 0"))),
    }
}

impl From<&fs::Metadata> for Metadata {
    fn from(known: &fs::Metadata) -> Metadata {
        Metadata {
            size: size_of::<Metadata>(),
            length: known.size(),
            // The unit is 512 bytes for every file system.
            allocated_bytes: known.blocks().saturating_mul(512),
            device: known.dev(),
            inode: known.ino(),
            links: known.nlink(),
            mode: known.mode(),
            owner: known.uid(),
            group: known.gid(),
            block_bytes: known.blksize().try_into().unwrap_or(u32::MAX),
            accessed_ns: in_ns(known.atime(), known.atime_nsec()),
            modified_ns: in_ns(known.mtime(), known.mtime_nsec()),
            changed_ns: in_ns(known.ctime(), known.ctime_nsec()),
            created_ns: known.created().map_or(i64::MIN, since_1970),
        }
    }
}

/// Converts seconds and nanoseconds to nanoseconds. Clamps times outside of 1678 to 2261.
fn in_ns(seconds: i64, nanoseconds: i64) -> i64 {
    let ns = i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds);
    ns.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64
}

fn since_1970(time: SystemTime) -> i64 {
    let ns = match time.duration_since(UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_nanos()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_nanos()).map_or(i64::MIN, |ns| -ns),
    };
    // The minimum means that the time is unknown.
    ns.max(i64::MIN + 1)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_are_nanoseconds_since_1970() {
        for (seconds, nanoseconds, ns) in
            [(0, 0, 0), (1, 5, 1_000_000_005), (-1, 5, -999_999_995), (i64::MAX, 0, i64::MAX), (i64::MIN, 0, i64::MIN)]
        {
            assert_eq!(in_ns(seconds, nanoseconds), ns, "{seconds} {nanoseconds}");
        }
        assert_eq!(since_1970(UNIX_EPOCH + Duration::from_nanos(7)), 7);
        assert_eq!(since_1970(UNIX_EPOCH - Duration::from_nanos(7)), -7);
        assert_eq!(since_1970(UNIX_EPOCH + Duration::from_secs(1 << 40)), i64::MAX);
        assert_eq!(since_1970(UNIX_EPOCH - Duration::from_secs(1 << 40)), i64::MIN + 1);
    }
}
