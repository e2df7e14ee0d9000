//! A source argument, and the place of its copy.

use std::collections::HashMap;
use std::ffi::{CString, OsStr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, OFlags, Stat};
use rustix::io::Errno;

use super::Tree;
use super::dir::{DIRECTORY, Dir, Paths, join, open_path, parent_of};
use super::dir::{Identity, identity};
use crate::error::{Failure, FailureKind, Operation, Result, shown};
use crate::metadata::DirProperties;
use crate::meter::lock;
use crate::options::Follow;

/// Flags for a directory whose entries are opened; it need not be readable.
const PLACE: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// A source and the name of its copy.
#[derive(Debug)]
pub(crate) struct Top {
    source_dir: PathBuf,
    source_name: CString,
    target_dir: PathBuf,
    target_name: CString,
    /// Name of the source; none if it is `.`, `..` or `/`.
    name: Option<CString>,
    /// The target argument ends in a slash.
    needs_directory: bool,
    /// Round of the copy for this source, from 0. Earlier rounds copy sources with the same target.
    round: usize,
}

impl Top {
    /// Describes a source that is copied into a directory under its own name.
    pub(crate) fn into_directory(source: &Path, directory: &Path) -> Result<Self> {
        let name = match name_of(source) {
            Some(name) => name.to_owned(),
            // For `.`, `..`, `dir/.` and `/`, the contents go into the directory.
            None => c".".to_owned(),
        };
        Self::new(source, directory.to_path_buf(), name)
    }

    /// Describes a source whose copy gets the name of the target.
    pub(crate) fn as_target(source: &Path, target: &Path) -> Result<Self> {
        let top = match name_of(target) {
            Some(name) => Self::new(source, parent_of(target).to_path_buf(), name),
            None => Self::new(source, target.to_path_buf(), c".".to_owned()),
        };
        Ok(Top { needs_directory: target.as_os_str().as_bytes().ends_with(b"/"), ..top? })
    }

    /// True if the source is known to be a directory.
    pub(crate) fn is_directory(&self, follow: Follow) -> bool {
        stat_argument(&self.source(), follow).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_dir())
    }

    /// Assigns sources with the same target to successive rounds, in the order of the command line.
    /// The contents of a source `dir/.` may collide with any other source.
    pub(crate) fn put_in_rounds(tops: &mut [Top]) {
        let mut next: HashMap<(PathBuf, CString), usize> = HashMap::new();
        let (mut for_any, mut for_contents) = (0, 0);
        for top in tops {
            let next = next.entry((top.target_dir.clone(), top.target_name.clone())).or_default();
            let is_contents = top.target_name.as_c_str() == c".";
            top.round = (*next).max(if is_contents { for_contents } else { for_any });
            *next = top.round + 1;
            for_contents = for_contents.max(top.round + 1);
            for_any = if is_contents { top.round + 1 } else { for_any };
        }
    }

    /// Returns the name of the source, if it has one.
    pub(super) fn name(&self) -> Option<&OsStr> {
        self.name.as_ref().map(|name| OsStr::from_bytes(name.to_bytes()))
    }

    /// Returns the round of this source.
    pub(crate) fn round(&self) -> usize {
        self.round
    }

    pub(crate) fn source(&self) -> PathBuf {
        join(&self.source_dir, &self.source_name)
    }

    pub(crate) fn target(&self) -> PathBuf {
        join(&self.target_dir, &self.target_name)
    }

    fn new(source: &Path, target_dir: PathBuf, target_name: CString) -> Result<Self> {
        let bytes = source.as_os_str().as_bytes();
        if bytes.is_empty() || bytes.contains(&0) {
            return Err(
                Failure::new(Operation::Copy, source, FailureKind::Usage).with_detail("the source is an empty path")
            );
        }
        // A path with a slash after a symbolic link means the link's target.
        let name = name_of(source);
        let (source_dir, source_name) = match &name {
            Some(name) if !bytes.ends_with(b"/") => (parent_of(source).to_path_buf(), name.clone()),
            _ => (source.to_path_buf(), c".".to_owned()),
        };
        Ok(Top { source_dir, source_name, target_dir, target_name, name, needs_directory: false, round: 0 })
    }
}

/// Returns type and metadata of a source argument.
pub(crate) fn stat_argument(source: &Path, follow: Follow) -> std::result::Result<Stat, Errno> {
    if follow == Follow::Never { rustix::fs::lstat(source) } else { rustix::fs::stat(source) }
}

/// The last component of a path, if it is a name. (`Path::file_name` takes `a/.` for `a`.)
fn name_of(path: &Path) -> Option<CString> {
    let bytes = path.as_os_str().as_bytes();
    let trimmed = &bytes[..bytes.iter().rposition(|byte| *byte != b'/').map_or(0, |at| at + 1)];
    let name = trimmed.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    match name {
        b"" | b"." | b".." => None,
        name => CString::new(name).ok(),
    }
}

impl Tree<'_> {
    /// Copies a source.
    pub(super) fn top(&self, thread: usize, top: &Top) {
        if self.shared.meter.is_cancelled() {
            return;
        }
        match self.open_top(top) {
            Ok(None) => {}
            Ok(Some((dir, true))) => {
                self.directory(thread, &dir, &top.source_name, &top.target_name);
                self.end_task(dir);
            }
            Ok(Some((dir, false))) => {
                self.entry(thread, &dir, &top.source_name, &top.target_name, FileType::Unknown);
                self.end_task(dir);
            }
            Err(failure) => self.fail(failure),
        }
    }

    /// Opens the directories of a source and its copy; returns none if the source is excluded. The
    /// second value is true if the source is a directory.
    fn open_top(&self, top: &Top) -> Result<Option<(Arc<Dir>, bool)>> {
        let opened = |operation, path: &Path, errno| Failure::from_errno(operation, path, errno);
        let follow = self.shared.options.follow;
        let no_source = |errno| no_source(&top.source(), follow, errno);
        let source = open_path(&top.source_dir, PLACE).map_err(no_source)?;
        let flags = if follow == Follow::Never { AtFlags::SYMLINK_NOFOLLOW } else { AtFlags::empty() };
        let stat = rustix::fs::statat(&source, &*top.source_name, flags).map_err(no_source)?;
        let is_directory = FileType::from_raw_mode(stat.st_mode).is_dir();
        if top.name().is_some_and(|name| self.filter.excludes(None, name, is_directory)) {
            self.skipped(&top.source(), "a pattern leaves it out");
            return Ok(None);
        }
        if !lock(&self.named).insert((identity(&stat), top.target())) {
            self.skipped(&top.source(), "it is given more than once");
            return Ok(None);
        }
        if top.needs_directory && !is_directory && !top.target().is_dir() {
            let kind = FailureKind::System(nowait::ErrorKind::NotFound);
            return Err(Failure::new(Operation::Open, &top.target(), kind)
                .with_detail("there is no such directory")
                .with_missing(&top.target(), "create it first, or remove the slash at the end"));
        }
        let target = open_target_dir(&top.target_dir)?;
        let target_stat =
            rustix::fs::fstat(&target).map_err(|errno| opened(Operation::Stat, &top.target_dir, errno))?;
        // With `one_file_system`, the copy does not enter mounts below the source.
        let may_be_met = !self.shared.options.one_file_system || target_stat.st_dev == stat.st_dev;
        if is_directory && may_be_met && is_inside(&target, identity(&stat), top.target_name.as_c_str() != c".") {
            return Err(Failure::new(Operation::Copy, &top.source(), FailureKind::IntoItself)
                .with_detail(format!("the target {} lies inside it", shown(&top.target()))));
        }
        if is_directory {
            lock(&self.targets).push(identity(&target_stat));
        }
        let place = DirProperties::of(target.as_fd(), &target_stat);
        self.note_device(target.as_fd(), place.device, &top.target_dir);
        let paths = Paths { source: top.source_dir.clone(), target: top.target_dir.clone() };
        let relative = PathBuf::new();
        let dir = Dir::new(None, source, Some(target), paths, relative, identity(&stat), place, false, None);
        Ok(Some((Arc::new(dir), is_directory)))
    }
}

/// Makes the failure of a source argument that cannot be opened.
fn no_source(path: &Path, follow: Follow, errno: Errno) -> Failure {
    let failure = Failure::from_errno(Operation::Open, path, errno);
    if errno != Errno::NOENT {
        return failure;
    }
    let is_link = follow != Follow::Never && path.is_symlink();
    let what = if is_link { "the target of this symbolic link does not exist" } else { "the source does not exist" };
    failure.with_detail(what).with_advice("check the path, and that its volume is mounted")
}

/// Opens the directory that will contain a copy.
fn open_target_dir(path: &Path) -> Result<OwnedFd> {
    let opened = match open_path(path, DIRECTORY) {
        // The directory may be writable although it is not readable.
        Err(Errno::ACCESS) => open_path(path, PLACE),
        opened => opened,
    };
    opened.map_err(|errno| {
        let failure = Failure::from_errno(Operation::Open, path, errno);
        match errno {
            Errno::NOENT => failure
                .with_detail("the parent directory of the target does not exist")
                .with_missing(path, "create it first"),
            Errno::NOTDIR => failure.with_detail("the parent of the target is not a directory"),
            _ => failure,
        }
    })
}

/// True if a directory is below `source`, or is `source` and the copy creates a name in it.
fn is_inside(target: &OwnedFd, source: Identity, is_made: bool) -> bool {
    let mut at: Option<OwnedFd> = None;
    let mut previous: Option<Identity> = None;
    loop {
        let fd = at.as_ref().unwrap_or(target);
        let Ok(stat) = rustix::fs::fstat(fd) else { return false };
        let here = identity(&stat);
        // The root is its own parent.
        if previous == Some(here) {
            return false;
        }
        if here == source && (is_made || previous.is_some()) {
            return true;
        }
        previous = Some(here);
        let Ok(parent) = rustix::fs::openat(fd, c"..", PLACE, rustix::fs::Mode::empty()) else { return false };
        at = Some(parent);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_component_of_a_path_is_a_name_or_none() {
        let name = |path: &str| name_of(Path::new(path)).map(|name| name.into_string().unwrap());
        for (path, expected) in [("a", "a"), ("a/b", "b"), ("/a/b//", "b"), ("a/..b", "..b")] {
            assert_eq!(name(path).as_deref(), Some(expected), "{path}");
        }
        for path in ["", ".", "..", "a/.", "a/..", "a/./", "/", "//"] {
            assert_eq!(name(path), None, "{path}");
        }
    }

    #[test]
    fn sources_that_go_to_one_place_have_rounds_of_their_own() {
        let rounds = |sources: &[&str]| {
            let top = |source: &&str| Top::into_directory(Path::new(source), Path::new("to")).unwrap();
            let mut tops: Vec<Top> = sources.iter().map(top).collect();
            Top::put_in_rounds(&mut tops);
            tops.iter().map(Top::round).collect::<Vec<_>>()
        };
        assert_eq!(rounds(&["a", "b", "x/c"]), [0, 0, 0]);
        assert_eq!(rounds(&["x/a", "b", "y/a", "z/a", "c"]), [0, 0, 1, 2, 0]);
        assert_eq!(rounds(&["x/.", "y/.", "a", "b", "z/.", "x/a"]), [0, 1, 2, 2, 3, 4]);
        assert_eq!(rounds(&["a", "x/a", "b", "y/."]), [0, 1, 0, 2]);
    }

    #[test]
    fn a_source_with_a_slash_at_its_end_is_what_a_link_leads_to() {
        let top = Top::into_directory(Path::new("a/link/"), Path::new("to")).unwrap();
        assert_eq!((top.source_dir.as_path(), &*top.source_name), (Path::new("a/link/"), c"."));
        assert_eq!((top.target_dir.as_path(), &*top.target_name), (Path::new("to"), c"link"));
        let top = Top::into_directory(Path::new("a/link"), Path::new("to")).unwrap();
        assert_eq!((top.source_dir.as_path(), &*top.source_name), (Path::new("a"), c"link"));
        assert!(Top::into_directory(Path::new(""), Path::new("to")).is_err());
    }
}
