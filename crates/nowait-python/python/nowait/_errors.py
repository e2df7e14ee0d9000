"""Exceptions. Each is an `OSError`, and also derives from Python's more specific class if one exists."""

from __future__ import annotations

import errno as _errno
import sys as _sys
from typing import Any


class Error(OSError):
    """An operation failed. `errno`, `filename` and the text are those of any `OSError`.

    `kind` names the failure (`"NotFound"`, `"UnexpectedEof"`, ...). `index` is the position in the list of
    ranges; `offset` and `length` are the range in bytes. Each is `None` if it does not apply.
    """

    kind: str = "Other"
    index: int | None = None
    offset: int | None = None
    length: int | None = None
    # Report of `nowait.copy`, which contains the files that were copied.
    report: Any = None

    def __str__(self) -> str:
        return super().__str__() if self.strerror is None else str(self.strerror)


class EndOfFileError(Error, EOFError):
    """The file ends before the range."""


class RangeError(Error, ValueError):
    """The range is invalid: negative, or beyond the largest file offset."""


class ClosedError(Error, ValueError):
    """The file is already closed."""


class UnsupportedError(Error, NotImplementedError):
    """The file, its file system or the kernel does not support the operation."""


class SyncFailedError(Error):
    """A write-back failed: written data may be lost although reads still return it."""


class NotFoundError(Error, FileNotFoundError):
    """The file does not exist."""


class ExistsError(Error, FileExistsError):
    """The file already exists."""


class PermissionDeniedError(Error, PermissionError):
    """Permissions, or a read-only file system, forbid the operation."""


class DirectoryError(Error, IsADirectoryError):
    """The path is a directory."""


class NoDirectoryError(Error, NotADirectoryError):
    """A component of the path is not a directory."""


class BlockingError(Error, BlockingIOError):
    """The call would block, or another process holds the lock."""


class TimedOutError(Error, TimeoutError):
    """The call waited for too long."""


class DamagedError(Error):
    """Durable data is missing, or differs from what was written."""


_CLASSES: dict[str, type[Error]] = {
    "NotFound": NotFoundError,
    "AlreadyExists": ExistsError,
    "PermissionDenied": PermissionDeniedError,
    "ReadOnlyFilesystem": PermissionDeniedError,
    "IsADirectory": DirectoryError,
    "NotADirectory": NoDirectoryError,
    "UnexpectedEof": EndOfFileError,
    "InvalidRange": RangeError,
    "InvalidInput": RangeError,
    "Closed": ClosedError,
    "Unsupported": UnsupportedError,
    "SyncFailed": SyncFailedError,
    "WouldBlock": BlockingError,
    "Locked": BlockingError,
    "TimedOut": TimedOutError,
    "Damaged": DamagedError,
}

# Errnos for errors without an errno of the kernel.
_ERRNOS: dict[str, int] = {
    "UnexpectedEof": _errno.ENODATA,
    "InvalidRange": _errno.EOVERFLOW,
    "InvalidInput": _errno.EINVAL,
    "BufferTooSmall": _errno.EINVAL,
    "Closed": _errno.EBADF,
    "Unsupported": _errno.EOPNOTSUPP,
    "NotSeekable": _errno.ESPIPE,
    "NotFound": _errno.ENOENT,
    "AlreadyExists": _errno.EEXIST,
    "IsADirectory": _errno.EISDIR,
    "NotADirectory": _errno.ENOTDIR,
    "PermissionDenied": _errno.EACCES,
    "NoSpace": _errno.ENOSPC,
    "OutOfMemory": _errno.ENOMEM,
    "NoSuchRecord": _errno.ENOENT,
    "Locked": _errno.EAGAIN,
    "WouldBlock": _errno.EAGAIN,
    "TimedOut": _errno.ETIMEDOUT,
    "Interrupted": _errno.EINTR,
}


def make(
    kind: str,
    errno: int | None,
    text: str,
    filename: str | None,
    index: int | None,
    offset: int | None,
    length: int | None,
) -> Error:
    """Returns the exception for a failure."""
    number = _ERRNOS.get(kind, _errno.EIO) if errno is None else errno
    # On Windows, the number is a Windows error, from which Python derives `errno`.
    winerror = (errno,) if _sys.platform == "win32" and errno is not None else ()
    error = _CLASSES.get(kind, Error)(number, text, filename, *winerror)
    error.kind = kind
    error.index = index
    error.offset = offset
    error.length = length
    return error
