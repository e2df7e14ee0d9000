//! Interface for language bindings, event loops and crates that embed this library.
//!
//! A program that reads and writes files needs none of it. This module is covered by semantic
//! versioning like the rest of the crate: the crates that use it, such as `nowait-log`, are
//! published separately, and cargo may combine an older release of theirs with a newer one of
//! `nowait`.
//!
//! * Event loops without a Rust executor: [`LoopRing`].
//! * Blocking calls on the pool: [`blocking`].
//! * Futures that a thread of the library runs: [`start`].
//! * Threads that serve others: [`spawn`], [`spawn_scoped`].
//! * Before this thread blocks on anything else: [`notice_by_thread`].
//! * State of a process that may fork: [`PerProcess`], [`fork_generation`].
//! * Futures that return data from memory: [`turn`].
//! * Clocks that a simulator may replace: [`now`], [`wall_clock`].
//! * Memory that the page cache may use: [`available_bytes`].

use std::any::Any;
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use crate::sys::{BorrowedFd, Errno};

use crate::core::available;
use crate::core::instance::Nowait;
use crate::error::{Error, ErrorKind, ErrorOp, Result};
use crate::op::watcher::{self, Of};
use crate::op::{Call, Request};
use crate::operation::Operation;
use crate::started::{Answer, Started, called};

pub use crate::engine::loop_ring::LoopRing;
#[cfg(nowait_count)]
#[doc(hidden)]
pub use crate::sync::count::{contended_locks, locks};
pub use crate::sys::{PerProcess, fork_generation, spawn, spawn_scoped};

/// Turns: the time for which a thread serves one task before others run there.
///
/// An operation that is served inline is ready at its first poll. A task with many such operations
/// would never yield. So the library charges a thread for inline service, and makes the task that
/// is being served yield after 2.5 to 5 µs.
///
/// Operations, gathers, streams, batches of writes and a log's futures yield in this way. A future
/// of another crate that returns data from memory calls [`copied`](turn::copied), and then
/// [`ends`](turn::ends):
///
/// ```
/// use nowait::embed::turn;
/// use std::future::poll_fn;
/// use std::task::Poll;
///
/// # let record = vec![7; 100];
/// # nowait::block_on(async {
/// let mut copied = None;
/// let record = poll_fn(|context| {
///     if copied.is_none() {
///         turn::copied(record.len());
///         copied = Some(record.clone());
///         if turn::ends(context) {
///             return Poll::Pending;
///         }
///     }
///     copied.take().map_or(Poll::Pending, Poll::Ready)
/// });
/// assert_eq!(record.await, [7; 100]);
/// # });
/// ```
pub mod turn {
    pub use crate::turn::{copied, ends};
}

/// Hands the in-flight completions of all tokio runtimes and event loops to a thread of the library.
///
/// Call it before this thread blocks until an operation of another thread or task completes, for
/// example in a receive from a channel. If this thread drives the tokio runtime that reaps that
/// operation, the completion would not be noticed otherwise. [`Operation::wait`] calls it.
pub fn notice_by_thread() {
    watcher::ask_of(Of::Reactors);
}

/// Returns the time of the instance's monotonic clock: the system's, or its simulator's.
#[cfg_attr(not(feature = "sim"), expect(unused_variables))]
pub fn now(nowait: &Nowait) -> Instant {
    #[cfg(feature = "sim")]
    if let Some(sim) = nowait.0.sim() {
        return sim.now();
    }
    Instant::now()
}

/// Returns the time since 1970 by the wall clock of the system, or of the instance's simulator.
/// Returns zero if the clock is before 1970.
#[cfg_attr(not(feature = "sim"), expect(unused_variables))]
pub fn wall_clock(nowait: &Nowait) -> Duration {
    #[cfg(feature = "sim")]
    if let Some(sim) = nowait.0.sim() {
        return sim.wall_clock();
    }
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// Returns the bytes of memory that a process may use before the system swaps or kills. The result
/// is the smaller of two values: `MemAvailable` of `proc_meminfo(5)`, and the unused memory of this
/// process's memory cgroup (version 2). Page cache that can be dropped counts as available.
///
/// Returns `None` if the system does not report it. The call reads a few files of `/proc` and
/// `/sys`, and waits for no device.
///
/// ```
/// let large = nowait::embed::available_bytes().is_some_and(|available| (8 << 30) > available / 2);
/// # let _ = large;
/// ```
pub fn available_bytes() -> Option<u64> {
    available::available_bytes()
}

/// Calls `function`, which may block: on a pool thread if awaited, usually on this thread in
/// [`wait`](Operation::wait). Use it to make several calls of std on one thread.
///
/// An error contains `operation` and `path` if the call cannot be made. If the future is dropped
/// early, the call may or may not be made. `function` must not wait for work that needs a pool
/// thread, since their number is limited
/// ([`Builder::pool_threads_max`](crate::Builder::pool_threads_max)).
///
/// ```
/// use nowait::{ErrorKind, ErrorOp, Nowait, embed};
///
/// # fn main() -> nowait::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # std::fs::write(dir.path().join("one"), "1").unwrap();
/// let bytes = embed::blocking(Nowait::shared(), ErrorOp::List, dir.path(), |path| {
///     let sizes = std::fs::read_dir(path)?.map(|entry| Ok(entry?.metadata()?.len()));
///     sizes.sum::<std::io::Result<u64>>()
/// });
/// assert_eq!(bytes.wait()?.unwrap(), 1);
/// let failed = embed::blocking(Nowait::shared(), ErrorOp::List, dir.path(), |_| -> u64 { panic!("no idea") });
/// assert_eq!(failed.wait().unwrap_err().kind(), ErrorKind::Other);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`ErrorKind::Other`] if `function` panicked,
/// [`ErrorKind::Unsupported`] on a simulator.
pub fn blocking<T: Send + 'static>(
    nowait: &Nowait,
    operation: ErrorOp,
    path: impl AsRef<Path>,
    function: impl FnOnce(&Path) -> T + Send + 'static,
) -> Operation<'_, Result<T>> {
    // A panic must not end the pool's thread. Nothing sees what it left half done but `T`, which is
    // lost.
    // In mutexes that are never locked: calls and answers are `Sync`, and these need not be.
    let mut function = Mutex::new(Some(function));
    let guarded = move |path: &Path, _: Option<BorrowedFd<'_>>| {
        let function = function.get_mut().unwrap_or_else(PoisonError::into_inner).take().ok_or(Errno::INVAL)?;
        let result = catch_unwind(AssertUnwindSafe(|| function(path)));
        Ok(Mutex::new(result.map_err(|panic| what_panicked(&*panic))))
    };
    let call = Call::new(operation, path.as_ref(), guarded);
    Operation::new(nowait.0.target(), Request::Call(Box::new(call)), guarded_call)
}

/// Runs a future on the library's thread `nowait-driver`, as [`Gather::start`](crate::Gather::start)
/// does. Its reads share that thread's ring. Dropping the [`Started`] drops
/// the future, on a pool thread.
///
/// All such futures of the process share the thread: they must not block it, nor compute for long.
/// If the future panics, the [`Started`] panics with the same payload in `wait` or in a poll, and a
/// callback is not called. After a `fork`, the child polls no future of its parent.
///
/// ```
/// use nowait::{File, embed};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("table.dat");
/// # std::fs::write(&path, vec![7; 10_000])?;
/// let sum = embed::start(async move {
///     let file = File::open(path).await?;
///     let pages = file.gather(&[(0, 100), (8192, 100)]).await?;
///     nowait::Result::Ok(pages.into_buffer().iter().map(|byte| u64::from(*byte)).sum::<u64>())
/// })?;
/// assert_eq!(sum.wait()?, 1400);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Those of starting a thread. The future is dropped then.
pub fn start<F>(future: F) -> io::Result<Started<F::Output>>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    Started::try_driven(future).map_err(|(error, _)| error)
}

fn what_panicked(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or(panic.downcast_ref::<String>().map(String::as_str));
    format!("the function panicked: {}", text.unwrap_or("no message"))
}

/// Concludes a call of the user's.
fn guarded_call<T: Send + 'static>(answer: Answer<'_>) -> Result<T> {
    let (operation, path) = match &*answer.request {
        Request::Call(call) => (call.operation, Arc::from(&*call.path)),
        request => unreachable!("a call is answered with itself, not {request:?}"),
    };
    let result: Mutex<std::result::Result<T, String>> = called(answer)?;
    result
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner)
        .map_err(|text| Error::new(operation, ErrorKind::Other).at(&path).with_detail(text))
}
