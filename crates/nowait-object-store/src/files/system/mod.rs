//! What the store needs of the operating system, beyond std and `nowait`.

#[cfg_attr(unix, path = "unix.rs")]
#[cfg_attr(windows, path = "windows.rs")]
mod system;

pub(crate) use self::system::*;
