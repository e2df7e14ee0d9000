//! A file that was opened through an instance, as the clones of a [`File`](crate::File) share it;
//! errors get its path here.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::core::dispatch::Target;
use crate::core::instance::Instance;
use crate::error::{Error, ErrorKind, ErrorOp};
use crate::op::{Leftovers, OpenFile};

pub(crate) struct Opened {
    pub(crate) open: Arc<OpenFile>,
    pub(crate) path: Arc<Path>,
    pub(crate) instance: Arc<Instance>,
    closed: AtomicBool,
}

impl Opened {
    pub(crate) fn new(open: OpenFile, path: Arc<Path>, instance: Arc<Instance>) -> Opened {
        Opened { open: Arc::new(open), path, instance, closed: AtomicBool::new(false) }
    }

    #[inline]
    pub(crate) fn target(&self) -> Target<'_> {
        Target { instance: &self.instance, file: Some(&self.open) }
    }

    /// Whether reads go through the page cache, so that it can be told to read ahead. (A file that
    /// refuses `RWF_NOWAIT` may bypass it without saying so: FUSE with `FOPEN_DIRECT_IO`.)
    pub(crate) fn reads_ahead(&self) -> bool {
        self.open.direct.is_none()
            && self.instance.policy.forced.is_none()
            && self.open.reads.nowait_accepted() == Some(true)
    }

    /// Drops a share of the file, on a thread that others rely on. The last share is closed
    /// elsewhere: `close(2)` may block.
    pub(crate) fn let_go(self: Arc<Opened>) {
        if let Some(open) = Arc::into_inner(self).and_then(|opened| Arc::into_inner(opened.open)) {
            Leftovers::from(open).let_go();
        }
    }

    /// Operations that begin from now on fail.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    /// EBADF once `File::close` was called; EOVERFLOW for bytes that no file can have.
    #[inline]
    pub(crate) fn check(&self, offset: u64, length: usize) -> Result<(), Errno> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(Errno::BADF);
        }
        let end = offset.checked_add(length as u64);
        if end.is_none_or(|end| end > i64::MAX as u64) { Err(Errno::OVERFLOW) } else { Ok(()) }
    }

    pub(crate) fn error(&self, operation: ErrorOp, errno: Errno) -> Error {
        let error = Error::from_errno(operation, errno).at_shared(&self.path);
        match self.open.handle.descriptor().and_then(rustix::fs::fcntl_getfl) {
            // The descriptor is sound, so that EBADF has another meaning.
            // (ftruncate(2) says EINVAL for a descriptor that is for reading only.)
            Ok(flags)
                if (errno == Errno::BADF || (errno == Errno::INVAL && operation == ErrorOp::SetLen))
                    && !self.closed.load(Ordering::Relaxed) =>
            {
                let needed = match flags & OFlags::RWMODE {
                    OFlags::WRONLY => "reading",
                    OFlags::RDONLY => "writing",
                    _ => return error,
                };
                let error = Error::new(operation, ErrorKind::PermissionDenied).at_shared(&self.path);
                error.with_advice(format!("the file was not opened for {needed}; open it for {needed} as well"))
            }
            _ => error,
        }
    }
}
