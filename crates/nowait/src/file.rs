//! Files: opening them and reading at positions. No engine is named here; this is where errors get their paths.

use std::fmt;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::buf::{Buf, Erased, Memory, ReadBuffer, ReadBuffers};
use crate::core::instance::{Instance, Nowait};
use crate::core::opened::Opened;
use crate::direct::{self, Alignment, Directness};
use crate::engine::local;
use crate::error::{BufferError, BufferResult, Error, ErrorKind, ErrorOp, Moved, Result};
use crate::op::{Call, Done, Handle, OpenFile, PathAt, Request, Transfer};
use crate::operation::{Answer, Conclude, On, Operation, called};
use crate::stats::Count;
use crate::sys;

/// An open file. Clones share the descriptor and what was learned about the file; any thread may use any clone.
///
/// All reads name their position; there is no cursor. A result is short only at the end of the file. The descriptor is closed
/// when the last clone and the last operation under way are gone.
#[derive(Clone)]
pub struct File(pub(crate) Arc<Opened>);

/// How to open a file; the same words as [`std::fs::OpenOptions`].
#[derive(Clone, Debug)]
pub struct OpenOptions {
    read: bool,
    write: bool,
    append: bool,
    truncate: bool,
    create: bool,
    create_new: bool,
    mode: u32,
    custom_flags: i32,
    direct: bool,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl OpenOptions {
    /// Nothing allowed yet; files are created with mode 0o666 less the umask.
    pub fn new() -> Self {
        OpenOptions {
            read: false,
            write: false,
            append: false,
            truncate: false,
            create: false,
            create_new: false,
            mode: 0o666,
            custom_flags: 0,
            direct: false,
        }
    }

    /// Allows reading.
    pub fn read(&mut self, read: bool) -> &mut Self {
        self.read = read;
        self
    }

    /// Allows writing.
    pub fn write(&mut self, write: bool) -> &mut Self {
        self.write = write;
        self
    }

    /// Writes go to the end of the file.
    pub fn append(&mut self, append: bool) -> &mut Self {
        self.append = append;
        self
    }

    /// Cuts the file to length zero; needs `write`.
    pub fn truncate(&mut self, truncate: bool) -> &mut Self {
        self.truncate = truncate;
        self
    }

    /// Creates the file if there is none; needs `write` or `append`.
    pub fn create(&mut self, create: bool) -> &mut Self {
        self.create = create;
        self
    }

    /// Creates the file and fails if there is one; needs `write` or `append`.
    pub fn create_new(&mut self, create_new: bool) -> &mut Self {
        self.create_new = create_new;
        self
    }

    /// Permission bits of a file that is created.
    pub fn mode(&mut self, mode: u32) -> &mut Self {
        self.mode = mode;
        self
    }

    /// More flags of `open(2)`, such as `O_NOATIME`. `O_NONBLOCK` has no meaning for files and is ignored.
    pub fn custom_flags(&mut self, flags: i32) -> &mut Self {
        self.custom_flags = flags;
        self
    }

    /// Reads and writes go past the page cache, where the file and its device can (`O_DIRECT`); where not, through it, and
    /// [`File::direct`] says so. Any place, length and memory will do. What suits the device costs nothing extra: [`Buf`]s at multiples of
    /// 4096 always do. Else reads are widened to whole blocks and cut back, and of writes the first and last part of a block go through
    /// the page cache. At the end of the file a read may overwrite what is left of the buffer.
    ///
    /// A write that goes through the page cache in part is made when no other direct write of this `File` and its clones is under way.
    /// Of those by another open of the same file, here or in another process, it cannot know: a page that it wrote back over what they
    /// wrote beside it at the same time would undo that (`open(2)`, NOTES, on mixing both kinds). Let files that are written so be opened
    /// once, or written in multiples of [`DirectIo::Granted`].
    ///
    /// Direct is not durable: the device may have a cache of its own. See [`Write::durable`](crate::Write::durable) and [`File::sync_data`].
    pub fn direct(&mut self, direct: bool) -> &mut Self {
        self.direct = direct;
        self
    }

    /// Opens `path` on the shared instance.
    pub fn open(&self, path: impl AsRef<Path>) -> Operation<'static, Result<File>> {
        self.open_in(Nowait::shared(), path)
    }

    /// Opens `path` on an instance.
    ///
    /// # Errors
    /// Those of `open(2)`; [`ErrorKind::IsADirectory`] for a directory; [`ErrorKind::NotSeekable`] for a FIFO, socket or terminal,
    /// without waiting for anybody at its other end.
    pub fn open_in<'n>(&self, nowait: &'n Nowait, path: impl AsRef<Path>) -> Operation<'n, Result<File>> {
        self.open_at(nowait, PathAt::from(path.as_ref()))
    }

    pub(crate) fn open_at<'n>(&self, nowait: &'n Nowait, path: PathAt) -> Operation<'n, Result<File>> {
        let flags = self.flags();
        let mode = Mode::from_raw_mode(self.mode);
        let request = Request::Open { path, flags: flags.unwrap_or(OFlags::empty()), mode, direct: self.direct };
        Operation::checked(On::Paths(&nowait.0), flags.map(drop), request, opened)
    }

    /// The same rules as std's.
    fn flags(&self) -> std::result::Result<OFlags, Errno> {
        let access = match (self.read, self.write, self.append) {
            (true, false, false) => OFlags::RDONLY,
            (false, true, false) => OFlags::WRONLY,
            (true, true, false) => OFlags::RDWR,
            (false, _, true) => OFlags::WRONLY | OFlags::APPEND,
            (true, _, true) => OFlags::RDWR | OFlags::APPEND,
            (false, false, false) => return Err(Errno::INVAL),
        };
        let writes = self.write || self.append;
        if (!writes && (self.truncate || self.create || self.create_new)) || (self.append && self.truncate) {
            return Err(Errno::INVAL);
        }
        let creation = match (self.create_new, self.create, self.truncate) {
            (true, _, _) => OFlags::CREATE | OFlags::EXCL,
            (_, true, true) => OFlags::CREATE | OFlags::TRUNC,
            (_, true, false) => OFlags::CREATE,
            (_, false, true) => OFlags::TRUNC,
            (_, false, false) => OFlags::empty(),
        };
        let custom = OFlags::from_bits_retain(self.custom_flags as _) - OFlags::RWMODE;
        Ok(access | creation | custom)
    }
}

/// Whether reads and writes go past the page cache; see [`File::direct`].
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectIo {
    /// They go through it: nobody asked otherwise.
    NotAsked,
    /// They go through it all the same: the file is in memory (tmpfs), or its file system has no direct I/O.
    Refused,
    /// They do. Requests whose memory, and whose place and length, are multiples of these go to the device as they are.
    Granted {
        /// In bytes.
        memory_alignment: usize,
        /// In bytes.
        offset_alignment: usize,
    },
}

/// Advice to the page cache; see `posix_fadvise(2)`.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Nothing special.
    Normal,
    /// Reads will be at random places: no read-ahead.
    Random,
    /// Reads will be in order: more read-ahead.
    Sequential,
    /// The range will be needed soon: begin to read it.
    WillNeed,
    /// The range will not be needed soon: its clean pages may go.
    DontNeed,
    /// The range will be needed once.
    NoReuse,
}

impl File {
    /// Opens a file for reading, on the instance that the process shares.
    ///
    /// # Errors
    /// See [`OpenOptions::open_in`].
    pub fn open(path: impl AsRef<Path>) -> Operation<'static, Result<File>> {
        OpenOptions::new().read(true).open(path)
    }

    /// Opens a file for writing, creates it if there is none, and cuts it to length zero if there is one.
    ///
    /// # Errors
    /// See [`OpenOptions::open_in`].
    pub fn create(path: impl AsRef<Path>) -> Operation<'static, Result<File>> {
        OpenOptions::new().write(true).create(true).truncate(true).open(path)
    }

    /// Creates a file for reading and writing, and fails if there is one.
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

    /// Takes over a file, or block device, that is open already. `path` is what errors will name.
    ///
    /// # Errors
    /// [`ErrorKind::IsADirectory`] for a directory; [`ErrorKind::NotSeekable`] for what is no file: a pipe, socket, terminal,
    /// eventfd, timer; [`ErrorKind::InvalidInput`] for a descriptor opened with `O_PATH`. Those of `fcntl(2)`; a descriptor with `O_NONBLOCK` loses that flag, which has no meaning for files and keeps
    /// io_uring from waiting.
    pub fn from_std(nowait: &Nowait, file: fs::File, path: impl AsRef<Path>) -> Result<File> {
        let path: Arc<Path> = Arc::from(path.as_ref());
        let fd = OwnedFd::from(file);
        sys::check(&fd).map_err(|errno| {
            let error = Error::from_errno(ErrorOp::Open, errno).at(&path);
            match errno {
                Errno::SPIPE => error.with_advice("give a regular file or a block device; for others wait until they are ready (tokio's AsyncFd, smol's Async)"),
                Errno::BADF => error.of_kind(ErrorKind::InvalidInput).with_advice("it was opened with O_PATH; open it for reading or writing"),
                _ => error,
            }
        })?;
        let directness = direct::look(fd.as_fd());
        Ok(File::new(Handle::Descriptor(fd), directness, path, nowait.0.clone()))
    }

    fn new(handle: Handle, directness: Directness, path: Arc<Path>, instance: Arc<Instance>) -> File {
        let open = instance.open_file(handle, directness);
        File(Arc::new(Opened::new(open, path, instance)))
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// The descriptor; `None` for a file of a simulator.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.0.open.handle.descriptor().ok()
    }

    /// Whether reads and writes of this file go past the page cache.
    pub fn direct(&self) -> DirectIo {
        match &self.0.open.direct {
            Some(direct) => {
                let Alignment { memory, offset } = direct.alignment();
                DirectIo::Granted { memory_alignment: memory as usize, offset_alignment: offset as usize }
            }
            None if self.0.open.direct_refused => DirectIo::Refused,
            None => DirectIo::NotAsked,
        }
    }

    /// Whether reads of this file can be tried without waiting (`RWF_NOWAIT`). `None` until a read has shown it.
    pub fn nowait_reads(&self) -> Option<bool> {
        self.0.open.reads.nowait_accepted()
    }

    /// Fills `buffer[..buffer.len()]` from `offset`, or an empty `Vec` or `BytesMut` up to its capacity: see [`ReadBuffer`].
    /// Gives the number of bytes and the buffer. Fewer than asked for means the end of the file. For a borrowed slice there
    /// is [`File::read_into`].
    ///
    /// # Errors
    /// The error carries the buffer. [`ErrorKind::InvalidRange`] beyond `i64::MAX`, [`ErrorKind::Closed`] after `close`, and what
    /// the kernel reports.
    pub fn read_at<B: ReadBuffer>(&self, buffer: B, offset: u64) -> Operation<'_, Moved<B>> {
        self.read(Transfer::new(buffer.into_room().0, offset), |answer| read(answer, B::from_room))
    }

    /// Fills `buffer` from `offset`; else as [`File::read_at`].
    ///
    /// # Errors
    /// [`ErrorKind::UnexpectedEof`] if the file ends before; the buffer then holds what is there. Else as [`File::read_at`].
    pub fn read_exact_at<B: ReadBuffer>(&self, buffer: B, offset: u64) -> Operation<'_, BufferResult<B>> {
        self.read(Transfer::new(buffer.into_room().0, offset), read_full)
    }

    /// Reads exactly `length` bytes from `offset` into a page-aligned buffer of the library's, which is not cleared first.
    ///
    /// # Errors
    /// [`ErrorKind::UnexpectedEof`] when the file ends before; else as [`File::read_at`].
    pub fn read_range(&self, offset: u64, length: usize) -> Operation<'_, Result<Buf>> {
        let refused = |errno| {
            let request = Request::Read(Transfer::void(offset, length));
            Operation::refused(On::File(&self.0), errno, request, read_exact)
        };
        // Before memory is asked for.
        if let Err(errno) = self.0.check(offset, length) {
            return refused(errno);
        }
        match Buf::uncleared(length) {
            Some(buf) => self.read(Transfer::new(Memory::Buf(buf), offset), read_exact),
            None => refused(Errno::NOMEM),
        }
    }

    /// Fills several buffers, one after the other, from `offset`; as [`File::read_at`] otherwise. Any number of one type, or
    /// a tuple of different ones: see [`ReadBuffers`].
    ///
    /// # Errors
    /// As [`File::read_at`].
    pub fn read_vectored_at<B: ReadBuffers>(&self, buffers: B, offset: u64) -> Operation<'_, Moved<B>> {
        self.read(Transfer::new(buffers.into_room().0, offset), |answer| read(answer, B::from_room))
    }

    fn read<T>(&self, transfer: Transfer, conclude: Conclude<T>) -> Operation<'_, T> {
        let checked = self.0.check(transfer.position(), transfer.left());
        Operation::checked(On::File(&self.0), checked, Request::Read(transfer), conclude)
    }

    /// Blocks the calling thread until `buffer` is filled from `offset` or the file has ended; gives the number of bytes.
    ///
    /// # Errors
    /// As [`File::read_at`].
    pub fn read_into(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let file = &*self.0;
        let length = buffer.len();
        let counters = &file.instance.counters;
        let result = file.check(offset, length).and_then(|()| file.target().read_blocking(buffer, offset));
        counters.add(if result.is_ok() { Count::Blocking } else { Count::FailedAtOnce });
        result.map_err(|errno| file.error(ErrorOp::Read, errno).with_range(offset, length as u64))
    }

    /// Blocks until `buffer` is full.
    ///
    /// # Errors
    /// [`ErrorKind::UnexpectedEof`] when the file ends before; else as [`File::read_at`].
    pub fn read_exact_into(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let length = buffer.len();
        match self.read_into(buffer, offset)? {
            n if n == length => Ok(()),
            n => Err(ended(&self.0, offset, length, n)),
        }
    }

    /// The size in bytes, of a file or a block device.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] after `close`, and what `fstat(2)` reports.
    pub fn size(&self) -> Operation<'_, Result<u64>> {
        self.simple(Request::Size, size)
    }

    /// Returns size, times, type and permissions (`statx(2)`).
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] after `close`, [`ErrorKind::Unsupported`] on a simulator, and what `statx(2)` reports.
    pub fn metadata(&self) -> Operation<'_, Result<fs::Metadata>> {
        self.call(ErrorOp::Metadata, |fd| to_std(fd)?.metadata())
    }

    /// Sets the permissions (`fchmod(2)`).
    ///
    /// # Errors
    /// As [`File::metadata`], of `fchmod(2)`.
    pub fn set_permissions(&self, permissions: fs::Permissions) -> Operation<'_, Result<()>> {
        self.call(ErrorOp::SetPermissions, |fd| to_std(fd)?.set_permissions(permissions))
    }

    /// Sets the times of the last access and change (`futimens(2)`).
    ///
    /// # Errors
    /// As [`File::metadata`], of `futimens(2)`.
    pub fn set_times(&self, times: fs::FileTimes) -> Operation<'_, Result<()>> {
        self.call(ErrorOp::SetTimes, move |fd| to_std(fd)?.set_times(times))
    }

    /// Waits for the file's exclusive lock: nobody else who asks has it, here or in another process (`flock(2)`).
    ///
    /// The lock belongs to this open of the file: its clones and [`try_clone`](File::try_clone)s have it too. It ends with
    /// [`unlock`](File::unlock), or with the last of them. A future that is dropped gives up the lock that it still gets.
    ///
    /// # Errors
    /// As [`File::metadata`], of `flock(2)`.
    pub fn lock(&self) -> Operation<'_, Result<()>> {
        self.locked(FlockOperation::LockExclusive)
    }

    /// Waits for a shared lock: others may have one too, and nobody an exclusive one. Else as [`File::lock`].
    ///
    /// # Errors
    /// As [`File::lock`].
    pub fn lock_shared(&self) -> Operation<'_, Result<()>> {
        self.locked(FlockOperation::LockShared)
    }

    /// Takes the file's exclusive lock unless another has one; returns whether it did. Else as [`File::lock`].
    ///
    /// # Errors
    /// As [`File::lock`].
    pub fn try_lock(&self) -> Operation<'_, Result<bool>> {
        self.try_locked(FlockOperation::NonBlockingLockExclusive)
    }

    /// Takes a shared lock unless another has the exclusive one; returns whether it did. Else as [`File::lock`].
    ///
    /// # Errors
    /// As [`File::lock`].
    pub fn try_lock_shared(&self) -> Operation<'_, Result<bool>> {
        self.try_locked(FlockOperation::NonBlockingLockShared)
    }

    /// Gives up the lock, if there is one.
    ///
    /// # Errors
    /// As [`File::lock`].
    pub fn unlock(&self) -> Operation<'_, Result<()>> {
        self.call(ErrorOp::Lock, |fd| Ok(rustix::fs::flock(fd, FlockOperation::Unlock)?))
    }

    fn locked(&self, operation: FlockOperation) -> Operation<'_, Result<()>> {
        let call = self.to_call(ErrorOp::Lock, move |fd| Held::lock(fd, operation));
        self.simple(call, |answer| called::<Held>(answer).map(Held::keep))
    }

    fn try_locked(&self, operation: FlockOperation) -> Operation<'_, Result<bool>> {
        let call = self.to_call(ErrorOp::Lock, move |fd| match Held::lock(fd, operation) {
            Ok(held) => Ok(Some(held)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        });
        self.simple(call, |answer| Ok(called::<Option<Held>>(answer)?.map(Held::keep).is_some()))
    }

    fn call<T: Send + 'static>(
        &self,
        operation: ErrorOp,
        function: impl FnOnce(BorrowedFd<'_>) -> io::Result<T> + Send + 'static,
    ) -> Operation<'_, Result<T>> {
        self.simple(self.to_call(operation, function), called)
    }

    fn to_call<T: Send + 'static>(
        &self,
        operation: ErrorOp,
        function: impl FnOnce(BorrowedFd<'_>) -> io::Result<T> + Send + 'static,
    ) -> Request {
        let call = |_: &Path, fd: Option<BorrowedFd<'_>>| function(fd.ok_or(Errno::BADF)?);
        Request::Call(Box::new(Call::new(operation, self.path(), call)))
    }

    /// Tells the page cache what to expect of `length` bytes from `offset`; a length of zero means to the end.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] after `close`, and what `posix_fadvise(2)` reports.
    pub fn advise(&self, offset: u64, length: u64, advice: Advice) -> Operation<'_, Result<()>> {
        let advice = match advice {
            Advice::Normal => rustix::fs::Advice::Normal,
            Advice::Random => rustix::fs::Advice::Random,
            Advice::Sequential => rustix::fs::Advice::Sequential,
            Advice::WillNeed => rustix::fs::Advice::WillNeed,
            Advice::DontNeed => rustix::fs::Advice::DontNeed,
            Advice::NoReuse => rustix::fs::Advice::NoReuse,
        };
        self.simple(Request::Advise { offset, length, advice }, advised)
    }

    fn simple<T>(&self, request: Request, conclude: Conclude<T>) -> Operation<'_, T> {
        Operation::checked(On::File(&self.0), self.0.check(0, 0), request, conclude)
    }

    /// Duplicates the descriptor (`F_DUPFD_CLOEXEC`, `fcntl(2)`): a file that is closed by itself, with the same position,
    /// lock and flags. Never waits. For a share of this file there is [`Clone`], which costs no descriptor.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] after `close`, [`ErrorKind::TooManyFiles`], [`ErrorKind::Unsupported`] on a simulator.
    pub fn try_clone(&self) -> Result<File> {
        let error = |errno| self.0.error(ErrorOp::Duplicate, errno);
        self.0.check(0, 0).map_err(error)?;
        let fd = self.descriptor().ok_or(Errno::OPNOTSUPP).map_err(error)?;
        let fd = sys::retry(|| rustix::io::fcntl_dupfd_cloexec(fd, 0)).map_err(error)?;
        let directness = direct::look(fd.as_fd());
        Ok(File::new(Handle::Descriptor(fd), directness, self.0.path.clone(), self.0.instance.clone()))
    }

    /// Gives the descriptor back as std's file, if nothing else uses this one: no clone, map or stream, and no operation,
    /// also none whose future was dropped ([`Nowait::drain`] waits for those).
    ///
    /// # Errors
    /// The file, if it is in use or of a simulator.
    pub fn into_std(self) -> std::result::Result<fs::File, File> {
        if self.descriptor().is_none() {
            return Err(self);
        }
        local::flush();
        let mut opened = Arc::try_unwrap(self.0).map_err(File)?;
        if Arc::get_mut(&mut opened.open).is_none() {
            return Err(File(Arc::new(opened)));
        }
        match Arc::into_inner(opened.open).map(|open| open.handle) {
            Some(Handle::Descriptor(fd)) => Ok(fs::File::from(fd)),
            _ => unreachable!("it has a descriptor, and nothing else has a share"),
        }
    }

    /// Closes the file for all clones: operations made after this fail with [`ErrorKind::Closed`]; those made before finish.
    ///
    /// Blocks for `close(2)`, and reports its error, if this was the last use: all other clones are
    /// gone, and what else has one (maps, streams, logs), and every operation has given its result.
    /// Else the answer is [`Closed::Later`]. An operation whose future was dropped may be under way
    /// still: [`Nowait::drain`] waits for those. Closing makes nothing durable: sync before.
    ///
    /// # Errors
    /// What `close(2)` reports. The descriptor is gone in any case.
    pub fn close(self) -> Result<Closed> {
        self.0.close();
        // Of several that close at a time one has the last share.
        let Some(Opened { open, path, instance, .. }) = Arc::into_inner(self.0) else { return Ok(Closed::Later) };
        let Some(OpenFile { handle, .. }) = Arc::into_inner(open) else { return Ok(Closed::Later) };
        local::flush();
        let outcome = instance.engines().pool.run(None, &mut Request::Close(handle));
        outcome.map(|_| Closed::Now).map_err(|errno| Error::from_errno(ErrorOp::Close, errno).at(&path))
    }
}

/// Takes over an open file on the instance that the process shares; see [`File::from_std`]. Errors name the path that
/// `/proc/self/fd` has for it.
impl TryFrom<fs::File> for File {
    type Error = Error;

    fn try_from(file: fs::File) -> Result<File> {
        let link = format!("/proc/self/fd/{}", file.as_raw_fd());
        let path = fs::read_link(&link).unwrap_or_else(|_| link.into());
        File::from_std(Nowait::shared(), file, path)
    }
}

/// The descriptor, as [`File::descriptor`].
///
/// # Panics
/// For a file of a simulator, which has none.
impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor().expect("a file of a simulator has no descriptor; ask File::descriptor")
    }
}

/// A lock that nobody has been told of. Dropped, it is given up.
struct Held(Option<OwnedFd>);

impl Held {
    fn lock(fd: BorrowedFd<'_>, operation: FlockOperation) -> io::Result<Held> {
        // Before the lock, since it can fail.
        let own = fd.try_clone_to_owned()?;
        sys::retry(|| rustix::fs::flock(fd, operation))?;
        Ok(Held(Some(own)))
    }

    /// The lock is the file's from now on.
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(fd) = &self.0 {
            let _ = rustix::fs::flock(fd, FlockOperation::Unlock);
        }
    }
}

/// A file of std's on a descriptor of its own, for what std does by one call.
fn to_std(fd: BorrowedFd<'_>) -> io::Result<fs::File> {
    fd.try_clone_to_owned().map(fs::File::from)
}

/// What [`File::close`] came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// The descriptor is closed, and `close(2)` reported no error.
    Now,
    /// The file is still in use: by a clone, or by an operation under way, which may be one whose
    /// future was dropped. The last use closes the descriptor, on a thread of the library's if it is
    /// an operation; what `close(2)` reports then is lost.
    Later,
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File").field("path", &self.0.path).field("handle", &self.0.open.handle).finish_non_exhaustive()
    }
}

fn open_error(errno: Errno, path: &Arc<Path>) -> Error {
    use std::os::unix::ffi::OsStrExt;
    let error = Error::from_errno(ErrorOp::Open, errno).at(path);
    match errno {
        Errno::INVAL if path.as_os_str().as_bytes().contains(&0) => error.with_detail("the path has a zero byte in it"),
        Errno::INVAL => {
            error.with_detail("say read, write or append, and what goes with them, as for std::fs::OpenOptions")
        }
        _ => error,
    }
}

fn ended(file: &Opened, offset: u64, length: usize, n: usize) -> Error {
    Error::new(ErrorOp::Read, ErrorKind::UnexpectedEof)
        .at(&file.path)
        .with_range(offset, length as u64)
        .with_detail(format!("{n} bytes are there"))
}

/// The transfer that was asked for, and how it ended: the bytes it moved, or the error with its range.
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
            Err(on.file().error(ErrorOp::Read, errno).with_range(offset, length as u64))
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
        (n, buffer) if n < length => Err(BufferError { error: ended(on.file(), offset, length, n), buffer }),
        (_, buffer) => Ok(buffer),
    }
}

fn read_exact(answer: Answer<'_>) -> Result<Buf> {
    let on = answer.on;
    let (transfer, result) = transferred(answer);
    let (n, (offset, length)) = (result?, transfer.asked());
    if n < length {
        return Err(ended(on.file(), offset, length, n));
    }
    match transfer.take_memory() {
        Memory::Buf(buf) => Ok(buf),
        other => unreachable!("an exact read works on a pooled buffer, not {other:?}"),
    }
}

fn opened(Answer { on, outcome, request }: Answer<'_>) -> Result<File> {
    let (On::Paths(instance), Request::Open { path, .. }) = (on, request) else {
        unreachable!("an open works on a path")
    };
    let path: Arc<Path> = Arc::from(path.display());
    match outcome {
        Ok(Done::Opened(handle, directness)) => Ok(File::new(handle, directness, path, instance.clone())),
        Ok(other) => unreachable!("an open is answered with a handle, not {other:?}"),
        Err(errno) => Err(open_error(errno, &path)),
    }
}

fn size(answer: Answer<'_>) -> Result<u64> {
    match answer.outcome {
        Ok(Done::Size(size)) => Ok(size),
        Ok(other) => unreachable!("a size is answered with a size, not {other:?}"),
        Err(errno) => Err(answer.on.file().error(ErrorOp::Size, errno)),
    }
}

fn advised(Answer { on, outcome, request }: Answer<'_>) -> Result<()> {
    outcome.map(drop).map_err(|errno| {
        let error = on.file().error(ErrorOp::Advise, errno);
        match request {
            Request::Advise { offset, length, .. } => error.with_range(*offset, *length),
            _ => error,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::instance::Engine;
    use crate::direct::Direct;
    use crate::sys::WriteFlags;

    const PAGE: usize = 4096;

    /// Bytes of which no page is like another.
    fn bytes() -> Vec<u8> {
        (0..4 * PAGE as u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect()
    }

    /// A file in direct I/O that is said to take any place, length and memory; None where that is so.
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

    /// Symptom: where `RWF_APPEND` is ignored (overlayfs of 5.10 and 6.1), an append overwrote the start of the file.
    /// Where it is not known to be honoured, records are written by a descriptor with `O_APPEND`.
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
                assert!(file.0.open.distrust_append_flag());
                assert_eq!(open_descriptors(), 2);
                let request = Request::Write(Transfer::void(0, 1), WriteFlags::APPEND);
                let handle = file.0.open.handle_for(&request).unwrap().descriptor().unwrap();
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

    fn assert_learned(file: &File) {
        assert_eq!(file.direct(), DirectIo::Granted { memory_alignment: PAGE, offset_alignment: PAGE });
    }

    /// Symptom: of several requests in flight to a device that needs more than it says, one was made again and the others failed with
    /// EINVAL, since what they ran into was known by then. Each is made again that was made for what was believed before.
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

    /// Symptom: a write that was found to suit the device by one alignment was made ready by another, learned meanwhile: widened to a
    /// page, with anything beside it.
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
