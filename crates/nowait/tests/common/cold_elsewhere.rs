//! Cold files, where the system neither drops one file's pages nor tells which are cached.

use std::path::Path;

/// Whether pages can be dropped.
pub(crate) const DROPS_PAGES: bool = false;

pub(crate) fn drop_pages(_: &Path) {}

/// Files may be cold: nothing is known of them.
pub(crate) fn is_in_memory(_: &Path) -> bool {
    false
}
