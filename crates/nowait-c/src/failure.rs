//! Failures for C: a negative errno, and a message that the thread keeps.

use std::borrow::Cow;
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};

use nowait::ErrorKind;
use nowait_copy::FailureKind;

pub(crate) type Result<T> = std::result::Result<T, Failure>;

/// An errno, and a message: operation, place, cause, and next step.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) errno: c_int,
    text: Cow<'static, str>,
    /// Index of the failed range of a gather.
    pub(crate) range_index: usize,
}

thread_local! {
    /// Text of the thread's last failure.
    static LAST: RefCell<Option<CString>> = const { RefCell::new(None) };
}

impl Failure {
    pub(crate) fn new(errno: c_int, text: impl Into<Cow<'static, str>>) -> Failure {
        Failure { errno, text: text.into(), range_index: 0 }
    }

    /// Adds the index of a gather's range.
    pub(crate) fn of_range(mut self, index: usize) -> Failure {
        self.range_index = index;
        self
    }

    /// Converts the message to a C string. Omits zero bytes, which only a path could contain.
    pub(crate) fn into_text(self) -> CString {
        let mut bytes = self.text.into_owned().into_bytes();
        if bytes.contains(&0) {
            bytes.retain(|byte| *byte != 0);
        }
        CString::new(bytes).unwrap_or_default()
    }

    /// Stores the message for `nowait_error_message`; returns the negative errno.
    #[cold]
    pub(crate) fn report(self) -> c_int {
        let errno = self.errno;
        let text = self.into_text();
        // An ending thread reads no more messages. The old text is dropped after the borrow.
        let old = LAST.try_with(|last| last.replace(Some(text)));
        drop(old);
        -errno
    }
}

/// Returns the message of this thread's last failure; empty if there was none.
pub(crate) fn last_text() -> *const c_char {
    let text = LAST.try_with(|last| last.borrow().as_ref().map(|text| text.as_ptr()));
    text.ok().flatten().unwrap_or(c"".as_ptr())
}

impl From<nowait::Error> for Failure {
    #[cold]
    fn from(error: nowait::Error) -> Failure {
        let errno = error.raw_os_error().unwrap_or_else(|| errno_of(error.kind()));
        Failure::new(errno, error.to_string()).of_range(error.range_index().unwrap_or(0))
    }
}

impl From<nowait_copy::Failure> for Failure {
    #[cold]
    fn from(failure: nowait_copy::Failure) -> Failure {
        let errno = failure.raw_os_error().unwrap_or_else(|| match failure.kind() {
            FailureKind::System(kind) => errno_of(kind),
            FailureKind::Usage | FailureKind::SameFile | FailureKind::IntoItself => libc::EINVAL,
            FailureKind::NameCollision => libc::EEXIST,
            FailureKind::SourceChanged => libc::ESTALE,
            FailureKind::VerificationFailed => libc::EUCLEAN,
            FailureKind::MetadataLost => libc::EOPNOTSUPP,
            FailureKind::Cancelled => libc::ECANCELED,
            _ => libc::EIO,
        });
        Failure::new(errno, failure.to_string())
    }
}

/// Returns the errno for a failure without an errno of the kernel.
fn errno_of(kind: ErrorKind) -> c_int {
    match kind {
        ErrorKind::NotFound => libc::ENOENT,
        ErrorKind::PermissionDenied => libc::EACCES,
        ErrorKind::ReadOnlyFilesystem => libc::EROFS,
        ErrorKind::IsADirectory => libc::EISDIR,
        ErrorKind::NotADirectory => libc::ENOTDIR,
        ErrorKind::DirectoryNotEmpty => libc::ENOTEMPTY,
        ErrorKind::FilesystemLoop => libc::ELOOP,
        ErrorKind::InvalidFilename => libc::ENAMETOOLONG,
        ErrorKind::CrossesDevices => libc::EXDEV,
        ErrorKind::TooManyLinks => libc::EMLINK,
        ErrorKind::ResourceBusy | ErrorKind::Locked => libc::EBUSY,
        ErrorKind::ExecutableFileBusy => libc::ETXTBSY,
        ErrorKind::Deadlock => libc::EDEADLK,
        ErrorKind::StaleNetworkFileHandle => libc::ESTALE,
        ErrorKind::TimedOut => libc::ETIMEDOUT,
        ErrorKind::Interrupted => libc::EINTR,
        ErrorKind::NotSeekable => libc::ESPIPE,
        ErrorKind::InvalidRange => libc::EOVERFLOW,
        ErrorKind::BufferTooSmall => libc::ENOBUFS,
        ErrorKind::UnexpectedEof | ErrorKind::NoSuchRecord => libc::ENODATA,
        ErrorKind::Closed => libc::EBADF,
        ErrorKind::OutOfMemory => libc::ENOMEM,
        ErrorKind::TooManyFiles => libc::EMFILE,
        ErrorKind::Unsupported => libc::EOPNOTSUPP,
        ErrorKind::InvalidInput => libc::EINVAL,
        ErrorKind::EngineUnavailable => libc::ENOSYS,
        ErrorKind::AlreadyExists => libc::EEXIST,
        ErrorKind::NoSpace | ErrorKind::WriteZero => libc::ENOSPC,
        ErrorKind::FileTooLarge => libc::EFBIG,
        ErrorKind::WouldBlock => libc::EAGAIN,
        ErrorKind::Damaged => libc::EUCLEAN,
        ErrorKind::Poisoned => libc::ENOTRECOVERABLE,
        ErrorKind::Io | ErrorKind::SyncFailed | ErrorKind::Indeterminate => libc::EIO,
        _ => libc::EIO,
    }
}
