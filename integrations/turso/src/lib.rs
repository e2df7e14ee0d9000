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
//! To choose the VFS by name, register it: `turso_core::register_io("nowait", Arc::new(NowaitIo::new()))`.
//!
//! # Compared with `PlatformIO`
//!
//! Both use the same files and locks, so each opens databases written with the other.
//!
//! * Each call of `PlatformIO` blocks. `NowaitIo` completes a cached read, and a write that should not
//!   block, before the call returns. Any other operation is then in flight, and the thread can run other
//!   statements.
//! * A thread of the library invokes the completions of operations that were in flight, so a task that
//!   awaits one makes progress even if no thread calls [`step`](turso_core::IO::step).
//! * While operations are in flight, `step` blocks until one has ended, so a loop of `step` does not
//!   spin.
//! * With [`NowaitIo::blocking`], each call blocks until its operation has ended, as in `PlatformIO`.
//!   The calling thread does all the work, which saves a context switch.
//! * A sync is `fdatasync(2)`. It covers the data and the file's size, but not its times.
//! * After a failed sync, every later sync of the open file fails, so no later commit succeeds
//!   on lost data: the kernel reports the failure once, and marks the pages clean.
//! * [`Nowait::stats`](nowait::Nowait::stats) counts the operations.
//!
//! # Durability
//!
//! The first sync of an open file also syncs its directory, and fails if the directory cannot be synced. So
//! a crash cannot lose a new database along with its commits, even if the process that created the file was
//! killed before its first sync.

mod file;
mod in_flight;
mod io;

pub use self::io::NowaitIo;

/// The README's example, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
