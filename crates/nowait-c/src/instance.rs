//! Versions, messages, and instances.
//!
//! `unsafe` here: entry points, and their callers' pointers.

use std::ffi::{c_char, c_int};
use std::time::Duration;

use nowait::{Builder, Engine, Nowait, Stats};

use crate::border::{self, Growing, answer, count, fill, status};
use crate::failure::{Failure, Result, last_text};
use crate::handle::{HandleKind, Table, Used};

/// Version of the interface that this header describes: NOWAIT_VERSION_MAJOR.MINOR.PATCH.
pub const NOWAIT_VERSION_MAJOR: u32 = 0;
/// See NOWAIT_VERSION_MAJOR.
pub const NOWAIT_VERSION_MINOR: u32 = 1;
/// See NOWAIT_VERSION_MAJOR.
pub const NOWAIT_VERSION_PATCH: u32 = 0;

/// io_uring if available; else libaio for direct I/O, if available; else threads of the library.
pub const NOWAIT_ENGINE_AUTO: u32 = 0;
/// io_uring, or -ENOSYS.
pub const NOWAIT_ENGINE_URING: u32 = 1;
/// libaio for direct I/O, or -ENOSYS; threads for all else.
pub const NOWAIT_ENGINE_AIO: u32 = 2;
/// Threads of the library only.
pub const NOWAIT_ENGINE_POOL: u32 = 3;

/// Handle of an instance: engines, policy and counters, which its files share. 0 is the shared
/// instance of the process; its first use creates it, and it needs no close.
pub type InstanceHandle = u64;

pub(crate) static INSTANCES: Table<Nowait> = Table::new(HandleKind::Instance);

/// Options of an instance. Zero the struct, set `size`, then set the members that differ from the
/// default.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct InstanceOptions {
    /// sizeof(struct nowait_instance_options).
    pub size: usize,
    /// One of NOWAIT_ENGINE_...
    pub engine: u32,
    /// 1: the submitting thread makes only non-blocking reads (RWF_NOWAIT).
    pub strict: u32,
    /// Maximum duration of a plain call on the submitting thread, for files that refuse RWF_NOWAIT:
    /// this, plus a nanosecond for each byte. 0: 100 us.
    pub stall_budget_ns: u64,
    /// Maximum number of bytes that a submission copies from the page cache inline. 0: 1 MiB.
    pub inline_bytes_max: u64,
    /// Maximum number of pool threads for each device. 0: 64.
    pub pool_threads_max: u64,
    /// Maximum number of bytes of unfinished writes to one file. 0: 16 MiB.
    pub file_write_bytes_max: u64,
    /// Maximum number of bytes of unfinished writes to all files. 0: 64 MiB.
    pub write_bytes_max: u64,
}

// SAFETY: `repr(C)`, `size` first, numbers only.
unsafe impl Growing for InstanceOptions {
    const FIRST_BYTES: usize = size_of::<InstanceOptions>();
}

/// Counters of an instance since it was created. Each started operation ends in exactly one of
/// served_inline, blocking, ring, aio, pool, cancelled, failed.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct InstanceStats {
    /// sizeof(struct nowait_instance_counters).
    pub size: usize,
    /// Operations started. A gather counts each of its requests.
    pub started: u64,
    /// Operations served on the submitting thread, without waiting.
    pub served_inline: u64,
    /// Operations served by a plain system call of a blocking function, such as nowait_read_at.
    pub blocking: u64,
    /// Operations completed by io_uring.
    pub ring: u64,
    /// Operations completed by libaio.
    pub aio: u64,
    /// Operations completed by a pool thread.
    pub pool: u64,
    /// Operations cancelled before the engine completed them.
    pub cancelled: u64,
    /// Operations that ended in an error.
    pub failed: u64,
    /// Non-blocking attempts (RWF_NOWAIT).
    pub attempts: u64,
    /// Attempts that found nothing cached.
    pub misses: u64,
    /// Plain calls on a submitting thread that took longer than the stall budget.
    pub stalls: u64,
    /// Operations that waited for a place in a full queue.
    pub queued: u64,
    /// Writes that waited because too many bytes were in flight.
    pub throttled: u64,
    /// Bytes that direct reads transferred beyond the requested range.
    pub widened_bytes: u64,
}

// SAFETY: `repr(C)`, `size` first, numbers only.
unsafe impl Growing for InstanceStats {
    const FIRST_BYTES: usize = size_of::<InstanceStats>();
}

/// Returns the message of the last failed call of this thread: operation, path, offset, length,
/// cause, and what to do next; "" if no call has failed. The message is valid until another call of
/// this thread fails, or the thread ends. Do not pass the failing call and this call as arguments
/// of one function: C does not define their order.
#[unsafe(no_mangle)]
pub extern "C" fn nowait_error_message() -> *const c_char {
    last_text()
}

/// Returns the version of the loaded library, such as "0.1.0". It may be newer than the header that
/// the program was built with. Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn nowait_version() -> *const c_char {
    const { concat!(env!("CARGO_PKG_VERSION"), "\0") }.as_ptr().cast()
}

/// Creates an instance with separate engines, policy and counters. `options` may be NULL. Threads:
/// any.
///
/// Returns 0, or a negative errno: -ENOSYS if the engine is not available here.
///
/// # Safety
/// `options` is NULL or points to as many bytes as its size says; `instance` to a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_instance_open(options: *const InstanceOptions, instance: *mut InstanceHandle) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (options, instance) = unsafe { (border::options(options, "options")?, answer(instance, "instance")?) };
        instance.write(INSTANCES.insert(builder(&options)?.build()?)?);
        Ok(())
    })
}

fn builder(options: &InstanceOptions) -> Result<Builder> {
    let engine = match options.engine {
        NOWAIT_ENGINE_AUTO => Engine::Auto,
        NOWAIT_ENGINE_URING => Engine::Uring,
        NOWAIT_ENGINE_AIO => Engine::Aio,
        NOWAIT_ENGINE_POOL => Engine::Pool,
        other => {
            return Err(Failure::new(libc::EINVAL, format!("options.engine is {other}; give a NOWAIT_ENGINE_...")));
        }
    };
    let mut builder = Nowait::builder().engine(engine).strict(options.strict != 0);
    if options.stall_budget_ns > 0 {
        builder = builder.stall_budget(Duration::from_nanos(options.stall_budget_ns));
    }
    if options.inline_bytes_max > 0 {
        builder = builder.inline_bytes_max(usize::try_from(options.inline_bytes_max).unwrap_or(usize::MAX));
    }
    if options.pool_threads_max > 0 {
        builder = builder.pool_threads_max(usize::try_from(options.pool_threads_max).unwrap_or(usize::MAX));
    }
    let or = |bytes: u64, default: u64| if bytes == 0 { default } else { bytes };
    Ok(builder.write_bytes_max(or(options.file_write_bytes_max, 16 << 20), or(options.write_bytes_max, 64 << 20)))
}

/// Closes the handle of an instance. Files that were opened in the instance, and operations in
/// flight, are not affected. Threads: any.
///
/// Returns 0, or -EBADF if the handle is not open.
#[unsafe(no_mangle)]
pub extern "C" fn nowait_instance_close(instance: InstanceHandle) -> c_int {
    status(|| INSTANCES.close(instance).map(drop))
}

/// Stores the counters of an instance in `stats`. They are not a consistent snapshot while
/// operations are in flight. Threads: any.
///
/// Returns 0, or a negative errno.
///
/// # Safety
/// `stats` points to as many bytes as its size says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_instance_stats(instance: InstanceHandle, stats: *mut InstanceStats) -> c_int {
    status(|| {
        let counted = with_instance(instance, |nowait| Ok(nowait.stats()))?;
        // SAFETY: the caller's promise.
        unsafe { fill(stats, &InstanceStats::from(counted), "stats") }
    })
}

/// Returns 1 if the instance can use io_uring, 0 if not, or -EBADF. Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn nowait_instance_has_ring(instance: InstanceHandle) -> c_int {
    count(|| with_instance(instance, |nowait| Ok(nowait.has_ring().into()))) as c_int
}

/// Calls `with` with an instance; 0 means the shared one.
pub(crate) fn with_instance<R>(instance: InstanceHandle, with: impl FnOnce(&Nowait) -> Result<R>) -> Result<R> {
    if instance == 0 {
        return with(Nowait::shared());
    }
    let used: Used<'_, Nowait> = INSTANCES.get(instance)?;
    with(&used)
}

impl From<Stats> for InstanceStats {
    fn from(stats: Stats) -> InstanceStats {
        InstanceStats {
            size: size_of::<InstanceStats>(),
            started: stats.started,
            served_inline: stats.inline,
            blocking: stats.blocking,
            ring: stats.ring,
            aio: stats.aio,
            pool: stats.pool,
            cancelled: stats.cancelled,
            failed: stats.failed,
            attempts: stats.attempts,
            misses: stats.misses,
            stalls: stats.stalls,
            queued: stats.queued,
            throttled: stats.throttled,
            widened_bytes: stats.widened_bytes,
        }
    }
}
