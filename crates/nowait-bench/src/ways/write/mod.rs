//! Ways that only write.

pub mod heartbeat;
pub mod pwrite;
