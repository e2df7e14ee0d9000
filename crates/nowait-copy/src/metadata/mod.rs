//! Copies owner, mode, times, extended attributes and ACLs like `cp -a`.

mod process;
mod xattr;

use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Gid, Mode, Stat, StatxAttributes, StatxFlags, Timespec, Timestamps, Uid};
use rustix::io::Errno;

use crate::error::{Failure, FailureKind, Operation};

pub(crate) use process::{DirProperties, Process};
use xattr::Node;

/// Bits that let a program run as its owner or group.
const SET_ID: u32 = 0o6000;

/// An entry whose metadata is copied.
pub(crate) struct Subject<'a> {
    /// Metadata of the source when it was opened.
    pub stat: &'a Stat,
    /// Path of the target, for messages.
    pub path: &'a Path,
    /// Metadata of the target, which need not be set again; `None` if unknown.
    pub target: Option<Stat>,
    /// True if the target may have an ACL, inherited or from before.
    pub may_have_acl: bool,
}

impl Subject<'_> {
    fn has_owner(&self) -> bool {
        self.target.is_some_and(|to| (to.st_uid, to.st_gid) == (self.stat.st_uid, self.stat.st_gid))
    }

    fn has_mode(&self, mode: u32) -> bool {
        self.target.is_some_and(|to| to.st_mode & 0o7777 == mode)
    }
}

/// Result of copying attributes.
struct Attributes {
    /// Mask of mode bits: if the ACL could not be copied, the source's mode alone may grant more
    /// than its ACL did.
    rights: u32,
    /// True if this may have changed the mode. Removing an ACL does not.
    may_set_mode: bool,
}

/// Sets the metadata of an open file or directory: the owner first, since that clears setuid bits
/// and capabilities; then attributes, including ACLs; then the mode, which grants access to others;
/// and times last. Returns a failure for each property that could not be kept.
pub(crate) fn copy(
    source: BorrowedFd<'_>,
    target: BorrowedFd<'_>,
    subject: &Subject<'_>,
    process: &Process,
) -> Vec<Failure> {
    let Subject { stat, path, .. } = subject;
    let mut lost = Lost { path, target, process, warnings: Vec::new() };
    let mut mode = stat.st_mode & 0o7777;
    let has_owner = subject.has_owner();
    let set = |user, group| rustix::fs::fchown(target, user, group);
    if !has_owner && !keep_owner(stat, &mut lost, set) {
        mode &= !SET_ID;
    }
    let Attributes { rights, may_set_mode } = attributes(Node::File(source), Node::File(target), subject, &mut lost);
    mode &= rights;
    // A new owner clears setuid bits.
    let is_cleared = !has_owner && mode & SET_ID != 0;
    if is_cleared || may_set_mode || !subject.has_mode(mode) {
        if let Err(errno) = rustix::fs::fchmod(target, Mode::from_raw_mode(mode)) {
            lost.note(Operation::SetMode, errno);
        }
    }
    if let Err(errno) = rustix::fs::futimens(target, &times(stat)) {
        lost.note(Operation::SetTimes, errno);
    }
    lost.warnings
}

/// Sets the metadata of a symbolic link, FIFO, socket or device. `node` is the open target
/// (`O_PATH`), so that a user who replaces its name cannot redirect the call to another file.
pub(crate) fn copy_node(
    (source_dir, source_name): (BorrowedFd<'_>, &std::ffi::CStr),
    node: BorrowedFd<'_>,
    subject: &Subject<'_>,
    process: &Process,
) -> Vec<Failure> {
    let Subject { stat, path, .. } = subject;
    let mut lost = Lost { path, target: node, process, warnings: Vec::new() };
    let mut mode = stat.st_mode & 0o7777;
    let set = |user, group| rustix::fs::chownat(node, c"", user, group, AtFlags::EMPTY_PATH);
    if !subject.has_owner() && !keep_owner(stat, &mut lost, set) {
        mode &= !SET_ID;
    }
    let (from, to) = (through_proc(source_dir, Some(source_name)), through_proc(node, None));
    mode &= attributes(Node::Link(&from), Node::Descriptor(&to), subject, &mut lost).rights;
    // The mode of a symbolic link cannot be set.
    if !FileType::from_raw_mode(stat.st_mode).is_symlink() {
        if let Err(errno) = rustix::fs::chmod(&to, Mode::from_raw_mode(mode)) {
            lost.note(Operation::SetMode, errno);
        }
    }
    if let Err(errno) = rustix::fs::utimensat(node, c"", &times(stat), AtFlags::EMPTY_PATH) {
        lost.note(Operation::SetTimes, errno);
    }
    lost.warnings
}

/// Copies attributes and removes ACLs that the source lacks.
fn attributes(source: Node<'_>, target: Node<'_>, subject: &Subject<'_>, lost: &mut Lost<'_>) -> Attributes {
    let Subject { stat, path, may_have_acl, .. } = subject;
    let file_type = FileType::from_raw_mode(stat.st_mode);
    let copied = xattr::copy(source, target, path);
    let may_set_mode = copied.has_acl || copied.lost.is_some();
    lost.warnings.extend(copied.lost);
    let mut rights = copied.rights;
    if *may_have_acl && !copied.has_acl && !file_type.is_symlink() {
        if let Err(errno) = xattr::remove_access_acl(target) {
            rights &= xattr::OWNER_RIGHTS;
            lost.note(Operation::Xattr, errno);
        }
    }
    if *may_have_acl && !copied.has_default_acl && file_type.is_dir() {
        if let Err(errno) = xattr::remove_default_acl(target) {
            lost.note(Operation::Xattr, errno);
        }
    }
    Attributes { rights, may_set_mode }
}

/// Returns true if an existing copy has the owner, mode and attributes of its source, apart from
/// those that this process may not set.
pub(crate) fn is_alike(
    (source, from): (BorrowedFd<'_>, &Stat),
    (target, to): (BorrowedFd<'_>, &Stat),
    process: &Process,
) -> bool {
    let has_owner = from.st_uid == to.st_uid && from.st_gid == to.st_gid;
    let may_give = process.may_chown || from.st_gid != to.st_gid;
    let mode = if has_owner { from.st_mode } else { from.st_mode & !SET_ID };
    (has_owner || !may_give) && mode == to.st_mode && xattr::is_alike(Node::File(source), Node::File(target))
}

/// Sets the metadata of an existing copy, as [`copy`] does, and removes attributes that the source
/// lacks. Meanwhile only the owner has access: the old owner with the new mode, or the new owner
/// with the old mode, may admit others.
pub(crate) fn renew(
    source: BorrowedFd<'_>,
    target: BorrowedFd<'_>,
    subject: &Subject<'_>,
    process: &Process,
) -> Vec<Failure> {
    // If this fails, setting the final mode fails, too, and is reported.
    _ = rustix::fs::fchmod(target, Mode::from_raw_mode(subject.stat.st_mode & 0o700));
    xattr::remove_others(Node::File(source), Node::File(target));
    copy(source, target, subject, process)
}

/// Sets the mode that an existing directory has while it is filled. Its owner gets all rights, if
/// that is this process's user. Users to whom the source grants no access lose theirs. The final
/// mode is set at the end. Returns the mode after this call.
pub(crate) fn prepare_directory(
    (source, from): (BorrowedFd<'_>, &Stat),
    (target, to): (BorrowedFd<'_>, &Stat),
    process: &Process,
) -> u32 {
    let mut rights = from.st_mode | !0o777 | 0o700;
    if to.st_mode & rights & 0o077 != 0 {
        rights &= xattr::rights(source);
    }
    let mode = to.st_mode & rights | if process.owns(to) { 0o700 } else { 0 };
    // If this fails, setting the final mode fails, too, and is reported.
    let is_set = mode != to.st_mode && rustix::fs::fchmod(target, Mode::from_raw_mode(mode & 0o7777)).is_ok();
    if is_set { mode } else { to.st_mode }
}

/// Removes the default ACL of a new directory. Returns true if that failed, so that its entries
/// still inherit an ACL.
pub(crate) fn inherits_acl(directory: BorrowedFd<'_>) -> bool {
    xattr::remove_default_acl(Node::File(directory)).is_err()
}

/// Sets owner and group, or only the group if the owner is refused. Returns false if the owner or
/// the group differs from the source's: setuid and setgid must then not be copied.
fn keep_owner(stat: &Stat, lost: &mut Lost<'_>, set: impl Fn(Option<Uid>, Option<Gid>) -> Result<(), Errno>) -> bool {
    let (user, group) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
    let Err(errno) = set(Some(user), Some(group)) else { return true };
    // Without the privilege, a refusal is expected: like `cp -a`, the copy keeps what is allowed.
    _ = set(None, Some(group));
    if lost.process.may_chown || !matches!(errno, Errno::PERM | Errno::INVAL) {
        lost.note(Operation::SetOwner, errno);
    }
    false
}

/// Metadata that could not be set on a target.
struct Lost<'a> {
    path: &'a Path,
    target: BorrowedFd<'a>,
    process: &'a Process,
    warnings: Vec<Failure>,
}

impl Lost<'_> {
    /// Adds a warning, with the reason if the target's attributes show it.
    fn note(&mut self, operation: Operation, errno: Errno) {
        let warning = Failure::from_errno(operation, self.path, errno).of_kind(FailureKind::MetadataLost);
        let stat = rustix::fs::statx(self.target, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS).ok();
        let is_directory = stat.is_some_and(|stat| FileType::from_raw_mode(stat.stx_mode.into()).is_dir());
        let copied = if is_directory { "the entries were copied" } else { "the data were copied" };
        let reason = match stat.filter(|_| errno == Errno::PERM) {
            Some(stat) if stat.stx_attributes.intersects(StatxAttributes::IMMUTABLE | StatxAttributes::APPEND) => {
                "; it is immutable or append-only (`lsattr -d`)"
            }
            Some(stat) if !self.process.may_change(stat.stx_uid) => {
                "; another user owns it: copy as the owner or as root to keep this"
            }
            _ if errno == Errno::PERM || process::is_unsupported(errno) => {
                "; the target's file system does not store this"
            }
            _ => "",
        };
        self.warnings.push(warning.with_advice(format!("{copied}{reason}")));
    }
}

fn times(stat: &Stat) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: stat.st_atime as _, tv_nsec: stat.st_atime_nsec as _ },
        last_modification: Timespec { tv_sec: stat.st_mtime as _, tv_nsec: stat.st_mtime_nsec as _ },
    }
}

/// Returns a path to an open file, or to an entry of an open directory, for calls that do not
/// accept a descriptor with `O_PATH`.
fn through_proc(fd: BorrowedFd<'_>, name: Option<&std::ffi::CStr>) -> std::path::PathBuf {
    use std::os::unix::ffi::OsStrExt;
    let mut path = std::path::PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    path.extend(name.map(|name| std::ffi::OsStr::from_bytes(name.to_bytes())));
    path
}
