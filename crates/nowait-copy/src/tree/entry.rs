//! Copies one entry that is not a directory.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, OFlags, Stat};
use rustix::io::Errno;

use super::Tree;
use super::dir::{Dir, Paths, identity};
use super::links::{LinkAction, Waiter};
use crate::error::{Failure, FailureKind, Operation, Result, shown};
use crate::file::{self, FileJob};
use crate::metadata;
use crate::options::Update;
use crate::report::{Event, Way};

/// Without `NONBLOCK`, opening a FIFO that replaced the file would wait for a writer.
const SOURCE: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NOCTTY).union(OFlags::NONBLOCK);

/// Size from which reads may use a ring, where `NONBLOCK` has an effect even on a regular file.
const RING_BYTES: i64 = 64 << 10;

/// The target's entry of the same name.
pub(super) enum Existing {
    Nothing,
    /// An entry that will be replaced.
    Old(Stat),
    /// An entry that will be kept.
    Kept(KeptTarget),
}

/// Existing target that the copy keeps.
pub(super) struct KeptTarget {
    why: &'static str,
    /// Set if the target seems to be a copy of the entry. Other names of the file are then linked
    /// to it.
    copy: Option<Stat>,
}

/// An entry of the source, with its metadata.
pub(super) struct SourceEntry<'a> {
    pub dir: &'a Arc<Dir>,
    pub source_name: &'a CStr,
    pub target_name: &'a CStr,
    pub paths: Paths,
    pub stat: Stat,
    /// The open source, if it is a regular file.
    pub file: Option<OwnedFd>,
}

impl Tree<'_> {
    /// Copies an entry of any type.
    pub(super) fn entry(
        &self,
        thread: usize,
        dir: &Arc<Dir>,
        source_name: &CStr,
        target_name: &CStr,
        file_type: FileType,
    ) {
        let paths = dir.paths(source_name, target_name);
        let (stat, file) = match self.find(dir, source_name, &paths, file_type) {
            Ok(found) => found,
            Err(failure) => return self.fail(failure),
        };
        if FileType::from_raw_mode(stat.st_mode).is_dir() {
            return self.directory(thread, dir, source_name, target_name);
        }
        let entry = SourceEntry { dir, source_name, target_name, paths, stat, file };
        let old = match self.existing(&entry) {
            Ok(Existing::Kept(kept)) => return self.kept(&entry, &kept),
            Ok(Existing::Nothing) => None,
            Ok(Existing::Old(stat)) => Some(stat),
            Err(failure) => return self.fail(failure),
        };
        if !self.is_counted && entry.file.is_some() {
            self.shared.meter.found(entry.stat.st_size as u64);
        }
        if self.shared.options.dry_run {
            let (source, target, bytes) = (&entry.paths.source, &entry.paths.target, entry.stat.st_size as u64);
            self.count(|report| report.files += 1);
            return self.shared.tell(&Event::Planned { source, target, bytes });
        }
        if self.may_have_names(&entry) { self.linked(thread, &entry, old) } else { _ = self.copy(&entry, old) }
    }

    /// True if other names of the copy may be names of this entry's file. If symbolic links are
    /// followed, each of them is a further name of the file that it leads to.
    fn may_have_names(&self, entry: &SourceEntry<'_>) -> bool {
        entry.stat.st_nlink > 1 || self.follows(entry.dir)
    }

    /// Skips an entry whose target is kept. Other names of the file are still linked to one file in
    /// the target.
    fn kept(&self, entry: &SourceEntry<'_>, KeptTarget { why, copy }: &KeptTarget) {
        let skipped = || self.skipped(&entry.paths.source, why);
        let is_linked = self.may_have_names(entry) && !self.shared.options.dry_run;
        let Some(old) = copy.as_ref().filter(|_| is_linked) else { return skipped() };
        match self.meet(entry) {
            LinkAction::Wait => {}
            LinkAction::Link(copy, waiter) if copy.identity != identity(old) => self.hard_link(&copy, waiter),
            LinkAction::Link(..) => {
                skipped();
                self.end_task(entry.dir.clone());
            }
            LinkAction::Copy => {
                skipped();
                self.link_others(entry, old);
                self.end_task(entry.dir.clone());
            }
        }
    }

    /// Returns the action for one of several names. Adds a task to its directory, so that the
    /// directory is complete only after the name exists.
    fn meet(&self, entry: &SourceEntry<'_>) -> LinkAction {
        let waiter = Waiter {
            dir: entry.dir.clone(),
            source_name: entry.source_name.to_owned(),
            target_name: entry.target_name.to_owned(),
        };
        entry.dir.add_pending(1);
        self.links.meet(identity(&entry.stat), waiter)
    }

    /// Copies an entry that has, or may have, several names.
    fn linked(&self, thread: usize, entry: &SourceEntry<'_>, old: Option<Stat>) {
        match self.meet(entry) {
            LinkAction::Wait => return,
            LinkAction::Link(copy, waiter) => return self.hard_link(&copy, waiter),
            LinkAction::Copy => {}
        }
        self.end_task(entry.dir.clone());
        self.copy_first(thread, entry, old);
    }

    /// Copies an entry. Returns true if the copy has its final name.
    pub(super) fn copy(&self, entry: &SourceEntry<'_>, old: Option<Stat>) -> bool {
        let copied = match &entry.file {
            Some(source) => self.regular(entry, source),
            None => self.node(entry, old),
        };
        match copied {
            Ok(()) => true,
            Err(failure) if failure.kind() == FailureKind::Cancelled => {
                self.count(|report| report.is_cancelled = true);
                false
            }
            Err(failure) => {
                self.fail(failure);
                false
            }
        }
    }

    /// Copies one of several names as a separate file. Returns the source's metadata if the copy has
    /// its final name.
    pub(super) fn alone(&self, dir: &Arc<Dir>, source_name: &CStr, target_name: &CStr) -> Option<Stat> {
        let paths = dir.paths(source_name, target_name);
        let found = self.find(dir, source_name, &paths, FileType::Unknown);
        let found = found.map(|(stat, file)| SourceEntry { dir, source_name, target_name, paths, stat, file });
        match found.and_then(|entry| Ok((self.existing(&entry)?, entry))) {
            Ok((Existing::Nothing, entry)) => self.copy(&entry, None).then_some(entry.stat),
            Ok((Existing::Old(old), entry)) => self.copy(&entry, Some(old)).then_some(entry.stat),
            Ok((Existing::Kept(_), entry)) => Some(entry.stat),
            Err(failure) => {
                self.fail(failure);
                None
            }
        }
    }

    /// Opens a regular file, or returns the metadata of another entry.
    fn find(&self, dir: &Dir, name: &CStr, paths: &Paths, file_type: FileType) -> Result<(Stat, Option<OwnedFd>)> {
        let failed = |operation, errno| Failure::from_errno(operation, &paths.source, errno);
        let stat = |()| self.stat_source(dir, name).map_err(|errno| failed(Operation::Stat, errno));
        match file_type {
            FileType::RegularFile => {}
            // Opening a device may have an effect, so it is not opened.
            _ => match stat(())? {
                found if FileType::from_raw_mode(found.st_mode).is_file() => {}
                other => return Ok((other, None)),
            },
        }
        let opened = match self.open_source(dir, name, SOURCE) {
            // Another process holds a lease on the file; the open waits until the lease is broken.
            Err(Errno::AGAIN) => self.open_source(dir, name, SOURCE.difference(OFlags::NONBLOCK)),
            opened => opened,
        };
        let file = match opened {
            Ok(file) => file,
            // A link or a socket has replaced the file.
            Err(Errno::LOOP | Errno::NXIO) => return Ok((stat(())?, None)),
            Err(errno) => return Err(failed(Operation::Open, errno)),
        };
        let found = rustix::fs::fstat(&file).map_err(|errno| failed(Operation::Stat, errno))?;
        if !FileType::from_raw_mode(found.st_mode).is_file() {
            return Ok((found, None));
        }
        if found.st_size >= RING_BYTES {
            // The other flags stay, such as `NOATIME`.
            rustix::fs::fcntl_getfl(&file)
                .and_then(|flags| rustix::fs::fcntl_setfl(&file, flags.difference(OFlags::NONBLOCK)))
                .map_err(|errno| failed(Operation::Open, errno))?;
        }
        Ok((found, Some(file)))
    }

    fn regular(&self, entry: &SourceEntry<'_>, source: &OwnedFd) -> Result<()> {
        let SourceEntry { dir, stat, paths, .. } = entry;
        let Some(target_dir) = dir.target() else { return Ok(()) };
        let subject = |staged: BorrowedFd<'_>| metadata::Subject {
            stat,
            path: &paths.target,
            target: rustix::fs::fstat(staged).ok(),
            may_have_acl: dir.place.has_default_acl,
        };
        let job = FileJob {
            source: source.as_fd(),
            stat,
            source_path: &paths.source,
            target_dir,
            target_device: dir.place.device,
            target_is_local: dir.place.is_local,
            temporary_name: &|| dir.temporary_name(self.shared),
            target_name: entry.target_name,
            target_path: &paths.target,
            is_new: dir.is_new,
            metadata: &|source, staged| Ok(metadata::copy(source, staged, &subject(staged), &self.process)),
        };
        let outcome = file::copy_file(&job, self.shared)?;
        self.count(|report| {
            report.files += 1;
            report.bytes += outcome.bytes;
            report.resumed_bytes += outcome.resumed_bytes;
            report.verified += u64::from(outcome.is_verified);
        });
        self.copied(entry, outcome.way, &outcome.why, outcome.bytes);
        self.warn(outcome.warnings);
        Ok(())
    }

    /// Reports a copied entry.
    pub(super) fn copied(&self, entry: &SourceEntry<'_>, way: Way, why: &str, bytes: u64) {
        self.note_made(entry.dir, entry.target_name);
        let (source, target) = (&entry.paths.source, &entry.paths.target);
        self.shared.tell(&Event::Copied { source, target, way, why, bytes });
    }

    /// Looks up the entry's name in the target, and decides whether the existing entry is replaced.
    fn existing(&self, entry: &SourceEntry<'_>) -> Result<Existing> {
        let SourceEntry { dir, target_name, paths, stat, .. } = entry;
        let Some(target_dir) = dir.target().filter(|_| !dir.is_new) else { return Ok(Existing::Nothing) };
        let old = match rustix::fs::statat(target_dir, *target_name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(Existing::Nothing),
            Err(errno) => return Err(Failure::from_errno(Operation::Stat, &paths.target, errno)),
            Ok(old) => old,
        };
        if FileType::from_raw_mode(old.st_mode).is_dir() {
            let kind = FailureKind::System(nowait::ErrorKind::IsADirectory);
            return Err(Failure::new(Operation::Copy, &paths.target, kind).with_detail("the target is a directory"));
        }
        let (is_file, old_type) = (entry.file.is_some(), FileType::from_raw_mode(old.st_mode));
        if is_file && !old_type.is_file() && !old_type.is_symlink() {
            // A caller who names a device wants to write to it, not to replace it.
            let kind = FailureKind::System(nowait::ErrorKind::AlreadyExists);
            return Err(Failure::new(Operation::Copy, &paths.target, kind)
                .with_detail("it is a device, a FIFO or a socket")
                .with_advice("remove it, or name another target; `dd of=` writes to it"));
        }
        self.check_same(entry, &old)?;
        if dir.is_other_case(target_name) {
            return Err(Failure::new(Operation::Copy, &paths.target, FailureKind::NameCollision)
                .with_detail("the target has a name that differs only in case"));
        }
        let options = &self.shared.options;
        let is_regular = is_file && old_type.is_file();
        let found = match options.update {
            Update::None => Existing::Kept(KeptTarget { why: "it exists", copy: None }),
            Update::Older if self.is_not_older(dir, stat, &old) => {
                let is_alike = is_regular && stat.st_size == old.st_size && self.is_modified_alike(dir, stat, &old);
                Existing::Kept(KeptTarget { why: "it is not older", copy: is_alike.then_some(old) })
            }
            _ if options.resume && is_regular => match self.finished(entry, &old) {
                Some(why) => {
                    if !options.dry_run {
                        file::discard_resumable(target_dir, target_name, stat);
                    }
                    Existing::Kept(KeptTarget { why, copy: Some(old) })
                }
                None => Existing::Old(old),
            },
            _ => Existing::Old(old),
        };
        if !matches!(found, Existing::Old(_)) {
            return Ok(found);
        }
        if self.is_made(&old) {
            return Err(Failure::new(Operation::Copy, &paths.source, FailureKind::NameCollision)
                .with_detail(format!("this copy already wrote {} from another source", shown(&paths.target)))
                .with_advice("copy the sources to different directories, or by separate commands"));
        }
        self.check_links(entry, &old)?;
        Ok(found)
    }

    /// Fails if the old entry is the source itself. Another hard link to a file is replaced only if
    /// the options say so; another one to a symbolic link always, since it has no data to lose.
    fn check_same(&self, entry: &SourceEntry<'_>, old: &Stat) -> Result<()> {
        let may_replace = self.shared.options.replace_target_link || is_link(&entry.stat);
        if identity(old) != identity(&entry.stat) || may_replace && self.is_other_name(entry, old) {
            return Ok(());
        }
        Err(Failure::new(Operation::Copy, &entry.paths.target, FailureKind::SameFile)
            .with_detail(format!("it is the same file as {}", shown(&entry.paths.source))))
    }

    /// Fails if one of the two entries is a symbolic link to the other.
    fn check_links(&self, entry: &SourceEntry<'_>, old: &Stat) -> Result<()> {
        let SourceEntry { dir, source_name, target_name, paths, stat, .. } = entry;
        let same = |detail| Failure::new(Operation::Copy, &paths.target, FailureKind::SameFile).with_detail(detail);
        let Some(target_dir) = dir.target() else { return Ok(()) };
        match (is_link(stat), is_link(old)) {
            // The source would replace the old entry by a link to itself.
            (true, false) if leads_to(dir.source.as_fd(), source_name, old) => Err(same(format!(
                "{} is a symbolic link to it, and would take the place of the data",
                shown(&paths.source)
            ))),
            (false, true) if !self.shared.options.replace_target_link && leads_to(target_dir, target_name, stat) => {
                Err(same(format!("it is a symbolic link to the same file as {}", shown(&paths.source)))
                    .with_advice("remove the link, or name another target"))
            }
            _ => Ok(()),
        }
    }

    /// True if the old entry is another hard link to the source: not the same name in the same
    /// directory, and not a file that the source leads to.
    fn is_other_name(&self, entry: &SourceEntry<'_>, old: &Stat) -> bool {
        let SourceEntry { dir, source_name, target_name, .. } = entry;
        let source = rustix::fs::statat(&dir.source, *source_name, AtFlags::SYMLINK_NOFOLLOW);
        let is_hard_link = source.is_ok_and(|source| identity(&source) == identity(old));
        let directory = |fd| rustix::fs::fstat(fd).map(|stat| identity(&stat)).ok();
        let is_one_directory = directory(dir.source.as_fd()) == dir.target().and_then(directory);
        is_hard_link && (source_name != target_name || !is_one_directory)
    }
}

fn is_link(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode).is_symlink()
}

/// True if a symbolic link leads to this file.
fn leads_to(dir: BorrowedFd<'_>, link: &CStr, file: &Stat) -> bool {
    rustix::fs::statat(dir, link, AtFlags::empty()).is_ok_and(|led_to| identity(&led_to) == identity(file))
}
