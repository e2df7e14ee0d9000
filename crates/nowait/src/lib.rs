//! File I/O for Linux that does not wait for a disk when it need not.
//!
//! An operation is tried on the caller's thread first, without waiting for the device. What is not
//! in the page cache goes to io_uring, or, where io_uring is refused or of no use, to a few
//! threads. Which way is best depends on the file system and on what is cached; it is decided for
//! each operation from what the file's earlier ones did, and every decision is counted.
//!
//! There are reads and writes: single ones, vectored ones, and many in one call; syncs that share;
//! and what changes files and names.
//!
//! # A read
//!
//! Operations name their position and own their buffer. Await one on any executor, or call `wait`
//! where there is none:
//!
//! ```
//! use nowait::{Buf, File, Result};
//!
//! async fn page(file: &File, number: u64) -> Result<Buf> {
//!     file.read_range(number * 4096, 4096).await
//! }
//!
//! # fn main() -> Result<()> {
//! # let dir = tempfile::tempdir().unwrap();
//! # let path = dir.path().join("table.dat");
//! # std::fs::write(&path, vec![7; 3 * 4096]).unwrap();
//! let file = File::open(path).wait()?;
//! let first = file.read_range(0, 4096).wait()?;
//! let third = nowait::block_on(page(&file, 2))?;
//! # assert_eq!((&first[..], &third[..]), (&[7; 4096][..], &[7; 4096][..]));
//! # Ok(())
//! # }
//! ```
//!
//! [`File::read_range`] brings exactly the bytes asked for, in a pooled, page-aligned [`Buf`], or
//! fails. [`File::read_at`] fills a buffer of the caller's and gives it back, with an error too
//! ([`BufferError`]); it is short only at the end of the file. [`File::read_into`] blocks and fills
//! a borrowed slice.
//!
//! # A gather
//!
//! Many ranges of one file in one call, in any order, into one buffer:
//!
//! ```
//! # fn main() -> nowait::Result<()> {
//! # let dir = tempfile::tempdir().unwrap();
//! # let path = dir.path().join("table.dat");
//! # std::fs::write(&path, vec![7; 10_000]).unwrap();
//! # let file = nowait::File::open(&path).wait()?;
//! // Offset and length of each record.
//! let records = [(8192, 100), (0, 16), (4000, 200)];
//! let rows = file.gather(&records).wait()?;
//! for (row, record) in rows.iter().zip(records) {
//!     match row {
//!         Ok(bytes) => println!("{record:?}: {} bytes", bytes.len()),
//!         Err(error) => eprintln!("{error}"),
//!     }
//! }
//! # assert_eq!(rows.iter().map(|row| row.unwrap().len()).sum::<usize>(), 316);
//! # Ok(())
//! # }
//! ```
//!
//! Cached ranges are copied on the spot. For the rest a bounded number of reads is kept in flight
//! to the end, neighbours read together. See [`Gather`]; [`File::gather_into`] is the blocking form
//! that fills a borrowed slice.
//!
//! # A write
//!
//! ```
//! use nowait::OpenOptions;
//!
//! # fn main() -> nowait::Result<()> {
//! # let dir = tempfile::tempdir().unwrap();
//! # let (path, other) = (dir.path().join("table.dat"), dir.path().join("config"));
//! let file = OpenOptions::new().write(true).create(true).open(&path).wait()?;
//! let page = vec![7u8; 4096];
//! let page = file.write_all_at(page, 0).wait()?;
//! file.write_all_at(page, 4096).durable().wait()?;
//! file.sync_data().wait()?;
//! nowait::block_on(nowait::fs::write_atomic(&other, "all or nothing".to_string()))?;
//! # assert_eq!(std::fs::read(&path).unwrap(), [7; 8192]);
//! # assert_eq!(std::fs::read(&other).unwrap(), b"all or nothing");
//! # Ok(())
//! # }
//! ```
//!
//! A write is done when its bytes are in the page cache. It is durable after a later
//! [`File::sync_data`], or by itself if it was made [`durable`](Write::durable). As a future it is
//! made on the thread that polls it where that is expected not to wait: whole pages, or cached
//! ones, or pages beyond the end, while writers are not about to be put to sleep. (Under
//! [`block_on`] a small write first lets the other futures have their turn, and is made together
//! with what continues it.) What remains is done by one thread a file, in order, neighbours in one
//! call. The bytes on their way are bounded ([`Builder::write_bytes_max`]).
//!
//! # Past the page cache, and in order
//!
//! [`OpenOptions::direct`] asks for direct I/O, at any place, of any length, to and from any
//! memory; [`File::direct`] tells what the file made of it. [`stream::Reader`] and
//! [`stream::Writer`] read ahead and write behind, on any file, for threads and for tasks.
//!
//! # Many reads from one thread
//!
//! [`block_on`] runs a future on the calling thread's own ring. What the future submits meanwhile
//! is staged and submitted together:
//!
//! ```
//! use futures::future::join_all;
//!
//! # fn main() -> nowait::Result<()> {
//! # let dir = tempfile::tempdir().unwrap();
//! # let path = dir.path().join("table.dat");
//! # std::fs::write(&path, vec![7; 1 << 20]).unwrap();
//! # let file = nowait::File::open(&path).wait()?;
//! let pages = nowait::block_on(join_all((0..64).map(|i| file.read_range(i * 16_384, 4096))));
//! for page in pages {
//!     assert_eq!(page?.len(), 4096);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # An instance of one's own
//!
//! [`File::open`] uses an instance that the process shares. [`Nowait::builder`] makes one with its
//! own engine, policy and counters:
//!
//! ```
//! use nowait::{Engine, Nowait, OpenOptions};
//!
//! # fn main() -> nowait::Result<()> {
//! # let dir = tempfile::tempdir().unwrap();
//! # let path = dir.path().join("table.dat");
//! # std::fs::write(&path, vec![7; 4096]).unwrap();
//! // Without io_uring, and with nothing inline but what the kernel promises not to block.
//! let nowait = Nowait::builder().engine(Engine::Pool).strict(true).build()?;
//! let file = OpenOptions::new().read(true).open_in(&nowait, &path).wait()?;
//! assert!(!nowait.has_ring());
//! # assert_eq!(file.size().wait()?, 4096);
//! # Ok(())
//! # }
//! ```
//!
//! # What happened
//!
//! [`Nowait::stats`] tells how many operations went which way, [`Nowait::ring_refusal`] why there
//! is no ring, [`Nowait::aio_refusal`] why direct I/O does not go to libaio then, and
//! [`File::nowait_reads`] whether the file can be read without waiting at all:
//!
//! ```
//! # fn main() -> nowait::Result<()> {
//! # let dir = tempfile::tempdir().unwrap();
//! # let path = dir.path().join("table.dat");
//! # std::fs::write(&path, vec![7; 8192]).unwrap();
//! # let nowait = nowait::Nowait::builder().build()?;
//! # let file = nowait::OpenOptions::new().read(true).open_in(&nowait, &path).wait()?;
//! # nowait::block_on(file.read_range(0, 4096))?;
//! let stats = nowait.stats();
//! println!("inline {}, ring {}, pool {}", stats.inline, stats.ring, stats.pool);
//! println!("attempts {}, of which {} found nothing cached", stats.attempts, stats.misses);
//! if let Some(refusal) = nowait.ring_refusal() {
//!     println!("no io_uring: {refusal}");
//! }
//! // Every operation that has started ends in exactly one way.
//! assert_eq!(stats.started, stats.ended());
//! # Ok(())
//! # }
//! ```
//!
//! The crate `nowait-probe` tells beforehand, for a path: how io_uring serves each kind of request
//! there, and where this library sends it.
//!
//! # A durable log
//!
//! The crate `nowait-log` keeps many small records on stable storage, and gives them back after a
//! crash.
//!
//! # A file in memory
//!
//! [`map`] maps files, brings their pages in in the background, and tells as they come; see there.
//!
//! # Cancellation
//!
//! An operation does nothing until it is polled or waited for. Dropping it at any time is safe, and
//! so is leaking it: buffer and descriptor belong to the operation until the kernel is through with
//! them. What the kernel has begun is not called back; it completes, is counted as `cancelled`, and
//! is freed. The buffer is gone with it.
//!
//! ```
//! use futures::FutureExt;
//!
//! # fn main() -> nowait::Result<()> {
//! # let dir = tempfile::tempdir().unwrap();
//! # let path = dir.path().join("table.dat");
//! # std::fs::write(&path, vec![7; 8192]).unwrap();
//! # let file = nowait::File::open(&path).wait()?;
//! // Polled once: there if it was cached, else given up; the kernel goes on reading into the page cache.
//! match file.read_range(4096, 4096).now_or_never() {
//!     Some(page) => println!("cached: {} bytes", page?.len()),
//!     None => println!("not cached"),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Threads
//!
//! Futures are `Send`, [`File`] and [`Nowait`] are `Sync` and cheap to clone. Threads of the
//! library exist only where they are needed:
//!
//! * `nowait-pool`: come with work for which io_uring would only use a kernel worker (an open,
//!   advice, a read on tmpfs, overlayfs or FUSE that is not expected to be quick), with reads of
//!   more than [`Builder::inline_bytes_max`], and with every slow operation where io_uring is
//!   refused. At most [`Builder::pool_threads_max`]; they go when they have been idle for 5 s.
//! * `nowait-reaper`: one for each instance, as soon as a future submits to a shared ring: it
//!   notices completions and wakes wakers. There is none for [`block_on`], for `wait`, for an event
//!   loop with a [`LoopRing`], and, with the `tokio` feature, for tasks on a tokio runtime that was
//!   attached (`Nowait::attach_tokio`).
//! * `nowait-helper`: serves the queue of a thread that does something else, while others wait for
//!   what is in it.
//!
//! After a `fork` the child makes rings and threads of its own. Operations that were in flight in
//! the parent never complete in the child.
//!
//! # Features
//!
//! None is on by default. They add to the interface or to the ways of completion without changing
//! results.
//!
//! * `tokio`: submissions of a worker's tasks are collected. In a runtime that was attached (`Nowait::attach_tokio`) the ring's
//!   descriptor sits in tokio's own reactor, and no thread of ours is needed. Without the feature
//!   everything works on tokio too, by way of the reaper thread.
//! * `bytes`: `bytes::BytesMut` for reads and writes, `bytes::Bytes` for writes.
//! * `stream`: a stream's reader is a `futures_core::Stream` of `bytes::Bytes`.
//! * `futures-io`: `AsyncRead`, `AsyncWrite` and the like of futures-io for streams.
//!
//! # Where it runs
//!
//! Linux only. Nothing depends on a kernel version: what a kernel, a filter or a limit refuses is
//! found out by trying, and something else serves.

mod buf;
mod core;
mod direct;
mod engine;
mod error;
mod file;
pub mod fs;
mod gather;
#[cfg(test)]
mod layout;
pub mod map;
mod op;
mod operation;
mod stats;
pub mod stream;
mod sys;
pub mod turn;
mod write;

pub use self::core::instance::{Builder, Engine, Nowait, Refusal};
pub use self::core::policy::Route;
#[cfg(nowait_count)]
#[doc(hidden)]
pub use buf::count::{contended_locks, locks};
pub use buf::{BUF_ALIGNMENT, Buf, Erased, Lent, ReadBuffer, ReadBuffers, WriteBuffer, WriteBuffers};
pub use engine::loop_ring::LoopRing;
pub use engine::sim;
pub use error::{BufferError, BufferResult, Error, ErrorKind, ErrorOp, Moved, Result, Written};
pub use file::{Advice, Closed, DirectIo, File, OpenOptions, RangeLock};
pub use gather::{Exceptions, Gather, GatherEach, Gathered, Ranges};
pub use operation::{Operation, Started, Steps, Write};
pub use stats::Stats;
pub use sys::{PerProcess, fork_generation};
pub use write::{Allocate, Settled, WriteMany};

/// Runs a future to its end on the calling thread, which drives a ring of its own meanwhile.
///
/// Reads that the future submits are staged in this thread's ring. When there is nothing left to
/// poll, one system call submits what is staged and waits for the first completion. So one thread
/// keeps many operations in flight, with no other thread and at the cost of a hand-written io_uring
/// loop. (Of many, the first leave earlier, so that the device is not idle while the others are
/// prepared.)
///
/// ```
/// use futures::stream::{FuturesUnordered, StreamExt};
///
/// # fn main() -> nowait::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("table.dat");
/// # std::fs::write(&path, vec![7; 1 << 20]).unwrap();
/// # let file = nowait::File::open(&path).wait()?;
/// // 256 blocks, 32 in flight at any time, each handled as it completes.
/// let sum = nowait::block_on(async {
///     let mut offsets = (0..256).map(|block| block * 4096);
///     let mut reads: FuturesUnordered<_> = offsets.by_ref().take(32).map(|at| file.read_range(at, 4096)).collect();
///     let mut sum = 0;
///     while let Some(block) = reads.next().await {
///         sum += block?.iter().map(|byte| u64::from(*byte)).sum::<u64>();
///         reads.extend(offsets.next().map(|at| file.read_range(at, 4096)));
///     }
///     Ok::<u64, nowait::Error>(sum)
/// })?;
/// # assert_eq!(sum, 7 << 20);
/// # Ok(())
/// # }
/// ```
///
/// It is no executor with tasks: what runs at the same time is what the future itself joins. The
/// future may use anything else that wakes its waker, from whatever thread. Where this thread
/// cannot have a ring, the operations go to the pool and all this works the same.
///
/// Operations that were dropped, or moved to another thread, end without this thread: after
/// `block_on` returns, and also while the future computes or blocks. A helper thread then submits
/// and notices in its place. It comes at once where another operation waits for one of these, else
/// within a tenth of a second.
///
/// Inside the future, `wait`, `read_into`, `gather_into` and `block_on` itself may be used; they do
/// not disturb what is in flight.
///
/// # Blocking in another way
///
/// While the future blocks this thread by other means (another executor's `block_on`, such as
/// `futures::executor::block_on`, receiving from a channel, joining a thread), what is in flight
/// here goes on by help, later than it could. A small write that was polled in the same turn is
/// made at the end of that turn only: if the thread blocks for that, it waits for ever. Use this
/// `block_on` inside, or `await`.
pub fn block_on<F: std::future::Future>(future: F) -> F::Output {
    engine::local::drive(future)
}

/// The guide's examples, as tests.
#[cfg(doctest)]
mod guide {
    macro_rules! pages {
        ($($name:ident $file:literal)*) => {
            $(#[doc = include_str!(concat!("../../../docs/guide/", $file))] struct $name;)*
        };
    }

    #[doc = include_str!("../../../README.md")]
    struct Readme;

    pages! { Read "read.md" Gather "gather.md" Write "write.md" Direct "direct.md" Stream "stream.md" Fs "fs.md" Map "map.md" }

    #[cfg(feature = "tokio")]
    pages! { Tokio "tokio.md" }
}
