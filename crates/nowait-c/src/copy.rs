//! Copies of files and trees.
//!
//! `unsafe` here: entry points, and their callers' pointers.

use std::ffi::{c_char, c_int};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use nowait_copy::{Ended, Options, Progress, Reflink, Report, Sparse, Started, SyncPolicy, Update, start};

use crate::border::{self, Growing, answer, fill, many, size, status};
use crate::failure::{Failure, Result};
use crate::handle::{HandleKind, Table, Used};

/// Handle of a copy, running or ended; 0 means none. nowait_submit_copy_wait reports the end of the
/// copy to a queue.
pub type CopyHandle = u64;

/// Nothing is durable when a copy ends.
pub const NOWAIT_COPY_SYNC_NONE: u32 = 0;
/// Each file is durable before it is renamed to its final name.
pub const NOWAIT_COPY_SYNC_FILE: u32 = 1;
/// Everything is durable when the copy ends; one sync covers all files.
pub const NOWAIT_COPY_SYNC_ALL: u32 = 2;

/// Drops the pages that the copy added to the page cache.
pub const NOWAIT_COPY_CACHE_NEUTRAL: u32 = 1;
/// Reads each copy back past the page cache and compares checksums.
pub const NOWAIT_COPY_VERIFY: u32 = 2;
/// Keeps the copied part of a file if the copy ends early; the next copy continues there.
pub const NOWAIT_COPY_RESUME: u32 = 4;
/// Counts the files to copy on a separate thread, so that the totals are known early.
pub const NOWAIT_COPY_COUNT_FIRST: u32 = 8;
/// Uses the target as the name of the copy, even if it is a directory.
pub const NOWAIT_COPY_NO_TARGET_DIRECTORY: u32 = 16;
/// Keeps files that exist in the target.
pub const NOWAIT_COPY_KEEP: u32 = 32;
/// Replaces a file in the target only if it is older than the source.
pub const NOWAIT_COPY_KEEP_NEWER: u32 = 64;
/// Shares no blocks with the source.
pub const NOWAIT_COPY_NO_REFLINK: u32 = 128;
/// Makes a hole of every block of zeros.
pub const NOWAIT_COPY_SPARSE: u32 = 256;
/// Writes every block, including holes of the source.
pub const NOWAIT_COPY_NO_HOLES: u32 = 512;

/// Options of a copy. Zero the struct, set `size`, then set the members that differ from the
/// default.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CopyOptions {
    /// sizeof(struct nowait_copy_options).
    pub size: usize,
    /// One of NOWAIT_COPY_SYNC_...
    pub sync: u32,
    /// Bitwise OR of the other NOWAIT_COPY_... flags.
    pub flags: u32,
    /// Maximum number of bytes copied per second. 0: no limit.
    pub bytes_per_second_max: u64,
    /// Maximum number of bytes of this copy that are dirty in the page cache. 0: the limit of the
    /// system.
    pub dirty_bytes_max: u64,
}

// SAFETY: `repr(C)`, `size` first, numbers only.
unsafe impl Growing for CopyOptions {
    const FIRST_BYTES: usize = size_of::<CopyOptions>();
}

/// Progress of a copy.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CopyProgress {
    /// sizeof(struct nowait_copy_state).
    pub size: usize,
    /// Bytes copied so far.
    pub bytes: u64,
    /// Files finished so far.
    pub files: u64,
    /// Total bytes of the files found so far.
    pub bytes_found: u64,
    /// Files found so far.
    pub files_found: u64,
    /// 1: all sources are walked, and the numbers found are the totals.
    pub is_walked: u64,
    /// Time since the start.
    pub elapsed_ns: u64,
}

// SAFETY: `repr(C)`, `size` first, numbers only.
unsafe impl Growing for CopyProgress {
    const FIRST_BYTES: usize = size_of::<CopyProgress>();
}

/// Result of a copy.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CopyReport {
    /// sizeof(struct nowait_copy_report).
    pub size: usize,
    /// Regular files copied.
    pub files: u64,
    /// Directories created, or found in the target.
    pub directories: u64,
    /// Symbolic links, FIFOs, sockets and devices created.
    pub nodes: u64,
    /// Hard links created.
    pub hard_links: u64,
    /// Bytes of data in the files copied, without holes.
    pub bytes: u64,
    /// Files skipped because they exist in the target.
    pub skipped: u64,
    /// Files whose copy was read back and verified.
    pub verified: u64,
    /// Files and directories that could not be copied.
    pub failures: u64,
    /// Entries that were copied, but changed during the copy or lost metadata.
    pub warnings: u64,
    /// 1: the copy was cancelled before its end.
    pub is_cancelled: u64,
    /// Duration of the copy.
    pub elapsed_ns: u64,
}

// SAFETY: `repr(C)`, `size` first, numbers only.
unsafe impl Growing for CopyReport {
    const FIRST_BYTES: usize = size_of::<CopyReport>();
}

static COPIES: Table<Copying> = Table::new(HandleKind::Copy);

/// A copy, and its result.
pub(crate) struct Copying {
    /// The running copy, until a thread waits for it.
    started: Mutex<Option<Started>>,
    report: OnceLock<Result<Report>>,
    ended: Ended,
    progress: Box<dyn Fn() -> Progress + Send + Sync>,
    cancel_flag: Arc<AtomicBool>,
}

impl Copying {
    fn started(&self) -> MutexGuard<'_, Option<Started>> {
        self.started.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Waits for the end.
    fn report(&self) -> Result<&Report> {
        let defect = || Failure::new(libc::ENOTRECOVERABLE, "a defect in the library ended the copy");
        let report = self.report.get_or_init(|| {
            let started = self.started().take().ok_or_else(defect)?;
            // `wait` resumes a panic of the copying thread.
            Ok(catch_unwind(AssertUnwindSafe(|| started.wait())).map_err(|_| defect())??)
        });
        report.as_ref().map_err(Failure::clone)
    }
}

/// Returns the first failure or warning of an ended copy as an error.
fn first_failure(report: &Report) -> Result<()> {
    match report.failures.first().or(report.warnings.first()) {
        Some(failure) => Err(failure.clone().into()),
        None if report.is_cancelled => Err(Failure::new(libc::ECANCELED, "the copy was cancelled")),
        None => Ok(()),
    }
}

/// Future of the end of a copy, for queues. Its result is that of nowait_copy_wait.
pub(crate) struct CopyEnd {
    ended: Ended,
    copying: Used<'static, Copying>,
}

impl CopyEnd {
    pub(crate) fn of(copy: CopyHandle) -> Result<CopyEnd> {
        let copying = COPIES.get_own(copy)?;
        Ok(CopyEnd { ended: copying.ended.clone(), copying })
    }
}

impl Future for CopyEnd {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        ready!(Pin::new(&mut self.ended).poll(context));
        // Waits for a thread that is about to end.
        Poll::Ready(self.copying.report().and_then(first_failure))
    }
}

/// Starts to copy files and trees on separate threads, with all metadata that `cp -a` keeps. If the
/// target is a directory, the copies are created in it under the sources' names. A name in the
/// target refers to the old file or the complete new one. `options` may be NULL.
///
/// Returns 0; or a negative errno, without starting a copy, if the arguments contradict each other.
/// If an entry cannot be copied, the copy continues with the others: see nowait_copy_wait. Threads:
/// any.
///
/// # Safety
/// `sources` points to `sources_count` strings; `target` is a string; `options` is NULL or points to
/// as many bytes as its size says; `copy` points to a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_copy_start(
    sources: *const *const c_char,
    sources_count: usize,
    target: *const c_char,
    options: *const CopyOptions,
    copy: *mut CopyHandle,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (sources, target, asked, copy) = unsafe {
            (
                many(sources, sources_count, "sources")?,
                border::path(target, "target")?,
                border::options(options, "options")?,
                answer(copy, "copy")?,
            )
        };
        // SAFETY: the caller's promise.
        let path = |source: &*const c_char| unsafe { border::path(*source, "a source") };
        let sources = sources.iter().map(path).collect::<Result<Vec<&Path>>>()?;
        let cancel_flag = Arc::new(AtomicBool::new(false));
        let started = start(&sources, target, &copy_options(&asked)?.cancel_flag(cancel_flag.clone()))?;
        let (ended, progress) = (started.ended(), Box::new(started.watcher()));
        let started = Mutex::new(Some(started));
        let copying = Copying { started, report: OnceLock::new(), ended, progress, cancel_flag };
        copy.write(COPIES.insert(copying)?);
        Ok(())
    })
}

fn copy_options(asked: &CopyOptions) -> Result<Options> {
    let sync = match asked.sync {
        NOWAIT_COPY_SYNC_NONE => SyncPolicy::None,
        NOWAIT_COPY_SYNC_FILE => SyncPolicy::File,
        NOWAIT_COPY_SYNC_ALL => SyncPolicy::All,
        other => {
            return Err(Failure::new(libc::EINVAL, format!("options.sync is {other}; give a NOWAIT_COPY_SYNC_...")));
        }
    };
    let mut left = asked.flags;
    let mut has = |flag: u32| {
        let has = left & flag != 0;
        left &= !flag;
        has
    };
    let mut options = Options::new()
        .sync(sync)
        .cache_neutral(has(NOWAIT_COPY_CACHE_NEUTRAL))
        .verify(has(NOWAIT_COPY_VERIFY))
        .resume(has(NOWAIT_COPY_RESUME))
        .count_first(has(NOWAIT_COPY_COUNT_FIRST))
        .no_target_directory(has(NOWAIT_COPY_NO_TARGET_DIRECTORY));
    if has(NOWAIT_COPY_KEEP_NEWER) {
        options = options.update(Update::Older);
    }
    if has(NOWAIT_COPY_KEEP) {
        options = options.update(Update::None);
    }
    if has(NOWAIT_COPY_NO_REFLINK) {
        options = options.reflink(Reflink::Never);
    }
    if has(NOWAIT_COPY_SPARSE) {
        options = options.sparse(Sparse::Always);
    }
    if has(NOWAIT_COPY_NO_HOLES) {
        options = options.sparse(Sparse::Never);
    }
    if left != 0 {
        return Err(Failure::new(libc::EINVAL, format!("options.flags contains unknown bits {left:#x}")));
    }
    let limit = |bytes: u64| (bytes > 0).then_some(bytes);
    Ok(options.bytes_per_second_max(limit(asked.bytes_per_second_max)).dirty_bytes_max(limit(asked.dirty_bytes_max)))
}

/// Stores the progress of a copy in `progress`, without a system call. Returns 0 or a negative
/// errno. Threads: any.
///
/// # Safety
/// `progress` points to as many bytes as its size says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_copy_progress(copy: CopyHandle, progress: *mut CopyProgress) -> c_int {
    status(|| {
        let Progress { bytes, files, bytes_found, files_found, is_walked, elapsed, .. } =
            (COPIES.get_own(copy)?.progress)();
        let size = size_of::<CopyProgress>();
        let (is_walked, elapsed_ns) = (is_walked.into(), nanoseconds(elapsed));
        let now = CopyProgress { size, bytes, files, bytes_found, files_found, is_walked, elapsed_ns };
        // SAFETY: the caller's promise.
        unsafe { fill(progress, &now, "progress") }
    })
}

/// Returns 1 if a copy has ended, so that nowait_copy_wait would not block; 0 if not; or -EBADF.
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn nowait_copy_has_ended(copy: CopyHandle) -> c_int {
    border::count(|| {
        let copying = COPIES.get_own(copy)?;
        let started = copying.started();
        let has_ended = copying.report.get().is_some() || started.as_ref().is_some_and(Started::is_finished);
        Ok(has_ended.into())
    }) as c_int
}

/// Cancels a copy. Each file in progress stops within a block, and its target stays unchanged.
/// Returns 0 at once, or -EBADF; nowait_copy_wait returns when the copy has ended. Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn nowait_copy_cancel(copy: CopyHandle) -> c_int {
    status(|| {
        COPIES.get_own(copy)?.cancel_flag.store(true, Relaxed);
        Ok(())
    })
}

/// Waits for the end of a copy, and stores its result in `report` unless that is NULL. May be
/// called again.
///
/// Returns 0 if everything was copied. Otherwise returns -ECANCELED, or the negative errno of the
/// first failure or warning, whose text nowait_error_message returns. The remaining entries were
/// copied. Threads: any, also several at a time.
///
/// # Safety
/// `report` is NULL or points to as many bytes as its size says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_copy_wait(copy: CopyHandle, report: *mut CopyReport) -> c_int {
    status(|| {
        if !report.is_null() {
            // SAFETY: the caller's promise.
            unsafe { size(report, "report") }?;
        }
        let copying = COPIES.get_own(copy)?;
        let ended = copying.report()?;
        if !report.is_null() {
            // SAFETY: the caller's promise.
            unsafe { fill(report, &CopyReport::from(ended), "report") }?;
        }
        first_failure(ended)
    })
}

/// Closes the handle of a copy; a copy that has not ended continues. Returns 0 or -EBADF. Threads:
/// any.
#[unsafe(no_mangle)]
pub extern "C" fn nowait_copy_close(copy: CopyHandle) -> c_int {
    status(|| COPIES.close(copy).map(drop))
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl From<&Report> for CopyReport {
    fn from(report: &Report) -> CopyReport {
        CopyReport {
            size: size_of::<CopyReport>(),
            files: report.files,
            directories: report.directories,
            nodes: report.nodes,
            hard_links: report.hard_links,
            bytes: report.bytes,
            skipped: report.skipped,
            verified: report.verified,
            failures: report.failures.len() as u64,
            warnings: report.warnings.len() as u64,
            is_cancelled: report.is_cancelled.into(),
            elapsed_ns: nanoseconds(report.elapsed),
        }
    }
}
