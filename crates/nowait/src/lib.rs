//! Asynchronous file I/O for Linux: cached data inline, the rest through io_uring or a thread pool.
//!
//! An operation is first tried on the caller's thread, without waiting for the device. Otherwise it
//! goes to io_uring, or to a pool thread if io_uring is refused or would not help. The best route
//! depends on the file system and on the page cache. The library chooses it for each operation,
//! from the results of the file's earlier operations. Counters record every choice.
//!
//! The library offers:
//!
//! * reads and writes: single, vectored, and many in one call;
//! * syncs, which share a system call if several are requested at a time;
//! * sequential streams, memory maps, and the functions of `std::fs`.
//!
//! # A read
//!
//! An operation has an explicit offset and owns its buffer. Await it on any executor, or call
//! `wait` without one:
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
//! [`File::read_range`] returns exactly the requested bytes, in a pooled, page-aligned [`Buf`], or
//! fails. [`File::read_at`] fills the caller's buffer and returns it, also with an error
//! ([`BufferError`]). It reads fewer bytes only at the end of the file. [`File::read_into`] blocks
//! and fills a borrowed slice.
//!
//! # A gather
//!
//! A gather reads many ranges of one file in one call, in any order, into one buffer:
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
//! Cached ranges are copied at once. The others are sorted, neighbours are merged, and a bounded
//! number of reads stays in flight until all are read. See [`Gather`]. [`File::gather_into`] blocks
//! and fills a borrowed slice.
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
//! A write completes when its bytes are in the page cache. It is durable after a later
//! [`File::sync_data`], or on completion if it was made [`durable`](Write::durable).
//!
//! When polled, a write runs on the polling thread if it should not block; otherwise a pool thread
//! makes it. See [`File::write_at`]. One thread at a time makes the queued writes of a file, in
//! order, and merges neighbours into one call. A small write may wait, on any executor, until its
//! task or another that writes the file is polled next; then one call makes adjacent writes. The
//! bytes in flight are bounded ([`Builder::write_bytes_max`]).
//!
//! # Direct I/O and streams
//!
//! [`OpenOptions::direct`] requests direct I/O (`O_DIRECT`), at any offset, of any length, to and
//! from any memory. [`File::direct`] returns whether the file granted it. [`stream::Reader`] reads
//! ahead and [`stream::Writer`] writes behind, on any file, for threads and for tasks.
//!
//! # Many reads from one thread
//!
//! [`block_on`] runs a future on the calling thread, which has its own ring. Reads that the future
//! submits are staged and submitted together:
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
//! # A separate instance
//!
//! [`File::open`] uses an instance that the process shares. [`Nowait::builder`] makes an instance
//! with its own engine, policy and counters:
//!
//! ```
//! use nowait::{Engine, Nowait, OpenOptions};
//!
//! # fn main() -> nowait::Result<()> {
//! # let dir = tempfile::tempdir().unwrap();
//! # let path = dir.path().join("table.dat");
//! # std::fs::write(&path, vec![7; 4096]).unwrap();
//! // Without io_uring; inline only non-blocking attempts.
//! let nowait = Nowait::builder().engine(Engine::Pool).strict(true).build()?;
//! let file = OpenOptions::new().read(true).open_in(&nowait, &path).wait()?;
//! assert!(!nowait.has_ring());
//! # assert_eq!(file.size().wait()?, 4096);
//! # Ok(())
//! # }
//! ```
//!
//! # Counters and refusals
//!
//! * [`Nowait::stats`] returns the number of operations by route.
//! * [`Nowait::ring_refusal`] returns the reason if io_uring is not used.
//! * [`Nowait::aio_refusal`] returns the reason if libaio does not replace io_uring for direct I/O.
//! * [`File::nowait_reads`] returns whether the file accepts non-blocking reads.
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
//! The crate `nowait-probe` examines a path beforehand. It reports how io_uring serves each kind of
//! request there, and by which route this library sends it.
//!
//! # A durable log
//!
//! The crate `nowait-log` writes many small records to stable storage, and recovers them after a
//! crash.
//!
//! # Memory maps
//!
//! The module [`map`] maps files, populates their pages in the background, and reports progress.
//!
//! # Cancellation
//!
//! An operation does nothing until it is polled or waited for. Dropping or leaking it is safe at
//! any time: the operation owns buffer and descriptor until the kernel is done with them. A request
//! that the kernel has begun is not cancelled. The request completes, counts as `cancelled`, and is
//! freed together with its buffer.
//!
//! ```
//! use futures::FutureExt;
//!
//! # fn main() -> nowait::Result<()> {
//! # let dir = tempfile::tempdir().unwrap();
//! # let path = dir.path().join("table.dat");
//! # std::fs::write(&path, vec![7; 8192]).unwrap();
//! # let file = nowait::File::open(&path).wait()?;
//! // Polls once: returns cached data, or drops the read, which still fills the page cache.
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
//! Futures are `Send`. [`File`] and [`Nowait`] are `Sync` and cheap to clone. The library starts
//! threads only when it needs them:
//!
//! * `nowait-pool`: up to [`Builder::pool_threads_max`] threads for each device. A thread ends
//!   after 5 s without work. Pool threads serve requests for which io_uring would use a kernel
//!   worker, such as opens, advice, and slow reads on tmpfs, overlayfs or FUSE. They also serve
//!   reads of more than [`Builder::inline_bytes_max`], and all slow operations if io_uring is
//!   refused.
//! * `nowait-watch-2` and higher: one thread of the process for each eight shared rings, started
//!   when a future submits to such a ring. It reaps completions and calls wakers. [`block_on`],
//!   `wait` and an event loop with a [`embed::LoopRing`] do not need it. Tasks on an attached tokio
//!   runtime (`Nowait::attach_tokio`, feature `tokio`) do not either.
//! * `nowait-driver`: one thread for the process, started by the first [`Gather::start`],
//!   [`Steps::start`], [`WriteMany::start`] or `on_complete` of these. It runs them to completion and
//!   calls their callbacks, and those of completions that a thread of the program notices.
//! * `nowait-watch-1`: submits and reaps operations of a thread, a runtime or an event loop that is
//!   busy elsewhere.
//! * `nowait-watch-0`: checks each 50 ms, while operations are in flight, which queues another
//!   thread must serve, and which `nowait-watch` threads hang.
//!
//! A waker runs on one of these threads, or on a thread of the program that submits or polls another
//! operation and reaps this one's completion. So a waker must not block, nor take a lock that the
//! program holds while it submits or polls. A callback runs on these threads only
//! ([`Operation::on_complete`]).
//!
//! These threads block signals, except those that an instruction raises, such as SIGSEGV. Their CPU
//! affinity and scheduling policy do not depend on the thread that needs them first
//! ([`embed::spawn`]).
//!
//! After a `fork` the child makes new rings and threads. Operations that were in flight in the
//! parent never complete in the child.
//!
//! # Features
//!
//! No feature is on by default. A feature adds to the interface or speeds up completion; it changes
//! no results.
//!
//! * `tokio`: submits the requests of a worker's tasks together. In an attached runtime
//!   (`Nowait::attach_tokio`) tokio's reactor watches the ring, and no thread of the library is
//!   needed. Without the feature the crate works on tokio, too, through the thread `nowait-watch-2`.
//!   The feature also adds `stream::TokioIo`, which implements tokio's I/O traits.
//! * `bytes`: accepts `bytes::BytesMut` for reads and writes, and `bytes::Bytes` for writes.
//! * `stream`: adds `stream::Chunks`, a `futures_core::Stream` of `bytes::Bytes`.
//! * `futures-io`: adds `stream::FuturesIo`, which implements the traits of futures-io, such as
//!   `AsyncRead` and `AsyncWrite`.
//!
//! Three features are for tests and measurements:
//!
//! * `sim`: a simulated disk with seeded faults and crashes (`nowait::sim`, `Engine::Sim`).
//! * `forced-routes`: one route for all operations of an instance (`Builder::route`).
//! * `tokio-test-util`: stops tokio's paused clock while operations are in flight.
//!
//! # Where it runs
//!
//! Linux, macOS and Windows. Only Linux has queues to the kernel, non-blocking attempts, direct I/O and
//! populated maps. Elsewhere the calling thread or a pool thread makes plain calls. A call that the
//! system lacks fails with [`ErrorKind::Unsupported`], or has no effect. `docs/platforms.md` lists the
//! differences.
//!
//! The crate does not compare kernel versions. It tries a call, and uses another route if the kernel,
//! a seccomp filter or a limit refuses the call.

// Other systems do not use the code for queues to the kernel.
#![cfg_attr(not(target_os = "linux"), allow(dead_code))]
#![cfg_attr(docsrs, feature(doc_cfg), doc(auto_cfg(hide(target_os = "linux"))))]

mod buf;
mod core;
mod direct;
mod driver;
pub mod embed;
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
#[cfg(test)]
mod pages;
mod started;
mod stats;
pub mod stream;
mod sync;
mod sys;
mod turn;
#[doc(hidden)]
pub mod wait;
mod write;

pub use self::core::instance::{Builder, Engine, Nowait, Refusal};
#[cfg(feature = "forced-routes")]
pub use self::core::policy::Route;
pub use buf::{BUF_ALIGNMENT, Buf, Lent, ReadBuffer, ReadBuffers, WriteBuffer, WriteBuffers};
#[cfg(feature = "sim")]
pub use engine::sim;
pub use error::{BufferError, BufferResult, Error, ErrorKind, ErrorOp, Moved, Result, Written};
pub use file::{Advice, Closed, DirectIo, File, OpenOptions, RangeLock, TryLockError};
pub use gather::{Exceptions, Gather, GatherEach, Gathered, Ranges};
pub use operation::{Operation, Steps, Write};
pub use started::Started;
pub use stats::Stats;
pub use wait::Wait;
pub use write::{Allocate, Settled, WriteMany};

/// Runs a future to completion on the calling thread, which drives its own ring meanwhile.
///
/// Reads that the future submits are staged in this thread's ring. When no future is left to poll,
/// one system call submits the staged reads and waits for the first completion. So one thread keeps
/// many operations in flight, as cheaply as a hand-written io_uring loop. If many reads are staged,
/// the first ones are submitted earlier, to keep the device busy.
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
/// `block_on` is not an executor with tasks: it runs one future, which may join others. The future
/// may await anything else that wakes its waker, from any thread. If this thread cannot create a
/// ring, its operations go to the pool, with the same results.
///
/// Operations that were dropped, or moved to another thread, complete without this thread: after
/// `block_on` returns, and while the future computes or blocks. The thread `nowait-watch-1` then
/// submits and reaps in place of this thread. It begins at once if another operation waits for an
/// operation of this thread, otherwise within about 0.1 s.
///
/// The future may call `wait`, `read_into`, `gather_into` and `block_on` itself. These calls do not
/// disturb the operations in flight.
///
/// # Blocking this thread by other means
///
/// The future may block this thread by other means: another executor's `block_on`, receiving from a
/// channel, joining a thread. The thread `nowait-watch-1` then completes the operations in flight,
/// with a delay.
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

    #[cfg(feature = "tokio")]
    #[doc = include_str!("../../../README.md")]
    struct Readme;

    #[doc = include_str!("../README.md")]
    struct CrateReadme;

    pages! { Read "read.md" Gather "gather.md" Write "write.md" Direct "direct.md" Stream "stream.md" Fs "fs.md" Map "map.md" }

    pages! { FromRuntimes "from-runtimes.md" WhenNot "when-not.md" }

    #[cfg(feature = "tokio")]
    pages! { FromTokioFs "from-tokio-fs.md" }

    // Its example stops a paused clock.
    #[cfg(feature = "tokio-test-util")]
    pages! { Tokio "tokio.md" }
}
