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
//! Both use the same files and locks, so each opens an index written with the other.
//!
//! * With both, a blocking read returns a slice of a map of the file. A mapped page that is not
//!   cached blocks the thread that touches it. Here, `FileSlice::read_bytes_async` reads through
//!   nowait, and blocks no thread.
//! * With both, a failed read of a mapped page raises SIGBUS. A directory of
//!   [`NowaitDirectory::open_copying`] makes no maps: each read copies, and a failed read returns
//!   an error with path and range. So does `read_bytes_async` with each kind of directory.
//! * A directory of [`NowaitDirectory::open_cached`] reads through a
//!   [`PageCache`](nowait_cache::PageCache) of bounded size, with direct I/O, blocking and
//!   asynchronous reads alike. A cached range within one page is neither mapped nor copied.
//! * Each file in use has an open descriptor: at most seven per segment. Readers of one directory
//!   share them.
//!
//! # Durability
//!
//! A file that was terminated, or written by `atomic_write`, is durable after `sync_directory`, as
//! tantivy requires. `atomic_write` of `meta.json` also syncs the directory, so a commit is durable
//! on return. (With `MmapDirectory`, the last rename of a commit is durable only after a later
//! commit.)

mod directory;
mod read;
mod watch;
mod write;

pub use self::directory::NowaitDirectory;

/// The README's example, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
