//! How a file is opened.

use std::path::Path;
use std::sync::Arc;

use crate::sys::{self, Errno, Mode, OFlags};

use super::File;
use crate::core::instance::Nowait;
use crate::error::{Error, ErrorKind, ErrorOp, Result};
use crate::op::{Done, Owned, PathAt, Request};
use crate::operation::Operation;
use crate::started::Answer;

/// Options for opening a file, named as in [`std::fs::OpenOptions`].
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
    /// Returns options that allow nothing; files are created with mode 0o666 less the umask.
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

    /// Makes all writes append to the end of the file.
    pub fn append(&mut self, append: bool) -> &mut Self {
        self.append = append;
        self
    }

    /// Truncates the file to length zero; needs `write`.
    pub fn truncate(&mut self, truncate: bool) -> &mut Self {
        self.truncate = truncate;
        self
    }

    /// Creates the file if it does not exist; needs `write` or `append`.
    pub fn create(&mut self, create: bool) -> &mut Self {
        self.create = create;
        self
    }

    /// Creates the file, and fails if it exists; needs `write` or `append`.
    pub fn create_new(&mut self, create_new: bool) -> &mut Self {
        self.create_new = create_new;
        self
    }

    /// Sets the permission bits of a file that is created.
    pub fn mode(&mut self, mode: u32) -> &mut Self {
        self.mode = mode;
        self
    }

    /// Adds flags of `open(2)`, such as `O_NOATIME`. `O_NONBLOCK` has no meaning for files and is
    /// ignored. `O_PATH` is refused, since such a descriptor neither reads nor writes.
    pub fn custom_flags(&mut self, flags: i32) -> &mut Self {
        self.custom_flags = flags;
        self
    }

    /// Bypasses the page cache (`O_DIRECT`) if the file and its device support it. Otherwise reads
    /// and writes use the page cache, and [`File::direct`] reports it.
    ///
    /// Offset, length and memory may be unaligned. Requests that are aligned for the device cost
    /// nothing extra; a [`Buf`](crate::Buf) at a multiple of 4096 usually is. Other reads are
    /// widened to whole blocks, and the result is cut. Other writes send their partial first and
    /// last block through the page cache. At the end of the file a read may overwrite the rest of
    /// the buffer.
    ///
    /// A write with a partial block never runs at the same time as another direct write of this
    /// `File` or its clones. The library cannot see writes through other opens of the file. Writing
    /// back a partial page may overwrite the data of such a write (`open(2)`, NOTES). Open such a
    /// file only once, or write multiples of [`DirectIo::Granted`](crate::DirectIo::Granted).
    ///
    /// A direct write is not durable: the device may have a volatile cache. See
    /// [`Write::durable`](crate::Write::durable) and [`File::sync_data`].
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
    /// When polled, an open for reading runs on the polling thread if it should not block. That
    /// requires a name in the kernel's cache, and a mount known to be local from an earlier open
    /// (Linux 6.8; not FUSE or overlayfs). Otherwise a pool thread opens the file.
    ///
    /// # Errors
    /// Those of `open(2)`; [`ErrorKind::IsADirectory`] for a directory; [`ErrorKind::NotSeekable`]
    /// for a FIFO, socket or terminal. The open of a FIFO does not wait for its other end.
    pub fn open_in<'n>(&self, nowait: &'n Nowait, path: impl AsRef<Path>) -> Operation<'n, Result<File>> {
        self.open_at(nowait, PathAt::from(path.as_ref()))
    }

    pub(crate) fn open_at<'n>(&self, nowait: &'n Nowait, path: PathAt) -> Operation<'n, Result<File>> {
        let flags = self.flags();
        let mode = Mode::from_raw_mode(self.mode as _);
        let request = Request::Open { path, flags: flags.unwrap_or(OFlags::empty()), mode, direct: self.direct };
        Operation::checked(nowait.0.target(), flags.map(drop), request, opened)
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

/// Advice for a descriptor that was opened with `O_PATH`.
pub(super) const OPENED_AS_PATH: &str =
    "O_PATH names a file without opening it for reading or writing; open it without that flag";

fn open_error(errno: Errno, path: &Arc<Path>) -> Error {
    let error = Error::from_errno(ErrorOp::Open, errno).at_shared(path);
    match errno {
        Errno::INVAL if sys::has_zero(path) => error.with_detail("the path contains a zero byte"),
        Errno::INVAL => error.with_detail("set read, write or append; the rules of std::fs::OpenOptions apply"),
        // The open succeeded, but the descriptor neither reads nor writes (`sys::check`).
        Errno::BADF => error.of_kind(ErrorKind::InvalidInput).with_advice(OPENED_AS_PATH),
        _ => error,
    }
}

fn opened(Answer { on, outcome, request }: Answer<'_>) -> Result<File> {
    let Request::Open { path, .. } = request else { unreachable!("an open is answered with itself, not {request:?}") };
    let path: Arc<Path> = Arc::from(path.display());
    let owned = match outcome {
        Ok(Done::Owned(owned)) => *owned,
        Ok(other) => unreachable!("an open is answered with a handle, not {other:?}"),
        Err(errno) => return Err(open_error(errno, &path)),
    };
    let Owned::Opened(handle, directness) = owned else {
        unreachable!("an open is answered with a handle, not {owned:?}")
    };
    Ok(File::new(handle, directness, path, on.instance.clone()))
}
