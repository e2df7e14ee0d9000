//! A directory of the source and its copy in the target, both open.

use std::collections::HashSet;
use std::ffi::{CStr, CString, OsStr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::fs::{CWD, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::listing::Listing;
use crate::metadata::DirProperties;
use crate::os::temporary;
use crate::shared::Shared;

/// Flags for a directory that is listed, whose entries are opened, and whose metadata is set.
pub(super) const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC).union(OFlags::NONBLOCK);

/// Maximum length of a path in a system call, without its NUL.
const PATH_BYTES_MAX: usize = 4095;

/// Device and inode.
pub(super) type Identity = (u64, u64);

pub(super) fn identity(stat: &Stat) -> Identity {
    (stat.st_dev, stat.st_ino)
}

/// A pair of directories. It stays open until all its entries are copied, since its times are set
/// after that. Entries are opened by the directory's descriptor. So paths may be longer than
/// `PATH_MAX`, and a directory that is replaced by a symbolic link does not redirect the copy.
pub(super) struct Dir {
    pub parent: Option<Arc<Dir>>,
    pub source: OwnedFd,
    /// Target directory; `None` in a dry run if it does not exist.
    pub target: Option<OwnedFd>,
    pub source_path: PathBuf,
    pub target_path: PathBuf,
    /// Path below the source argument.
    pub relative: PathBuf,
    /// Identity of the source.
    pub identity: Identity,
    pub place: DirProperties,
    /// True if this copy created the target, so that it contains nothing else.
    pub is_new: bool,
    /// Metadata of source and target when opened. `None` for the directory that contains an
    /// argument, whose metadata is not copied.
    pub stats: Option<Stats>,
    /// Number of unfinished tasks in the directory, including its listing.
    pending: AtomicUsize,
    /// Names in the target before this copy, if the target may ignore case.
    found_names: OnceLock<HashSet<CString>>,
    /// True if the source contains files of another user, for which `O_NOATIME` is refused.
    pub no_atime_refused: AtomicBool,
    /// True if temporary names in the target are guarded; set when the first one is created.
    is_guarded: OnceLock<bool>,
}

/// Metadata of a pair of directories when opened.
pub(super) struct Stats {
    pub source: Stat,
    /// Metadata of the target, with the mode that it has while it is filled.
    pub target: Stat,
    /// True if the target may have an ACL, inherited or from before.
    pub may_have_acl: bool,
}

/// Paths of an entry in the source and in the target.
pub(super) struct Paths {
    pub source: PathBuf,
    pub target: PathBuf,
}

impl Dir {
    /// A pair of directories with one task pending.
    #[expect(clippy::too_many_arguments, reason = "each is a field")]
    pub(super) fn new(
        parent: Option<Arc<Dir>>,
        source: OwnedFd,
        target: Option<OwnedFd>,
        paths: Paths,
        relative: PathBuf,
        identity: Identity,
        place: DirProperties,
        is_new: bool,
        stats: Option<Stats>,
    ) -> Self {
        let Paths { source: source_path, target: target_path } = paths;
        let pending = AtomicUsize::new(1);
        let (found_names, is_guarded) = (OnceLock::new(), OnceLock::new());
        Dir {
            parent,
            source,
            target,
            source_path,
            target_path,
            relative,
            identity,
            place,
            is_new,
            stats,
            pending,
            found_names,
            no_atime_refused: AtomicBool::new(false),
            is_guarded,
        }
    }

    /// Returns the paths of an entry, for messages.
    pub(super) fn paths(&self, source_name: &CStr, target_name: &CStr) -> Paths {
        Paths { source: join(&self.source_path, source_name), target: join(&self.target_path, target_name) }
    }

    /// Iterates over the directory and those above it, up to the source argument; excludes the
    /// directory that contains the argument.
    pub(super) fn chain(&self) -> impl Iterator<Item = &Dir> {
        std::iter::successors(Some(self), |dir| dir.parent.as_deref()).take_while(|dir| dir.parent.is_some())
    }

    pub(super) fn target(&self) -> Option<BorrowedFd<'_>> {
        self.target.as_ref().map(AsFd::as_fd)
    }

    /// True if an existing name in the target was not listed there in this case. The entry then
    /// belongs to another file.
    pub(super) fn is_other_case(&self, target_name: &CStr) -> bool {
        let Some(target) = self.target().filter(|_| self.place.may_ignore_case && target_name != c".") else {
            return false;
        };
        let names = self.found_names.get_or_init(|| {
            let mut names = HashSet::new();
            loop {
                // If the directory cannot be listed, it counts as empty: nothing is replaced.
                let part = Listing::next_part(target).unwrap_or_default();
                names.extend((0..part.len()).map(|index| part.entry(index).0.to_owned()));
                if !part.has_more {
                    return names;
                }
            }
        });
        !names.contains(target_name)
    }

    /// Returns a name for a temporary file in the target. The first call removes names that killed
    /// copies left there.
    pub(super) fn temporary_name(&self, shared: &Shared) -> CString {
        let guard = || self.place.is_local && self.target().is_some_and(temporary::guard);
        shared.temporary_name(*self.is_guarded.get_or_init(guard))
    }

    /// Adds tasks. The task that adds them must not be done yet.
    pub(super) fn add_pending(&self, tasks: usize) {
        self.pending.fetch_add(tasks, Ordering::Relaxed);
    }

    /// Ends a task; true if it was the last one, so that the directory is complete.
    pub(super) fn end_task(&self) -> bool {
        // Acquire, so that other threads' changes in the directory happen before its times are set.
        self.pending.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

/// Returns the path of an entry, without a leading `./`.
pub(super) fn join(dir: &Path, name: &CStr) -> PathBuf {
    match name {
        name if name == c"." => dir.to_path_buf(),
        name if dir.as_os_str() == "." => PathBuf::from(OsStr::from_bytes(name.to_bytes())),
        name => {
            // With the full length: `Path::join` would reallocate.
            let mut path = PathBuf::with_capacity(dir.as_os_str().len() + 1 + name.count_bytes());
            path.push(dir);
            path.push(OsStr::from_bytes(name.to_bytes()));
            path
        }
    }
}

/// Opens a directory by a path of any length.
pub(super) fn open_path(path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let mut rest = path.as_os_str().as_bytes();
    let mut dir: Option<OwnedFd> = None;
    while rest.len() > PATH_BYTES_MAX {
        let slash = rest[..PATH_BYTES_MAX].iter().rposition(|byte| *byte == b'/').filter(|at| *at > 0);
        let slash = slash.ok_or(Errno::NAMETOOLONG)?;
        dir = Some(open_at(dir.as_ref(), &rest[..slash], OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC)?);
        rest = &rest[slash..];
        rest = &rest[rest.iter().take_while(|byte| **byte == b'/').count()..];
    }
    open_at(dir.as_ref(), if rest.is_empty() { b"." } else { rest }, flags)
}

fn open_at(dir: Option<&OwnedFd>, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(dir.map_or(CWD, AsFd::as_fd), path, flags, Mode::empty())
}

/// Returns the directory part of a path.
pub(super) fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => path,
    }
}
