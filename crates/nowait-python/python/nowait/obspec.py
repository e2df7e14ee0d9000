"""Files below a directory as an object store, with the interface of obspec.

    store = nowait.obspec.NowaitStore("/data")
    parts = store.get_ranges("table.parquet", starts=[0, 4096], lengths=[100, 100])

Paths are relative to the directory, with slashes, and cannot leave it; symbolic links are followed. Each
method has an asynchronous version with the suffix `_async`, which reads and writes data like `nowait.aio`.
A worker thread of the loop looks up, lists and changes names.

Exceptions have the names that `obspec.exceptions` maps, and derive from Python's exceptions.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import secrets
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path as _Path
from typing import IO, TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

from nowait import _loops, _system, aio
from nowait._errors import Error, ExistsError, NotFoundError, make
from nowait._files import File

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from nowait._nowait import Gathered
    from nowait._types import Path

__all__ = [
    "AlreadyExistsError",
    "GetOptions",
    "GetResult",
    "ListResult",
    "NotFoundError",
    "NotModifiedError",
    "NowaitStore",
    "ObjectMeta",
    "PreconditionError",
    "PutMode",
    "PutResult",
]

# Prefix of the temporary names of incomplete objects, here and in `copy`.
_STAGED = ".nowait-"
# Number of bytes read at a time from a source of `put`.
_CHUNK = 1 << 20


class AlreadyExistsError(ExistsError):
    """An object of this name exists, and the call must not overwrite it."""


class PreconditionError(Error):
    """The object does not meet the condition `if_match` or `if_unmodified_since`."""


class NotModifiedError(Error):
    """The object does not meet the condition `if_none_match` or `if_modified_since`."""


class ObjectMeta(TypedDict):
    """Metadata of an object."""

    path: str
    last_modified: datetime
    size: int
    e_tag: str | None
    version: str | None


class PutResult(TypedDict):
    """Metadata of an object that was put."""

    e_tag: str | None
    version: str | None


class UpdateVersion(TypedDict, total=False):
    """The version of an object that `put` must replace."""

    e_tag: str | None
    version: str | None


class OffsetRange(TypedDict):
    """Bytes from an offset to the end."""

    offset: int


class SuffixRange(TypedDict):
    """The last bytes."""

    suffix: int


class GetOptions(TypedDict, total=False):
    """Options of `get`: conditions on the object, and the range to read."""

    if_match: str | None
    if_none_match: str | None
    if_modified_since: datetime | None
    if_unmodified_since: datetime | None
    range: tuple[int, int] | Sequence[int] | OffsetRange | SuffixRange | None
    version: str | None
    head: bool


class ListResult(TypedDict):
    """Objects of one directory, and its directories."""

    common_prefixes: Sequence[str]
    objects: Sequence[ObjectMeta]


PutMode: TypeAlias = Literal["create", "overwrite"] | UpdateVersion
PutSource: TypeAlias = "IO[bytes] | os.PathLike[str] | ReadableBuffer | Iterable[ReadableBuffer]"


class GetResult:
    """Result of reading an object or a range of it. `for` and `async for` yield its bytes."""

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

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._data


class NowaitStore:
    """Object store over the files below a directory, with all methods of obspec.

    After a failed `put` or `copy`, a name refers to the old object or the complete new one. A `put`, `copy`
    or `rename` to the name of a directory removes that directory if it contains only empty directories.
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

    def __eq__(self, other: object) -> bool:
        return self.root == other.root if isinstance(other, NowaitStore) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.root)

    def __repr__(self) -> str:
        return f"<nowait.obspec.NowaitStore {str(self.root)!r}>"

    def head(self, path: str) -> ObjectMeta:
        """Returns the metadata of an object."""
        found = self._path(path)
        with _named():
            if found.is_dir():
                raise FileNotFoundError(2, f"{path!r} is a directory", str(found))
            return self._meta(found, found.stat())

    async def head_async(self, path: str) -> ObjectMeta:
        return await _loops.in_thread(self.head, path)

    def get(self, path: str, *, options: GetOptions | None = None) -> GetResult:
        """Reads an object, or the part that `options["range"]` names: `(start, end)`, or an offset.

        A range may end beyond the object; an empty range is refused. The conditions, such as `if_match`,
        are checked first. The option `version` is refused, since objects have no versions.
        """
        asked = _options(options)
        with File(self._path(path)) as file:
            meta, start, length = self._asked(file, asked)
            return GetResult(meta, file.read_at(start, length), start)

    async def get_async(self, path: str, *, options: GetOptions | None = None) -> GetResult:
        asked = _options(options)
        async with await aio.open_file(self._path(path)) as file:
            meta, start, length = self._asked(file, asked)
            return GetResult(meta, await file.read_at(start, length), start)

    def _asked(self, file: File | aio.AsyncFile, options: GetOptions) -> tuple[ObjectMeta, int, int]:
        """Returns the metadata of an open object, and offset and length of the range to read."""
        meta = self._meta(_Path(file.name), _system.status(file))
        _check(options, meta, file.name)
        if options.get("head"):
            return meta, 0, 0
        return meta, *_part(options.get("range"), meta["size"], file.name)

    def get_range(self, path: str, *, start: int, end: int | None = None, length: int | None = None) -> bytes:
        """Reads `length` bytes of an object, or the bytes up to `end`; fewer at the end of the object.

        Raises `EndOfFileError` if the object ends before `start`.
        """
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
        """Reads ranges of an object by one gather; each behaves like `get_range`."""
        with File(self._path(path)) as file:
            asked = _lengths(starts, ends, lengths)
            return _parts(file.gather(starts, asked, partial=True), starts, asked, file.name)

    async def get_ranges_async(
        self,
        path: str,
        *,
        starts: Sequence[int],
        ends: Sequence[int] | None = None,
        lengths: Sequence[int] | None = None,
    ) -> list[bytes]:
        found, asked = self._path(path), _lengths(starts, ends, lengths)
        return _parts(await aio.gather(found, starts, asked, partial=True), starts, asked, str(found))

    def put(
        self,
        path: str,
        file: PutSource,
        *,
        attributes: dict[str, str] | None = None,
        tags: dict[str, str] | None = None,
        mode: PutMode | None = None,
        use_multipart: bool | None = None,
        chunk_size: int = _CHUNK,
        max_concurrency: int = 1,
    ) -> PutResult:
        """Writes an object under a temporary name, and then renames it.

        `file` is a buffer, a `Path`, an open file, or an iterable of buffers. With `mode="create"`, an
        existing object raises `AlreadyExistsError`. Attributes, tags and the replacement of one version are
        refused. A file is read `chunk_size` bytes at a time; `use_multipart` and `max_concurrency` have no
        effect.
        """
        creates = _put_mode(mode, attributes, tags)
        target = self._path(path)
        staged = _stage(target)
        with _removed_after_an_error(staged, target):
            with File(staged, "x") as opened:
                at = 0
                for piece in _pieces(file, chunk_size):
                    at += opened.write_at(at, piece)
                opened.sync()
            meta = self._meta(target, _finish(staged, target, creates))
        return {"e_tag": meta["e_tag"], "version": None}

    async def put_async(
        self,
        path: str,
        file: PutSource | AsyncIterable[ReadableBuffer],
        *,
        attributes: dict[str, str] | None = None,
        tags: dict[str, str] | None = None,
        mode: PutMode | None = None,
        use_multipart: bool | None = None,
        chunk_size: int = _CHUNK,
        max_concurrency: int = 1,
    ) -> PutResult:
        """Writes like `put`; `file` may also be an asynchronous iterable of buffers, or have an
        asynchronous `read`.

        Other sources are iterated or read on the loop's thread.
        """
        creates = _put_mode(mode, attributes, tags)
        target = self._path(path)
        staged = await _loops.in_thread(_stage, target)
        with _removed_after_an_error(staged, target):
            async with await aio.open_file(staged, "x") as opened:
                at = 0
                async for piece in _pieces_async(file, chunk_size):
                    at += await opened.write_at(at, piece)
                await opened.sync()
            meta = self._meta(target, await _loops.in_thread(_finish, staged, target, creates))
        return {"e_tag": meta["e_tag"], "version": None}

    def list(
        self, prefix: str | None = None, *, offset: str | None = None, chunk_size: int = 1000
    ) -> Iterator[Sequence[ObjectMeta]]:
        """Lists the objects below a prefix, sorted by path, in chunks. The prefix consists of whole path
        components.
        """
        if chunk_size < 1:
            raise ValueError(f"chunk_size is {chunk_size}; give 1 or more")
        found = self._list(prefix, offset)
        return (found[at : at + chunk_size] for at in range(0, len(found), chunk_size))

    async def list_async(
        self, prefix: str | None = None, *, offset: str | None = None, chunk_size: int = 1000
    ) -> AsyncIterator[Sequence[ObjectMeta]]:
        for part in await _loops.in_thread(lambda: self.list(prefix, offset=offset, chunk_size=chunk_size)):
            yield part

    def _list(self, prefix: str | None, offset: str | None) -> Sequence[ObjectMeta]:
        found: list[ObjectMeta] = []
        for directory, _, names in os.walk(self._below(prefix), onerror=_unless_deleted):
            found += self._objects(directory, names)
        found.sort(key=lambda meta: meta["path"])
        return [meta for meta in found if offset is None or meta["path"] > offset]

    def list_with_delimiter(self, prefix: str | None = None) -> ListResult:
        """Lists the objects and directories in one directory."""
        for directory, prefixes, names in os.walk(self._below(prefix), onerror=_unless_deleted):
            below = [_Path(directory, name).relative_to(self.root).as_posix() for name in prefixes]
            objects = sorted(self._objects(directory, names), key=lambda meta: meta["path"])
            return {"common_prefixes": sorted(below), "objects": objects}
        return {"common_prefixes": [], "objects": []}

    async def list_with_delimiter_async(self, prefix: str | None = None) -> ListResult:
        return await _loops.in_thread(self.list_with_delimiter, prefix)

    def _below(self, prefix: str | None) -> _Path:
        return self.root if not prefix or not prefix.strip("/") else self._path(prefix)

    def _objects(self, directory: str, names: Iterable[str]) -> Iterator[ObjectMeta]:
        for name in names:
            path = _Path(directory, name)
            if name.startswith(_STAGED) or not path.is_file():
                continue
            # The object may be deleted meanwhile.
            with contextlib.suppress(FileNotFoundError):
                yield self._meta(path, path.stat())

    def delete(self, paths: str | Sequence[str]) -> None:
        """Deletes objects in the given order; raises `NotFoundError` for a missing one."""
        for path in [paths] if isinstance(paths, str) else paths:
            with _named():
                self._path(path).unlink()

    async def delete_async(self, paths: str | Sequence[str]) -> None:
        await _loops.in_thread(self.delete, paths)

    def copy(self, from_: str, to: str, *, overwrite: bool = True) -> None:
        """Copies an object."""
        source, target = self._path(from_), self._path(to)
        if overwrite:
            target.parent.mkdir(parents=True, exist_ok=True)
            with _named():
                _onto(target, lambda: _system.copy_file(source, target))
            return
        staged = _stage(target)
        with _named(), _removed_after_an_error(staged, target):
            _system.copy_file(source, staged)
        _finish(staged, target, True)

    async def copy_async(self, from_: str, to: str, *, overwrite: bool = True) -> None:
        source, target = self._path(from_), self._path(to)
        staged = await _loops.in_thread(_stage, target)
        if overwrite:
            with _named():
                try:
                    await _system.copy_file_async(source, target)
                except OSError as error:
                    if not await _loops.in_thread(_gives_way, target, error):
                        raise
                    await _system.copy_file_async(source, target)
            return
        with _named(), _removed_after_an_error(staged, target):
            await _system.copy_file_async(source, staged)
        await _loops.in_thread(_finish, staged, target, True)

    def rename(self, from_: str, to: str, *, overwrite: bool = True) -> None:
        """Renames an object."""
        source, target = self._path(from_), self._path(to)
        target.parent.mkdir(parents=True, exist_ok=True)
        with _named():
            if overwrite:
                _onto(target, lambda: _system.replace(source, target))
                return
            _onto(target, lambda: _system.rename_new(source, target))

    async def rename_async(self, from_: str, to: str, *, overwrite: bool = True) -> None:
        await _loops.in_thread(lambda: self.rename(from_, to, overwrite=overwrite))


@contextlib.contextmanager
def _named() -> Iterator[None]:
    """Converts exceptions of Python to those of obspec."""
    try:
        yield
    except Error:
        raise
    except FileNotFoundError as error:
        text, name = error.strerror or str(error), os.fsdecode(error.filename or "")
        raise make("NotFound", None, f"{name}: {text}", name, None, None, None) from None
    except FileExistsError as error:
        name = os.fsdecode(error.filename2 or error.filename or "")
        raise _error(AlreadyExistsError, "AlreadyExists", f"{name} exists already", name) from None


def _error(kind: type[Error], name: str, text: str, path: str) -> Error:
    made = make(name, None, text, path, None, None, None)
    error = kind(made.errno, text, path)
    error.kind, error.index, error.offset, error.length = name, None, None, None
    return error


def _unless_deleted(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


def _stage(target: _Path) -> _Path:
    """Returns the temporary name of an incomplete object; creates its directory."""
    target.parent.mkdir(parents=True, exist_ok=True)
    return target.with_name(f"{_STAGED}put-{secrets.token_hex(8)}")


@contextlib.contextmanager
def _removed_after_an_error(staged: _Path, target: _Path) -> Iterator[None]:
    """After an error, removes the incomplete object, and replaces its temporary name in the error."""
    try:
        yield
    except BaseException as error:
        # Not awaited: the task may have been cancelled.
        staged.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename == os.fspath(staged):
            error.filename = os.fspath(target)
            error.strerror = (error.strerror or "").replace(os.fspath(staged), os.fspath(target))
        raise


def _finish(staged: _Path, target: _Path, creates: bool) -> os.stat_result:
    """Renames a complete object to its final name; if `creates`, only if the name is free.

    Returns the object's status.
    """
    # Read after the close, which may change the times on Windows.
    status = staged.stat()
    if not creates:
        _onto(target, lambda: _system.replace(staged, target))
        return status
    try:
        with _named():
            _onto(target, lambda: _system.rename_new(staged, target))
    finally:
        staged.unlink(missing_ok=True)
    return status


def _onto(target: _Path, make: Callable[[], object]) -> None:
    """Makes an object at `target`; directories that deletes left empty there are removed first."""
    try:
        make()
    except OSError as error:
        if not _gives_way(target, error):
            raise
        make()


def _gives_way(target: _Path, error: OSError) -> bool:
    """Removes a directory in the way of an object if it contains only empty directories.

    Never removes a file: `rmdir` fails if one appears meanwhile.
    """
    if not isinstance(error, _system.ON_DIRECTORY) or target.is_symlink():
        return False
    empty: list[_Path] = []
    try:
        for directory, _, names in os.walk(target, onerror=_raise):
            # Checked first, so that a tree with a file keeps its empty directories.
            if names:
                return False
            empty.append(_Path(directory))
        for path in reversed(empty):
            path.rmdir()
    except OSError:
        return False
    return bool(empty)


def _raise(error: OSError) -> None:
    raise error


def _put_mode(mode: PutMode | None, attributes: dict[str, str] | None, tags: dict[str, str] | None) -> bool:
    """Returns whether `put` must create the object; refuses options that files do not support."""
    if attributes:
        raise NotImplementedError("files have no attributes; leave out attributes=")
    if tags:
        raise NotImplementedError("files have no tags; leave out tags=")
    if isinstance(mode, dict):
        raise NotImplementedError(
            "files cannot be replaced conditionally by version; give mode='create' or 'overwrite'"
        )
    if mode not in (None, "overwrite", "create"):
        raise ValueError(f"unknown mode {mode!r}; give 'create' or 'overwrite'")
    return mode == "create"


def _buffer(file: Any) -> Any:
    """Returns an object that has a buffer, or `None`."""
    try:
        memoryview(file).release()
    except TypeError:
        return None
    return file


def _no_source(file: object) -> TypeError:
    name = type(file).__name__
    return TypeError(f"cannot put an object of type {name}; give bytes, a Path, a file or an iterable")


def _piece(piece: Any) -> ReadableBuffer:
    if _buffer(piece) is None:
        raise TypeError(f"a piece of the data is of type {type(piece).__name__}; give bytes")
    data: ReadableBuffer = piece
    return data


def _pieces(file: Any, chunk_size: int) -> Iterator[ReadableBuffer]:
    """Yields the bytes of the source of `put`."""
    if chunk_size < 1:
        raise ValueError(f"chunk_size is {chunk_size}; give 1 or more")
    if (buffer := _buffer(file)) is not None:
        yield buffer
    elif isinstance(file, os.PathLike):
        with File(file) as opened, opened.raw() as raw:
            while piece := raw.read(chunk_size):
                yield piece
    elif hasattr(file, "read"):
        while piece := file.read(chunk_size):
            yield _piece(piece)
    elif isinstance(file, Iterable) and not isinstance(file, str):
        for piece in file:
            yield _piece(piece)
    else:
        raise _no_source(file)


async def _pieces_async(file: Any, chunk_size: int) -> AsyncIterator[ReadableBuffer]:
    if isinstance(file, os.PathLike):
        async with await aio.open_file(file) as opened:
            at = 0
            while data := await opened.read_at(at, chunk_size):
                yield data
                at += len(data)
    elif hasattr(file, "read"):
        while True:
            read = file.read(chunk_size)
            piece = await read if inspect.isawaitable(read) else read
            if not piece:
                return
            yield _piece(piece)
    elif isinstance(file, AsyncIterable):
        async for piece in file:
            yield _piece(piece)
    else:
        for piece in _pieces(file, chunk_size):
            yield piece


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


def _parts(rows: Gathered, starts: Sequence[int], lengths: Sequence[int], path: str) -> list[bytes]:
    for index, n in rows.short:
        if n == 0:
            start, length = starts[index], lengths[index]
            text = f"{path} ends before byte {start}"
            raise make("UnexpectedEof", None, text, path, index, start, length)
    return rows.to_list()


def _options(options: GetOptions | None) -> GetOptions:
    given = options or {}
    unknown = set(given) - GetOptions.__annotations__.keys()
    if unknown:
        known = ", ".join(sorted(GetOptions.__annotations__))
        raise TypeError(f"there is no option {sorted(unknown)[0]!r}; give some of {known}")
    if given.get("version") is not None:
        raise NotImplementedError("files have no versions; leave out the option 'version'")
    return given


def _check(options: GetOptions, meta: ObjectMeta, path: str) -> None:
    """Raises if an object does not meet the conditions, checked in the order of RFC 9110, 13.2.2."""

    def matches(tags: str) -> bool:
        return tags == "*" or meta["e_tag"] in [tag.strip().strip('"') for tag in tags.split(",")]

    match, none_match = options.get("if_match"), options.get("if_none_match")
    since, unmodified = options.get("if_modified_since"), options.get("if_unmodified_since")
    changed, about = meta["last_modified"], f"{path} has the tag {meta['e_tag']}, of {meta['last_modified']}"
    if match is not None:
        if not matches(match):
            raise _error(PreconditionError, "Precondition", f"{about}: not {match}", path)
    elif unmodified is not None and changed > unmodified:
        raise _error(PreconditionError, "Precondition", f"{about}: after {unmodified}", path)
    if none_match is not None:
        if matches(none_match):
            raise _error(NotModifiedError, "NotModified", f"{about}: that is {none_match}", path)
    elif since is not None and changed <= since:
        raise _error(NotModifiedError, "NotModified", f"{about}: not after {since}", path)


def _part(asked: Any, size: int, path: str) -> tuple[int, int]:
    """Returns offset and length of the range that `get` reads."""
    if asked is None:
        return 0, size
    if isinstance(asked, dict):
        if set(asked) == {"suffix"} and asked["suffix"] >= 0:
            return max(0, size - asked["suffix"]), min(size, asked["suffix"])
        if set(asked) != {"offset"}:
            raise ValueError(f"{asked!r} is not a range; give (start, end), an offset or a suffix")
        start, end = asked["offset"], size
    else:
        start, end = asked
    if not 0 <= start < min(end, size):
        text = f"{path} has {size} bytes: none of {asked!r}"
        raise make("InvalidRange", None, text, path, None, max(start, 0), max(end - start, 0))
    return start, min(end, size) - start
