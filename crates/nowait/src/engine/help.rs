//! Help.
pub(crate) fn ask() {}
