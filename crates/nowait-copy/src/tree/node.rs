//! Symbolic links, FIFOs, sockets and devices.

use std::ffi::{CStr, CString};
use std::os::fd::BorrowedFd;

use rustix::fs::{AtFlags, FileType, Mode, Stat};
use rustix::io::Errno;

use super::Tree;
use super::entry::Entry;
use crate::error::{Failure, FailureKind, Operation, Result};
use crate::metadata::{self, Creation};
use crate::report::Way;

impl Tree<'_> {
    /// Makes an entry that has no data. Where it may replace another it is made under a temporary
    /// name, and gets its own when it is complete.
    pub(super) fn node(&self, entry: &Entry<'_>, old: Option<Stat>) -> Result<()> {
        let Entry { dir, paths, stat, .. } = entry;
        let Some(target_dir) = dir.target() else { return Ok(()) };
        let temporary = match dir.is_new && old.is_none() {
            true => None,
            false => Some(CString::new(self.shared.temporary_name()).unwrap_or_default()),
        };
        let name = temporary.as_deref().unwrap_or(entry.target_name);
        let what = make(entry, target_dir, name)?;
        let creation = Creation::of(stat, &dir.place, &self.process);
        let subject =
            metadata::Subject { stat, creation, path: &paths.target, may_have_acl: dir.place.has_default_acl };
        let from = (std::os::fd::AsFd::as_fd(&dir.source), entry.source_name);
        self.warn(metadata::copy_node(from, (target_dir, name), &subject, &self.process));
        if temporary.is_some() {
            if let Err(errno) = rustix::fs::renameat(target_dir, name, target_dir, entry.target_name) {
                _ = rustix::fs::unlinkat(target_dir, name, AtFlags::empty());
                return Err(Failure::from_errno(Operation::Rename, &paths.target, errno));
            }
        }
        self.count(|report| report.nodes += 1);
        self.copied(entry, Way::Node, what, 0);
        Ok(())
    }
}

/// Makes the entry, and says what it is.
fn make(entry: &Entry<'_>, target_dir: BorrowedFd<'_>, name: &CStr) -> Result<&'static str> {
    let Entry { dir, paths, stat, .. } = entry;
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
                .with_advice("leave it out with --exclude"));
        }
    };
    match made {
        Ok(()) => Ok(what),
        Err(Errno::EXIST) if dir.is_new => Err(Failure::new(operation, &paths.target, FailureKind::NameCollision)
            .with_detail("another name of the source is the same name here")),
        Err(errno @ (Errno::PERM | Errno::OPNOTSUPP)) => {
            let failure = Failure::from_errno(operation, &paths.target, errno).with_detail(format!("it is a {what}"));
            Err(failure.with_advice("copy as root, and to a file system that has such files"))
        }
        Err(errno) => Err(Failure::from_errno(operation, &paths.target, errno)),
    }
}
