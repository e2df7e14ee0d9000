"""Files with a cursor, awaited: the shape of aiofiles."""

from __future__ import annotations

import codecs
import io
import os
import re
from typing import TYPE_CHECKING

from nowait import _loops, _nowait
from nowait._errors import make

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable
    from typing import Self

    from _typeshed import ReadableBuffer, WriteableBuffer

    from nowait._types import Path

# Bytes that are read ahead for lines.
_AHEAD = 64 << 10
# Ends of lines of text. A carriage return at the end of what was read may be half of one.
_LINE_END = re.compile(rb"\n|\r\n|\r(?=[^\n])")


class OpeningCursor:
    """A file that is being opened: to be awaited, or entered by `async with`."""

    def __init__(
        self,
        path: Path,
        mode: str = "r",
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> None:
        if "b" in mode and (encoding is not None or errors is not None or newline is not None):
            raise ValueError("a binary file has no encoding, errors or newline")
        if newline not in (None, "", "\n"):
            raise ValueError(f"newline {newline!r} is not supported; give None, '' or '\\n'")
        self._path = path
        self._mode = mode
        # As of Python's own.
        self._text = (
            None if "b" in mode else (encoding or io.text_encoding(None), errors or "strict", newline)
        )
        self._file: CursorFile | None = None

    async def _open(self) -> CursorFile:
        mode = self._mode.replace("t", "").replace("b", "")
        opened = await _loops.call(_nowait.start_open, self._path, mode, False, 0o666)
        end = await _loops.call(_nowait.start_size, opened) if "a" in mode else 0
        self._file = CursorFile(opened, self._mode, self._text, end)
        return self._file

    def __await__(self) -> Generator[object, None, CursorFile]:
        return self._open().__await__()

    async def __aenter__(self) -> CursorFile:
        return await self._open()

    async def __aexit__(self, *exception: object) -> None:
        if self._file is not None:
            await self._file.close()


class CursorFile:
    """A file with a cursor, for one task at a time. Text is bytes that are encoded and decoded here."""

    def __init__(
        self, file: _nowait.File, mode: str, text: tuple[str, str, str | None] | None, position: int
    ) -> None:
        self._file = file
        self._mode = mode
        self._position = position
        self._ahead = b""
        self._text = text
        if text is not None:
            encoding = "utf-8" if text[0] == "locale" else codecs.lookup(text[0]).name
            if "\n".encode(encoding) != b"\n":
                raise ValueError(
                    f"lines of {encoding} are not supported; open it with mode 'b' and decode it"
                )
            self._text = (encoding, text[1], text[2])

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

    async def tell(self) -> int:
        self._check()
        return self._position

    async def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self._check()
        if whence == os.SEEK_CUR:
            offset += self._position
        elif whence == os.SEEK_END:
            offset += await _loops.call(_nowait.start_size, self._file)
        elif whence != os.SEEK_SET:
            raise ValueError(f"there is no whence {whence}; give 0, 1 or 2")
        if offset < 0:
            raise ValueError(f"position {offset} is before the file")
        self._position = offset
        self._ahead = b""
        return offset

    async def read(self, size: int | None = -1, /) -> bytes | str:
        """Reads `size` bytes, or characters of text, or all."""
        if self._text is None:
            return await self._read_bytes(-1 if size is None else size)
        encoding, errors, newline = self._text
        if size is None or size < 0:
            return self._universal((await self._read_bytes(-1)).decode(encoding, errors))
        decoder = codecs.getincrementaldecoder(encoding)(errors)
        text, missing = "", size
        while missing > 0:
            data = await self._read_bytes(missing)
            text += decoder.decode(data, final=not data)
            missing = size - len(self._universal(text))
            if not data:
                break
        # A character that was begun is completed byte by byte.
        while decoder.getstate()[0]:
            data = await self._read_bytes(1)
            text += decoder.decode(data, final=not data)
        if newline is None and text.endswith("\r"):
            # With a line feed it is one newline.
            if not self._ahead:
                self._ahead = await _loops.call(_nowait.start_read, self._file, self._position, _AHEAD)
            if self._ahead.startswith(b"\n"):
                self._position += 1
                self._ahead = self._ahead[1:]
        return self._universal(text)

    async def readinto(self, buffer: WriteableBuffer, /) -> int:
        n = await _loops.call(_nowait.start_readinto, self._file, self._position, buffer)
        self._position += n
        self._ahead = b""
        return n

    async def readline(self, size: int = -1, /) -> bytes | str:
        if self._text is None:
            return await self._line(size)
        if size >= 0:
            raise ValueError("the size of a line of text is not supported; read it whole")
        line = await self._line(size)
        return self._universal(line.decode(self._text[0], self._text[1]))

    async def readlines(self) -> list[bytes | str]:
        return [line async for line in self]

    async def write(self, data: ReadableBuffer | str, /) -> int:
        """Writes all of it; returns the number of bytes, or characters of text."""
        if isinstance(data, str):
            if self._text is None:
                raise TypeError("a binary file takes bytes, not str")
            encoded: ReadableBuffer = data.encode(self._text[0], self._text[1])
        elif self._text is not None:
            raise TypeError("a text file takes str; open it with mode 'b' for bytes")
        else:
            encoded = data
        at = None if "a" in self._mode else self._position
        n = await _loops.call(_nowait.start_write, self._file, at, encoded, False)
        self._ahead = b""
        self._position = (
            self._position + n if at is not None else await _loops.call(_nowait.start_size, self._file)
        )
        return len(data) if isinstance(data, str) else n

    async def writelines(self, lines: Iterable[ReadableBuffer | str], /) -> None:
        for line in lines:
            await self.write(line)

    async def flush(self) -> None:
        """Does nothing: what was written is in the page cache. `sync` makes it durable."""
        self._check()

    async def sync(self) -> None:
        await _loops.call(_nowait.start_sync, self._file, False)

    async def truncate(self, size: int | None = None, /) -> int:
        size = self._position if size is None else size
        await _loops.call(_nowait.start_truncate, self._file, size)
        self._ahead = b""
        return size

    async def close(self) -> None:
        await _loops.call(_nowait.start_close, self._file)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes | str:
        line = await self.readline()
        if not line:
            raise StopAsyncIteration
        return line

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def _check(self) -> None:
        if self._file.closed:
            raise make("Closed", None, f"{self.name} is closed", self.name, None, None, None)

    def _universal(self, text: str) -> str:
        if self._text is not None and self._text[2] is None and "\r" in text:
            return text.replace("\r\n", "\n").replace("\r", "\n")
        return text

    async def _read_bytes(self, size: int) -> bytes:
        self._check()
        if size < 0:
            self._ahead = b""
            pieces: list[bytes] = []
            while True:
                # As many as there are: a piece that is shorter would be copied. Of some files of the
                # kernel the size is zero.
                left = await _loops.call(_nowait.start_size, self._file) - self._position
                length = left if left > 0 else _AHEAD
                piece = await _loops.call(_nowait.start_read, self._file, self._position, length)
                if not piece:
                    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
                self._position += len(piece)
                pieces.append(piece)
        if 0 < size <= len(self._ahead):
            data, self._ahead = self._ahead[:size], self._ahead[size:]
        else:
            self._ahead = b""
            data = await _loops.call(_nowait.start_read, self._file, self._position, size)
        self._position += len(data)
        return data

    async def _line(self, size: int) -> bytes:
        """Reads up to and with the next newline, `size` bytes at most."""
        self._check()
        searched = 0
        while True:
            end = self._line_end(searched)
            if end == 0 and not (0 <= size <= len(self._ahead)):
                there = len(self._ahead)
                # Twice as many each time: a long line is not copied again and again.
                length = max(there, _AHEAD)
                more = await _loops.call(_nowait.start_read, self._file, self._position + there, length)
                self._ahead += more
                if more:
                    searched = max(there - 1, 0)
                    continue
            end = end or len(self._ahead)
            end = end if size < 0 else min(end, size)
            line, self._ahead = self._ahead[:end], self._ahead[end:]
            self._position += len(line)
            return line

    def _line_end(self, searched: int) -> int:
        """Returns where the first line of what was read ahead ends; zero if that is not known."""
        if self._text is None or self._text[2] == "\n":
            return self._ahead.find(b"\n", searched) + 1
        found = _LINE_END.search(self._ahead, searched)
        return found.end() if found else 0
