"""Asynchronous files for asyncio, uvloop and trio, without a thread for each call.

    import nowait.aio

    async with await nowait.aio.open_file("table.dat") as file:
        page = await file.read_at(0, 4096)
        rows = await file.gather(offsets, 4096)

A gather is one future for all its ranges, and is submitted on another thread. `nowait.aio.open` is for
programs that use aiofiles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

from nowait import _loops, _nowait, _system
from nowait._copy import finished, how, listed
from nowait._cursor import AsyncBinaryFile, AsyncTextFile, OpeningCursor
from nowait._log import AsyncLog

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence
    from typing import Self, Unpack

    from _typeshed import OpenBinaryMode, OpenTextMode, ReadableBuffer, WriteableBuffer

    from nowait._copy import CopyOptions, CopyProgress, CopyReport
    from nowait._nowait import Gathered
    from nowait._types import HasFileno, Integers, Lengths, Path

__all__ = [
    "AsyncBinaryFile",
    "AsyncFile",
    "AsyncLog",
    "AsyncTextFile",
    "copy",
    "gather",
    "gather_each",
    "gather_files",
    "open",
    "open_file",
]


class AsyncFile:
    """An asynchronous file without a cursor: reads and writes take an offset. Any task may use it.

    If a task is cancelled, its call continues in the background. Its buffer cannot be resized or freed
    until the call has ended.
    """

    __slots__ = ("_file",)

    def __init__(self, file: _nowait.File) -> None:
        self._file = file

    @property
    def name(self) -> str:
        return self._file.name

    @property
    def mode(self) -> str:
        return self._file.mode

    @property
    def closed(self) -> bool:
        return self._file.closed

    def fileno(self) -> int:
        return self._file.fileno()

    async def size(self) -> int:
        """Returns the size in bytes."""
        return await _loops.call(_nowait.start_size, self._file)

    async def read_at(self, offset: int, length: int) -> bytes:
        """Reads up to `length` bytes from `offset`, fewer only at the end of the file."""
        return await _loops.call(_nowait.start_read, self._file, offset, length)

    async def readinto_at(self, offset: int, buffer: WriteableBuffer) -> int:
        """Fills `buffer` from `offset`; returns the number of bytes."""
        return await _loops.call(_nowait.start_readinto, self._file, offset, buffer)

    async def write_at(self, offset: int, data: ReadableBuffer, *, durable: bool = False) -> int:
        """Writes all of `data` at `offset`. If `durable`, the data is on stable storage when the call
        returns.
        """
        return await _loops.call(_nowait.start_write, self._file, offset, data, durable)

    async def append(self, data: ReadableBuffer, *, durable: bool = False) -> int:
        """Writes all of `data` at the current end of the file."""
        return await _loops.call(_nowait.start_write, self._file, None, data, durable)

    async def sync(self, *, metadata: bool = False) -> None:
        """Makes all earlier writes durable; with `metadata`, also attributes such as times."""
        await _loops.call(_nowait.start_sync, self._file, metadata)

    async def truncate(self, length: int) -> None:
        """Cuts the file to `length` bytes, or extends it with a hole."""
        await _loops.call(_nowait.start_truncate, self._file, length)

    async def gather(
        self,
        offsets: Integers,
        lengths: Lengths,
        out: WriteableBuffer | None = None,
        *,
        partial: bool = False,
    ) -> Gathered:
        """Reads ranges: see `nowait.gather`."""
        return await gather(self._file, offsets, lengths, out, partial=partial)

    async def close(self) -> None:
        """Closes the file. Operations in flight finish first, in the background."""
        await _loops.call(_nowait.start_close, self._file)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()


async def open_file(
    path: Path, mode: str = "r", *, direct: bool = False, permissions: int = 0o666
) -> AsyncFile:
    """Opens a file: see `nowait.File`."""
    opened = await _loops.call(_nowait.start_open, path, mode, direct, permissions)
    return AsyncFile(opened)


async def gather(
    file: AsyncFile | _nowait.File | Path | int | HasFileno,
    offsets: Integers,
    lengths: Lengths,
    out: WriteableBuffer | None = None,
    *,
    partial: bool = False,
) -> Gathered:
    """Reads ranges of a file by one future: see `nowait.gather`."""
    if isinstance(file, AsyncFile):
        file = file._file
    elif not isinstance(file, _nowait.File | int) and not hasattr(file, "fileno"):
        # The open may wait for a disk or a server.
        opened = await _loops.call(_nowait.start_open, file, "r", False, 0)
        try:
            return await gather(opened, offsets, lengths, out, partial=partial)
        finally:
            await _loops.call(_nowait.start_close, opened)
    gathered: Gathered = await _loops.run(_nowait.start_gather, file, offsets, lengths, out, partial)
    return gathered


async def gather_each(
    file: AsyncFile | _nowait.File | int | HasFileno,
    offsets: Integers,
    lengths: Lengths,
    out: WriteableBuffer | None = None,
    *,
    partial: bool = False,
) -> AsyncIterator[tuple[int, memoryview]]:
    """Reads ranges of an open file, and yields each as it completes: see `nowait.gather_each`."""
    source = file._file if isinstance(file, AsyncFile) else file
    arrivals, rows = _nowait.start_each(source, offsets, lengths, out, partial)
    try:
        while arrived := await _loops.poll(arrivals.poll):
            for index, length in arrived:
                yield index, rows[index][:length]
    finally:
        arrivals.cancel()
        # An exception would keep this frame, and with it the rows.
        del rows


async def gather_files(
    requests: Iterable[tuple[AsyncFile | _nowait.File | Path | int | HasFileno, Integers, Lengths]],
    out: WriteableBuffer | None = None,
    *,
    partial: bool = False,
) -> list[Gathered]:
    """Reads ranges of several files by one future: see `nowait.gather_files`."""
    opened = [(file._file if isinstance(file, AsyncFile) else file, *rest) for file, *rest in requests]

    def start(completions: _nowait.Completions, number: int) -> _nowait.Running:
        running: _nowait.Running = _nowait.start_files(opened, out, partial, completions, number)
        return running

    gathered: list[Gathered] = await _loops.run(start)
    return gathered


async def copy(
    source: Path | Sequence[Path],
    target: Path,
    progress: Callable[[CopyProgress], object] | None = None,
    **options: Unpack[CopyOptions],
) -> CopyReport:
    """Copies files and trees on threads of the library: see `nowait.copy`.

    `progress` is called on the loop's thread; an exception in it ends the copy. Cancelling the task also
    ends the copy, within some tenths of a second, in the background. Each name in the target always refers
    to the old file or the complete new one.
    """
    copying = _nowait.start_copy(listed(source), target, progress is not None, how(**options))
    report: dict[str, Any] | None = None
    failure: BaseException | None = None
    try:
        while report is None:
            now, report = await _loops.poll(copying.poll)
            if now is None or progress is None or failure is not None:
                continue
            try:
                progress(now)
            except BaseException as raised:
                # The copy has ended when this returns.
                failure = raised
                copying.cancel()
    finally:
        copying.cancel()
    if failure is not None:
        raise failure
    return finished(report)


@overload
def open(
    path: Path,
    mode: OpenTextMode = "r",
    *,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
) -> OpeningCursor[AsyncTextFile]: ...
@overload
def open(
    path: Path, mode: OpenBinaryMode, *, encoding: None = None, errors: None = None, newline: None = None
) -> OpeningCursor[AsyncBinaryFile]: ...
@overload
def open(
    path: Path,
    mode: str,
    *,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
) -> OpeningCursor[Any]: ...
def open(
    path: Path,
    mode: str = "r",
    *,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
) -> OpeningCursor[Any]:
    """Opens a file with a cursor, as `aiofiles.open` does: `async with nowait.aio.open(...) as file`.

    The modes and keywords are those of Python's `open`, except `buffering`, `closefd` and `opener`. Any
    number of tasks may share the file. Their calls run in the order of their start.
    """
    return OpeningCursor(path, mode, encoding=encoding, errors=errors, newline=newline)


for _name in _system.ABSENT.get("nowait.aio", ()):
    del globals()[_name]
__all__ = [name for name in __all__ if name in globals()]


def __getattr__(name: str) -> object:
    raise _system.missing("nowait.aio", name)
