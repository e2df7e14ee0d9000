//! Durable logs; `reader.rs` reads them back.
//!
//! C has no tickets: the number of a record is enough to wait for it, and needs no release.
//!
//! `unsafe` here: entry points, and pointers of callers.

use std::ffi::{c_char, c_int, c_void};

use nowait_log::{Entry, Log, Options, Recovery, Scan, backup_in, truncate_prefix_in};

use crate::border::{self, Growing, answer, fill, many, size, status, wanted};
use crate::failure::Result;
use crate::handle::{HandleKind, Table};
use crate::instance::{InstanceHandle, with_instance};

/// Handle of a log that is open for appending; 0 means none.
pub type LogHandle = u64;

pub(crate) static LOGS: Table<Log> = Table::new(HandleKind::Log);

/// Options of a log. Zero the struct, set `size`, then set the members that differ from the
/// default.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct LogOptions {
    /// sizeof(struct nowait_log_options).
    pub size: usize,
    /// 1: creates a log if none exists, in a directory that is missing or empty.
    pub create: u32,
    /// 1: also opens a damaged log. New records follow the last record before the damage.
    pub salvage: u32,
    /// 1: the open reads only the end of the log, not all of it.
    pub scan_tail: u32,
    /// Permission bits of a new log, regardless of the umask, for example 0750. Its files get them
    /// without the execute bits. 0: the umask and the directory determine the bits.
    pub mode: u32,
    /// Size of the largest segments of a new log: a multiple of 4096, at least 16 KiB. Each record
    /// must fit into one segment. 0: 64 MiB.
    pub segment_bytes: u64,
    /// Size of the first segment after each opening. 0: 1 MiB.
    pub first_segment_bytes: u64,
    /// Maximum number of bytes that are appended but not durable; further appends wait. 0: 16 MiB.
    pub pending_bytes_max: u64,
    /// Maximum size of the last blocks that the log keeps in memory for readers. 0: 4 MiB.
    pub tail_bytes: u64,
}

// SAFETY: `repr(C)`, `size` first, numbers only.
unsafe impl Growing for LogOptions {
    const FIRST_BYTES: usize = size_of::<LogOptions>();
}

/// Result of the recovery when a log is opened.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct LogRecovery {
    /// sizeof(struct nowait_log_recovery).
    pub size: usize,
    /// Number of the oldest record; one more than `last_record` if there is none.
    pub first_record: u64,
    /// Number of the last record; 0 in a log that never had one.
    pub last_record: u64,
    /// Number that the next record will get.
    pub next_record: u64,
    /// Number of places where durable records cannot be read. It is 0 unless the log was opened
    /// with `salvage`.
    pub damaged_places: u64,
    /// 1: the call created the log.
    pub was_created: u32,
    /// 1: the log had been closed properly.
    pub was_closed: u32,
    /// 1: the last write was torn before it was acknowledged.
    pub was_torn: u32,
    /// 1: the log writes its blocks with direct I/O.
    pub is_direct: u32,
}

// SAFETY: `repr(C)`, `size` first, numbers only.
unsafe impl Growing for LogRecovery {
    const FIRST_BYTES: usize = size_of::<LogRecovery>();
}

/// Bytes of one record of a batch. The layout is fixed and equals that of struct iovec.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Bytes {
    /// Address of the bytes.
    pub bytes: *const c_void,
    /// Number of bytes.
    pub length: usize,
}

/// Counters of a log since it was opened.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct LogStats {
    /// sizeof(struct nowait_log_counters).
    pub size: usize,
    /// Number of records written.
    pub records: u64,
    /// Number of blocks written; each is one durable write.
    pub blocks: u64,
    /// Bytes of the records, plus 9 for each record.
    pub payload_bytes: u64,
    /// Bytes written in blocks, headers and padding included.
    pub written_bytes: u64,
    /// Records that are appended but not yet durable.
    pub pending_records: u64,
    /// Appends that waited for room.
    pub stalls: u64,
    /// Segments that the log consists of.
    pub segments: u64,
    /// Median time from the submission of a block to its completion.
    pub written_median_ns: u64,
    /// 99th percentile of that time.
    pub written_p99_ns: u64,
}

// SAFETY: `repr(C)`, `size` first, numbers only.
unsafe impl Growing for LogStats {
    const FIRST_BYTES: usize = size_of::<LogStats>();
}

/// Opens the log in a directory for appending; with `options->create`, creates it if none exists.
/// `instance` may be 0; `options` and `recovery` may be NULL. `recovery` receives the result of the
/// recovery. To read the existing records, open a reader at `recovery->first_record`.
///
/// Returns 0, or a negative errno: -ENOENT if there is no log; -EBUSY if it is open in this or
/// another process; -EUCLEAN if durable data cannot be read; -ENOSPC (see
/// nowait_log_truncate_closed); -EINVAL; -E2BIG; those of files. Threads: any.
///
/// # Safety
/// `directory` is a string; `options` and `recovery` are NULL or point to as many bytes as their size
/// says; `log` points to a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_log_open(
    instance: InstanceHandle,
    directory: *const c_char,
    options: *const LogOptions,
    log: *mut LogHandle,
    recovery: *mut LogRecovery,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (directory, asked, log) = unsafe {
            (border::path(directory, "directory")?, border::options(options, "options")?, answer(log, "log")?)
        };
        if !recovery.is_null() {
            // SAFETY: the caller's promise.
            unsafe { size(recovery, "recovery") }?;
        }
        let options = with_instance(instance, |nowait| Ok(log_options(&asked).instance(nowait)))?;
        let (opened, found) = Log::open(directory, &options).wait()?;
        if !recovery.is_null() {
            // SAFETY: the caller's promise.
            unsafe { fill(recovery, &LogRecovery::from(&found), "recovery") }?;
        }
        log.write(LOGS.insert(opened)?);
        Ok(())
    })
}

fn log_options(asked: &LogOptions) -> Options {
    let mut options = Options::new().create(asked.create != 0).salvage(asked.salvage != 0);
    if asked.scan_tail != 0 {
        options = options.scan(Scan::Tail);
    }
    if asked.segment_bytes > 0 {
        options = options.segment_bytes(asked.segment_bytes);
    }
    if asked.first_segment_bytes > 0 {
        options = options.first_segment_bytes(asked.first_segment_bytes);
    }
    if asked.pending_bytes_max > 0 {
        options = options.pending_bytes_max(asked.pending_bytes_max);
    }
    if asked.tail_bytes > 0 {
        options = options.tail_bytes(asked.tail_bytes);
    }
    if asked.mode > 0 {
        options = options.mode(asked.mode);
    }
    options
}

/// Appends a record: copies it into the log, and stores its number in `record`, which may be NULL.
/// The record is durable when nowait_log_wait for its number returns 0; until then a crash can
/// lose it. The log writes it when a thread or queue waits for it, or after some
/// milliseconds. Records are numbered consecutively from 1.
///
/// The call waits only while pending_bytes_max is reached, or the next segment is not ready.
/// Returns 0; or a negative errno if the record is not in the log: -ENOSPC; -ENOTRECOVERABLE after
/// a write failed; -EINVAL if it does not fit into a segment; -EBADF. Threads: any.
///
/// # Safety
/// `length` bytes at `bytes` are valid for reads; `record` is NULL or points to a uint64_t.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_log_append(
    log: LogHandle,
    bytes: *const c_void,
    length: usize,
    record: *mut u64,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (bytes, record) = unsafe { (many(bytes.cast(), length, "bytes")?, wanted(record, "record")?) };
        let ticket = LOGS.get(log)?.append(bytes).wait()?;
        if let Some(record) = record {
            record.write(ticket.lsn());
        }
        Ok(())
    })
}

/// Appends records as a batch, which a crash keeps as a whole or not at all. `record` receives the
/// number of the last record. Otherwise as nowait_log_append; -EINVAL for an empty batch.
///
/// # Safety
/// `records` points to `records_count` elements, and each points to as many bytes as its length;
/// `record` is NULL or points to a uint64_t.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_log_append_batch(
    log: LogHandle,
    records: *const Bytes,
    records_count: usize,
    record: *mut u64,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (records, record) = unsafe { (many(records, records_count, "records")?, wanted(record, "record")?) };
        let entry = |record: &Bytes| {
            // SAFETY: the caller's promise.
            let bytes = unsafe { many(record.bytes.cast::<u8>(), record.length, "the bytes of a record") }?;
            Ok(Entry { kind: 0, bytes })
        };
        let entries = records.iter().map(entry).collect::<Result<Vec<_>>>()?;
        let ticket = LOGS.get(log)?.append_batch(entries).wait()?;
        if let Some(record) = record {
            record.write(ticket.lsn());
        }
        Ok(())
    })
}

/// Waits until a record, and every record before it, is durable: a crash of the process or machine
/// cannot lose them. Another thread may append the record during the call. The waiting thread
/// writes all appended records in one write. In event loops use nowait_submit_log_wait.
///
/// Returns 0, or a negative errno: -EIO if the log failed while the record was in flight (it may or
/// may not be on disk); -ENOTRECOVERABLE if the log had failed before; -EBADF if the log is closed
/// first. Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn nowait_log_wait(log: LogHandle, record: u64) -> c_int {
    status(|| {
        let durable = LOGS.get(log)?.wait_durable(record);
        Ok(durable.wait().map(drop)?)
    })
}

/// Stores the number of the last durable record in `durable`, and that of the last appended record
/// in `appended`. Either may be NULL. A number of 0 means no record. Returns 0 or a negative errno.
/// Threads: any.
///
/// # Safety
/// Each pointer is NULL or points to a uint64_t.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_log_last(log: LogHandle, durable: *mut u64, appended: *mut u64) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (durable, appended) = unsafe { (wanted(durable, "durable")?, wanted(appended, "appended")?) };
        let log = LOGS.get(log)?;
        // Read in this order, `last` is not less than `last_durable`.
        let (last_durable, last) = (log.durable_lsn(), log.last_lsn());
        durable.map(|durable| durable.write(last_durable));
        appended.map(|appended| appended.write(last));
        Ok(())
    })
}

/// Drops the records before `record`: segments that contain only such records are reused or removed
/// in the background. Returns 0 or a negative errno. Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn nowait_log_truncate_before(log: LogHandle, record: u64) -> c_int {
    status(|| {
        LOGS.get(log)?.truncate_prefix(record);
        Ok(())
    })
}

/// Removes records before `record` from a log that is not open. It removes segments that contain
/// only such records, but never the last segment with records. It needs no free space, so that a
/// log that has filled its disk can be opened again. `instance` may be 0. `first` receives the
/// number of the oldest remaining record, unless it is NULL.
///
/// Returns 0, or a negative errno: -ENOENT if there is no log; -EBUSY if it is open in this or
/// another process; -EUCLEAN if durable data cannot be read; -EINVAL; those of files. Threads: any.
///
/// # Safety
/// `directory` is a string; `first` is NULL or points to a uint64_t.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_log_truncate_closed(
    instance: InstanceHandle,
    directory: *const c_char,
    record: u64,
    first: *mut u64,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (directory, first) = unsafe { (border::path(directory, "directory")?, wanted(first, "first")?) };
        let truncating = with_instance(instance, |nowait| Ok(truncate_prefix_in(nowait, directory, record)))?;
        let left = truncating.wait()?;
        first.map(|first| first.write(left.first_lsn));
        Ok(())
    })
}

/// Copies an open log to the directory `destination`, which must be missing or empty. Appends
/// continue meanwhile; no record is removed before it is copied. The copy is a complete log: it
/// contains every record that was durable at the call, and is durable and verified when this
/// returns. An interrupted call leaves a directory beside `destination` whose name ends in
/// ".partial".
///
/// Returns 0, or a negative errno: -EUCLEAN if the log is damaged (nothing is copied); -EINVAL if
/// `destination` exists and is not an empty directory, or is a mount point or a symbolic link; -EBADF;
/// those of files. Threads: any; the calling thread waits for the copy.
///
/// # Safety
/// `destination` is a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_log_backup(log: LogHandle, destination: *const c_char) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let destination = unsafe { border::path(destination, "destination") }?;
        let copying = LOGS.get(log)?.backup(destination);
        Ok(copying.wait().map(drop)?)
    })
}

/// Copies the log in a directory as nowait_log_backup does, also while another process appends to it.
/// That process may remove its oldest records before they are copied; the copy then lacks them.
/// `instance` may be 0.
///
/// Returns as nowait_log_backup; -ENOENT if there is no log; -EAGAIN if the other process removes
/// records faster than they are copied. Threads: any; the calling thread waits for the copy.
///
/// # Safety
/// `directory` and `destination` are strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_log_backup_directory(
    instance: InstanceHandle,
    directory: *const c_char,
    destination: *const c_char,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (directory, destination) =
            unsafe { (border::path(directory, "directory")?, border::path(destination, "destination")?) };
        let copying = with_instance(instance, |nowait| Ok(backup_in(nowait, directory, destination)))?;
        Ok(copying.wait().map(drop)?)
    })
}

/// Cuts off all records after `record`, so that the next append gets number `record + 1`. The cut
/// is durable when the call returns. Returns 0, or a negative errno: -ENODATA if the log has no
/// such record; -ENOSPC; those of writes. Threads: any; appends wait meanwhile.
#[unsafe(no_mangle)]
pub extern "C" fn nowait_log_truncate_after(log: LogHandle, record: u64) -> c_int {
    status(|| {
        let cut = LOGS.get(log)?.truncate_suffix(record);
        Ok(cut.wait()?)
    })
}

/// Stores the counters of a log in `stats`. Returns 0 or a negative errno. Threads: any.
///
/// # Safety
/// `stats` points to as many bytes as its size says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_log_stats(log: LogHandle, stats: *mut LogStats) -> c_int {
    status(|| {
        let counted = LOGS.get(log)?.stats();
        let counted = LogStats {
            size: size_of::<LogStats>(),
            records: counted.records,
            blocks: counted.blocks,
            payload_bytes: counted.payload_bytes,
            written_bytes: counted.written_bytes,
            pending_records: counted.pending_records,
            stalls: counted.stalls,
            segments: counted.segments as u64,
            written_median_ns: counted.written.p50,
            written_p99_ns: counted.written.p99,
        };
        // SAFETY: the caller's promise.
        unsafe { fill(stats, &counted, "stats") }
    })
}

/// Writes all appended records, and closes the log and its readers. The log can then be opened
/// again.
///
/// Returns 0, or a negative errno: -EBADF if the handle was already closed; those of writes, and of
/// a log that had failed before. The handle is closed in every case. Threads: any; concurrent calls
/// of other threads end, and their appends return -EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn nowait_log_close(log: LogHandle) -> c_int {
    status(|| {
        let open = LOGS.get(log)?.clone();
        drop(LOGS.close(log)?);
        Ok(open.close().wait()?)
    })
}

impl From<&Recovery> for LogRecovery {
    fn from(found: &Recovery) -> LogRecovery {
        LogRecovery {
            size: size_of::<LogRecovery>(),
            first_record: found.first_lsn,
            last_record: found.last_lsn,
            next_record: found.next_lsn,
            damaged_places: found.damage.len() as u64,
            was_created: found.created.into(),
            was_closed: found.closed.into(),
            was_torn: found.torn.is_some().into(),
            is_direct: found.direct.into(),
        }
    }
}
