//! Shared by the tests.

// Each test binary uses its own part of this.
#![allow(dead_code, unused_imports)]

#[path = "../../../nowait/tests/common/wine.rs"]
mod wine;

use tempfile::TempDir;

pub(crate) use self::wine::is_lacking_in_wine;

/// Returns a directory on a disk: `/tmp` may be in memory.
#[cfg(unix)]
pub(crate) fn temp_dir() -> TempDir {
    tempfile::tempdir_in("/var/tmp").unwrap()
}

#[cfg(not(unix))]
pub(crate) fn temp_dir() -> TempDir {
    tempfile::tempdir().unwrap()
}
