//! Differences between the two stores that depend on the operating system.

use std::path::Path;

/// Returns whether two paths lead to one file.
#[cfg(unix)]
pub(crate) fn are_one(one: &Path, other: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let inode = |path: &Path| path.metadata().ok().map(|metadata| metadata.ino());
    inode(one).is_some() && inode(one) == inode(other)
}

/// Returns whether both are files: std does not report whether they are the same.
#[cfg(not(unix))]
pub(crate) fn are_one(one: &Path, other: &Path) -> bool {
    one.is_file() && other.is_file()
}

/// Whether `LocalFileSystem` reports the failed open of a directory, instead of a missing object.
pub(crate) const DENIES_DIRECTORIES: bool = cfg!(windows);

#[cfg(unix)]
pub(crate) fn symlink(target: &str, link: &Path) {
    std::os::unix::fs::symlink(target, link).unwrap();
}

/// Creates nothing: links need a privilege, which the tests do not have. The names may be objects.
#[cfg(not(unix))]
pub(crate) fn symlink(_target: &str, _link: &Path) {}
