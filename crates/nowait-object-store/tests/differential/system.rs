//! What the two stores may differ in, by the operating system.

use std::path::Path;

/// Whether two paths lead to one file.
#[cfg(unix)]
pub(crate) fn are_one(one: &Path, other: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let inode = |path: &Path| path.metadata().ok().map(|metadata| metadata.ino());
    inode(one).is_some() && inode(one) == inode(other)
}

/// Std does not tell.
#[cfg(not(unix))]
pub(crate) fn are_one(one: &Path, other: &Path) -> bool {
    one.is_file() && other.is_file()
}

/// Whether `LocalFileSystem` finds an error in opening a directory, and not that there is no object.
pub(crate) const DENIES_DIRECTORIES: bool = cfg!(windows);

#[cfg(unix)]
pub(crate) fn symlink(target: &str, link: &Path) {
    std::os::unix::fs::symlink(target, link).unwrap();
}

/// A privilege, without which the tests are run: the names are those of objects.
#[cfg(not(unix))]
pub(crate) fn symlink(_target: &str, _link: &Path) {}
