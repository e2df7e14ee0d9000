use std::fs;

use nowait_object_store::Options;

use super::NowaitFileSystem;

pub(super) fn store(options: Options) -> (tempfile::TempDir, NowaitFileSystem) {
    let dir = crate::common::temp_dir();
    let store = NowaitFileSystem::with_prefix(dir.path(), options).unwrap();
    (dir, store)
}

pub(super) fn names(dir: &std::path::Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Returns the byte at an offset of the tests' objects.
pub(super) fn byte(place: u64) -> u8 {
    (place.wrapping_mul(2_654_435_761) >> 13) as u8
}
