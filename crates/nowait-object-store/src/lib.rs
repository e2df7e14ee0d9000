//! An `ObjectStore` of local files, read through [`nowait`].
//!
//! Columnar engines read through the trait `ObjectStore` of the crate `object_store`. The store of
//! local files in that crate gives each request to a blocking thread, which reads one range after
//! the other. This store reads all ranges of a request as one gather. It copies cached ranges at
//! once, and keeps a bounded number of reads in flight for the others, by io_uring or its
//! replacement. The results are slices of one allocation.
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
//! Two releases of `object_store` are in use, and their types are incompatible. This crate has a
//! feature and a module for each, with the same store. Both features may be on. Each module
//! re-exports its release as `object_store`.
//!
//! * `object-store-0-13` and `v0_13`: for DataFusion 55, Ballista 55, Polars 0.55 and Vortex 0.90.
//!
//! * `object-store-0-14` (on by default) and `v0_14`: for parquet 60, Lance and obstore.
//!
//! # Engines
//!
//! `NowaitFileSystem::register` registers a store of all files with an engine, for `file:///` and
//! `nowait:///`. The store needs no runtime, and does not block a runtime's threads.
//!
//! # What is as with `LocalFileSystem`
//!
//! Paths, symbolic links, ETags, times, kinds of errors and hidden names of uploads (`name#123`)
//! are the same. So stores of both kinds may use one directory. Both refuse attributes and
//! `PutMode::Update`. The differences are:
//!
//! * A get returns a stream or one piece, never a `std::fs::File`. The ranges of `get_ranges` share
//!   one allocation, which lives as long as any of them.
//! * A get or stream fails if the object becomes shorter meanwhile. It does not detect that another
//!   program overwrites the object in place; stores of both kinds only replace objects.
//! * A list continues after an error, with the remaining objects.
//! * A copy shares blocks if the file system supports it (`FICLONE`). Otherwise it is a hard link,
//!   as with `LocalFileSystem`. If hard links are not possible, for example between file systems,
//!   it copies the bytes. Copying a symbolic link copies its target.
//! * Directories are not objects, and cannot be copied or renamed. Special files cannot be copied.
//! * Empty directories do not keep a name from an object. A put, copy, rename or completed upload to
//!   the name of a directory removes that directory if it contains only empty directories. If it
//!   contains a file, the call fails.
//! * An upload can be completed only after all of its parts are written.
//!
//! # Durability
//!
//! Puts, copies, renames and completed uploads are atomic for readers. They are durable on
//! completion only with [`Options::durable`]. Deletes are not made durable.
//!
//! # Cancellation
//!
//! A dropped read has no effect. Any other operation that is dropped in progress takes effect
//! completely or not at all. A crash may leave files with hidden names of uploads: see
//! `NowaitFileSystem::remove_leftovers`.
//!
//! # Threads
//!
//! Reads need only the threads that [`nowait`] describes. Its pool makes calls on names: puts,
//! lists, deletes, and one call for the metadata of each get. The pool has at most
//! [`Builder::pool_threads_max`](nowait::Builder::pool_threads_max) threads.

#![cfg_attr(docsrs, feature(doc_cfg))]
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

#[cfg(all(doctest, feature = "object-store-0-14"))]
#[doc = include_str!("../README.md")]
struct Readme;
