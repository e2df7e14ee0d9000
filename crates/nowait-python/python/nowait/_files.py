"""Files."""

from __future__ import annotations

import io
import operator
import os
from typing import TYPE_CHECKING, Any, SupportsIndex

from nowait import _nowait, _system
from nowait._errors import make

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer
    from numpy.typing import ArrayLike, DTypeLike, NDArray

    from nowait._types import Path


class File(_nowait.File):
    """A file without a cursor: reads and writes take an offset. Any thread may use it.

    `mode` is r, r+, w, w+, x, x+, a or a+, as for `open`. `direct` bypasses the page cache, if the file
    system supports that.
    """

    __slots__ = ()

    def gather_rows(
        self,
        dtype: DTypeLike,
        shape: SupportsIndex | tuple[SupportsIndex, ...],
        rows: ArrayLike,
        *,
        offset: int = 0,
        out: WriteableBuffer | None = None,
    ) -> NDArray[Any]:
        """Reads rows of an array of `shape` and `dtype`, in C order, that begins at byte `offset`.

        `nowait.Rows` stores these arguments for many calls, and reads them from a `.npy` file.
        """
        from nowait._rows import Rows

        return Rows(self, dtype, shape, offset).gather(rows, out)

    def raw(self) -> RawFile:
        """Returns a file-like object with a separate cursor; closing it does not close this file."""
        return RawFile(self)


def open(path: Path, mode: str = "r", *, direct: bool = False, permissions: int = 0o666) -> File:
    """Opens a file: see `File`."""
    return File(path, mode, direct=direct, permissions=permissions)


class RawFile(io.RawIOBase):
    """A cursor over a `File`, for `io.BufferedReader` and the like. Not safe for concurrent threads."""

    def __init__(self, file: File, *, owns: bool = False) -> None:
        super().__init__()
        self._file = file
        self._owns = owns
        self._position = file.size() if "a" in file.mode else 0

    @property
    def name(self) -> str:
        return self._file.name

    @property
    def mode(self) -> str:
        """Mode as `io.FileIO` reports it: it contains a b, and w+ is rb+."""
        mode = self._file.mode.replace("b", "")
        return {"w+": "rb+"}.get(mode, mode[0] + "b" + mode[1:])

    def fileno(self) -> int:
        self._check()
        return self._file.fileno()

    def isatty(self) -> bool:
        self._check()
        return _system.isatty(self._file)

    def readable(self) -> bool:
        self._check()
        return "r" in self._file.mode or "+" in self._file.mode

    def writable(self) -> bool:
        self._check()
        return self._file.mode.replace("b", "") != "r"

    def seekable(self) -> bool:
        self._check()
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self._check()
        base = {os.SEEK_SET: lambda: 0, os.SEEK_CUR: lambda: self._position, os.SEEK_END: self._file.size}
        if whence not in base:
            raise ValueError(f"there is no whence {whence}; give 0, 1 or 2")
        position = base[whence]() + operator.index(offset)
        if position < 0:
            raise ValueError(f"position {position} is before the file")
        self._position = position
        return position

    def tell(self) -> int:
        self._check()
        return self._position

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0:
            return self.readall()
        self._check_readable()
        # Not by way of `readinto`, which would copy the bytes once more.
        data = self._file.read_at(self._position, size)
        self._position += len(data)
        return data

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        self._check_readable()
        n = self._file.readinto_at(self._position, buffer)
        self._position += n
        return n

    def readall(self) -> bytes:
        self._check_readable()
        pieces: list[bytes] = []
        while True:
            # Requests all remaining bytes, since a shorter result would be copied. Some files of
            # the kernel report a size of zero.
            left = self._file.size() - self._position
            piece = self._file.read_at(self._position, left if left > 0 else 64 << 10)
            if not piece:
                return pieces[0] if len(pieces) == 1 else b"".join(pieces)
            self._position += len(piece)
            pieces.append(piece)

    def write(self, data: ReadableBuffer, /) -> int:
        self._check_writable()
        appends = "a" in self._file.mode
        n = self._file.append(data) if appends else self._file.write_at(self._position, data)
        self._position = self._file.size() if appends else self._position + n
        return n

    def truncate(self, size: int | None = None, /) -> int:
        self._check_writable()
        size = self._position if size is None else size_of_truncate(size, self.name)
        self._file.truncate(size)
        return size

    def close(self) -> None:
        if self.closed:
            return
        try:
            super().close()
        finally:
            if self._owns:
                self._file.close()

    def _check(self) -> None:
        if self.closed:
            raise ValueError(f"{self._file.name} is closed")

    def _check_readable(self) -> None:
        if not self.readable():
            raise io.UnsupportedOperation(f"{self.name} is open with mode {self.mode!r}: it cannot be read")

    def _check_writable(self) -> None:
        if not self.writable():
            raise io.UnsupportedOperation(
                f"{self.name} is open with mode {self.mode!r}: it cannot be written"
            )


def size_of_truncate(size: SupportsIndex, path: str) -> int:
    """Returns the size; raises as Python's files do: for a negative one an `OSError`."""
    number = operator.index(size)
    if number < 0:
        raise make("InvalidInput", None, f"{path} cannot be cut to {number} bytes", path, None, None, None)
    return number
