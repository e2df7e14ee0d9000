//! Ways that only write.

pub(crate) mod heartbeat;
pub(crate) mod pwrite;
pub(crate) mod pwritev;
