"""Asynchronous files with a cursor, with the interface of aiofiles.

Calls of all tasks on one file run one after the other, in the order of their start. So each call moves the
cursor in one step. A failed call and a cancelled read leave the cursor unchanged. A cancelled write
continues in the background, and moves the cursor.
"""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any, AnyStr, Generic, TypeVar

from nowait import _loops, _nowait, _system
from nowait._errors import make
from nowait._files import size_of_truncate
from nowait._text import Decoded, Encoded, Place, text_codec

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable
    from typing import Self

    from _typeshed import ReadableBuffer, WriteableBuffer

    from nowait._types import Path

# Number of bytes read ahead for lines.
_AHEAD = 64 << 10
# Size of the first chunk of text; each later chunk is twice as large, up to `_AHEAD`. A character
# that cannot be decoded is reported when its chunk is read.
_FIRST_CHUNK = 8 << 10


class _Cursor(Generic[AnyStr]):
    """Base class of text and binary files."""

    def __init__(self, file: _nowait.File, mode: str) -> None:
        self._file = file
        self._mode = mode
        self._turn = _loops.Turn()
        self._appends = "a" in mode
        self._reads = "r" in mode or "+" in mode
        self._writes = "r" not in mode or "+" in mode
        # True if a cancelled write or truncation may still be in flight.
        self._is_unsettled = False
        # True if the cursor follows the end of the file, whose position is looked up when needed.
        self._is_at_end = False

    @property
    def name(self) -> str:
        return self._file.name

    @property
    def mode(self) -> str:
        return self._mode

    @property
    def closed(self) -> bool:
        return self._file.closed

    def fileno(self) -> int:
        return self._file.fileno()

    async def isatty(self) -> bool:
        return _system.isatty(self._file)

    async def writable(self) -> bool:
        self._check()
        return self._writes

    async def seekable(self) -> bool:
        self._check()
        return True

    async def flush(self) -> None:
        """Waits for earlier calls. Their data is then in the page cache; `sync` makes it durable."""
        async with self._turn:
            self._check()

    async def sync(self) -> None:
        """Makes all earlier writes durable."""
        async with self._turn:
            await _loops.call(_nowait.start_sync, self._file, False)

    async def close(self) -> None:
        """Closes the file, after earlier calls have ended."""
        try:
            async with self._turn:
                pass
        finally:
            # The file is closed even if the wait was cancelled.
            await _loops.call(_nowait.start_close, self._file)

    async def readline(self, size: int = -1) -> AnyStr:
        raise NotImplementedError

    async def readlines(self, hint: int = -1) -> list[AnyStr]:
        """Reads lines up to the end, or until they have more than `hint` bytes or characters."""
        lines: list[AnyStr] = []
        total = 0
        async with self._turn:
            await self._ready()
            while line := await self._line(-1):
                lines.append(line)
                total += len(line)
                if 0 < hint < total:
                    break
        return lines

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AnyStr:
        line = await self.readline()
        if not line:
            raise StopAsyncIteration
        return line

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def _line(self, size: int) -> AnyStr:
        raise NotImplementedError

    def _go(self, position: int) -> None:
        """Moves the cursor, and drops the data that was read ahead."""
        raise NotImplementedError

    def _check(self) -> None:
        if self._file.closed:
            raise make("Closed", None, f"{self.name} is closed", self.name, None, None, None)

    def _check_reads(self) -> None:
        if not self._reads:
            raise io.UnsupportedOperation(f"{self.name} is open with mode {self._mode!r}: it cannot be read")

    def _check_writes(self) -> None:
        self._check()
        if not self._writes:
            raise io.UnsupportedOperation(
                f"{self.name} is open with mode {self._mode!r}: it cannot be written"
            )

    async def _ready(self) -> None:
        """Waits until earlier writes have ended and the position is known. The caller holds the turn."""
        self._check()
        if self._is_unsettled:
            await _loops.run(_nowait.start_settle, self._file)
            self._is_unsettled = False
        if self._is_at_end:
            self._go(await self._size())
            self._is_at_end = False

    async def _size(self) -> int:
        return await _loops.call(_nowait.start_size, self._file)

    async def _read_at(self, position: int, length: int) -> bytes:
        return await _loops.call(_nowait.start_read, self._file, position, length)

    async def _write_at(self, position: int, data: ReadableBuffer) -> None:
        """Writes all of `data`, and moves the cursor after it. The caller holds the turn."""
        try:
            await _loops.call(
                _nowait.start_write, self._file, None if self._appends else position, data, False
            )
        except Exception:
            raise
        except BaseException:
            self._is_unsettled = True
            self._wrote(position, data)
            raise
        self._wrote(position, data)

    def _wrote(self, position: int, data: ReadableBuffer) -> None:
        self._is_at_end = self._appends
        self._go(position + memoryview(data).nbytes)

    async def _truncate(self, size: int) -> int:
        try:
            await _loops.call(_nowait.start_truncate, self._file, size)
        except Exception:
            raise
        except BaseException:
            self._is_unsettled = True
            raise
        return size


class AsyncBinaryFile(_Cursor[bytes]):
    """A file of bytes with a cursor, which any number of tasks may share."""

    def __init__(self, file: _nowait.File, mode: str, position: int) -> None:
        super().__init__(file, mode)
        self._position = position
        self._ahead = b""

    # Not a coroutine, as in aiofiles.
    def readable(self) -> bool:
        self._check()
        return self._reads

    async def tell(self) -> int:
        async with self._turn:
            await self._ready()
            return self._position

    async def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        async with self._turn:
            await self._ready()
            if whence == os.SEEK_CUR:
                offset += self._position
            elif whence == os.SEEK_END:
                offset += await self._size()
            elif whence != os.SEEK_SET:
                raise ValueError(f"there is no whence {whence}; give 0, 1 or 2")
            if offset < 0:
                raise ValueError(f"position {offset} is before the file")
            self._go(offset)
            return offset

    async def read(self, size: int | None = -1) -> bytes:
        """Reads `size` bytes, fewer only at the end of the file; by default all."""
        async with self._turn:
            await self._ready()
            self._check_reads()
            if size is None or size < 0:
                return await self._all()
            if not 0 < size <= len(self._ahead):
                data = await self._read_at(self._position, size)
                self._go(self._position + len(data))
                return data
            return self._take(size)

    async def read1(self, size: int = -1) -> bytes:
        """Reads up to `size` bytes by at most one read. Returns data that was read ahead, if any."""
        async with self._turn:
            await self._ready()
            self._check_reads()
            if not self._ahead and size != 0:
                self._ahead = await self._read_at(self._position, _AHEAD if size < 0 else size)
            return self._take(len(self._ahead) if size < 0 else size)

    async def peek(self, size: int = 0) -> bytes:
        """Returns the next bytes, fewer or more than `size`, and does not move the cursor."""
        async with self._turn:
            await self._ready()
            self._check_reads()
            if not self._ahead:
                self._ahead = await self._read_at(self._position, _AHEAD)
            return self._ahead

    async def readinto(self, buffer: WriteableBuffer) -> int:
        """Fills `buffer`; returns the number of bytes, which is less only at the end of the file."""
        async with self._turn:
            await self._ready()
            self._check_reads()
            n = await _loops.call(_nowait.start_readinto, self._file, self._position, buffer)
            self._go(self._position + n)
            return n

    async def readline(self, size: int = -1) -> bytes:
        """Reads up to and including the next newline, at most `size` bytes."""
        if size < 0 and not (self._turn.is_held or self._is_unsettled or self._file.closed):
            end = self._ahead.find(b"\n") + 1
            if end > 0:
                return self._take(end)
        async with self._turn:
            await self._ready()
            return await self._line(size)

    async def write(self, data: ReadableBuffer) -> int:
        """Writes all of `data`; returns the number of bytes."""
        async with self._turn:
            return await self._write(data)

    async def writelines(self, lines: Iterable[ReadableBuffer]) -> None:
        async with self._turn:
            for line in lines:
                await self._write(line)

    async def truncate(self, size: int | None = None) -> int:
        """Cuts the file to `size` bytes, or at the cursor. The cursor is unchanged."""
        async with self._turn:
            self._check_writes()
            await self._ready()
            self._ahead = b""
            return await self._truncate(self._position if size is None else size_of_truncate(size, self.name))

    def _go(self, position: int) -> None:
        self._position = position
        self._ahead = b""

    def _take(self, size: int) -> bytes:
        data, self._ahead = self._ahead[:size], self._ahead[size:]
        self._position += len(data)
        return data

    async def _write(self, data: ReadableBuffer) -> int:
        self._check_writes()
        if isinstance(data, str):
            raise TypeError("a binary file takes bytes, not str")
        try:
            await self._write_at(self._position, data)
        except Exception:
            # Read again: a part may have been written.
            self._go(self._position)
            raise
        return memoryview(data).nbytes

    async def _all(self) -> bytes:
        position = self._position
        pieces: list[bytes] = []
        while True:
            # Requests all remaining bytes, since a shorter result would be copied. Some files of
            # the kernel report a size of zero.
            left = await self._size() - position
            piece = await self._read_at(position, left if left > 0 else _AHEAD)
            if not piece:
                self._go(position)
                return pieces[0] if len(pieces) == 1 else b"".join(pieces)
            position += len(piece)
            pieces.append(piece)

    async def _line(self, size: int) -> bytes:
        self._check_reads()
        searched = 0
        while True:
            end = self._ahead.find(b"\n", searched) + 1
            if end == 0 and not (0 <= size <= len(self._ahead)):
                searched = len(self._ahead)
                # Twice as many each time: a long line is not copied again and again.
                more = await self._read_at(self._position + searched, max(searched, _AHEAD))
                self._ahead += more
                if more:
                    continue
            end = end or len(self._ahead)
            return self._take(end if size < 0 else min(end, size))


class AsyncTextFile(_Cursor[str]):
    """A file of text with a cursor, which any number of tasks may share."""

    def __init__(
        self, file: _nowait.File, mode: str, position: int, encoding: str, errors: str, newline: str | None
    ) -> None:
        super().__init__(file, mode)
        self._encoding = encoding
        self._errors = errors
        self._in = Decoded(encoding, errors, newline)
        self._in.restart(position)
        self._out = Encoded(encoding, errors, newline, position)
        # Position at which the encoder continues.
        self._out_position = position
        self._chunk = _FIRST_CHUNK

    @property
    def encoding(self) -> str:
        return self._encoding

    @property
    def errors(self) -> str:
        return self._errors

    @property
    def newlines(self) -> str | tuple[str, ...] | None:
        """Line ends read so far; `None` if there are none, or if `newline` selects one kind."""
        return self._in.newlines

    async def readable(self) -> bool:
        self._check()
        return self._reads

    async def tell(self) -> int:
        """Returns the position, for `seek`. It is in bytes, unless the decoder has a state there."""
        async with self._turn:
            await self._ready()
            return self._in.place().cookie()

    async def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Moves to a position that `tell` returned, to the start, or to the end."""
        async with self._turn:
            await self._ready()
            if whence not in (os.SEEK_SET, os.SEEK_CUR, os.SEEK_END):
                raise ValueError(f"there is no whence {whence}; give 0, 1 or 2")
            if whence != os.SEEK_SET and offset != 0:
                raise io.UnsupportedOperation("seek a text file to a result of tell(), its start or its end")
            if offset < 0:
                raise ValueError(f"position {offset} is before the file")
            if whence == os.SEEK_END:
                offset = await self._size()
            place = self._in.place() if whence == os.SEEK_CUR else Place.of(offset)
            self._in.go(place)
            if not self._appends:
                self._out_position = place.position
                self._out.restart(place.position)
            return place.cookie()

    async def read(self, size: int | None = -1) -> str:
        """Reads `size` characters, fewer only at the end of the file; by default all."""
        async with self._turn:
            await self._ready()
            self._check_reads()
            if size is None or size < 0:
                # Requests all remaining bytes. Some files of the kernel report a size of zero.
                while await self._fill(await self._size() - self._in.position):
                    pass
                return self._in.take(self._in.available)
            while self._in.available < size and await self._fill(size - self._in.available):
                pass
            return self._in.take(size)

    async def readline(self, size: int = -1) -> str:
        """Reads up to and including the next line end, at most `size` characters."""
        if size < 0 and not (self._turn.is_held or self._is_unsettled or self._file.closed):
            end = self._in.line_end(0)
            if end > 0:
                return self._in.take(end)
        async with self._turn:
            await self._ready()
            return await self._line(size)

    async def write(self, data: str) -> int:
        """Writes all of `text`; returns the number of characters."""
        async with self._turn:
            return await self._write(data)

    async def writelines(self, lines: Iterable[str]) -> None:
        async with self._turn:
            for line in lines:
                await self._write(line)

    async def truncate(self, size: int | None = None) -> int:
        """Cuts the file to `size` bytes, or at the cursor. The cursor is unchanged."""
        async with self._turn:
            self._check_writes()
            await self._ready()
            place = self._in.place()
            self._in.go(place)
            return await self._truncate(place.position if size is None else size_of_truncate(size, self.name))

    def _go(self, position: int) -> None:
        self._in.restart(position)
        self._out_position = position
        self._chunk = _FIRST_CHUNK

    async def _fill(self, least: int) -> bool:
        """Reads ahead at least `least` bytes, if the file has them; false at the end of the file."""
        data = await self._read_at(self._in.position, max(least, self._chunk))
        self._in.feed(data)
        self._chunk = min(self._chunk * 2, _AHEAD)
        return bool(data)

    async def _line(self, size: int) -> str:
        self._check_reads()
        searched = 0
        while True:
            end = self._in.line_end(searched)
            there = self._in.available
            if end == 0 and not (0 <= size <= there):
                # The last character may be the first one of a line end of two characters.
                searched = max(there - 1, 0)
                # Twice as many each time: a long line is not copied again and again.
                if await self._fill(there) or self._in.available > there:
                    continue
            end = end or there
            return self._in.take(end if size < 0 else min(end, size))

    async def _write(self, text: str) -> int:
        self._check_writes()
        if not isinstance(text, str):
            raise TypeError("a text file takes str; open it with mode 'b' for bytes")
        place = Place(0, 0, 0) if self._appends else self._in.place()
        if not self._appends and place.position != self._out_position:
            self._out.restart(place.position)
        state = self._out.state()
        try:
            await self._write_at(place.position, self._out.encode(text))
        except Exception:
            self._out.go_back(state)
            if not self._appends:
                # Read again: a part may have been written.
                self._in.go(place)
            raise
        return len(text)


_F = TypeVar("_F", AsyncBinaryFile, AsyncTextFile)


class OpeningCursor(Generic[_F]):
    """A file that is being opened: await it, or use it with `async with`."""

    def __init__(
        self,
        path: Path,
        mode: str = "r",
        *,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> None:
        letters = set(mode)
        kinds = letters - set("+bt")
        if len(letters) != len(mode) or len(kinds) != 1 or kinds - set("rwax") or {"b", "t"} <= letters:
            raise ValueError(f"unknown mode {mode!r}; give r, w, x or a, with + and b as needed")
        if "b" in letters and (encoding is not None or errors is not None or newline is not None):
            raise ValueError("a binary file has no encoding, errors or newline")
        if newline not in (None, "", "\n", "\r", "\r\n"):
            raise ValueError(f"there is no newline {newline!r}; give None, '', '\\n', '\\r' or '\\r\\n'")
        self._path = path
        self._mode = mode
        self._text = None if "b" in letters else (*text_codec(encoding, errors), newline)
        self._file: _F | None = None

    async def _open(self) -> _F:
        mode = self._mode.strip("+bt") + ("+" if "+" in self._mode else "")
        opened = await _loops.call(_nowait.start_open, self._path, mode, False, 0o666)
        end = await _loops.call(_nowait.start_size, opened) if "a" in mode else 0
        file: Any
        if self._text is None:
            file = AsyncBinaryFile(opened, self._mode, end)
        else:
            file = AsyncTextFile(opened, self._mode, end, *self._text)
        self._file = file
        result: _F = file
        return result

    def __await__(self) -> Generator[object, None, _F]:
        return self._open().__await__()

    async def __aenter__(self) -> _F:
        return await self._open()

    async def __aexit__(self, *exception: object) -> None:
        if self._file is not None:
            await self._file.close()
