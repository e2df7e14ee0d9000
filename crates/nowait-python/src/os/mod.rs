//! System-dependent code: how a loop learns of completions, and the descriptors of files.

#[cfg_attr(target_os = "linux", path = "eventfd.rs")]
#[cfg_attr(not(target_os = "linux"), path = "waiter.rs")]
mod bell;
#[cfg_attr(unix, path = "unix.rs")]
#[cfg_attr(windows, path = "windows.rs")]
mod descriptor;

pub(crate) use self::bell::{Bell, Notifier};
pub(crate) use self::descriptor::{descriptor, of_descriptor};
