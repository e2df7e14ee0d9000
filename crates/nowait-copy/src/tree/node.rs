//! Symbolic links, FIFOs, sockets and devices.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::Tree;
use super::entry::SourceEntry;
use crate::error::{Failure, FailureKind, Operation, Result};
use crate::metadata;
use crate::report::Way;

impl Tree<'_> {
    /// Creates an entry without data. If it may replace another, it is created under a temporary
    /// name, and renamed when its metadata is set.
    pub(super) fn node(&self, entry: &SourceEntry<'_>, old: Option<Stat>) -> Result<()> {
        let SourceEntry { dir, paths, stat, .. } = entry;
        let Some(target_dir) = dir.target() else { return Ok(()) };
        let temporary = match dir.is_new && old.is_none() {
            true => None,
            false => Some(dir.temporary_name(self.shared)),
        };
        let name = temporary.as_deref().unwrap_or(entry.target_name);
        let what = make(entry, target_dir, name)?;
        let described = open_made(entry, target_dir, name).map(|(made, target)| {
            let (path, may_have_acl) = (&*paths.target, dir.place.has_default_acl);
            let subject = metadata::Subject { stat, path, target: Some(target), may_have_acl };
            let from = (dir.source.as_fd(), entry.source_name);
            self.warn(metadata::copy_node(from, made.as_fd(), &subject, &self.process));
        });
        if temporary.is_some() {
            let named = described.and_then(|()| {
                let renamed = rustix::fs::renameat(target_dir, name, target_dir, entry.target_name);
                renamed.map_err(|errno| Failure::from_errno(Operation::Rename, &paths.target, errno))
            });
            named.inspect_err(|_| _ = rustix::fs::unlinkat(target_dir, name, AtFlags::empty()))?;
        } else {
            described?;
        }
        self.count(|report| report.nodes += 1);
        self.copied(entry, Way::Node, what, 0);
        Ok(())
    }
}

/// Creates the entry, and returns the name of its type.
fn make(entry: &SourceEntry<'_>, target_dir: BorrowedFd<'_>, name: &CStr) -> Result<&'static str> {
    let SourceEntry { dir, paths, stat, .. } = entry;
    let file_type = FileType::from_raw_mode(stat.st_mode);
    let (operation, what, made) = match file_type {
        FileType::Symlink => {
            let text = rustix::fs::readlinkat(&dir.source, entry.source_name, Vec::new())
                .map_err(|errno| Failure::from_errno(Operation::Symlink, &paths.source, errno))?;
            (Operation::Symlink, "symbolic link", rustix::fs::symlinkat(text, target_dir, name))
        }
        FileType::Fifo | FileType::Socket | FileType::CharacterDevice | FileType::BlockDevice => {
            let what = match file_type {
                FileType::Fifo => "FIFO",
                FileType::Socket => "socket",
                _ => "device",
            };
            let (mode, device) = (Mode::RUSR | Mode::WUSR, stat.st_rdev);
            (Operation::MakeNode, what, rustix::fs::mknodat(target_dir, name, file_type, mode, device))
        }
        _ => {
            let kind = FailureKind::System(nowait::ErrorKind::Unsupported);
            return Err(Failure::new(Operation::Copy, &paths.source, kind)
                .with_detail("its type is unknown")
                .with_advice("exclude its name to skip it"));
        }
    };
    match made {
        Ok(()) => Ok(what),
        Err(Errno::EXIST) if dir.is_new => Err(Failure::new(operation, &paths.target, FailureKind::NameCollision)
            .with_detail("two names of the source are one name in the target's file system")),
        Err(errno @ (Errno::PERM | Errno::OPNOTSUPP)) => {
            let failure = Failure::from_errno(operation, &paths.target, errno).with_detail(format!("it is a {what}"));
            Err(failure.with_advice("copy as root, to a file system that supports such files"))
        }
        Err(errno) => Err(Failure::from_errno(operation, &paths.target, errno)),
    }
}

/// Opens the new entry with `O_PATH`. Fails if another entry has replaced it, in a directory that
/// other users may write to.
fn open_made(entry: &SourceEntry<'_>, target_dir: BorrowedFd<'_>, name: &CStr) -> Result<(OwnedFd, Stat)> {
    let failed = |errno| Failure::from_errno(Operation::Open, &entry.paths.target, errno);
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let made = rustix::fs::openat(target_dir, name, flags, Mode::empty()).map_err(failed)?;
    let stat = rustix::fs::fstat(&made).map_err(failed)?;
    let file_type = FileType::from_raw_mode(stat.st_mode);
    let is_device = matches!(file_type, FileType::CharacterDevice | FileType::BlockDevice);
    let is_same_device = !is_device || stat.st_rdev == entry.stat.st_rdev;
    if file_type == FileType::from_raw_mode(entry.stat.st_mode) && is_same_device && stat.st_nlink <= 1 {
        return Ok((made, stat));
    }
    let kind = FailureKind::System(nowait::ErrorKind::AlreadyExists);
    Err(Failure::new(Operation::Open, &entry.paths.target, kind)
        .with_detail("another process replaced it while it was being created")
        .with_advice("copy it again while no other process changes the directory"))
}
