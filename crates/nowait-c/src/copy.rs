//! Copies of files and trees.
//!
//! `unsafe` here: entry points, and their callers' pointers.

use std::ffi::{c_char, c_int};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use nowait_copy::{Ended, Options, Progress, Reflink, Report, Sparse, Started, Sync, Update, start};

use crate::border::{self, Growing, answer, fill, many, size, status};
use crate::failure::{Failure, Result};
use crate::handle::{Kind, Table, Used};

/// A copy that runs, or has ended; nowait_submit_copy_wait brings its end into a queue. 0 is none.
pub type CopyHandle = u64;

/// Nothing is durable when a copy ends.
pub const NOWAIT_COPY_SYNC_NONE: u32 = 0;
/// Each file is durable before it gets its name.
pub const NOWAIT_COPY_SYNC_FILE: u32 = 1;
/// Everything is durable when the copy ends, in one go.
pub const NOWAIT_COPY_SYNC_ALL: u32 = 2;

/// Leaves no page in the page cache that was not there before.
pub const NOWAIT_COPY_CACHE_NEUTRAL: u32 = 1;
/// Reads each copy back around the page cache, and compares checksums.
pub const NOWAIT_COPY_VERIFY: u32 = 2;
/// Keeps what was copied of a file when the copy ends early, and goes on from there the next time.
pub const NOWAIT_COPY_RESUME: u32 = 4;
/// Counts what there is to copy on a thread of its own, so that the totals are known.
pub const NOWAIT_COPY_COUNT_FIRST: u32 = 8;
/// Takes the target as the name of the copy, also if it is a directory.
pub const NOWAIT_COPY_NO_TARGET_DIRECTORY: u32 = 16;
/// Keeps files that exist in the target.
pub const NOWAIT_COPY_KEEP: u32 = 32;
/// Replaces a file in the target only if that is older.
pub const NOWAIT_COPY_KEEP_NEWER: u32 = 64;
/// Shares no blocks with the source.
pub const NOWAIT_COPY_NO_REFLINK: u32 = 128;
/// Makes a hole of every block of zeros.
pub const NOWAIT_COPY_SPARSE: u32 = 256;
/// Writes every block, holes of the source too.
pub const NOWAIT_COPY_NO_HOLES: u32 = 512;

/// How files are copied. Set all to zero, then `size`, then what is to differ from the default.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CopyOptions {
    /// sizeof(struct nowait_copy_options).
    pub size: usize,
    /// One of NOWAIT_COPY_SYNC_...
    pub sync: u32,
    /// The other NOWAIT_COPY_..., or'ed.
    pub flags: u32,
    /// Most bytes in a second. 0: as many as possible.
    pub bytes_per_second_max: u64,
    /// Most bytes of this copy in the page cache that are not on the device. 0: as the system has it.
    pub dirty_bytes_max: u64,
}

// SAFETY: `repr(C)`, `size` first, numbers only.
unsafe impl Growing for CopyOptions {
    const FIRST_BYTES: usize = size_of::<CopyOptions>();
}

/// How far a copy is.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CopyProgress {
    /// sizeof(struct nowait_copy_state).
    pub size: usize,
    /// Bytes copied so far.
    pub bytes: u64,
    /// Files finished so far.
    pub files: u64,
    /// Bytes found so far in files to copy.
    pub bytes_found: u64,
    /// Files found so far.
    pub files_found: u64,
    /// 1: all sources are walked, and what was found is the total.
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
    /// Directories made, or found in the target.
    pub directories: u64,
    /// Symbolic links, FIFOs, sockets and devices made.
    pub nodes: u64,
    /// Hard links made.
    pub hard_links: u64,
    /// Bytes of data in the files copied, holes left out.
    pub bytes: u64,
    /// Files left out, since they exist in the target.
    pub skipped: u64,
    /// Files whose copy was read back and found right.
    pub verified: u64,
    /// Files and directories that could not be copied.
    pub failures: u64,
    /// Those that were copied, but changed meanwhile, or lost some of their metadata.
    pub warnings: u64,
    /// 1: it was cancelled before its end.
    pub is_cancelled: u64,
    /// Time that it took.
    pub elapsed_ns: u64,
}

// SAFETY: `repr(C)`, `size` first, numbers only.
unsafe impl Growing for CopyReport {
    const FIRST_BYTES: usize = size_of::<CopyReport>();
}

static COPIES: Table<Copying> = Table::new(Kind::Copy);

/// A copy, and what it came to.
pub(crate) struct Copying {
    /// Until a thread waits for it.
    started: Mutex<Option<Started>>,
    report: OnceLock<Result<Report>>,
    ended: Ended,
    progress: Box<dyn Fn() -> Progress + Send + std::marker::Sync>,
    cancel: Box<dyn Fn() + Send + std::marker::Sync>,
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
            // It raises the panic of its thread.
            Ok(catch_unwind(AssertUnwindSafe(|| started.wait())).map_err(|_| defect())??)
        });
        report.as_ref().map_err(Failure::clone)
    }
}

/// The first failure, or warning, of a copy that has ended.
fn first_failure(report: &Report) -> Result<()> {
    match report.failures.first().or(report.warnings.first()) {
        Some(failure) => Err(failure.clone().into()),
        None if report.is_cancelled => Err(Failure::new(libc::ECANCELED, "the copy was cancelled")),
        None => Ok(()),
    }
}

/// Future of the end of a copy, for queues: what nowait_copy_wait returns.
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

/// Starts to copy files and trees, on threads of their own, with all that `cp -a` keeps. A target that
/// is a directory gets the copies under the sources' names. A name in the target has the old file or
/// the whole new one. `options` may be NULL.
///
/// Returns 0; or a negative errno, and nothing was begun: the arguments make no sense together.
/// The copy goes on where an entry cannot be copied: see nowait_copy_wait. Threads: any.
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
        let started = start(&sources, target, &copy_options(&asked)?)?;
        let (progress, cancel) = (Box::new(started.watcher()), Box::new(started.canceller()));
        let ended = started.ended();
        let copying = Copying { started: Mutex::new(Some(started)), report: OnceLock::new(), ended, progress, cancel };
        copy.write(COPIES.insert(copying)?);
        Ok(())
    })
}

fn copy_options(asked: &CopyOptions) -> Result<Options> {
    let sync = match asked.sync {
        NOWAIT_COPY_SYNC_NONE => Sync::None,
        NOWAIT_COPY_SYNC_FILE => Sync::File,
        NOWAIT_COPY_SYNC_ALL => Sync::All,
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

/// Tells how far a copy is; makes no system call. Returns 0 or a negative errno. Threads: any.
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

/// Whether a copy has ended, so that nowait_copy_wait need not wait: 1 or 0, or -EBADF. Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn nowait_copy_has_ended(copy: CopyHandle) -> c_int {
    border::count(|| {
        let copying = COPIES.get_own(copy)?;
        let started = copying.started();
        let has_ended = copying.report.get().is_some() || started.as_ref().is_some_and(Started::is_finished);
        Ok(has_ended.into())
    }) as c_int
}

/// Ends a copy early: each file within a block, which leaves its target as it was. Returns 0 at once,
/// or -EBADF; nowait_copy_wait returns when it is over. Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn nowait_copy_cancel(copy: CopyHandle) -> c_int {
    status(|| {
        (COPIES.get_own(copy)?.cancel)();
        Ok(())
    })
}

/// Waits for the end of a copy. `report`, if it is not NULL, tells what it did. May be called again.
///
/// Returns 0 if everything was copied. Else the negative errno of the first failure, or warning, whose
/// text nowait_error_message has, or -ECANCELED; the rest was copied. Threads: any, several too.
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

/// Gives up the handle of a copy, which runs on if it has not ended. Returns 0 or -EBADF. Threads:
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
