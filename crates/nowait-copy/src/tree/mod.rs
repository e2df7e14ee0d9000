//! Copies trees: a few threads walk directories and copy their entries.

mod count;
mod dir;
mod directory;
mod entry;
mod filter;
mod finished;
mod granularity;
mod hard_link;
mod links;
mod listing;
mod node;
mod queue;
mod top;

use std::collections::hash_map::Entry::Vacant;
use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, CString};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::error::{Failure, Operation};
use crate::metadata::{self, Process};
use crate::meter::lock;
use crate::options::{Follow, SyncPolicy};
use crate::os::name;
use crate::report::{Event, Report};
use crate::shared::Shared;
use dir::{Dir, Identity, identity};
use links::Links;
use listing::Listing;
use queue::TaskQueue;

pub(crate) use filter::Filter;
pub(crate) use top::{Top, stat_argument};

/// A copy of one or more sources.
pub(crate) struct Tree<'s> {
    shared: &'s Shared,
    filter: Filter,
    tops: Vec<Top>,
    process: Process,
    links: Links,
    queue: TaskQueue<Task>,
    report: Mutex<Report>,
    /// Directories of the target that sources are copied into. A source that contains one of them
    /// would be copied into itself.
    targets: Mutex<Vec<Identity>>,
    /// A directory on each device with copied entries, for the sync at the end.
    devices: Mutex<HashMap<u64, (PathBuf, OwnedFd)>>,
    /// Sources that were started, each with its target.
    named: Mutex<HashSet<(Identity, PathBuf)>>,
    /// Files that this copy created, if several sources have the same target, so that no source
    /// replaces a file of another one.
    made: Option<Mutex<HashSet<Identity>>>,
    /// True if another thread counts the files to copy.
    is_counted: bool,
}

/// A unit of work.
enum Task {
    /// The source with this number.
    Top(usize),
    /// A directory in its parent.
    Directory { parent: Arc<Dir>, name: CString },
    /// The next part of a directory's listing.
    List { dir: Arc<Dir> },
    /// Some entries of a directory that are not directories.
    Entries { dir: Arc<Dir>, listing: Arc<Listing>, range: Range<usize> },
    /// One entry: a name whose hard link could not be made to another copy.
    Entry { dir: Arc<Dir>, source_name: CString, target_name: CString },
}

impl<'s> Tree<'s> {
    pub(crate) fn new(shared: &'s Shared, filter: Filter, tops: Vec<Top>, threads: usize, is_counted: bool) -> Self {
        let queue = TaskQueue::new(threads);
        let is_merged = tops.iter().any(|top| top.round() > 0);
        Tree {
            shared,
            filter,
            tops,
            process: Process::new(),
            links: Links::default(),
            queue,
            report: Mutex::default(),
            targets: Mutex::default(),
            devices: Mutex::default(),
            named: Mutex::default(),
            made: is_merged.then(Mutex::default),
            is_counted,
        }
    }

    /// Queues the sources of a round. Returns false if there are none, since all rounds are done.
    pub(crate) fn begin_round(&self, round: usize) -> bool {
        let of_round = |number: &usize| self.tops[*number].round() == round;
        let numbers: Vec<usize> = (0..self.tops.len()).filter(of_round).collect();
        // The queue is last in, first out.
        self.queue.push(0, numbers.iter().rev().map(|number| Task::Top(*number)));
        !numbers.is_empty()
    }

    /// Runs tasks on this thread until all are done.
    pub(crate) fn work(&self, thread: usize) {
        while let Some(task) = self.queue.take(thread, || self.is_one_thread_faster()) {
            let _running = self.queue.running();
            match task {
                Task::Top(number) => self.top(thread, &self.tops[number]),
                Task::Directory { parent, name } => {
                    if !self.shared.meter.is_cancelled() {
                        self.directory(thread, &parent, &name, &name);
                    }
                    self.end_task(parent);
                }
                Task::List { dir } if self.shared.meter.is_cancelled() => self.end_task(dir),
                Task::List { dir } => self.list(thread, dir),
                Task::Entries { dir, listing, range } => {
                    for index in range {
                        if self.shared.meter.is_cancelled() {
                            break;
                        }
                        let (name, file_type) = listing.entry(index);
                        self.entry(thread, &dir, name, name, file_type);
                    }
                    self.end_task(dir);
                }
                Task::Entry { dir, source_name, target_name } => {
                    if !self.shared.meter.is_cancelled() {
                        self.entry(thread, &dir, &source_name, &target_name, FileType::Unknown);
                    }
                    self.end_task(dir);
                }
            }
        }
    }

    /// True while the copy only shares blocks, on a device where one thread does that faster than
    /// several. Syncs, comparisons and data would be faster with more.
    fn is_one_thread_faster(&self) -> bool {
        let options = &self.shared.options;
        let is_usual = options.jobs.is_none() && options.sync != SyncPolicy::File && !options.verify && !options.resume;
        is_usual && self.shared.learned.is_one_thread_faster()
    }

    pub(crate) fn into_report(self) -> Report {
        self.report.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if symbolic links in a directory of the source are followed.
    fn follows(&self, dir: &Dir) -> bool {
        match self.shared.options.follow {
            Follow::Never => false,
            Follow::Arguments => dir.parent.is_none(),
            Follow::Always => true,
        }
    }

    /// Returns type and metadata of an entry of the source.
    fn stat_source(&self, dir: &Dir, name: &CStr) -> Result<Stat, Errno> {
        let flags = if self.follows(dir) { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
        rustix::fs::statat(&dir.source, name, flags)
    }

    /// Opens an entry of the source; if allowed, with `O_NOATIME`, since an updated access time
    /// would also have to be written.
    fn open_source(&self, dir: &Dir, name: &CStr, flags: OFlags) -> Result<OwnedFd, Errno> {
        let flags = if self.follows(dir) { flags } else { flags | OFlags::NOFOLLOW };
        let open = |flags| rustix::fs::openat(&dir.source, name, flags, Mode::empty());
        if !dir.no_atime_refused.load(Relaxed) {
            match open(flags | OFlags::NOATIME) {
                Err(Errno::PERM) => dir.no_atime_refused.store(true, Relaxed),
                opened => return opened,
            }
        }
        open(flags)
    }

    /// Ends a task in a directory. The last one completes it, and that may complete its parent.
    fn end_task(&self, dir: Arc<Dir>) {
        let mut dir = dir;
        while dir.end_task() {
            self.complete(&dir);
            // A loop, not a recursion: a deep tree would overflow the stack.
            match &dir.parent {
                Some(parent) => dir = parent.clone(),
                None => break,
            }
        }
    }

    /// Sets the metadata of a directory whose entries are complete.
    fn complete(&self, dir: &Dir) {
        let Some(target) = dir.target() else { return };
        if self.shared.options.dry_run {
            return;
        }
        if let Some(stats) = &dir.stats {
            let subject = metadata::Subject {
                stat: &stats.source,
                path: &dir.target_path,
                target: Some(stats.target),
                may_have_acl: stats.may_have_acl,
            };
            self.warn(metadata::copy(dir.source.as_fd(), target, &subject, &self.process));
        }
        if self.shared.options.sync == SyncPolicy::File {
            if let Err(errno) = name::sync_directory(target) {
                self.fail(Failure::from_errno(Operation::Sync, &dir.target_path, errno));
            }
        }
    }

    /// Registers the device of an existing directory for the sync at the end.
    fn note_device(&self, dir: BorrowedFd<'_>, device: u64, path: &Path) {
        if self.shared.options.sync != SyncPolicy::All || self.shared.options.dry_run {
            return;
        }
        if let Vacant(place) = lock(&self.devices).entry(device) {
            match dir.try_clone_to_owned() {
                Ok(copy) => _ = place.insert((path.to_path_buf(), copy)),
                Err(error) => self.fail(Failure::from_io(Operation::Sync, path, &error)),
            }
        }
    }

    /// Makes all copied entries durable.
    pub(crate) fn sync_all(&self) {
        for (path, dir) in lock(&self.devices).values() {
            match rustix::fs::syncfs(dir) {
                Ok(()) => {}
                // The directory is open with `O_PATH`, which the call does not accept.
                Err(Errno::BADF) => rustix::fs::sync(),
                Err(errno) => self.fail(Failure::from_errno(Operation::Sync, path, errno)),
            }
        }
    }

    /// Records an entry of the target that this copy made.
    fn note_made(&self, dir: &Dir, target_name: &CStr) {
        let (Some(made), Some(target)) = (&self.made, dir.target()) else { return };
        if let Ok(stat) = rustix::fs::statat(target, target_name, AtFlags::SYMLINK_NOFOLLOW) {
            lock(made).insert(identity(&stat));
        }
    }

    /// Returns true if this copy made an entry of the target.
    fn is_made(&self, stat: &Stat) -> bool {
        self.made.as_ref().is_some_and(|made| lock(made).contains(&identity(stat)))
    }

    fn fail(&self, failure: Failure) {
        self.shared.tell(&Event::Failed(&failure));
        lock(&self.report).failures.push(failure);
    }

    fn warn(&self, warnings: Vec<Failure>) {
        for warning in warnings {
            self.shared.tell(&Event::Warning(&warning));
            lock(&self.report).warnings.push(warning);
        }
    }

    fn count(&self, count: impl FnOnce(&mut Report)) {
        count(&mut lock(&self.report));
    }
}
