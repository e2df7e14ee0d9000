//! Other runtimes, logs and caches (feature `peers`), and RocksDB (feature `rocksdb`). `bench/peers.md`
//! describes the use of each, and how the comparison is unfair.

mod aligned;
pub(super) mod caches;
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
