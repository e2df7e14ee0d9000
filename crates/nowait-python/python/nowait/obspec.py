"""Files below a directory as an object store, in the methods that obspec names.

    store = nowait.obspec.NowaitStore("/data")
    parts = store.get_ranges("table.parquet", starts=[0, 4096], lengths=[100, 100])

Paths are relative to the directory, with slashes, and cannot leave it. Each method has a twin to be
awaited, with the suffix `_async`.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path as _Path
from typing import TYPE_CHECKING, Any, TypedDict

from nowait import aio
from nowait._copy import copy
from nowait._files import File

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from nowait._types import Path

__all__ = ["NowaitStore", "ObjectMeta"]

# Names that no object has yet begin so, here and in `copy`.
_STAGED = ".nowait-"


class ObjectMeta(TypedDict):
    """What is known of an object without reading it."""

    path: str
    last_modified: datetime
    size: int
    e_tag: str | None
    version: str | None


class GetResult:
    """An object that is being read."""

    def __init__(self, meta: ObjectMeta, data: bytes, start: int) -> None:
        self.meta = meta
        self.range = (start, start + len(data))
        self._data = data

    @property
    def attributes(self) -> dict[str, Any]:
        return {}

    def buffer(self) -> bytes:
        """Returns all bytes."""
        return self._data

    async def buffer_async(self) -> bytes:
        return self._data

    def __iter__(self) -> Iterator[bytes]:
        yield self._data


class NowaitStore:
    """Files below a directory: `get`, ranges of them, `put`, `list` and the rest of obspec's verbs.

    `put` and `copy` leave the old object or the whole new one.
    """

    def __init__(self, root: Path, *, mkdir: bool = False) -> None:
        self.root = _Path(os.fsdecode(root)).resolve()
        if mkdir:
            self.root.mkdir(parents=True, exist_ok=True)
        elif not self.root.is_dir():
            raise NotADirectoryError(f"{self.root} is no directory; make it, or give mkdir=True")

    def _path(self, path: str) -> _Path:
        parts = path.strip("/").split("/")
        if not path.strip("/") or any(part in ("", ".", "..") for part in parts) or "\0" in path:
            raise ValueError(f"{path!r} is no path of an object")
        return self.root.joinpath(*parts)

    def _meta(self, path: _Path, status: os.stat_result) -> ObjectMeta:
        return {
            "path": path.relative_to(self.root).as_posix(),
            "last_modified": datetime.fromtimestamp(status.st_mtime, UTC),
            "size": status.st_size,
            "e_tag": f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}",
            "version": None,
        }

    def head(self, path: str) -> ObjectMeta:
        """Returns what is known of an object."""
        found = self._path(path)
        if found.is_dir():
            raise FileNotFoundError(f"{path!r} is a directory")
        return self._meta(found, found.stat())

    async def head_async(self, path: str) -> ObjectMeta:
        return self.head(path)

    def get(self, path: str, *, options: dict[str, Any] | None = None) -> GetResult:
        """Reads an object, or with `options["range"]` a part of it: `(start, end)`, or an offset."""
        with File(self._path(path)) as file:
            start, length = _asked(options, file.size())
            return GetResult(
                self._meta(self._path(path), os.fstat(file.fileno())), file.read_at(start, length), start
            )

    async def get_async(self, path: str, *, options: dict[str, Any] | None = None) -> GetResult:
        async with await aio.open_file(self._path(path)) as file:
            start, length = _asked(options, await file.size())
            data = await file.read_at(start, length)
            return GetResult(self._meta(self._path(path), os.fstat(file.fileno())), data, start)

    def get_range(self, path: str, *, start: int, end: int | None = None, length: int | None = None) -> bytes:
        """Reads bytes of an object; all of them, or it raises `EndOfFileError`."""
        return self.get_ranges(path, starts=[start], ends=_one(end), lengths=_one(length))[0]

    async def get_range_async(
        self, path: str, *, start: int, end: int | None = None, length: int | None = None
    ) -> bytes:
        parts = await self.get_ranges_async(path, starts=[start], ends=_one(end), lengths=_one(length))
        return parts[0]

    def get_ranges(
        self,
        path: str,
        *,
        starts: Sequence[int],
        ends: Sequence[int] | None = None,
        lengths: Sequence[int] | None = None,
    ) -> list[bytes]:
        """Reads ranges of an object by one gather."""
        with File(self._path(path)) as file:
            return file.gather(starts, _lengths(starts, ends, lengths)).to_list()

    async def get_ranges_async(
        self,
        path: str,
        *,
        starts: Sequence[int],
        ends: Sequence[int] | None = None,
        lengths: Sequence[int] | None = None,
    ) -> list[bytes]:
        rows = await aio.gather(self._path(path), starts, _lengths(starts, ends, lengths))
        return rows.to_list()

    def put(self, path: str, file: ReadableBuffer, **_: Any) -> dict[str, Any]:
        """Writes an object: under another name first, which then gets its own."""
        target = self._path(path)
        staged = _stage(target)
        try:
            with File(staged, "x") as opened:
                opened.write_at(0, file)
                opened.sync()
            staged.replace(target)
        except BaseException:
            staged.unlink(missing_ok=True)
            raise
        return {"e_tag": self.head(path)["e_tag"], "version": None}

    async def put_async(self, path: str, file: ReadableBuffer, **_: Any) -> dict[str, Any]:
        target = self._path(path)
        staged = _stage(target)
        try:
            async with await aio.open_file(staged, "x") as opened:
                await opened.write_at(0, file)
                await opened.sync()
            staged.replace(target)
        except BaseException:
            staged.unlink(missing_ok=True)
            raise
        return {"e_tag": self.head(path)["e_tag"], "version": None}

    def list(self, prefix: str | None = None, *, offset: str | None = None) -> Iterator[Sequence[ObjectMeta]]:
        """Lists objects below a prefix of whole parts, in the order of their paths."""
        below = self.root if not prefix or not prefix.strip("/") else self._path(prefix)
        found: list[ObjectMeta] = []
        for directory, _, names in os.walk(below):
            for name in names:
                path = _Path(directory, name)
                if name.startswith(_STAGED) or not path.is_file():
                    continue
                try:
                    found.append(self._meta(path, path.stat()))
                except FileNotFoundError:
                    # Deleted meanwhile.
                    continue
        found.sort(key=lambda meta: meta["path"])
        yield [meta for meta in found if offset is None or meta["path"] > offset]

    def delete(self, paths: str | Sequence[str]) -> None:
        """Deletes objects."""
        for path in [paths] if isinstance(paths, str) else paths:
            self._path(path).unlink()

    async def delete_async(self, paths: str | Sequence[str]) -> None:
        self.delete(paths)

    def copy(self, from_: str, to: str, *, overwrite: bool = True) -> None:
        """Copies an object."""
        source, target = self._path(from_), self._path(to)
        staged = _stage(target)
        if overwrite:
            copy(source, target, no_target_directory=True)
            return
        try:
            copy(source, staged, no_target_directory=True)
            # Refused if the name is there, whoever made it when.
            os.link(staged, target)
        finally:
            staged.unlink(missing_ok=True)

    def rename(self, from_: str, to: str, *, overwrite: bool = True) -> None:
        """Renames an object."""
        source, target = self._path(from_), self._path(to)
        target.parent.mkdir(parents=True, exist_ok=True)
        if overwrite:
            source.replace(target)
            return
        os.link(source, target)
        source.unlink()


def _stage(target: _Path) -> _Path:
    """Returns the name of an object until it is whole; makes its directory."""
    target.parent.mkdir(parents=True, exist_ok=True)
    return target.with_name(f"{_STAGED}put-{secrets.token_hex(8)}")


def _one(bound: int | None) -> Sequence[int] | None:
    return None if bound is None else [bound]


def _lengths(
    starts: Sequence[int], ends: Sequence[int] | None, lengths: Sequence[int] | None
) -> Sequence[int]:
    if (ends is None) == (lengths is None):
        raise ValueError("give ends or lengths")
    if lengths is not None:
        return lengths
    if ends is None or len(ends) != len(starts):
        raise ValueError("give as many ends as starts")
    return [end - start for start, end in zip(starts, ends, strict=True)]


def _asked(options: dict[str, Any] | None, size: int) -> tuple[int, int]:
    """Returns offset and length of what `get` is to read."""
    asked = (options or {}).get("range")
    if asked is None:
        return 0, size
    if isinstance(asked, dict):
        start = asked["offset"] if "offset" in asked else max(0, size - asked["suffix"])
        return start, max(0, size - start)
    start, end = asked
    return start, max(0, min(end, size) - start)
