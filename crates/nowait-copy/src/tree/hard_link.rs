//! Links further names of a copied file.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{AtFlags, FileType, Stat};
use rustix::io::Errno;

use super::dir::{DIRECTORY, Dir, identity, open_path, parent_of};
use super::entry::SourceEntry;
use super::links::{Copy, Waiter};
use super::{Task, Tree};
use crate::error::{Failure, FailureKind, Operation};
use crate::options::Follow;
use crate::report::{Event, Way};
use crate::shared::Shared;

impl Tree<'_> {
    /// Copies a file with several names, and links the waiting names.
    pub(super) fn copy_first(&self, thread: usize, entry: &SourceEntry<'_>, old: Option<Stat>) {
        let source = identity(&entry.stat);
        let is_copied = self.copy(entry, old);
        let made = entry
            .dir
            .target()
            .filter(|_| is_copied)
            .and_then(|dir| rustix::fs::statat(dir, entry.target_name, AtFlags::SYMLINK_NOFOLLOW).ok());
        match made {
            Some(made) => self.link_others(entry, &made),
            None => {
                let again = |Waiter { dir, source_name, target_name }| Task::Entry { dir, source_name, target_name };
                self.queue.push(thread, self.links.failed(source).into_iter().map(again));
            }
        }
    }

    /// Links the names that waited for an entry to its copy `made`. Later names will be linked to
    /// it, too.
    pub(super) fn link_others(&self, entry: &SourceEntry<'_>, made: &Stat) {
        let copy = Copy { identity: identity(made), path: entry.paths.target.clone() };
        let names = match self.shared.options.follow {
            Follow::Never => u64::from(entry.stat.st_nlink as u32),
            // Symbolic links to the file are further names, and not counted.
            _ => u64::MAX,
        };
        for waiter in self.links.finished(identity(&entry.stat), copy.clone(), names) {
            self.hard_link(&copy, waiter);
        }
    }

    /// Links another name to a copy, and ends the name's task.
    pub(super) fn hard_link(&self, copy: &Copy, waiter: Waiter) {
        let Waiter { dir, source_name, target_name } = waiter;
        let paths = dir.paths(&source_name, &target_name);
        let linked = match dir.target() {
            Some(target_dir) => link(copy, &dir, target_dir, &target_name, self.shared),
            None => Ok(()),
        };
        match linked {
            Ok(()) => {
                self.count(|report| report.hard_links += 1);
                let (source, target, why) = (&paths.source, &paths.target, "its file has a copy");
                self.shared.tell(&Event::Copied { source, target, way: Way::HardLink, why, bytes: 0 });
            }
            // A separate copy is better than no copy. (ENOSYS: a FUSE server without hard links, before
            // Linux 6.16.)
            Err(
                errno @ (Errno::MLINK | Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS | Errno::XDEV | Errno::NOENT),
            ) => {
                let lost = Failure::from_errno(Operation::Link, &paths.target, errno)
                    .of_kind(FailureKind::MetadataLost)
                    .with_advice("it was copied as a separate file");
                let copied = self.alone(&dir, &source_name, &target_name);
                // A symbolic link that was followed was no hard link.
                if copied.is_some_and(|source| source.st_nlink > 1) {
                    self.warn(vec![lost]);
                }
            }
            Err(Errno::EXIST) if dir.is_new => self.fail(
                Failure::new(Operation::Link, &paths.target, FailureKind::NameCollision)
                    .with_detail("two names of the source are one name in the target's file system"),
            ),
            Err(errno) => self.fail(Failure::from_errno(Operation::Link, &paths.target, errno)),
        }
        self.end_task(dir);
    }
}

fn link(copy: &Copy, dir: &Dir, target_dir: BorrowedFd<'_>, name: &CStr, shared: &Shared) -> Result<(), Errno> {
    let parent = parent_of(&copy.path);
    let opened = if parent == dir.target_path { None } else { Some(open_path(parent, DIRECTORY)?) };
    let from_dir = opened.as_ref().map_or(target_dir, AsFd::as_fd);
    let from = copy.path.file_name().unwrap_or_default().as_bytes();
    let is_copy = |stat: Stat| identity(&stat) == copy.identity;
    // Another process may have moved another file there.
    if !is_copy(rustix::fs::statat(from_dir, from, AtFlags::SYMLINK_NOFOLLOW)?) {
        return Err(Errno::NOENT);
    }
    match rustix::fs::linkat(from_dir, from, target_dir, name, AtFlags::empty()) {
        Err(Errno::EXIST) if !dir.is_new => {}
        linked => return linked,
    }
    // A rename between two names of one file does nothing.
    let old = rustix::fs::statat(target_dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
    if is_copy(old) {
        return Ok(());
    }
    if FileType::from_raw_mode(old.st_mode).is_dir() {
        return Err(Errno::ISDIR);
    }
    let temporary = dir.temporary_name(shared);
    rustix::fs::linkat(from_dir, from, target_dir, &*temporary, AtFlags::empty())?;
    rustix::fs::renameat(target_dir, &*temporary, target_dir, name).inspect_err(|_| {
        _ = rustix::fs::unlinkat(target_dir, &*temporary, AtFlags::empty());
    })
}
