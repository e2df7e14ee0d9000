//! The operating system: calls that std lacks, and names for their flags and errors. No other module
//! depends on the system, except as ARCHITECTURE.md lists. EINTR of plain calls is handled only here
//! (that of an engine's completions: in `op::step`).
//!
//! A call that a system lacks fails as if a kernel or a filter refused it (ENOSYS, EOPNOTSUPP). Callers
//! then take another route.

#[cfg(not(target_os = "linux"))]
mod absent;
mod once;
#[cfg(not(target_os = "linux"))]
mod poller;
#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

use std::cell::Cell;
use std::thread::{Builder, JoinHandle, Scope, ScopedJoinHandle};

#[cfg(not(target_os = "linux"))]
pub(crate) use self::absent::*;
pub use self::once::PerProcess;
pub(crate) use self::once::WriteOnce;
#[cfg(not(target_os = "linux"))]
pub(crate) use self::poller::{Poller, WakeEvent};
#[cfg(unix)]
pub use self::unix::fork_generation;
#[cfg(unix)]
pub(crate) use self::unix::*;
#[cfg(windows)]
pub use self::windows::fork_generation;
#[cfg(windows)]
pub(crate) use self::windows::*;

/// The most that one read or write moves: `MAX_RW_COUNT` (`read(2)`, NOTES). Longer requests come
/// back short.
pub(crate) const TRANSFER_MAX: usize = 0x7fff_f000;

/// The most segments that one vectored call takes: `UIO_MAXIOV` (`readv(2)`).
pub(crate) const SEGMENTS_MAX: usize = 1024;

/// How a read may behave when the data is not in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WaitMode {
    /// Sleep until the device answers.
    Allowed,
    /// `RWF_NOWAIT` (Linux 4.14, `preadv2(2)`): return what is cached, or EAGAIN, instead of
    /// sleeping.
    Never,
}

/// Flags of a write: `RWF_DSYNC`, `RWF_NOWAIT`, `RWF_APPEND`, `RWF_DONTCACHE`, `RWF_ATOMIC`
/// (`pwritev2(2)`), by their numbers on Linux.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct WriteFlags(u32);

impl WriteFlags {
    pub(crate) const NONE: WriteFlags = WriteFlags(0);
    /// Linux 4.7.
    pub(crate) const DURABLE: WriteFlags = WriteFlags(0x02);
    /// Linux 4.13. For rings; plain calls take a `WaitMode`.
    pub(crate) const NOWAIT: WriteFlags = WriteFlags(0x08);
    /// Linux 4.16.
    pub(crate) const APPEND: WriteFlags = WriteFlags(0x10);
    /// Linux 6.14.
    pub(crate) const UNCACHED: WriteFlags = WriteFlags(0x80);
    /// Linux 6.11.
    pub(crate) const ATOMIC: WriteFlags = WriteFlags(0x40);

    pub(crate) fn with(self, other: WriteFlags) -> WriteFlags {
        WriteFlags(self.0 | other.0)
    }

    pub(crate) fn contains(self, other: WriteFlags) -> bool {
        self.0 & other.0 == other.0
    }

    pub(crate) fn bits(self) -> u32 {
        self.0
    }
}

/// Advice to the page cache; see `posix_fadvise(2)`.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Nothing special.
    Normal,
    /// Random reads: no read-ahead.
    Random,
    /// Sequential reads: more read-ahead.
    Sequential,
    /// The range will be needed soon: start reading it.
    WillNeed,
    /// The range will not be needed soon: its clean pages may be dropped.
    DontNeed,
    /// The range will be accessed once.
    NoReuse,
}

/// Modes of [`File::allocate`](crate::File::allocate); see `fallocate(2)`.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocate {
    /// Reserves space, and extends the file to the end of the range if it is shorter.
    Reserve,
    /// Reserves space without changing the file's size.
    ReserveKeepSize,
    /// Frees the space; the range then reads as zeros.
    PunchHole,
    /// Zeroes the range, and keeps its space allocated if the file system can.
    Zero,
}

/// State of a lock, of a file or of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FileLock {
    Shared,
    Exclusive,
    Unlocked,
}

/// Advice about memory (`madvise(2)`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MemoryAdvice {
    Normal,
    Random,
    Sequential,
    WillNeed,
    HugePages,
    /// Brings the pages in now.
    Populate,
    /// Returns private memory to the system; it then reads as zeros.
    Discard,
}

/// Limits of a block device's queue, as far as the system states them.
pub(crate) struct QueueLimits {
    /// Requests that fit into the queue before a submission sleeps.
    pub(crate) held_requests: Option<u32>,
    /// Bytes of the longest request, if each page of memory is a segment.
    pub(crate) request_bytes: Option<u32>,
}

/// Result of a copy of a file in which no call failed.
pub(crate) enum CopyOutcome {
    Bytes(u64),
    /// The copy was refused for this reason, and nothing was changed.
    Refused(&'static str),
}

/// Starts a thread for a crate that embeds this library, as the library starts its own threads. The
/// thread serves others, so on Linux it inherits only the memory of the thread that happens to start it.
/// (On macOS, only its signals are blocked. Windows has neither signals nor policies to inherit.)
///
/// * Signals that the system or another process sends are blocked. The program's own threads receive
///   them, and no call of the thread is interrupted. Signals that an instruction raises, such as
///   SIGSEGV, stay unblocked: the kernel ends the process if such a signal is blocked.
/// * Its CPU affinity is that of the process's main thread at the time.
/// * Its scheduling policy is that of the main thread, or `SCHED_OTHER` if the main thread is a
///   real-time thread (`sched(7)`).
///
/// The thread starts even if the system refuses the last two.
///
/// ```
/// let thread = nowait::embed::spawn("worker", || std::thread::current().name().map(str::to_owned))?;
/// assert_eq!(thread.join().unwrap().as_deref(), Some("worker"));
/// # std::io::Result::Ok(())
/// ```
///
/// # Errors
/// Those of starting a thread.
pub fn spawn<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> std::io::Result<JoinHandle<T>> {
    let run = || {
        inherit_from_process();
        run()
    };
    with_signals_blocked(|| Builder::new().name(name.to_owned()).spawn(run))
}

/// Starts a thread that may borrow, as [`spawn`].
///
/// # Errors
/// Those of starting a thread.
pub fn spawn_scoped<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    run: impl FnOnce() -> T + Send + 'scope,
) -> std::io::Result<ScopedJoinHandle<'scope, T>> {
    let run = || {
        inherit_from_process();
        run()
    };
    with_signals_blocked(|| Builder::new().name(name.to_owned()).spawn_scoped(scope, run))
}

/// Starts a thread of this crate, which notices completions, as [`spawn`].
pub(crate) fn spawn_service(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    spawn(name, || calling_back(true, run)).map(drop)
}

thread_local!(static CALLS_BACK: Cell<bool> = const { Cell::new(false) });

/// Whether this thread may run a callback now: it notices completions, and does not run a user's code.
#[inline]
pub(crate) fn calls_back() -> bool {
    CALLS_BACK.get()
}

/// Runs `run` with another answer of [`calls_back`].
#[inline]
pub(crate) fn calling_back<T>(calls_back: bool, run: impl FnOnce() -> T) -> T {
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            CALLS_BACK.set(self.0);
        }
    }
    let _before = Before(CALLS_BACK.replace(calls_back));
    run()
}
