//! Readers of logs.
//!
//! `unsafe` here: entry points, and their callers' pointers.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::{Mutex, MutexGuard};

use nowait_log::{Reader, Record};

use crate::border::{answer, count, status};
use crate::handle::{HandleKind, Table};
use crate::log::{LOGS, LogHandle};

/// Handle of a reader of a log; 0 means none.
pub type ReaderHandle = u64;

static READERS: Table<Mutex<Reader>> = Table::new(HandleKind::Reader);

/// A record of a log. The layout is fixed.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LogRecord {
    /// Number of the record.
    pub number: u64,
    /// Bytes of the record; valid until the next call with this reader.
    pub bytes: *const c_void,
    /// Number of bytes.
    pub length: usize,
}

/// Opens a reader of the durable records from number `record` on, also while the log is being
/// written. 0 has the same effect as 1. A number that the log no longer contains, or does not
/// contain yet, is not an error here: see nowait_log_reader_next. Returns 0 or a negative errno.
/// Threads: any.
///
/// # Safety
/// `reader` points to a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_log_reader_open(log: LogHandle, record: u64, reader: *mut ReaderHandle) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let reader = unsafe { answer(reader, "reader") }?;
        let opened = LOGS.get(log)?.reader(record);
        reader.write(READERS.insert(Mutex::new(opened))?);
        Ok(())
    })
}

/// Stores the next durable record in `record`. The call waits for the device, but not for later
/// records: see nowait_log_reader_tail.
///
/// Returns 1; 0 if there is no further record yet; or a negative errno: -ENODATA if the record was
/// dropped or cut off; -EUCLEAN if a durable record cannot be read; those of reads. Threads: any,
/// one at a time: the bytes of a record are valid until the next call with this reader.
///
/// # Safety
/// `record` points to a record, and no other thread uses the bytes of the previous record.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_log_reader_next(reader: ReaderHandle, record: *mut LogRecord) -> c_int {
    count(|| {
        // SAFETY: the caller's promise.
        let record = unsafe { answer(record, "record") }?;
        let reader = READERS.get_own(reader)?;
        let mut reader = exclusive(&reader);
        match reader.next().wait()? {
            Some(next) => {
                record.write(LogRecord::from(next));
                Ok(1)
            }
            None => {
                record.write(LogRecord { number: 0, bytes: ptr::null(), length: 0 });
                Ok(0)
            }
        }
    }) as c_int
}

/// Stores the next record in `record`, and waits until it is durable. Returns 0, or a negative
/// errno, as nowait_log_reader_next; -EBADF if the log is closed first. Threads: as
/// nowait_log_reader_next.
///
/// # Safety
/// As nowait_log_reader_next.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_log_reader_tail(reader: ReaderHandle, record: *mut LogRecord) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let record = unsafe { answer(record, "record") }?;
        let reader = READERS.get_own(reader)?;
        let mut reader = exclusive(&reader);
        record.write(LogRecord::from(reader.tail().wait()?));
        Ok(())
    })
}

/// Sets whether a reader continues after damage. If `skips` is not 0, the reader reports each
/// damage once, with -EUCLEAN and a message that names the lost records. The next call returns the
/// first intact record after the damage. If `skips` is 0 (the default), the reader stays at the
/// damage. Returns 0 or -EBADF. Threads: as nowait_log_reader_next.
#[unsafe(no_mangle)]
pub extern "C" fn nowait_log_reader_skip_damage(reader: ReaderHandle, skips: c_int) -> c_int {
    status(|| {
        let reader = READERS.get_own(reader)?;
        exclusive(&reader).skip_damage(skips != 0);
        Ok(())
    })
}

/// Closes a reader, and invalidates the bytes of its last record. Returns 0 or -EBADF. Threads:
/// any.
#[unsafe(no_mangle)]
pub extern "C" fn nowait_log_reader_close(reader: ReaderHandle) -> c_int {
    status(|| READERS.close(reader).map(drop))
}

fn exclusive(reader: &Mutex<Reader>) -> MutexGuard<'_, Reader> {
    reader.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl From<Record<'_>> for LogRecord {
    fn from(record: Record<'_>) -> LogRecord {
        LogRecord { number: record.lsn, bytes: record.bytes.as_ptr().cast(), length: record.bytes.len() }
    }
}
