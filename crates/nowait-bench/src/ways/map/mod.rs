//! Ways that map a file.

pub(crate) mod nowait;
pub(crate) mod populate;
pub(crate) mod touch;
pub(crate) mod watch;
