//! Ways that read at random, and what they write, where they do both.

pub(super) mod arriving;
pub(super) mod awaits;
pub(super) mod bufreader;
pub(super) mod libaio;
pub(super) mod nowait;
pub(super) mod pread;
pub(super) mod ring;
pub(super) mod spawn_blocking;
pub(super) mod stream;
pub(super) mod threads;
pub(super) mod touch;
pub(super) mod willneed;
