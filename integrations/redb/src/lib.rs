//! A `StorageBackend` for redb that reads, writes and syncs through [`nowait`].
//!
//! ```
//! use nowait_redb::NowaitBackend;
//! use redb::{Database, ReadableDatabase, TableDefinition};
//!
//! const VISITS: TableDefinition<&str, u64> = TableDefinition::new("visits");
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("database.redb");
//! let database = Database::builder().create_with_backend(NowaitBackend::create(&path)?)?;
//! let write = database.begin_write()?;
//! write.open_table(VISITS)?.insert("today", 1)?;
//! write.commit()?;
//! let visits = database.begin_read()?.open_table(VISITS)?;
//! assert_eq!(visits.get("today")?.unwrap().value(), 1);
//! # Ok(())
//! # }
//! ```
//!
//! # Compared with `FileBackend`
//!
//! Both use the same files and locks, so each opens databases written with the other. Processes
//! that use either backend may share a database.
//!
//! * redb's interface for backends is blocking. Both backends serve each call by one plain system
//!   call.
//! * After a failed sync, every later sync of the [`File`](nowait::File) fails until
//!   [`acknowledge_sync_failure`](nowait::File::acknowledge_sync_failure). The kernel reports the
//!   failure once, and marks the pages clean, although their data may be lost.
//! * [`NowaitBackend::create`] makes the name of a new file durable.
//! * Errors contain the operation, the path and the range. [`Nowait::stats`](nowait::Nowait::stats)
//!   counts the operations.
//! * With `nowait`'s feature `sim`, a database can run on a simulated disk, for tests with crashes
//!   and faults. A simulated file has no locks.
//!
//! # Durability
//!
//! A durable commit is one or two calls of [`sync_data`](nowait::File::sync_data). They do not make
//! the name of a new file durable: [`NowaitBackend::create`] does.

mod backend;

pub use self::backend::NowaitBackend;

/// The README's example, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
