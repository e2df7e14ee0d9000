//! Copies files and trees: as fast as the machine can, and never half a file.
//!
//! ```
//! use nowait_copy::{Options, Sync, copy};
//!
//! # let dir = tempfile::tempdir().unwrap();
//! # std::fs::create_dir_all(dir.path().join("photos/2006")).unwrap();
//! # std::fs::write(dir.path().join("photos/2006/one.jpg"), "one").unwrap();
//! # let (source, target) = (dir.path().join("photos"), dir.path().join("backup"));
//! let report = copy(&source, &target, &Options::new().sync(Sync::All))?;
//! for failure in report.failures.iter().chain(&report.warnings) {
//!     eprintln!("{failure}");
//! }
//! assert!(report.is_complete());
//! assert_eq!((report.directories, report.files, report.bytes), (2, 1, 3));
//! # Ok::<(), nowait_copy::Failure>(())
//! ```
//!
//! # What is kept
//!
//! What `cp -a` keeps: owner, mode (set after the owner, so that setuid stays), times (of
//! directories last), extended attributes and ACLs, hard links, symbolic links, FIFOs, sockets,
//! devices, and holes. Access times of the source stay as they are, where the caller may leave them.
//!
//! # What happens to the target
//!
//! A file is written under a temporary name in the target's directory, or without a name, and gets
//! its own in one step. Until then the name has what it had, also after a full disk, an error of the
//! device or the end of the process; and after a power loss, if [`Options::sync`] asks for it.
//!
//! Until a copy is complete, only the user who makes it can read it.
//!
//! While temporary names (`.nowait-copy-*`) are in a directory, the copy holds a shared lock on the
//! directory (`flock(2)`). A killed process may leave such names. The next copy of the same user
//! that creates a temporary name there removes them, unless another copy is running in the
//! directory. Nothing is removed on file systems that are not local, since the lock proves nothing
//! there. Entries of the source with such names are left out.
//!
//! A file that cannot be copied is one of the [`failures`](Report::failures), and the others are
//! copied. One that was copied and changed meanwhile, or lost some of its metadata, is one of the
//! [`warnings`](Report::warnings).
//!
//! # How data move
//!
//! The way is chosen for each file, from what the two file systems can, the file's size and holes,
//! and the memory: shared blocks, `copy_file_range`, several direct requests in flight, uncached
//! writes, or reads and writes. [`Event::Copied`] has the way, and why.
//!
//! A directory is reached by a descriptor, not by its path: paths may be longer than `PATH_MAX`, and a
//! directory that is replaced by a symbolic link meanwhile leads nowhere else. The directories from
//! the source down to those at work are open: trees deeper than a third of the limit of open files
//! (`ulimit -n`) need a higher one.

#![forbid(unsafe_code)]

mod error;
mod file;
mod metadata;
mod meter;
mod options;
mod os;
mod report;
mod run;
mod shared;
mod tree;

pub use error::{Failure, FailureKind, Operation, Result, shown};
pub use options::{Follow, Options, Reflink, Sparse, Sync, Update};
pub use report::{Event, Progress, Report, Way};
pub use run::{Ended, Started, copy, copy_all, start};

/// The guide's examples, as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/copy.md")]
struct Guide;

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    /// The rooms in order, as in the ARCHITECTURE.md of this crate.
    const ROOMS: [&str; 10] =
        ["error", "report", "options", "meter", "os", "shared", "file", "metadata", "tree", "run"];

    fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => sources(&path, found),
                false => found.push(path),
            }
        }
    }

    /// No circle between the rooms.
    #[test]
    fn rooms_use_those_above_them() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        if !root.is_dir() {
            return println!("skipped: the sources are not here");
        }
        let mut files = Vec::new();
        sources(&root, &mut files);
        assert!(files.len() > 20, "{files:?}");
        for file in files {
            let text = std::fs::read_to_string(&file).unwrap();
            let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
            let path = file.strip_prefix(&root).unwrap().with_extension("");
            let room = path.components().next().unwrap().as_os_str().to_str().unwrap();
            let place = ROOMS.iter().position(|name| *name == room);
            assert!(place.is_some() || room == "lib", "{room} has no place in the list");
            let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
            let used = lines.flat_map(|line| line.split("crate::").skip(1));
            for used in used {
                let name = used.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
                if let (Some(at), Some(place)) = (ROOMS.iter().position(|room| *room == name), place) {
                    assert!(at <= place, "{} uses {name}, which is below", file.display());
                }
            }
        }
    }
}
