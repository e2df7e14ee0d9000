//! Requests to an engine, the handles that they are for, and its answers.

use std::any::Any;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::transfer::Transfer;
use crate::buf::mapping::{Fault, Mapping, Missing};
use crate::direct::Directness;
use crate::error::ErrorOp;
use crate::sys::{
    self, Advice, Allocate, AsFd, At, BorrowedFd, CWD, Errno, Mode, OFlags, OwnedFd, WriteFlags, calling_back, retry,
};

/// A file, as an engine knows it.
#[derive(Debug)]
pub(crate) enum Handle {
    Descriptor(OwnedFd),
    /// A place in a simulator's list of files, and the flags of the open.
    Simulated {
        #[cfg_attr(not(feature = "sim"), expect(dead_code))]
        file: usize,
        flags: OFlags,
    },
}

impl Handle {
    /// The descriptor; EBADF for a simulated file, which only its simulator can serve.
    pub(crate) fn descriptor(&self) -> Result<BorrowedFd<'_>, Errno> {
        match self {
            Handle::Descriptor(fd) => Ok(fd.as_fd()),
            Handle::Simulated { .. } => Err(Errno::BADF),
        }
    }

    /// Open flags, as far as the kernel reports them.
    pub(super) fn flags(&self) -> OFlags {
        match self {
            Handle::Descriptor(fd) => sys::flags(fd.as_fd()).unwrap_or(OFlags::empty()),
            Handle::Simulated { flags, .. } => *flags,
        }
    }
}

/// A request to an engine.
#[derive(Debug)]
pub(crate) enum Request {
    Read(Transfer),
    Write(Transfer, WriteFlags),
    /// Makes writes durable: the data and the metadata needed to find it, or all metadata.
    Sync {
        data_only: bool,
    },
    /// Writes a range back, and waits for that. Not durable: the device's cache is not flushed.
    SyncRange {
        offset: u64,
        length: u64,
    },
    SetLen(u64),
    Allocate {
        how: Allocate,
        offset: u64,
        length: u64,
    },
    /// Reserves space behind the end of a file with direct I/O, for a stream; the file grows.
    ReserveAhead {
        offset: u64,
        length: u64,
    },
    /// Cuts off the space that streams have reserved ahead.
    GiveBack,
    Rename {
        from: PathAt,
        to: PathAt,
        replace: bool,
    },
    Remove(PathAt),
    SyncDir(PathAt),
    CreateDir(PathBuf),
    /// Opens a directory, to be held.
    OpenDir(PathBuf),
    List(PathAt),
    Open {
        path: PathAt,
        flags: OFlags,
        mode: Mode,
        /// Past the page cache, where the file can.
        direct: bool,
    },
    Size,
    Advise {
        offset: u64,
        length: u64,
        advice: Advice,
    },
    /// Brings pages of a map in.
    Fault {
        mapping: Arc<Mapping>,
        fault: Fault,
    },
    /// A blocking call of std's that no engine has a better way for.
    Call(Box<Call>),
    Close(Handle),
}

/// A blocking call, repeated only while a signal interrupts it. Its answer is [`Owned::Value`].
pub(crate) struct Call {
    pub(crate) operation: ErrorOp,
    pub(crate) path: PathBuf,
    /// The second path, for those that have two.
    pub(crate) to: Option<PathBuf>,
    function: Option<Function>,
}

type Function = Box<dyn FnMut(&Path, Option<BorrowedFd<'_>>) -> io::Result<Value> + Send + Sync>;

/// Value that a [`Call`] returned, of the type that its operation concludes with.
pub(crate) type Value = Box<dyn Any + Send + Sync>;

impl Call {
    /// `function` gets the path, and the descriptor of an open file.
    pub(crate) fn new<T: Send + Sync + 'static>(
        operation: ErrorOp,
        path: &Path,
        mut function: impl FnMut(&Path, Option<BorrowedFd<'_>>) -> io::Result<T> + Send + Sync + 'static,
    ) -> Call {
        let function: Function = Box::new(move |path, fd| function(path, fd).map(|value| Box::new(value) as Value));
        Call { operation, path: path.into(), to: None, function: Some(function) }
    }

    /// Makes the call. An error without an errno is one of the arguments: std's own check of a path
    /// with a zero byte.
    pub(crate) fn make(&mut self, fd: Option<BorrowedFd<'_>>) -> Outcome {
        let mut function = self.function.take().ok_or(Errno::INVAL)?;
        let errno = |error| Errno::from_io_error(&error).unwrap_or(Errno::INVAL);
        let value = calling_back(false, || retry(|| function(&self.path, fd).map_err(errno)))?;
        Ok(Owned::Value(value).into())
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Call({} {})", self.operation, self.path.display())
    }
}

/// A directory that is held open.
#[derive(Debug)]
pub(crate) struct OpenDir {
    pub(crate) fd: OwnedFd,
    /// The path that it was opened by; for errors.
    pub(crate) path: Arc<Path>,
    /// The absolute path of that, where the system needs it to resolve names.
    pub(crate) kept_path: Option<PathBuf>,
}

/// A path, resolved from a directory that is held open, or else as the kernel resolves any.
#[derive(Clone, Debug)]
pub(crate) struct PathAt {
    pub(crate) dir: Option<Arc<OpenDir>>,
    pub(crate) path: PathBuf,
}

impl PathAt {
    pub(crate) fn dir(&self) -> At<'_> {
        self.dir.as_ref().map_or(CWD, |dir| sys::below(dir.fd.as_fd(), dir.kept_path.as_deref()))
    }

    /// The path to name in errors.
    pub(crate) fn display(&self) -> PathBuf {
        match &self.dir {
            Some(dir) if self.path == Path::new(".") => dir.path.to_path_buf(),
            Some(dir) => dir.path.join(&self.path),
            None => self.path.clone(),
        }
    }
}

impl From<&Path> for PathAt {
    fn from(path: &Path) -> PathAt {
        PathAt { dir: None, path: path.into() }
    }
}

/// An engine's answer. The request's transfer contains the number of bytes moved.
#[derive(Debug)]
pub(crate) enum Done {
    Nothing,
    Size(u64),
    /// Boxed, since reads and writes own nothing: their answers are moved and dropped often.
    Owned(Box<Owned>),
}

/// An answer that has to be dropped.
#[derive(Debug)]
pub(crate) enum Owned {
    Opened(Handle, Directness),
    Names(Vec<OsString>),
    Value(Value),
    /// The pages of a map that are not in the page cache, if that was asked.
    Faulted(Option<Missing>),
}

impl From<Owned> for Done {
    fn from(owned: Owned) -> Done {
        Done::Owned(Box::new(owned))
    }
}

pub(crate) type Outcome = Result<Done, Errno>;
