//! An `ObjectStore` of local files, read through [`nowait`].
//!
//! Columnar engines read through the trait `ObjectStore` of the crate `object_store`. Its own store
//! of local files gives each request to a blocking thread, which reads range after range. This one
//! reads all ranges of a request as one gather: cached ones are copied on the spot, and for the rest
//! a bounded number of reads is in flight, by io_uring or what serves in its place. The answers are
//! slices of one allocation.
//!
//! ```
//! # #[cfg(feature = "object-store-0-14")] {
//! use nowait_object_store::Options;
//! use nowait_object_store::v0_14::NowaitFileSystem;
//! use nowait_object_store::v0_14::object_store::{ObjectStore, ObjectStoreExt, path::Path};
//!
//! # let dir = tempfile::tempdir().unwrap();
//! # let dir = dir.path();
//! nowait::block_on(async {
//!     let store = NowaitFileSystem::with_prefix(dir, Options::new())?;
//!     let table = Path::from("2026/table.parquet");
//!     store.put(&table, vec![7; 10_000].into()).await?;
//!     let columns = store.get_ranges(&table, &[8192..8292, 0..16, 4000..4200]).await?;
//!     assert_eq!(columns.iter().map(|column| column.len()).sum::<usize>(), 316);
//!     assert_eq!(store.get(&table).await?.bytes().await?.len(), 10_000);
//!     Ok::<(), nowait_object_store::v0_14::object_store::Error>(())
//! })
//! .unwrap();
//! # }
//! ```
//!
//! # Which release of `object_store`
//!
//! Two are in use, and their types do not fit each other. Each has a feature and a module here, with
//! the same store: `object-store-0-13` and `v0_13`, for DataFusion 55, Ballista 55, Polars 0.55 and
//! Vortex 0.90; `object-store-0-14` (on by default) and `v0_14`, for parquet 60, Lance and obstore.
//! Both may be on. Each module names its release as `object_store`.
//!
//! # Engines
//!
//! `NowaitFileSystem::register` gives a store of all files to an engine for `file:///` and
//! `nowait:///`: see there. It needs no runtime, and does not block the threads of one.
//!
//! # What is as with `LocalFileSystem`
//!
//! Locations and paths, symbolic links, ETags and times, kinds of errors, hidden names of uploads
//! (`name#123`): stores of both kinds may work in one directory. Attributes and `PutMode::Update`
//! are refused. What differs:
//!
//! * A get is a stream or one piece, never a `std::fs::File`. Many ranges of `get_ranges` share one
//!   allocation, which lives as long as any of them.
//! * An object that becomes shorter while it is read is an error, in a stream, too. One that another
//!   program overwrites in place is not noticed; stores of both kinds only replace objects.
//! * A list goes on after an error, with the rest of the objects.
//! * A copy shares blocks where the file system can (`FICLONE`). Else it is a hard link, as with
//!   `LocalFileSystem`; and where there are none, or to another file system, a copy of the bytes. A
//!   copy of a symbolic link is one of the file that it leads to.
//! * A directory is no object: it cannot be copied or renamed. A special file cannot be copied.
//! * An upload is completed only if all of its parts are written.
//!
//! # Durability
//!
//! Puts, copies, renames and completed uploads are all or nothing for whoever looks. They are
//! durable when ready with [`Options::durable`] only. Deletes are not.
//!
//! # Cancellation
//!
//! A read that is dropped leaves nothing. Any other operation that is dropped while under way is done
//! as a whole or not at all. A crash may leave files with the hidden names of uploads: see
//! `NowaitFileSystem::remove_leftovers`.
//!
//! # Threads
//!
//! Reads need none but what [`nowait`] tells. Calls on names (puts, lists, deletes, and one call for
//! the metadata of each get) are made by its pool, of at most
//! [`Builder::pool_threads_max`](nowait::Builder::pool_threads_max) threads.

#![forbid(unsafe_code)]
// Each adapter is the same files, for the types of another release.
#![allow(clippy::duplicate_mod)]

mod files;
mod options;
#[cfg(feature = "object-store-0-13")]
pub mod v0_13;
#[cfg(feature = "object-store-0-14")]
pub mod v0_14;

pub use self::options::Options;

/// The guide's examples, as tests.
#[cfg(all(doctest, feature = "object-store-0-14"))]
#[doc = include_str!("../../../docs/guide/stores.md")]
struct Guide;
