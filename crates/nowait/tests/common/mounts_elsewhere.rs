//! Folders, where a test makes no file systems of its own.

use tempfile::TempDir;

pub(crate) fn temp_dir() -> TempDir {
    tempfile::Builder::new().prefix("nowait-test-").tempdir().unwrap()
}
