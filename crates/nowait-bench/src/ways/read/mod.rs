//! Ways that read at random, and what they write, where they do both.

pub mod libaio;
pub mod nowait;
pub mod pread;
pub mod ring;
pub mod spawn_blocking;
pub mod threads;
pub mod willneed;
