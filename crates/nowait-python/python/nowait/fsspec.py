"""The local file system for fsspec (`nowait://`), which reads many ranges in one call.

    import fsspec, nowait.fsspec

    fs = fsspec.filesystem("nowait")          # or nowait.fsspec.NowaitFileSystem()
    ranges = fs.cat_ranges(paths, starts, ends)
    frame = pandas.read_parquet("nowait:///data/table.parquet")

All other methods are those of fsspec's local file system. A range past the end of its file is shorter, as
in other file systems of fsspec.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections import deque
from operator import sub
from typing import TYPE_CHECKING, Any, TypeGuard

from fsspec.implementations import local  # type: ignore[import-untyped]
from fsspec.utils import isfilelike  # type: ignore[import-untyped]

from nowait import _nowait, _system
from nowait._each import gather_files
from nowait._files import File

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["LocalFileSystem", "NowaitFileSystem"]

# Maximum number of files that `cat_ranges` opens at a time. The usual limit of a process is 1024.
_FILES_MAX = 128


def _unsized(file: File) -> bytes:
    """Reads a file that reports a size of zero: an empty file, or one in /proc."""
    if not stat.S_ISREG(_system.status(file).st_mode):
        # A device has no end, so a read of all of it would never return.
        raise OSError(errno.EINVAL, "a range of a special file; open it and read", file.name)
    return file.raw().readall()


# arrow checks the class name. It reads files of a `LocalFileSystem` natively and in parallel, and
# files of any other class through Python, one piece after the other.
class LocalFileSystem(local.LocalFileSystem):  # type: ignore[misc]
    """Local files, like fsspec's class of the same name, with native reads of ranges.

    `cat_ranges` opens each file once, and reads all ranges of all files together, with many requests in
    flight. `cat_file` is one read. `get_file` and `cp_file` copy with metadata, and never leave a partial
    file; on Linux by the fastest way (reflink, `copy_file_range`, direct requests).
    """

    # Paths of fsspec's own local file system work here, too.
    protocol = ("nowait", "file", "local")

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        """Reads a file, or its bytes from `start` up to `end`; negative positions count from the end."""
        with File(self._strip_protocol(path)) as file:
            size = file.size()
            if start is None and end is None:
                return file.raw().readall()
            if size == 0:
                return _unsized(file)[start:end]
            offsets, lengths = _ranges(size, [start], [end])
            return file.read_at(offsets[0], lengths[0])

    def cat_ranges(
        self,
        paths: Sequence[str],
        starts: int | Sequence[int | None] | None,
        ends: int | Sequence[int | None] | None,
        max_gap: int | None = None,
        on_error: str = "return",
        **_: Any,
    ) -> list[Any]:
        """Reads ranges of files. Returns the bytes of each range, or with `on_error="return"` its
        exception.

        Adjacent ranges are always read together; `max_gap` has no effect on the result.
        """
        if not isinstance(paths, list):
            raise TypeError(f"paths is a {type(paths).__name__}; give a list")
        starts, ends = _each(starts, len(paths)), _each(ends, len(paths))
        if len(starts) != len(paths) or len(ends) != len(paths):
            raise ValueError(f"{len(paths)} paths, {len(starts)} starts and {len(ends)} ends; give as many")
        # Most of many ranges belong to the same few files.
        stripped = {path: self._strip_protocol(path) for path in set(paths)}
        by_path: dict[str, Sequence[int]] = {}
        if len(stripped) == 1:
            by_path[stripped[paths[0]]] = range(len(paths))
        else:
            several: dict[str, list[int]] = {}
            for index, path in enumerate(paths):
                several.setdefault(stripped[path], []).append(index)
            by_path.update(several)
        results: list[Any] = [None] * len(paths)
        waiting = deque(by_path.items())
        while waiting:
            self._some(waiting, starts, ends, results, on_error)
        return results

    def _some(
        self,
        waiting: deque[tuple[str, Sequence[int]]],
        starts: list[int | None],
        ends: list[int | None],
        results: list[Any],
        on_error: str,
    ) -> None:
        """Opens as many of the waiting files as the limit allows, reads them, and closes them."""
        files: list[File] = []
        requests: list[tuple[File, list[int], list[int]]] = []
        places: list[Sequence[int]] = []
        try:
            while waiting and len(files) < _FILES_MAX:
                path, indices = waiting[0]
                try:
                    file = File(path)
                    files.append(file)
                    size = file.size()
                    if size == 0:
                        contents = _unsized(file)
                        for index in indices:
                            results[index] = contents[starts[index] : ends[index]]
                    else:
                        ranges = _ranges(size, [starts[i] for i in indices], [ends[i] for i in indices])
                        requests.append((file, *ranges))
                        places.append(indices)
                except Exception as error:
                    if files and isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
                        # Try again when these are closed.
                        break
                    if on_error != "return":
                        raise
                    for index in indices:
                        results[index] = error
                waiting.popleft()
            self._read(requests, places, results, on_error)
        finally:
            for file in files:
                file.close()

    @staticmethod
    def _read(
        requests: list[tuple[File, list[int], list[int]]],
        places: list[Sequence[int]],
        results: list[Any],
        on_error: str,
    ) -> None:
        try:
            if not requests:
                return
            # For one file, ranges are converted to `bytes` while others are read.
            if len(requests) == 1:
                read = [_nowait.gather_list(*requests[0], partial=True)]
            else:
                read = [rows.to_list() for rows in gather_files(requests, partial=True)]
        except Exception as error:
            if on_error != "return":
                raise
            # The only request failed.
            if len(requests) == 1:
                for index in places[0]:
                    results[index] = error
                return
            # A request failed, so each request is read separately.
            for request, indices in zip(requests, places, strict=True):
                LocalFileSystem._read([request], [indices], results, on_error)
            return
        for rows, indices in zip(read, places, strict=True):
            for index, data in zip(indices, rows, strict=True):
                results[index] = data

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **keywords: Any) -> None:
        """Writes a file, and creates the directories of its path, as an object store does."""
        self.makedirs(self._parent(self._strip_protocol(path)), exist_ok=True)
        super().pipe_file(path, value, mode=mode, **keywords)

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        """Copies a file, or creates a directory."""
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        if self.auto_mkdir:
            self.makedirs(self._parent(target), exist_ok=True)
        if self.isdir(source):
            self.mkdirs(target, exist_ok=True)
            return
        # Copies the file, not a symbolic link to it.
        _system.copy_file(os.path.realpath(source), target)

    def get_file(self, path1: str, path2: Any, callback: Any = None, **_: Any) -> None:
        """Copies a file to a path or into an open file."""
        if not isfilelike(path2):
            return self.cp_file(path1, path2)
        with File(self._strip_protocol(path1)) as file:
            shutil.copyfileobj(file.raw(), path2, 1 << 20)
        return None


NowaitFileSystem = LocalFileSystem


def _each(bound: int | Sequence[int | None] | None, count: int) -> list[int | None]:
    """Returns one bound for each range; accepts numbers and arrays of numpy."""
    if bound is None or (hasattr(bound, "__index__") and not hasattr(bound, "__len__")):
        return [None if bound is None else bound.__index__()] * count
    return bound.tolist() if hasattr(bound, "tolist") else list(bound)  # type: ignore[arg-type]


def _are_offsets(bounds: list[int | None]) -> TypeGuard[list[int]]:
    return None not in bounds and min(bounds, default=0) >= 0  # type: ignore[type-var,operator]


def _ranges(size: int, starts: list[int | None], ends: list[int | None]) -> tuple[list[int], list[int]]:
    """Returns offsets and lengths of ranges, clipped to `size`, with Python's slice rules."""
    if _are_offsets(starts) and _are_offsets(ends) and max(ends, default=0) <= size:
        lengths = list(map(sub, ends, starts))
        if min(lengths, default=0) >= 0:
            return starts, lengths
    clipped = [_clip(start, end, size) for start, end in zip(starts, ends, strict=True)]
    return [offset for offset, _ in clipped], [length for _, length in clipped]


def _clip(start: int | None, end: int | None, size: int) -> tuple[int, int]:
    """Returns offset and length of the part of a range that the file contains."""
    first = 0 if start is None else start
    last = size if end is None else end
    first = max(0, first + size) if first < 0 else min(first, size)
    last = last + size if last < 0 else min(last, size)
    return first, max(0, last - first)
