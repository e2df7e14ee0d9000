//! Rights of this process, and properties of the directories that it creates files in.

use std::os::fd::BorrowedFd;

use rustix::fs::Stat;
use rustix::io::Errno;

use super::xattr;
use crate::os::kind;

/// Identity and rights of the process.
pub(crate) struct Process {
    user: u32,
    /// `None` if /proc does not show it.
    umask: Option<u32>,
    /// True if the process may change owners, so that a refusal comes from the file system.
    pub may_chown: bool,
    /// True if the process may change mode and times of other users' files.
    may_change_all: bool,
}

impl Process {
    pub(crate) fn new() -> Self {
        let has = |capability| rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(capability));
        Process {
            user: rustix::process::geteuid().as_raw(),
            umask: umask(),
            may_chown: has(rustix::thread::CapabilitySet::CHOWN),
            may_change_all: has(rustix::thread::CapabilitySet::FOWNER),
        }
    }

    /// Returns true if this process's user owns a file.
    pub(crate) fn owns(&self, stat: &Stat) -> bool {
        stat.st_uid == self.user
    }

    /// Returns true if this process may change mode and times of files of `user`.
    pub(super) fn may_change(&self, user: u32) -> bool {
        self.may_change_all || user == self.user
    }

    /// True if the umask removes rights of the owner from new files.
    pub(crate) fn masks_owner(&self) -> bool {
        self.umask.is_some_and(|umask| umask & 0o700 != 0)
    }
}

/// Returns the umask from `/proc`: `umask(2)` would change it for other threads meanwhile.
fn umask() -> Option<u32> {
    let status = std::fs::read_to_string("/proc/thread-self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"))?;
    u32::from_str_radix(line.trim(), 8).ok()
}

/// File systems whose names ignore case, always or by a mount option.
const IGNORES_CASE: [u32; 8] = [
    0x4D44,      // FAT
    0x2011_BAB0, // exFAT
    0x5346_544E, // NTFS
    0x7366_746E, // NTFS3
    0xFF53_4D42, // CIFS
    0xFE53_4D42, // SMB2
    0x517B,      // SMB
    0x482B,      // HFS+
];

/// Flag of a directory of ext4 or f2fs that ignores case (`FS_CASEFOLD_FL`).
const CASEFOLD: u32 = 0x4000_0000;

/// Properties of new entries of a directory.
#[derive(Clone, Copy)]
pub(crate) struct DirProperties {
    /// Device of the directory.
    pub device: u64,
    /// New entries inherit an ACL.
    pub has_default_acl: bool,
    /// Names that differ only in case may be the same name.
    pub may_ignore_case: bool,
    /// True if no other machine writes to the file system.
    pub is_local: bool,
}

impl DirProperties {
    /// Examines an existing directory.
    pub(crate) fn of(dir: BorrowedFd<'_>, stat: &Stat) -> Self {
        let magic = rustix::fs::fstatfs(dir).map_or(0, |fs| fs.f_type as u32);
        let folds = || rustix::fs::ioctl_getflags(dir).is_ok_and(|flags| flags.bits() & CASEFOLD != 0);
        DirProperties {
            device: stat.st_dev,
            has_default_acl: xattr::has_default_acl(dir),
            may_ignore_case: IGNORES_CASE.contains(&magic) || folds(),
            is_local: kind::is_local(magic),
        }
    }

    /// Returns the properties of a directory just created in this one, without a default ACL.
    pub(crate) fn below(&self) -> Self {
        DirProperties { has_default_acl: false, ..*self }
    }
}

/// True for an errno that shows that the file system does not support the call.
pub(super) fn is_unsupported(errno: Errno) -> bool {
    matches!(errno, Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::NOTTY)
}
