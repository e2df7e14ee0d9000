//! Advice for errors, in terms of the system.

pub(crate) const IN_USE: &str = "find the program that has it open (Resource Monitor), and close it there";
pub(crate) const NO_APPEND: &str =
    "an append needs a handle that may only append, and the file could not be opened again; open it with append(true)";
pub(crate) const IO: &str = "check the system's event log";
pub(crate) const TIMED_OUT: &str = "the device or server did not answer; check the system's event log";
pub(crate) const TOO_MANY_FILES: &str = "close some";
pub(crate) const FILE_TOO_LARGE: &str = "use a file system with larger files";
/// For a sharing violation of a name: an open file whose handle does not share its removal.
pub(crate) const NAME_IN_USE: &str = IN_USE;
/// For a rename that must not replace anything.
pub(crate) const NO_RENAME_NEW: &str = "the file system refuses it; use rename";
