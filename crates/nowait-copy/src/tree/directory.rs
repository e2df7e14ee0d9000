//! Copies one directory: creates it, lists it, and queues its entries.

use std::ffi::{CStr, OsStr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::dir::{DIRECTORY, Dir, Paths, Stats, identity};
use super::listing::Listing;
use super::{Task, Tree};
use crate::error::{Failure, FailureKind, Operation, Result};
use crate::metadata::{self, DirProperties};
use crate::meter::lock;
use crate::os::{name, temporary};
use crate::report::Event;

/// Number of entries in a task.
const BATCH: usize = 32;

/// A directory of the target.
struct Made {
    target: Option<OwnedFd>,
    stat: Option<Stat>,
    place: DirProperties,
    is_new: bool,
}

impl Tree<'_> {
    /// Creates a directory, and queues its entries.
    pub(super) fn directory(&self, thread: usize, parent: &Arc<Dir>, source_name: &CStr, target_name: &CStr) {
        let paths = parent.paths(source_name, target_name);
        let opened = self.open_source(parent, source_name, DIRECTORY);
        let source = match opened {
            Ok(source) => source,
            // An entry of another type has replaced the directory.
            Err(Errno::NOTDIR | Errno::LOOP) => {
                return self.entry(thread, parent, source_name, target_name, FileType::Unknown);
            }
            Err(errno) => return self.fail(Failure::from_errno(Operation::Open, &paths.source, errno)),
        };
        match self.open_pair(parent, source, source_name, target_name, paths) {
            Ok(dir) if self.is_crossed(parent, dir.identity.0) => {
                self.skipped(&dir.source_path, "another file system is mounted on it");
                self.end_task(dir);
            }
            Ok(dir) => self.list(thread, dir),
            Err(failure) => self.fail(failure),
        }
    }

    /// Returns true if a directory on `device` is a mount point whose contents must not be copied.
    fn is_crossed(&self, parent: &Dir, device: u64) -> bool {
        // The source argument may be a mount point.
        let above = parent.chain().next();
        self.shared.options.one_file_system && above.is_some_and(|above| above.identity.0 != device)
    }

    fn open_pair(
        &self,
        parent: &Arc<Dir>,
        source: OwnedFd,
        source_name: &CStr,
        target_name: &CStr,
        paths: Paths,
    ) -> Result<Arc<Dir>> {
        let stat = rustix::fs::fstat(&source).map_err(|e| Failure::from_errno(Operation::Stat, &paths.source, e))?;
        if self.follows(parent) && parent.chain().any(|above| above.identity == identity(&stat)) {
            return Err(Failure::from_errno(Operation::Open, &paths.source, Errno::LOOP)
                .with_detail("a symbolic link leads to a directory above it")
                .with_advice("the other entries were copied; exclude its name to skip it"));
        }
        let same = || {
            Failure::new(Operation::Copy, &paths.target, FailureKind::SameFile)
                .with_detail("source and target are the same directory")
        };
        if !self.is_crossed(parent, stat.st_dev) && lock(&self.targets).contains(&identity(&stat)) {
            if parent.parent.is_none() {
                return Err(same());
            }
            return Err(Failure::new(Operation::Copy, &paths.source, FailureKind::IntoItself)
                .with_detail("it is the directory that the copy is written to")
                .with_advice("the other entries were copied; exclude its name to skip it"));
        }
        let Made { target, stat: mut target_stat, place, is_new } =
            self.make_directory(parent, target_name, &paths.target)?;
        if target_stat.is_some_and(|target| identity(&target) == identity(&stat)) {
            return Err(same());
        }
        if let (Some(target), Some(to), false) = (&target, &mut target_stat, is_new || self.shared.options.dry_run) {
            to.st_mode = metadata::prepare_directory((source.as_fd(), &stat), (target.as_fd(), to), &self.process);
        }
        let relative = match parent.parent {
            Some(_) => parent.relative.join(OsStr::from_bytes(source_name.to_bytes())),
            // The directory that contains an argument is above the source.
            None => std::path::PathBuf::new(),
        };
        let may_have_acl = !is_new || parent.place.has_default_acl;
        let stats = target_stat.map(|target| Stats { source: stat, target, may_have_acl });
        self.shared.tell(&Event::Directory { source: &paths.source, target: &paths.target, is_new });
        self.count(|report| report.directories += 1);
        parent.add_pending(1);
        let identity = identity(&stat);
        Ok(Arc::new(Dir::new(Some(parent.clone()), source, target, paths, relative, identity, place, is_new, stats)))
    }

    /// Creates a directory of the target, or opens the existing one.
    fn make_directory(&self, parent: &Dir, name: &CStr, path: &Path) -> Result<Made> {
        let failed = |operation, errno| Failure::from_errno(operation, path, errno);
        let nothing = || Made { target: None, stat: None, place: parent.place, is_new: true };
        let Some(parent_target) = parent.target() else { return Ok(nothing()) };
        if self.shared.options.dry_run {
            match rustix::fs::statat(parent_target, name, AtFlags::SYMLINK_NOFOLLOW) {
                Err(Errno::NOENT) => return Ok(nothing()),
                Err(errno) => return Err(failed(Operation::Stat, errno)),
                Ok(_) => {}
            }
        }
        // Only the owner has access until the directory is complete.
        let made = match self.shared.options.dry_run {
            true => Err(Errno::EXIST),
            false => rustix::fs::mkdirat(parent_target, name, Mode::RWXU),
        };
        let is_new = match made {
            Ok(()) => true,
            Err(Errno::EXIST) if !parent.is_new => false,
            Err(Errno::EXIST) => {
                return Err(Failure::new(Operation::CreateDir, path, FailureKind::NameCollision)
                    .with_detail("two names of the source are one name in the target's file system"));
            }
            Err(errno) => return Err(failed(Operation::CreateDir, errno)),
        };
        if is_new && self.process.masks_owner() {
            let opened = name::open_place(parent_target, name);
            opened
                .and_then(|place| name::set_mode(place.as_fd(), Mode::RWXU))
                .map_err(|e| failed(Operation::SetMode, e))?;
        }
        let open = || rustix::fs::openat(parent_target, name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty());
        let opened = match open() {
            Err(Errno::ACCESS) if !self.shared.options.dry_run => {
                self.open_to_owner(parent_target, name).and_then(|()| open())
            }
            opened => opened,
        };
        let target = match opened {
            Ok(target) => target,
            Err(Errno::NOTDIR | Errno::LOOP) => {
                return Err(Failure::new(
                    Operation::CreateDir,
                    path,
                    FailureKind::System(nowait::ErrorKind::AlreadyExists),
                )
                .with_detail("it exists and is not a directory"));
            }
            Err(errno) => return Err(failed(Operation::Open, errno)),
        };
        if !is_new && parent.is_other_case(name) {
            return Err(Failure::new(Operation::CreateDir, path, FailureKind::NameCollision)
                .with_detail("the target has a name that differs only in case"));
        }
        let stat = rustix::fs::fstat(&target).map_err(|errno| failed(Operation::Stat, errno))?;
        let mut place = match is_new {
            true => parent.place.below(),
            false => DirProperties::of(target.as_fd(), &stat),
        };
        if !is_new {
            self.note_device(target.as_fd(), place.device, path);
        }
        if is_new && parent.place.has_default_acl {
            place.has_default_acl = metadata::inherits_acl(target.as_fd());
        }
        Ok(Made { target: Some(target), stat: Some(stat), place, is_new })
    }

    /// Gives this process's user access to a directory that the user owns but whose mode denies it.
    fn open_to_owner(&self, parent: BorrowedFd<'_>, name: &CStr) -> std::result::Result<(), Errno> {
        let place = name::open_place(parent, name)?;
        let stat = rustix::fs::fstat(&place)?;
        if !FileType::from_raw_mode(stat.st_mode).is_dir() || !self.process.owns(&stat) {
            return Err(Errno::ACCESS);
        }
        name::set_mode(place.as_fd(), Mode::from_raw_mode(stat.st_mode & 0o7777 | 0o700))
    }

    /// Lists a part of a directory and queues its entries.
    pub(super) fn list(&self, thread: usize, dir: Arc<Dir>) {
        let listing = match Listing::next_part(dir.source.as_fd()) {
            Ok(listing) => Arc::new(listing),
            Err(errno) => {
                self.fail(Failure::from_errno(Operation::List, &dir.source_path, errno));
                return self.end_task(dir);
            }
        };
        let mut tasks = Vec::new();
        // Start of a range of entries for one task; a directory or an excluded entry ends a range.
        let mut start = 0;
        let mut others = Vec::new();
        for index in 0..listing.len() {
            let (name, file_type) = listing.entry(index);
            let file_type = match file_type {
                FileType::Symlink if !self.follows(&dir) => FileType::Symlink,
                FileType::Unknown | FileType::Symlink => {
                    self.stat_source(&dir, name).map_or(FileType::Unknown, |stat| FileType::from_raw_mode(stat.st_mode))
                }
                known => known,
            };
            let is_directory = file_type.is_dir();
            let is_excluded = self.is_excluded(&dir, name, is_directory);
            if is_directory || is_excluded || index - start == BATCH {
                if index > start {
                    others.push(start..index);
                }
                start = if is_directory || is_excluded { index + 1 } else { index };
            }
            if is_directory && !is_excluded {
                tasks.push(Task::Directory { parent: dir.clone(), name: name.to_owned() });
            }
        }
        if listing.len() > start {
            others.push(start..listing.len());
        }
        if listing.has_more {
            tasks.push(Task::List { dir: dir.clone() });
        }
        // The last task is taken first. So directories are copied after the other entries, in inode
        // order, and the next part is listed after all of them.
        tasks.reverse();
        let entries = |range| Task::Entries { dir: dir.clone(), listing: listing.clone(), range };
        tasks.extend(others.into_iter().rev().map(entries));
        dir.add_pending(tasks.len());
        self.queue.push(thread, tasks);
        self.end_task(dir);
    }

    fn is_excluded(&self, dir: &Dir, name: &CStr, is_directory: bool) -> bool {
        let text = OsStr::from_bytes(name.to_bytes());
        let why = if !is_directory && temporary::is_temporary(name) {
            "a temporary file of a copy that is running or was killed"
        } else if !self.filter.is_empty() && self.filter.excludes(Some(&dir.relative.join(text)), text, is_directory) {
            "a pattern leaves it out"
        } else {
            return false;
        };
        self.skipped(&dir.source_path.join(text), why);
        true
    }

    pub(super) fn skipped(&self, source: &Path, why: &str) {
        self.count(|report| report.skipped += 1);
        self.shared.tell(&Event::Skipped { source, why });
    }
}
