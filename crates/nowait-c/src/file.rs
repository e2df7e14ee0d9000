//! Files: blocking calls.
//!
//! `unsafe` here: entry points, and their callers' pointers.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::fs;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use nowait::{DirectIo, File, Lent, OpenOptions, Write};

use crate::border::{self, answer, attempt, count, many, many_mut, status, wanted};
use crate::failure::{Failure, Result};
use crate::handle::{HandleKind, Table};
use crate::instance::{InstanceHandle, with_instance};

/// Handle of an open file; 0 means none.
pub type FileHandle = u64;

/// The write is on stable storage when it ends, with the metadata needed to read it back
/// (RWF_DSYNC).
pub const NOWAIT_WRITE_DURABLE: u32 = 1;
/// The kernel drops the pages once they are on the device (RWF_DONTCACHE, Linux 6.14); -EOPNOTSUPP
/// if unsupported.
pub const NOWAIT_WRITE_UNCACHED: u32 = 2;
/// The write is atomic, also across a power failure (RWF_ATOMIC, Linux 6.11); -EOPNOTSUPP if
/// unsupported.
pub const NOWAIT_WRITE_ATOMIC: u32 = 4;

/// The sync also covers attributes such as times: fsync(2) instead of fdatasync(2).
pub const NOWAIT_SYNC_ALL: u32 = 1;

pub(crate) static FILES: Table<File> = Table::new(HandleKind::File);

/// Opens a file, as open(2) does. `flags` are O_RDONLY, O_WRONLY or O_RDWR, with O_CREAT and the
/// like; `mode` contains the permissions of a new file. `instance` may be 0.
///
/// O_CLOEXEC is always set; O_NONBLOCK is never set. With O_DIRECT, reads and writes bypass the
/// page cache if the file system supports it, and use it otherwise. Any offset, length and memory
/// address is allowed.
///
/// Returns 0, or a negative errno: those of open(2); -EISDIR for a directory; -ESPIPE for a file
/// without offsets, such as a pipe. Threads: any.
///
/// # Safety
/// `path` is a string, `file` points to a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_file_open(
    instance: InstanceHandle,
    path: *const c_char,
    flags: c_int,
    mode: c_uint,
    file: *mut FileHandle,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (path, file) = unsafe { (border::path(path, "path")?, answer(file, "file")?) };
        let opened = with_instance(instance, |nowait| Ok(open_options(flags, mode).open_in(nowait, path).wait()?))?;
        file.write(FILES.insert(opened)?);
        Ok(())
    })
}

fn open_options(flags: c_int, mode: c_uint) -> OpenOptions {
    let access = flags & libc::O_ACCMODE;
    let appends = flags & libc::O_APPEND != 0 && access != libc::O_RDONLY;
    let mut options = OpenOptions::new();
    options.read(access != libc::O_WRONLY).write(access != libc::O_RDONLY).append(appends).mode(mode);
    // The kernel checks O_CREAT and the related flags.
    options.direct(flags & libc::O_DIRECT != 0).custom_flags(flags & !(libc::O_ACCMODE | libc::O_DIRECT));
    options
}

/// Makes a file from a descriptor. The library uses a duplicate: the caller still owns `descriptor`
/// and closes it. Messages contain `name`, or the path from /proc if it is NULL. `instance` may be
/// 0.
///
/// The call clears O_NONBLOCK, which has no meaning for files.
///
/// Returns 0, or a negative errno: -EBADF; -EISDIR for a directory; -ESPIPE for a file without
/// offsets. Threads: any.
///
/// # Safety
/// `name` is NULL or a string, `file` points to a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_file_from_descriptor(
    instance: InstanceHandle,
    descriptor: c_int,
    name: *const c_char,
    file: *mut FileHandle,
) -> c_int {
    status(|| {
        let link = format!("/proc/self/fd/{descriptor}");
        // SAFETY: the caller's promise.
        let file = unsafe { answer(file, "file") }?;
        let name = match name.is_null() {
            true => fs::read_link(&link).unwrap_or_else(|_| PathBuf::from(link)),
            // SAFETY: the caller's promise.
            false => unsafe { border::path(name, "name") }?.to_path_buf(),
        };
        let bad = |errno: i32| {
            let text =
                format!("open {}: descriptor {descriptor} cannot be duplicated (os error {errno})", name.display());
            Failure::new(errno, text)
        };
        if descriptor < 0 {
            return Err(bad(libc::EBADF));
        }
        // SAFETY: the descriptor is only used by fcntl(2), which fails if it is not open.
        let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
        let own = borrowed.try_clone_to_owned().map_err(|error| bad(error.raw_os_error().unwrap_or(libc::EBADF)))?;
        let opened = with_instance(instance, |nowait| Ok(File::from_std(nowait, own.into(), &name)?))?;
        file.write(FILES.insert(opened)?);
        Ok(())
    })
}

/// Closes a file. Operations in flight and calls of other threads continue normally; the last of
/// them closes the descriptor. The call makes nothing durable: see nowait_sync.
///
/// Returns 0, or a negative errno: -EBADF if the handle is not open; those of close(2), after which
/// the handle is closed, too. Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn nowait_file_close(file: FileHandle) -> c_int {
    status(|| match FILES.close(file)? {
        Some(file) => Ok(file.close().map(drop)?),
        None => Ok(()),
    })
}

/// Returns the descriptor of a file, for fstat(2) and the like, or -EBADF. The descriptor is closed
/// with the file. Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn nowait_file_descriptor(file: FileHandle) -> c_int {
    count(|| {
        let file = FILES.get(file)?;
        let descriptor = file.descriptor().map(|descriptor| descriptor.as_raw_fd());
        descriptor
            .and_then(|descriptor| usize::try_from(descriptor).ok())
            .ok_or_else(|| Failure::new(libc::EBADF, "the file has no descriptor"))
    }) as c_int
}

/// Returns 1 if reads and writes bypass the page cache; 0 if the file was not opened with O_DIRECT,
/// or its file system has no direct I/O; or -EBADF. Requests may have any offset, length and
/// memory. Requests whose offset and length are multiples of `offset_alignment`, and whose memory
/// address is a multiple of `memory_alignment`, go to the device unchanged. Other requests are
/// copied, or read more than the requested range. Both alignments are in bytes, and 1 if the result
/// is 0. They may grow at the first request, if the device reported less than it needs. Threads:
/// any.
///
/// # Safety
/// Each pointer is NULL or points to a size_t.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_file_direct(
    file: FileHandle,
    memory_alignment: *mut usize,
    offset_alignment: *mut usize,
) -> c_int {
    count(|| {
        // SAFETY: the caller's promise.
        let (memory, offset) =
            unsafe { (wanted(memory_alignment, "memory_alignment")?, wanted(offset_alignment, "offset_alignment")?) };
        let (is_direct, alignments) = match FILES.get(file)?.direct() {
            DirectIo::Granted { memory_alignment, offset_alignment } => (1, (memory_alignment, offset_alignment)),
            _ => (0, (1, 1)),
        };
        memory.map(|memory| memory.write(alignments.0));
        offset.map(|offset| offset.write(alignments.1));
        Ok(is_direct)
    }) as c_int
}

/// Stores the size in bytes of a file or block device in `size`. Returns 0, or a negative errno.
/// Threads: any.
///
/// # Safety
/// `size` points to a uint64_t.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_file_size(file: FileHandle, size: *mut u64) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let size = unsafe { answer(size, "size") }?;
        size.write(FILES.get(file)?.size().wait()?);
        Ok(())
    })
}

/// Reads up to `length` bytes at `offset` into `buffer`, and waits for them. The result is short
/// only at the end of the file: the call handles short reads and signals.
///
/// Returns the number of bytes, 0 at the end of the file, or a negative errno: -EBADF if the handle
/// is not open; -EACCES if the file was not opened for reading; -EOVERFLOW beyond INT64_MAX; those of
/// pread(2). Threads: any.
///
/// # Safety
/// `length` bytes at `buffer` are valid for writes, and nothing else uses them during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_read_at(file: FileHandle, buffer: *mut c_void, length: usize, offset: u64) -> i64 {
    count(|| {
        // SAFETY: the caller's promise.
        let buffer = unsafe { many_mut(buffer.cast(), length, "buffer") }?;
        Ok(FILES.get(file)?.read_into(buffer, offset)?)
    })
}

/// Writes `length` bytes from `buffer` at `offset`, or at the end of a file opened with O_APPEND,
/// and waits for the write. `flags` are NOWAIT_WRITE_... or 0. Without NOWAIT_WRITE_DURABLE, the
/// bytes are in the page cache when the call returns, and durable after a later nowait_sync.
///
/// Returns the number of bytes, which is less than `length` only if the file system accepted no
/// more; the next write returns the reason. Or a negative errno; the message says how much was
/// written: -ENOSPC, -EFBIG, -EOVERFLOW, -EBADF, -EACCES if the file was not opened for writing,
/// those of pwrite(2). Threads: any; concurrent writes that overlap have no defined order.
///
/// # Safety
/// `length` bytes at `buffer` are valid for reads, and nothing changes them during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_write_at(
    file: FileHandle,
    buffer: *const c_void,
    length: usize,
    offset: u64,
    flags: u32,
) -> i64 {
    count(|| {
        // SAFETY: the caller's promise.
        let data: &[u8] = unsafe { many(buffer.cast(), length, "buffer") }?;
        let file = FILES.get(file)?;
        if flags == 0 {
            return Ok(file.write_from(data, offset)?);
        }
        let flags = WriteFlags::new(flags)?;
        let loan = BlockingLoan::default();
        // SAFETY: `data` is valid for reads, and unchanged, until `loan` is dropped, which waits for
        // the release.
        let memory = unsafe { Lent::from_raw(NonNull::from(data).cast(), data.len(), loan.token()) };
        let written = flags.on(file.write_at(memory, offset)).wait();
        Ok(written.map_err(|error| error.error)?.0)
    })
}

/// Reads like nowait_read_at, if that should not block, without a queue. Use it for data that is
/// likely cached.
///
/// Returns the number of bytes, fewer if the file ends within the range; or a negative errno, as
/// nowait_read_at. Returns -EAGAIN, without a message, if the read may block, for direct I/O, and
/// perhaps at the end of the file. After -EAGAIN the bytes at `buffer` are undefined; submit the
/// read instead. Threads: any.
///
/// # Safety
/// As nowait_read_at.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_try_read_at(file: FileHandle, buffer: *mut c_void, length: usize, offset: u64) -> i64 {
    attempt(|| {
        // SAFETY: the caller's promise.
        let buffer = unsafe { many_mut(buffer.cast(), length, "buffer") }?;
        Ok(FILES.get(file)?.try_read_into(buffer, offset).transpose()?)
    })
}

/// Writes like nowait_write_at without flags and without a queue, if that should not block.
///
/// Returns the number of bytes; or a negative errno, as nowait_write_at. Returns -EAGAIN, without a
/// message, if the write may block, or for direct I/O. After -EAGAIN some of the bytes may have
/// been written; submit the whole write instead. The call does not overtake submitted writes that
/// overlap. Threads: any.
///
/// # Safety
/// As nowait_write_at.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_try_write_at(
    file: FileHandle,
    buffer: *const c_void,
    length: usize,
    offset: u64,
) -> i64 {
    attempt(|| {
        // SAFETY: the caller's promise.
        let data: &[u8] = unsafe { many(buffer.cast(), length, "buffer") }?;
        Ok(FILES.get(file)?.try_write_from(data, offset).transpose()?)
    })
}

/// Writes `length` bytes from `buffer` at the current end of the file, and waits until they are
/// written (RWF_APPEND). `flags` are NOWAIT_WRITE_... or 0; durability is as for nowait_write_at.
/// Each append is one write: no other append, in any process, mixes with its bytes or overwrites
/// them. The exception is a write that the file system makes in two parts (a full disk, more than 2
/// GiB).
///
/// The kernel does not report the offset. If the program needs it, use nowait_write_at with an
/// offset that the program keeps.
///
/// Returns `length`; or a negative errno, as nowait_write_at: the message says how much was
/// written. A partial append is also an error (-ENOSPC). The call returns -EOPNOTSUPP and writes
/// nothing for a block device, and if the file system may ignore RWF_APPEND and /proc is not
/// mounted. In the second case open the file with O_APPEND. Threads: any; appends of one thread are
/// in order.
///
/// # Safety
/// As nowait_write_at.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nowait_append(file: FileHandle, buffer: *const c_void, length: usize, flags: u32) -> i64 {
    count(|| {
        // SAFETY: the caller's promise.
        let data: &[u8] = unsafe { many(buffer.cast(), length, "buffer") }?;
        let flags = WriteFlags::new(flags)?;
        let file = FILES.get(file)?;
        let loan = BlockingLoan::default();
        // SAFETY: as in nowait_write_at.
        let memory = unsafe { Lent::from_raw(NonNull::from(data).cast(), data.len(), loan.token()) };
        flags.on(file.append(memory)).wait().map_err(|error| error.error)?;
        Ok(data.len())
    })
}

/// A loan of a caller's memory for one call. The call returns, or passes on a panic, only after the
/// library has released the memory.
#[derive(Default)]
pub(crate) struct BlockingLoan(Arc<()>);

impl BlockingLoan {
    /// Token of lent memory; dropped when the library no longer uses the memory.
    pub(crate) fn token(&self) -> Arc<()> {
        self.0.clone()
    }
}

impl Drop for BlockingLoan {
    fn drop(&mut self) {
        // Normally the operation has ended and released the loan.
        while Arc::strong_count(&self.0) > 1 {
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}

/// Checked flags of a write.
#[derive(Clone, Copy)]
pub(crate) struct WriteFlags(u32);

impl WriteFlags {
    pub(crate) fn new(flags: u32) -> Result<WriteFlags> {
        const KNOWN: u32 = NOWAIT_WRITE_DURABLE | NOWAIT_WRITE_UNCACHED | NOWAIT_WRITE_ATOMIC;
        match flags & !KNOWN {
            0 => Ok(WriteFlags(flags)),
            _ => Err(Failure::new(libc::EINVAL, format!("flags are {flags:#x}; give NOWAIT_WRITE_... or 0"))),
        }
    }

    pub(crate) fn on<T>(self, mut write: Write<'_, T>) -> Write<'_, T> {
        if self.0 & NOWAIT_WRITE_DURABLE != 0 {
            write = write.durable();
        }
        if self.0 & NOWAIT_WRITE_UNCACHED != 0 {
            write = write.uncached();
        }
        if self.0 & NOWAIT_WRITE_ATOMIC != 0 {
            write = write.atomic();
        }
        write
    }
}

/// Makes all writes durable that were complete before the call, and waits for that. `flags` is 0
/// (fdatasync(2): data, size, and the metadata needed to read it back) or NOWAIT_SYNC_ALL. The sync
/// does not cover the name of a new file: sync its directory.
///
/// Returns 0, or a negative errno. -EIO if a write-back failed: written data may be lost, although
/// reads still return it. Every later sync of this file fails until
/// nowait_file_acknowledge_sync_failure is called. Threads: any; concurrent syncs of a file share
/// system calls.
#[unsafe(no_mangle)]
pub extern "C" fn nowait_sync(file: FileHandle, flags: u32) -> c_int {
    status(|| {
        let file = FILES.get(file)?;
        let sync = if syncs_all(flags)? { file.sync_all() } else { file.sync_data() };
        Ok(sync.wait()?)
    })
}

pub(crate) fn syncs_all(flags: u32) -> Result<bool> {
    match flags {
        0 => Ok(false),
        NOWAIT_SYNC_ALL => Ok(true),
        _ => Err(Failure::new(libc::EINVAL, format!("flags are {flags:#x}; give NOWAIT_SYNC_ALL or 0"))),
    }
}

/// Acknowledges a failed write-back, so that syncs may succeed again. First write again, or give
/// up, all data since the last successful sync. Returns 1 if there was a failure, 0 if there was
/// none, or -EBADF. Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn nowait_file_acknowledge_sync_failure(file: FileHandle) -> c_int {
    count(|| Ok(FILES.get(file)?.acknowledge_sync_failure().is_some().into())) as c_int
}

const _: () = assert!(size_of::<c_uint>() == 4);
