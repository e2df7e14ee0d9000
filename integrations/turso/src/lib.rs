//! An `IO` for turso that reads, writes and syncs through [`nowait`].
//!
//! ```
//! use std::sync::Arc;
//!
//! use nowait_turso::NowaitIo;
//! use turso_core::{ConnectOpts, Database, SqliteDialect};
//!
//! # fn main() -> turso_core::Result<()> {
//! # let dir = tempfile::tempdir().unwrap();
//! # let path = dir.path().join("database.db");
//! # let path = path.to_str().unwrap();
//! let database = Database::open_file(Arc::new(NowaitIo::new()), path, Arc::new(SqliteDialect))?;
//! let connection = database.connect(ConnectOpts::new())?;
//! connection.execute("CREATE TABLE visits (day TEXT)")?;
//! connection.execute("INSERT INTO visits VALUES ('today')")?;
//! let rows = connection.prepare("SELECT day FROM visits")?.run_collect_rows()?;
//! assert_eq!(rows[0][0].to_string(), "today");
//! # Ok(())
//! # }
//! ```
//!
//! Programs that open databases by the name of a VFS register it once:
//! `turso_core::register_io("nowait", Arc::new(NowaitIo::new()))`.
//!
//! # Compared with `PlatformIO`
//!
//! Both use the same files and locks, so either opens a database of the other.
//!
//! * `PlatformIO` makes a blocking call for each operation. Here, a read of cached pages and a write
//!   that should not block complete at once. Any other operation is in flight when the call returns,
//!   and other statements can go on meanwhile.
//! * A thread of the library calls the completion of an operation that was in flight. So tasks that
//!   await it make progress though no thread calls [`step`](turso_core::IO::step).
//! * While operations are in flight, `step` blocks until one has ended, so a loop of `step` does not
//!   spin.
//! * With [`NowaitIo::blocking`], each call blocks until its operation has ended, as in `PlatformIO`. No
//!   other thread takes part, which saves the change of threads.
//! * A sync is `fdatasync(2)`. It covers the data and the file's size, but not its times.
//! * After a failed sync, every later sync of the open file fails, so no commit succeeds on top of lost
//!   data. The kernel reports the failure once, and marks the pages clean.
//! * [`Nowait::stats`](nowait::Nowait::stats) counts the operations.
//!
//! # Durability
//!
//! The first sync of a new file syncs its directory, too, and fails if that fails. So a crash cannot lose
//! a new database with its commits.

mod file;
mod in_flight;
mod io;

pub use self::io::NowaitIo;

/// The page's examples, as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
