//! Files: opening them and reading at positions. No engine is named here; this is where errors get
//! their paths.

mod as_std;
mod options;

use std::fmt;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use crate::sys::{AsFd, BorrowedFd, Errno, OwnedFd};

pub use self::as_std::{RangeLock, TryLockError};
pub use self::options::OpenOptions;
use crate::buf::{Buf, Erased, Memory, ReadBuffer, ReadBuffers};
use crate::core::dispatch::Target;
use crate::core::instance::{Instance, Nowait};
use crate::direct::{self, Alignment, Directness};
use crate::engine::local;
use crate::error::{BufferError, BufferResult, Error, ErrorKind, ErrorOp, Moved, Result};
use crate::op::{Done, Handle, OpenFile, Request, Transfer};
use crate::operation::Operation;
use crate::started::{Answer, Conclude};
use crate::stats::Count;
use crate::sys;
pub use crate::sys::Advice;

/// Open file. Clones share the descriptor and the file's statistics; any thread may use any clone.
///
/// Reads and writes take an offset; a file has no cursor. A read is short only at the end of the
/// file. The descriptor is closed when the last clone is dropped and no operation is in flight.
#[derive(Clone)]
pub struct File {
    pub(crate) open: Arc<OpenFile>,
    pub(crate) instance: Arc<Instance>,
}

/// State of direct I/O; see [`File::direct`].
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectIo {
    /// Not requested: reads and writes use the page cache.
    NotAsked,
    /// Requested and refused: the file is in memory (tmpfs), or its file system has no direct I/O
    /// (squashfs, erofs with compression, an overlay over one of these). `Granted` becomes
    /// `Refused` when a request that suits every device fails with EINVAL: the page cache serves
    /// that request and all later ones.
    Refused,
    /// Granted. Requests whose memory address, and whose offset and length, are multiples of these
    /// go to the device unchanged.
    Granted {
        /// Required alignment of the memory, in bytes.
        memory_alignment: usize,
        /// Required alignment of offset and length, in bytes.
        offset_alignment: usize,
    },
}

impl File {
    /// Opens a file for reading, on the shared instance.
    ///
    /// # Errors
    /// See [`OpenOptions::open_in`].
    pub fn open(path: impl AsRef<Path>) -> Operation<'static, Result<File>> {
        OpenOptions::new().read(true).open(path)
    }

    /// Opens a file for writing; creates it if missing, truncates it otherwise.
    ///
    /// # Errors
    /// See [`OpenOptions::open_in`].
    pub fn create(path: impl AsRef<Path>) -> Operation<'static, Result<File>> {
        OpenOptions::new().write(true).create(true).truncate(true).open(path)
    }

    /// Creates a file for reading and writing; fails if it exists.
    ///
    /// # Errors
    /// [`ErrorKind::AlreadyExists`]; see [`OpenOptions::open_in`].
    pub fn create_new(path: impl AsRef<Path>) -> Operation<'static, Result<File>> {
        OpenOptions::new().read(true).write(true).create_new(true).open(path)
    }

    /// Returns [`OpenOptions::new`].
    pub fn options() -> OpenOptions {
        OpenOptions::new()
    }

    /// Takes over an open file or block device. Errors contain `path`. Clears `O_NONBLOCK`, which
    /// has no meaning for files and would keep io_uring from waiting.
    ///
    /// # Errors
    /// [`ErrorKind::IsADirectory`] for a directory; [`ErrorKind::NotSeekable`] for a pipe, socket,
    /// terminal, eventfd or timer; [`ErrorKind::InvalidInput`] for a descriptor opened with
    /// `O_PATH`. Those of `fcntl(2)`.
    pub fn from_std(nowait: &Nowait, file: fs::File, path: impl AsRef<Path>) -> Result<File> {
        let path: Arc<Path> = Arc::from(path.as_ref());
        let fd = OwnedFd::from(file);
        sys::check(&fd).map_err(|errno| {
            let error = Error::from_errno(ErrorOp::Open, errno).at_shared(&path);
            match errno {
                Errno::SPIPE => error.with_advice("give a regular file or a block device; for pipes and sockets wait for readiness (tokio's AsyncFd, smol's Async)"),
                Errno::BADF => error.of_kind(ErrorKind::InvalidInput).with_advice(options::OPENED_AS_PATH),
                _ => error,
            }
        })?;
        let directness = direct::look(fd.as_fd());
        Ok(File::new(Handle::Descriptor(fd), directness, path, nowait.0.clone()))
    }

    fn new(handle: Handle, directness: Directness, path: Arc<Path>, instance: Arc<Instance>) -> File {
        File { open: Arc::new(instance.open_file(handle, path, directness)), instance }
    }

    #[inline]
    pub(crate) fn target(&self) -> Target<'_> {
        Target { instance: &self.instance, file: Some(&self.open) }
    }

    /// Whether this thread, which blocks, makes plain reads that go through the page cache, so that
    /// the kernel can be told to read ahead. (A file that refuses `RWF_NOWAIT` may bypass the cache
    /// without saying so: FUSE with `FOPEN_DIRECT_IO`.)
    pub(crate) fn reads_ahead(&self) -> bool {
        self.open.direct.is_none()
            && self.instance.policy.forced.is_none()
            && self.open.reads.nowait_accepted() == Some(true)
            && !local::has_in_flight()
    }

    /// Returns the path by which the file was opened.
    pub fn path(&self) -> &Path {
        &self.open.path
    }

    /// Returns the descriptor; `None` for a simulated file.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.open.handle.descriptor().ok()
    }

    /// Returns the state of direct I/O on this file.
    pub fn direct(&self) -> DirectIo {
        match &self.open.direct {
            _ if self.open.refuses_direct() => DirectIo::Refused,
            Some(direct) => {
                let Alignment { memory, offset } = direct.alignment();
                DirectIo::Granted { memory_alignment: memory as usize, offset_alignment: offset as usize }
            }
            None => DirectIo::NotAsked,
        }
    }

    /// Returns whether this file accepts non-blocking reads (`RWF_NOWAIT`); `None` until a read has
    /// tried.
    pub fn nowait_reads(&self) -> Option<bool> {
        self.open.reads.nowait_accepted()
    }

    /// Reads into `buffer[..buffer.len()]` from `offset`, or into an empty `Vec` or `BytesMut` up
    /// to its capacity: see [`ReadBuffer`]. Returns the number of bytes and the buffer. A short
    /// read means the end of the file. [`File::read_into`] takes a borrowed slice.
    ///
    /// # Errors
    /// The error contains the buffer. [`ErrorKind::InvalidRange`] beyond `i64::MAX`,
    /// [`ErrorKind::Closed`] after `close`, and those of `preadv2(2)`.
    pub fn read_at<B: ReadBuffer>(&self, buffer: B, offset: u64) -> Operation<'_, Moved<B>> {
        self.read(Transfer::new(buffer.into_room().0, offset), |answer| read(answer, B::from_room))
    }

    /// Fills `buffer` from `offset`; otherwise as [`File::read_at`].
    ///
    /// # Errors
    /// [`ErrorKind::UnexpectedEof`] if the file ends before; the buffer then contains the bytes up
    /// to the end. Else as [`File::read_at`].
    pub fn read_exact_at<B: ReadBuffer>(&self, buffer: B, offset: u64) -> Operation<'_, BufferResult<B>> {
        self.read(Transfer::new(buffer.into_room().0, offset), read_full)
    }

    /// Reads exactly `length` bytes from `offset` into a page-aligned [`Buf`](crate::Buf).
    ///
    /// # Errors
    /// [`ErrorKind::UnexpectedEof`] when the file ends before; else as [`File::read_at`].
    pub fn read_range(&self, offset: u64, length: usize) -> Operation<'_, Result<Buf>> {
        let refused = |errno| {
            let request = Request::Read(Transfer::void(offset, length));
            Operation::refused(self.target(), errno, request, read_exact)
        };
        // Before memory is asked for.
        if let Err(errno) = self.open.check(offset, length) {
            return refused(errno);
        }
        match Buf::uncleared(length) {
            Some(buf) => self.read(Transfer::new(Memory::Buf(buf), offset), read_exact),
            None => refused(Errno::NOMEM),
        }
    }

    /// Fills several buffers, one after the other, from `offset`; otherwise as [`File::read_at`].
    /// [`ReadBuffers`] lists the accepted types.
    ///
    /// # Errors
    /// As [`File::read_at`].
    pub fn read_vectored_at<B: ReadBuffers>(&self, buffers: B, offset: u64) -> Operation<'_, Moved<B>> {
        self.read(Transfer::new(buffers.into_room().0, offset), |answer| read(answer, B::from_room))
    }

    fn read<T>(&self, transfer: Transfer, conclude: Conclude<T>) -> Operation<'_, T> {
        let checked = self.open.check(transfer.position(), transfer.left());
        Operation::checked(self.target(), checked, Request::Read(transfer), conclude)
    }

    /// Blocks until `buffer` is filled from `offset` or the file ends; returns the number of bytes.
    ///
    /// # Errors
    /// As [`File::read_at`].
    pub fn read_into(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let length = buffer.len();
        if let Some(copy) = local::has_in_flight().then(|| Buf::uncleared(length)).flatten() {
            let (read, copy) = self.read_at(copy, offset).wait()?;
            buffer[..read].copy_from_slice(&copy[..read]);
            return Ok(read);
        }
        let counters = &self.instance.counters;
        let result = self.open.check(offset, length).and_then(|()| self.target().read_blocking(buffer, offset));
        counters.add(if result.is_ok() { Count::Blocking } else { Count::FailedAtOnce });
        result.map_err(|errno| self.open.error(ErrorOp::Read, errno).with_range(offset, length as u64))
    }

    /// Blocks until `buffer` is full.
    ///
    /// # Errors
    /// [`ErrorKind::UnexpectedEof`] when the file ends before; else as [`File::read_at`].
    pub fn read_exact_into(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let length = buffer.len();
        match self.read_into(buffer, offset)? {
            n if n == length => Ok(()),
            n => Err(ended(&self.open, offset, length, n)),
        }
    }

    /// Fills `buffer` from `offset` on this thread, if that should not block. Use it for data that
    /// is likely cached. Returns the number of bytes, fewer if the file ends within the range.
    /// Returns `None` if the read may block, for direct I/O, and perhaps at the end of the file.
    /// The contents of `buffer` are then unspecified; use [`File::read_at`].
    ///
    /// # Errors
    /// As [`File::read_at`].
    pub fn try_read_into(&self, buffer: &mut [u8], offset: u64) -> Option<Result<usize>> {
        let length = buffer.len();
        let result = match self.open.check(offset, length) {
            Ok(()) => self.target().try_read_slice(buffer, offset)?,
            Err(errno) => {
                self.instance.counters.add(Count::FailedAtOnce);
                Err(errno)
            }
        };
        Some(result.map_err(|errno| self.open.error(ErrorOp::Read, errno).with_range(offset, length as u64)))
    }

    /// Returns the size in bytes, of a file or a block device.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] after `close`, and those of `fstat(2)`.
    pub fn size(&self) -> Operation<'_, Result<u64>> {
        self.simple(Request::Size, size)
    }

    /// Advises the page cache about `length` bytes from `offset`; a length of zero means to the end
    /// of the file.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] after `close`, [`ErrorKind::Unsupported`] where the call is refused,
    /// and those of `posix_fadvise(2)`.
    pub fn advise(&self, offset: u64, length: u64, advice: Advice) -> Operation<'_, Result<()>> {
        self.simple(Request::Advise { offset, length, advice }, advised)
    }

    fn simple<T>(&self, request: Request, conclude: Conclude<T>) -> Operation<'_, T> {
        Operation::checked(self.target(), self.open.check(0, 0), request, conclude)
    }

    /// Closes the file for all clones: later operations fail with [`ErrorKind::Closed`]; earlier
    /// ones finish.
    ///
    /// If no clone, map, stream, log or operation uses the file any more, the call blocks for
    /// `close(2)` and reports its error. (A pool thread makes it while this thread's ring has
    /// operations in flight.) Otherwise returns [`Closed::Later`]. Abandoned operations may still
    /// be in flight: [`Nowait::drain`] waits for them. Closing makes nothing durable: sync first.
    ///
    /// After I/O by io_uring the kernel may hold the file slightly longer: it posts a completion
    /// before it releases the request (seen on 6.18). Until that release, the space of an unlinked
    /// file stays allocated, and its mount stays busy.
    ///
    /// # Errors
    /// Those of `close(2)`. The descriptor is closed in any case.
    pub fn close(self) -> Result<Closed> {
        self.open.close();
        // If several threads close at a time, one of them has the last reference.
        let Some(OpenFile { handle, path, .. }) = Arc::into_inner(self.open) else { return Ok(Closed::Later) };
        let mut close = Request::Close(handle);
        let outcome = if local::has_in_flight() {
            local::drive(Operation::new(self.instance.target(), close, |answer| answer.outcome).submit())
        } else {
            self.instance.engines().pool.run(None, &mut close)
        };
        outcome.map(|_| Closed::Now).map_err(|errno| Error::from_errno(ErrorOp::Close, errno).at_shared(&path))
    }
}

/// Result of [`File::close`].
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// The descriptor is closed, and `close(2)` reported no error.
    Now,
    /// The file is still in use, by a clone or by an operation in flight, abandoned ones included.
    /// The last user closes the descriptor; if that is an operation, on a thread of the library. An
    /// error of `close(2)` is lost then.
    Later,
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File").field("path", &self.open.path).field("handle", &self.open.handle).finish_non_exhaustive()
    }
}

fn ended(file: &OpenFile, offset: u64, length: usize, n: usize) -> Error {
    Error::new(ErrorOp::Read, ErrorKind::UnexpectedEof)
        .at_shared(&file.path)
        .with_range(offset, length as u64)
        .with_detail(format!("only {n} bytes are available"))
}

/// The transfer that was asked for, and how it ended: the bytes it moved, or the error with its
/// range.
#[inline]
fn transferred(Answer { on, outcome, request }: Answer<'_>) -> (&mut Transfer, Result<usize>) {
    let Request::Read(transfer) = request else {
        unreachable!("a read is answered with its transfer, not {request:?}")
    };
    let result = match outcome {
        Ok(Done::Nothing) => Ok(transfer.done()),
        Ok(other) => unreachable!("a read is answered with its transfer, not {other:?}"),
        Err(errno) => {
            let (offset, length) = transfer.asked();
            Err(on.open().error(ErrorOp::Read, errno).with_range(offset, length as u64))
        }
    };
    (transfer, result)
}

/// Returns the bytes read and the buffer, which `back` makes of the memory and the number of bytes.
#[inline]
fn read<B>(answer: Answer<'_>, back: fn(Erased, usize) -> B) -> Moved<B> {
    let (transfer, result) = transferred(answer);
    let buffer = back(Erased(transfer.take_memory()), *result.as_ref().unwrap_or(&0));
    match result {
        Ok(n) => Ok((n, buffer)),
        Err(error) => Err(BufferError { error, buffer }),
    }
}

/// Returns the buffer if it was filled.
fn read_full<B: ReadBuffer>(answer: Answer<'_>) -> BufferResult<B> {
    let on = answer.on;
    let (offset, length) = match &*answer.request {
        Request::Read(transfer) => transfer.asked(),
        other => unreachable!("a read is answered with its transfer, not {other:?}"),
    };
    match read(answer, B::from_room)? {
        (n, buffer) if n < length => Err(BufferError { error: ended(on.open(), offset, length, n), buffer }),
        (_, buffer) => Ok(buffer),
    }
}

fn read_exact(answer: Answer<'_>) -> Result<Buf> {
    let on = answer.on;
    let (transfer, result) = transferred(answer);
    let (n, (offset, length)) = (result?, transfer.asked());
    if n < length {
        return Err(ended(on.open(), offset, length, n));
    }
    match transfer.take_memory() {
        Memory::Buf(buf) => Ok(buf),
        other => unreachable!("an exact read works on a pooled buffer, not {other:?}"),
    }
}

fn size(answer: Answer<'_>) -> Result<u64> {
    match answer.outcome {
        Ok(Done::Size(size)) => Ok(size),
        Ok(other) => unreachable!("a size is answered with a size, not {other:?}"),
        Err(errno) => Err(answer.on.open().error(ErrorOp::Size, errno)),
    }
}

fn advised(Answer { on, outcome, request }: Answer<'_>) -> Result<()> {
    outcome.map(drop).map_err(|errno| {
        let error = on.open().error(ErrorOp::Advise, errno);
        match request {
            Request::Advise { offset, length, .. } => {
                let error = error.with_range(*offset, *length);
                match errno {
                    Errno::OPNOTSUPP => error
                        .with_advice("posix_fadvise(2) is refused here; continue without it, since it is only a hint"),
                    _ => error,
                }
            }
            _ => error,
        }
    })
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::os::fd::AsRawFd;

    use rustix::fs::OFlags;

    use super::*;
    use crate::core::instance::Engine;
    use crate::direct::Direct;
    use crate::op::Direction;
    use crate::sys::WriteFlags;

    const PAGE: usize = 4096;

    /// Bytes of which no page is like another.
    fn bytes() -> Vec<u8> {
        (0..4 * PAGE as u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect()
    }

    /// A file in direct I/O that is said to take any place, length and memory; None where that is
    /// so.
    fn believed(nowait: &Nowait, path: &Path) -> Option<File> {
        use std::os::unix::fs::{FileExt, OpenOptionsExt};
        let mut options = fs::File::options();
        let file = options.read(true).write(true).custom_flags(libc::O_DIRECT).open(path).ok()?;
        match file.read_at(&mut [0; 7], 1) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
            answer => {
                eprintln!("skipped: a direct read of 7 bytes is answered with {answer:?}");
                return None;
            }
        }
        let directness =
            Directness::Granted { direct: Direct::new(Alignment { memory: 1, offset: 1 }), only_waits: false };
        Some(File::new(Handle::Descriptor(file.into()), directness, Arc::from(path), nowait.0.clone()))
    }

    fn wait<'f, T>(way: u8, operation: impl Into<Operation<'f, T>>) -> T {
        let operation = operation.into();
        match way {
            0 => operation.wait(),
            1 => crate::block_on(operation),
            _ => futures::executor::block_on(operation),
        }
    }

    /// Symptom: where `RWF_APPEND` is ignored (overlayfs of 5.10 and 6.1), an append overwrote the
    /// start of the file. Where it is not known to be honoured, records are written by a descriptor
    /// with `O_APPEND`.
    #[test]
    fn appends_where_the_flag_may_be_ignored_go_through_another_descriptor() {
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = folder.path().join("file");
        let open_descriptors = || {
            let links = fs::read_dir("/proc/self/fd").unwrap().flatten();
            links.filter(|link| fs::read_link(link.path()).is_ok_and(|to| to == path)).count()
        };
        for engine in [Engine::Auto, Engine::Aio, Engine::Pool] {
            let Ok(nowait) = Nowait::builder().engine(engine.clone()).build() else { continue };
            for direct in [false, true] {
                fs::write(&path, [1; 100]).unwrap();
                let mut bytes = vec![1; 100];
                let mut options = OpenOptions::new();
                let file = options.read(true).write(true).direct(direct).open_in(&nowait, &path).wait().unwrap();
                assert!(file.open.distrust_append_flag());
                assert_eq!(open_descriptors(), 2);
                let request = Request::Write(Transfer::void(0, 1), WriteFlags::APPEND);
                let handle = file.open.handle_for(&request).unwrap().descriptor().unwrap();
                assert_ne!(Some(handle.as_raw_fd()), file.descriptor().map(|own| own.as_raw_fd()));
                assert!(rustix::fs::fcntl_getfl(handle).unwrap().contains(OFlags::APPEND));
                for way in 0..3 {
                    wait(way, file.append(vec![way; 5000])).unwrap();
                    wait(way, file.append(vec![9; 300]).durable()).unwrap();
                    wait(way, file.write_all_at(vec![way; 7], 3)).unwrap();
                    bytes[3..10].fill(way);
                    bytes.extend_from_slice(&[way; 5000]);
                    bytes.extend_from_slice(&[9; 300]);
                    assert!(fs::read(&path).unwrap() == bytes, "{engine:?}, direct {direct}, way {way}");
                }
                file.close().unwrap();
                nowait.drain();
                assert_eq!(open_descriptors(), 0, "both are closed");
            }
        }
    }

    /// Symptom: all operations failed on a file that was granted direct I/O, but fails every direct
    /// request with EINVAL.
    #[test]
    fn a_request_that_suits_every_device_and_is_refused_ends_direct_io() {
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let (path, mut bytes) = (folder.path().join("file"), bytes());
        fs::write(&path, &bytes).unwrap();
        let nowait = Nowait::builder().build().unwrap();
        let Some(file) = believed(&nowait, &path) else { return };
        let open = &file.open;
        let (direct, fd) = (open.direct.as_ref().unwrap(), file.descriptor().unwrap());
        let is_direct = || rustix::fs::fcntl_getfl(fd).unwrap().contains(OFlags::DIRECT);
        // Behaves like a file system that has no direct I/O.
        let run = |request: &mut Request, wrong: bool| {
            direct::run(open, direct, request, |request| match is_direct() || wrong {
                true => Err(Errno::INVAL),
                false => crate::engine::run(Some(&open.handle), request),
            })
        };
        let whole_page = || Request::Read(Transfer::new(Memory::Buf(Buf::uncleared(PAGE).unwrap()), 0));
        // If the page cache refuses it, too, the request is wrong.
        assert_eq!(run(&mut whole_page(), true).unwrap_err(), Errno::INVAL);
        assert_eq!(run(&mut Request::Sync { data_only: true }, true).unwrap_err(), Errno::INVAL);
        assert!(is_direct() && matches!(file.direct(), DirectIo::Granted { .. }));
        // Widened to blocks before the file is known to have no direct I/O.
        let mut early = Request::Read(Transfer::new(Memory::Vec(vec![0; 5000]), 3));
        if let Request::Read(transfer) = &mut early {
            open.align(direct.alignment(), transfer, Direction::Read).unwrap();
        }
        run(&mut whole_page(), false).unwrap();
        assert!(!is_direct());
        assert_eq!(file.clone().direct(), DirectIo::Refused);
        run(&mut early, false).unwrap();
        let Request::Read(mut transfer) = early else { unreachable!("it is a read") };
        assert_eq!(transfer.done(), 5000);
        assert!(matches!(transfer.take_memory(), Memory::Vec(read) if read == bytes[3..5003]));
        // Symptom: if two durable writes ran at a time, one could report the other's lost pages.
        for (flags, alone) in [(WriteFlags::NONE, false), (WriteFlags::DURABLE, true)] {
            let mut write = Request::Write(Transfer::new(Memory::Vec(bytes[..PAGE].to_vec()), 0), flags);
            let outcome = direct::run(open, direct, &mut write, |request| {
                assert_eq!(direct.excludes_writes(), alone, "{flags:?}");
                crate::engine::run(Some(&open.handle), request)
            });
            outcome.unwrap();
        }
        for way in 0..3 {
            wait(way, file.write_all_at(vec![way; 5000], 3)).unwrap();
            bytes[3..5003].fill(way);
            wait(way, file.append(vec![way; 100]).durable()).unwrap();
            bytes.extend_from_slice(&[way; 100]);
            let (n, read) = wait(way, file.read_at(vec![0; 100_000], 1)).unwrap();
            assert!(n == bytes.len() - 1 && read[..n] == bytes[1..], "way {way}");
            wait(way, file.sync_data()).unwrap();
        }
        assert!(fs::read(&path).unwrap() == bytes);
        file.close().unwrap();
    }

    /// Symptom: while one request found that the file has no direct I/O, another failed with EINVAL.
    #[test]
    fn requests_that_find_at_a_time_that_there_is_no_direct_io_are_all_served() {
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = folder.path().join("file");
        fs::write(&path, bytes()).unwrap();
        let nowait = Nowait::builder().build().unwrap();
        for _ in 0..300 {
            let Some(file) = believed(&nowait, &path) else { return };
            let open = &file.open;
            let (direct, fd) = (open.direct.as_ref().unwrap(), file.descriptor().unwrap());
            let start = std::sync::Barrier::new(4);
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        let page = Memory::Buf(Buf::uncleared(PAGE).unwrap());
                        let mut request = Request::Read(Transfer::new(page, 0));
                        start.wait();
                        let outcome =
                            direct::run(open, direct, &mut request, |request| {
                                match rustix::fs::fcntl_getfl(fd).unwrap().contains(OFlags::DIRECT) {
                                    true => Err(Errno::INVAL),
                                    false => crate::engine::run(Some(&open.handle), request),
                                }
                            });
                        outcome.unwrap();
                    });
                }
            });
            assert_eq!(file.direct(), DirectIo::Refused);
        }
    }

    fn assert_learned(file: &File) {
        assert_eq!(file.direct(), DirectIo::Granted { memory_alignment: PAGE, offset_alignment: PAGE });
    }

    /// Symptom: of several requests in flight to a device that needs more than it says, one was
    /// made again and the others failed with EINVAL, since what they ran into was known by then.
    /// Each is made again that was made for what was believed before.
    #[test]
    fn a_device_that_needs_more_than_it_says_is_found_out() {
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = folder.path().join("file");
        for engine in [Engine::Auto, Engine::Aio, Engine::Pool] {
            let Ok(nowait) = Nowait::builder().engine(engine.clone()).build() else { continue };
            let mut bytes = bytes();
            fs::write(&path, &bytes).unwrap();
            let open = || believed(&nowait, &path);
            if open().is_none() {
                return;
            }
            for way in 0..3 {
                let file = open().unwrap();
                let (n, read) = wait(way, file.read_at(vec![0; 5000], 3)).unwrap();
                assert!(n == 5000 && read == bytes[3..5003], "{engine:?}");
                assert_learned(&file);
                let file = open().unwrap();
                wait(way, file.write_all_at(vec![way; 5000], 3)).unwrap();
                bytes[3..5003].fill(way);
                assert!(fs::read(&path).unwrap() == bytes, "{engine:?}");
                assert_learned(&file);
            }
            let file = open().unwrap();
            file.write_all_from(&[9; 700], 4000).unwrap();
            bytes[4000..4700].fill(9);
            let mut read = [0; 1000];
            assert_eq!(open().unwrap().read_into(&mut read, 3900).unwrap(), 1000);
            assert!(read == bytes[3900..4900], "{engine:?}");
            // Many at a time run into it.
            for own in [false, true] {
                let file = open().unwrap();
                let reads = futures::future::join_all((0..50).map(|i| file.read_at(vec![0; 300], i * 301)));
                let read = if own { crate::block_on(reads) } else { futures::executor::block_on(reads) };
                for (i, read) in read.into_iter().enumerate() {
                    assert!(read.unwrap().1 == bytes[i * 301..i * 301 + 300], "{engine:?}, read {i}");
                }
            }
        }
    }

    /// Symptom: a write that was found to suit the device by one alignment was made ready by
    /// another, learned meanwhile: widened to a page, with anything beside it.
    #[test]
    fn a_device_that_needs_more_than_it_says_takes_many_writes() {
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = folder.path().join("file");
        for engine in [Engine::Auto, Engine::Aio, Engine::Pool] {
            let Ok(nowait) = Nowait::builder().engine(engine.clone()).build() else { continue };
            let mut bytes = bytes();
            fs::write(&path, &bytes).unwrap();
            let open = || believed(&nowait, &path);
            if open().is_none() {
                return;
            }
            for own in [true, false] {
                let file = open().unwrap();
                let write = |i: usize| file.write_all_at(vec![i as u8; 300], i as u64 * 301);
                let writes = futures::future::join_all((0..50).map(write));
                let written = if own { crate::block_on(writes) } else { futures::executor::block_on(writes) };
                for (i, written) in written.into_iter().enumerate() {
                    written.unwrap();
                    bytes[i * 301..i * 301 + 300].fill(i as u8);
                }
                assert!(fs::read(&path).unwrap() == bytes, "{engine:?}");
            }
        }
    }
}
