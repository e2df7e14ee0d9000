//! Ways that map a file.

pub mod nowait;
pub mod populate;
pub mod touch;
pub mod watch;
