//! A `Directory` for tantivy that reads and writes through [`nowait`].
//!
//! ```
//! use nowait_tantivy::NowaitDirectory;
//! use tantivy::schema::{Schema, TEXT};
//! use tantivy::{Index, IndexWriter, doc};
//!
//! # fn main() -> tantivy::Result<()> {
//! # let dir = tempfile::tempdir().unwrap();
//! let mut schema = Schema::builder();
//! let title = schema.add_text_field("title", TEXT);
//! let index = Index::open_or_create(NowaitDirectory::open(dir.path())?, schema.build())?;
//! let mut writer: IndexWriter = index.writer(50_000_000)?;
//! writer.add_document(doc!(title => "The Old Man and the Sea"))?;
//! writer.commit()?;
//! assert_eq!(index.reader()?.searcher().num_docs(), 1);
//! # Ok(())
//! # }
//! ```
//!
//! # Compared with `MmapDirectory`
//!
//! Both use the same files and locks, so either opens an index of the other.
//!
//! * Blocking reads are slices of a map of the file in both. `FileSlice::read_bytes_async` reads
//!   through nowait here, and blocks no thread. A mapped page that is not cached blocks the thread that
//!   touches it.
//! * A failed read of a map raises SIGBUS, in both. A directory of [`NowaitDirectory::open_copying`]
//!   makes no maps: it copies, and a failed read returns an error with path and range. So does
//!   `read_bytes_async`.
//! * Each file in use has an open descriptor: seven or fewer per segment. Readers of one directory
//!   share them.
//!
//! # Durability
//!
//! A terminated file is durable after `sync_directory`, as tantivy requires, and so is one of
//! `atomic_write`. The index's `meta.json` is durable on return, name included, and so a commit is,
//! too. (`MmapDirectory` makes the last rename of a commit durable with a later commit.)

mod directory;
mod read;
mod watch;
mod write;

pub use self::directory::NowaitDirectory;

/// The page's examples, as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
