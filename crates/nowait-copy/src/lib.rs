//! Copies files and directory trees; each file appears in the target complete or not at all.
//!
//! ```
//! use nowait_copy::{Options, SyncPolicy, copy};
//!
//! # let dir = tempfile::tempdir().unwrap();
//! # std::fs::create_dir_all(dir.path().join("photos/2006")).unwrap();
//! # std::fs::write(dir.path().join("photos/2006/one.jpg"), "one").unwrap();
//! # let (source, target) = (dir.path().join("photos"), dir.path().join("backup"));
//! let report = copy(&source, &target, &Options::new().sync(SyncPolicy::All))?;
//! for failure in report.failures.iter().chain(&report.warnings) {
//!     eprintln!("{failure}");
//! }
//! assert!(report.is_complete());
//! assert_eq!((report.directories, report.files, report.bytes), (2, 1, 3));
//! # Ok::<(), nowait_copy::Failure>(())
//! ```
//!
//! # Metadata
//!
//! A copy keeps what `cp -a` keeps: owner, mode, times, extended attributes and ACLs, hard links,
//! symbolic links, FIFOs, sockets, devices, and holes. The mode is set after the owner, so that
//! setuid bits stay. Access times of the source do not change if the caller has the right to use
//! `O_NOATIME`.
//!
//! # Target files
//!
//! A file is written under a temporary name in the target's directory, or without a name. An atomic
//! rename or link then gives it its final name. Until then the old file stays in place, even if the
//! disk fills up, the device fails or the process is killed. With [`Options::sync`], this also
//! holds for a power loss.
//!
//! Until a copy is complete, only the copying user can read it.
//!
//! A killed process may leave temporary names (`.nowait-copy-*`). On a local file system, the same
//! user's next copy that creates such a name in the directory removes them, unless another copy is
//! running there. A copy detects others by a shared lock on the directory (`flock(2)`), which is
//! not reliable on network file systems. Entries of the source with such names are not copied.
//!
//! If a file cannot be copied, the report lists it in [`failures`](Report::failures), and the copy
//! continues. If a file changed while it was copied, or lost some of its metadata, the report lists
//! it in [`warnings`](Report::warnings).
//!
//! # Methods of copying
//!
//! The method is chosen for each file: shared blocks, `copy_file_range`, several direct requests in
//! flight, uncached writes, or reads and writes. The choice depends on the two file systems, on the
//! file's size and holes, and on free memory. [`Event::Copied`] contains the method and the reason.
//!
//! Directories are accessed by descriptor, not by path. So paths may be longer than `PATH_MAX`, and
//! a directory that is replaced by a symbolic link does not redirect the copy. The copy keeps all
//! directories from the source down to those in progress open. So a tree deeper than a third of the
//! limit of open files (`ulimit -n`) needs a higher limit.

#![cfg_attr(docsrs, feature(doc_cfg))]
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
pub use options::{Follow, Options, Reflink, Sparse, SyncPolicy, Update};
pub use report::{Event, Progress, Report, Way};
pub use run::{Ended, Started, copy, copy_all, start};

/// The guide's examples, as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/copy.md")]
struct Guide;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    /// The modules in the order of this crate's ARCHITECTURE.md.
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

    /// Checks that no module uses a later one.
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
