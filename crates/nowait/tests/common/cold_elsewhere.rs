//! Cold files, on systems that neither drop a file's pages nor report which are cached.

use std::path::Path;

/// Whether pages can be dropped.
pub(crate) const DROPS_PAGES: bool = false;

pub(crate) fn drop_pages(_: &Path) {}

/// False: the file may be cold.
pub(crate) fn is_in_memory(_: &Path) -> bool {
    false
}
