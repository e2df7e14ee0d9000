//! Advice for errors, in terms of the system.

#[cfg(target_os = "linux")]
pub(crate) const IN_USE: &str = "find the process or mount that uses it (fuser, lsblk), and close it there";
#[cfg(target_os = "macos")]
pub(crate) const IN_USE: &str = "find the process or mount that uses it (lsof, mount), and close it there";
#[cfg(target_os = "linux")]
pub(crate) const NO_APPEND: &str = "this file system may ignore RWF_APPEND and overwrite the file, or pwritev2(2) is \
    refused here; and the file could not be opened once more with O_APPEND through /proc; open it with append(true)";
#[cfg(target_os = "macos")]
pub(crate) const NO_APPEND: &str = "an append needs a descriptor with O_APPEND, and the file could not be opened \
    again by its path; open it with append(true)";
pub(crate) const IO: &str = "check the kernel log";
pub(crate) const TIMED_OUT: &str = "the device or server did not answer; check the kernel log";
pub(crate) const TOO_MANY_FILES: &str = "close some, or raise the limit (ulimit -n)";
pub(crate) const FILE_TOO_LARGE: &str = "raise the limit (ulimit -f), or use a file system with larger files";
/// For EBUSY of a name (`rename(2)`, `unlink(2)`). Open files do not cause it.
#[cfg(target_os = "linux")]
pub(crate) const NAME_IN_USE: &str = "something is mounted on one of the names, as containers do with single files \
                                      (findmnt shows it); unmount it, or change the file in place (fs::write)";
#[cfg(target_os = "macos")]
pub(crate) const NAME_IN_USE: &str = "something is mounted on one of the names (mount shows it); unmount it, or \
                                      change the file in place (fs::write)";
/// For a rename that must not replace anything, where no call can make it.
#[cfg(target_os = "linux")]
pub(crate) const NO_RENAME_NEW: &str =
    "renameat2(2) is refused here, and no link can take its place (a directory has none); use rename";
#[cfg(target_os = "macos")]
pub(crate) const NO_RENAME_NEW: &str =
    "renameatx_np(2) is refused here, and no link can take its place (a directory has none); use rename";
