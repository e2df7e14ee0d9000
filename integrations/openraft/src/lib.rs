//! Log storage for [openraft]: the entries and the vote of a node in a durable log of
//! [nowait-log](nowait_log). Entries that are appended at the same time share a write, and no
//! write blocks a thread of the runtime.
//!
//! ```
//! use std::io::Cursor; // the type of snapshots
//!
//! use nowait_openraft::{LogStore, Options};
//!
//! openraft::declare_raft_types!(pub Types: D = String, R = String);
//!
//! # async fn example(dir: &std::path::Path) -> nowait::Result<()> {
//! let store = LogStore::<Types>::open(dir, &Options::new().create(true)).await?;
//! let log = store.log().clone(); // for its counters, and to close it
//! // openraft::Raft::new(id, config, network, store, state_machine).await?
//! # drop(store);
//! log.close().await
//! # }
//! # let dir = tempfile::tempdir().unwrap();
//! # nowait::block_on(example(&dir.path().join("raft"))).unwrap();
//! ```
//!
//! # Promises
//!
//! * [`append`](openraft::storage::RaftLogStorage::append) returns when the entries are visible to
//!   readers, and invokes the callback when they are durable. It waits for the disk only while
//!   [`Options::pending_bytes_max`] are in flight.
//! * A vote, a truncation and a purge are durable when the call returns. So are all
//!   earlier appends.
//! * Writes reach the disk in the order of the calls. After a crash the store contains a prefix of
//!   these writes, which includes every acknowledged one.
//! * [`save_committed`](openraft::storage::RaftLogStorage::save_committed) returns before its value
//!   is durable. After a crash the value may be an earlier one.
//! * An entry must fit into a segment ([`Options::segment_bytes`]). openraft stops a node that cannot
//!   append, so refuse larger entries before `client_write`.
//! * After the first failed write, the store accepts no more writes. openraft then stops the node;
//!   open the store again.
//! * [`LogStore::open`] refuses a damaged log ([`ErrorKind::Damaged`](nowait::ErrorKind::Damaged)),
//!   even with [`Options::salvage`]. Do not repair the log with other tools: a node that forgot
//!   acknowledged entries or its vote endangers the cluster. Remove the node from the cluster, and
//!   add it as a new one.
//!
//! # Reads
//!
//! Entries that are not durable yet are read from the store's memory, and entries in the last 4 MiB
//! of the log ([`Options::tail_bytes`]) from the log's memory. Others are read from the log's
//! segments: a reader moves to the entry's block ([`Reader::seek`](nowait_log::Reader::seek)), and
//! reads the whole block, up to 512 KiB.
//!
//! # Format
//!
//! A record of the log is an entry, a truncation, or the state of the node: its vote, and the
//! committed and the purged log ID. Votes are in the log so that one write makes them durable in
//! order with the entries. A truncation is a record, and does not cut the log: a cut would also
//! remove the votes after it. A purge frees whole segments.
//!
//! Entries and states are encoded as MessagePack with field names, by `rmp-serde`, which is
//! maintained and in wide use. The format is stable and self-describing. So a later version of an
//! application reads entries that lack its new fields (`#[serde(default)]`), and every attribute of
//! serde works. A format that stores only values would allow neither. MessagePack takes less space
//! than JSON, and stores bytes (`serde_bytes`) unchanged.

mod entries;
mod record;
mod store;

pub use nowait_log::Options;
pub use store::{LogStore, LogStoreReader};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
