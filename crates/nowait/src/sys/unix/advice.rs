//! What to do about an error, where that depends on the system.

#[cfg(target_os = "linux")]
pub(crate) const IN_USE: &str = "find the process or mount that uses it (fuser, lsblk), and close it there";
#[cfg(target_os = "macos")]
pub(crate) const IN_USE: &str = "find the process or mount that uses it (lsof, mount), and close it there";
#[cfg(target_os = "linux")]
pub(crate) const NO_APPEND: &str = "this file system may ignore RWF_APPEND and overwrite the file, or pwritev2(2) is \
    refused here; and the file could not be opened once more with O_APPEND through /proc; open it with append(true)";
#[cfg(target_os = "macos")]
pub(crate) const NO_APPEND: &str = "an append needs a descriptor with O_APPEND, and the file could not be opened again by its path; open it with append(true)";
pub(crate) const IO: &str = "check the kernel log";
pub(crate) const TIMED_OUT: &str = "the device or server did not answer; check the kernel log";
pub(crate) const TOO_MANY_FILES: &str = "close some, or raise the limit (ulimit -n)";
pub(crate) const FILE_TOO_LARGE: &str = "raise the limit (ulimit -f), or use a file system with larger files";
