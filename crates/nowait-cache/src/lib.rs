//! Page cache in user space for Linux.
//!
//! A read of a cached page makes no system call and copies nothing. It returns a [`Lease`]: bytes
//! that stay in place while they are used. A page that is missing is read once for all that wait
//! for it, by io_uring where that is permitted. The memory is bounded.
//!
//! ```
//! use nowait_cache::{Access, PageCache};
//!
//! # fn main() -> nowait::Result<()> {
//! # let dir = tempfile::tempdir().unwrap();
//! # let path = dir.path().join("table.dat");
//! # std::fs::write(&path, vec![7; 100_000]).unwrap();
//! let cache = PageCache::builder().capacity_bytes(64 << 20).page_bytes(16 << 10).build()?;
//! let file = nowait::OpenOptions::new().read(true).direct(true).open(&path).wait()?;
//! let table = cache.open(&file, Access::Immutable)?;
//!
//! // Reads the page, or waits for the task that does. On an executor: `.await`.
//! let row = table.get(40_000..40_100).wait()?;
//! assert_eq!(row[..], [7; 100]);
//! // The page is cached: no system call, no lock, no copy.
//! let row = table.try_get(40_200..40_300).expect("cached");
//! assert_eq!(row[..], [7; 100]);
//! // Many ranges at once.
//! let rows = table.gather(&[0..100, 90_000..90_100]).wait()?;
//! assert_eq!(rows[1][..], [7; 100]);
//! println!("{:?}", cache.stats());
//! # Ok(())
//! # }
//! ```
//!
//! # When it helps
//!
//! A cached read by the kernel costs a system call and a copy. A lease costs about a tenth
//! of that. The cache is for programs that read small ranges of the same pages often, and that want a
//! bound for the memory of their cache.
//!
//! # Changes of files
//!
//! [`Access`] says who may change a file. [`CachedFile::write_all_at`] writes to the file and to its
//! cached pages.
//!
//! The cache does not notice any other change. [`PageCache::open`] and
//! [`CachedFile::revalidate`] compare size and times; [`CachedFile::invalidate`] drops a range. A
//! program that writes a file through [`nowait::File`] invalidates the range after its write, and
//! calls `revalidate` after a change of the size.
//!
//! # Fork
//!
//! A forked child does not inherit the memory of the cache (`MADV_WIPEONFORK`): copy-on-write would
//! make the parent lose the bytes of direct reads in flight. In the child, every read fails or
//! returns `None`. An inherited lease reads zeros, unless it is a copy.
//!
//! # Threads
//!
//! All types are shared by threads and tasks of any executor. A read belongs to the cache, not to
//! the task that began it: the thread that notices its completion wakes all that wait. If the task
//! that began it runs in `nowait::block_on` and computes for long, `nowait-watch-1` notices the
//! completion, after 0.1 s at most. While leases pin all frames, a thread `nowait-cache` fails
//! waits that take too long.

mod arena;
mod cache;
mod counters;
mod file;
mod fill;
mod frame;
mod get;
mod in_flight;
mod inode;
mod lease;
mod pages;
mod policy;
mod shared;
mod space;
mod spans;
mod stats;
mod sync;
mod word;
mod write;

pub use cache::{Builder, PageCache};
pub use file::{Access, CachedFile};
pub use get::{Gather, Get};
pub use lease::Lease;
pub use stats::Stats;
pub use write::Write;

/// The guide's examples and the crate's page, as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/cache.md")]
struct Guide;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
