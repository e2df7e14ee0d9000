//! Other people's runtimes and logs, by the feature `peers`; RocksDB by a feature of its own.
//! `bench/peers.md` says how each is used, and what is unfair to whom.

mod aligned;
pub(super) mod compio;
pub(super) mod fjall;
pub(super) mod fsys;
pub(super) mod glommio;
mod logs;
pub(super) mod monoio;
pub(super) mod okaywal;
mod one_thread;
pub(super) mod raft_engine;
#[cfg(feature = "rocksdb")]
pub(super) mod rocksdb;
pub(super) mod tokio_fs;
pub(super) mod tokio_uring;
