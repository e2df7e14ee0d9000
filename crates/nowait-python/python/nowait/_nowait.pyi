import sys
from collections.abc import Iterator
from typing import Any, Literal, Self, final

from _typeshed import ReadableBuffer, WriteableBuffer
from typing_extensions import disjoint_base

from nowait._copy import CopyProgress
from nowait._types import Access, Advice, HasFileno, Integers, Lengths, Path

__version__: str

@final
class Buffer:
    """Page-aligned memory of the library, in huge pages from 64 KiB on, and reused after it is freed.

    Its initial bytes are undefined. Pass it as `out` to repeated reads: reused memory causes no page
    faults.
    """

    def __new__(cls, size: int) -> Self: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@disjoint_base
class View:
    def __new__(cls, object: ReadableBuffer) -> Self: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Gathered(View):
    """Result of a gather: the ranges in the caller's order, consecutive in one memory.

    It is a sequence of memoryviews, one for each range, and also a buffer. `numpy.asarray(gathered)`
    returns all bytes without a copy, as one row for each range if all have the same length.
    """

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> memoryview: ...
    def __iter__(self) -> Iterator[memoryview]: ...
    @property
    def data(self) -> memoryview:
        """All bytes, one range after the other. Missing bytes of short ranges are zero."""
    def to_list(self) -> list[bytes]:
        """Copies each range into a separate `bytes` object."""
    @property
    def lengths(self) -> list[int]:
        """Number of bytes read of each range."""
    @property
    def short(self) -> list[tuple[int, int]]:
        """Ranges that the end of the file cut short: index and number of bytes read."""

@disjoint_base
class File:
    def __new__(
        cls, path: Path, mode: str = "r", *, direct: bool = False, permissions: int = 0o666
    ) -> Self: ...
    @property
    def name(self) -> str: ...
    @property
    def mode(self) -> str: ...
    @property
    def closed(self) -> bool: ...
    @property
    def direct(self) -> bool: ...
    def fileno(self) -> int: ...
    def size(self) -> int: ...
    def read_at(self, offset: int, length: int) -> bytes: ...
    def readinto_at(self, offset: int, buffer: WriteableBuffer) -> int: ...
    def write_at(self, offset: int, data: ReadableBuffer, *, durable: bool = False) -> int: ...
    def append(self, data: ReadableBuffer, *, durable: bool = False) -> int: ...
    def sync(self, *, metadata: bool = False) -> None: ...
    def truncate(self, length: int) -> None: ...
    def advise(self, advice: Advice, offset: int = 0, length: int = 0) -> None: ...
    def gather(
        self,
        offsets: Integers,
        lengths: Lengths,
        out: WriteableBuffer | None = None,
        *,
        partial: bool = False,
    ) -> Gathered: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ...

def gather(
    file: File | Path | int | HasFileno,
    offsets: Integers,
    lengths: Lengths,
    out: WriteableBuffer | None = None,
    *,
    partial: bool = False,
) -> Gathered:
    """Reads `lengths[i]` bytes at `offsets[i]` of a file, for all i, one range after the other.

    `file` is a path, a descriptor, an object with `fileno()`, or a `File`. A `File` is opened once, and
    remembers how its reads were served. `lengths` is one length for all ranges, or one for each offset.
    `out` is a writable, C-contiguous buffer of at least the sum of the lengths; the default is new memory.

    A range past the end of the file raises `EndOfFileError`; with `partial`, it is shorter instead. The
    call releases the GIL.
    """

def gather_list(
    file: File | Path | int | HasFileno, offsets: Integers, lengths: Lengths, *, partial: bool = False
) -> list[bytes]:
    """Reads like `gather`, into a list of `bytes` objects. It copies each range while others are read."""

if sys.platform != "linux":
    @final
    class Waiter:
        """Waits for completions of one event loop, on another thread."""

        def wait(self) -> bool:
            """Waits, and returns true when results are available; returns false after `stop`, or when the
            queue is freed.
            """

        def stop(self) -> None:
            """Ends this and later calls of `wait`."""

@final
class Completions:
    """Queue of completed operations of one event loop."""

    def __new__(cls) -> Self: ...
    if sys.platform == "linux":
        def notifier(self) -> int:
            """Returns an eventfd, which is readable while results are available."""
    else:
        def notifier(self) -> Waiter: ...

    def drain(self) -> list[tuple[int, bool, Any]]:
        """Takes some completed operations: the number, whether it succeeded, and the result or exception of
        each.
        """

@final
class Running:
    """A task on the driver thread."""

    def cancel(self) -> None: ...

@final
class Arrivals:
    """A gather that delivers ranges as they complete."""

    def wait(self) -> list[tuple[int, int]]: ...
    def finish(self) -> None: ...
    def poll(self, completions: Completions, number: int) -> list[tuple[int, int]] | None: ...
    def cancel(self) -> None: ...

@final
class Copying:
    """A copy that a task awaits."""

    def poll(
        self, completions: Completions, number: int
    ) -> tuple[CopyProgress | None, dict[str, Any] | None] | None: ...
    def cancel(self) -> None: ...

@final
class LogReader:
    """Reads records of a log in batches."""

    def read(self, tail: bool) -> list[tuple[int, int, bytes]]: ...
    def start_read(self, completions: Completions, number: int, tail: bool) -> Running: ...

@disjoint_base
class Log:
    def __new__(
        cls,
        path: Path,
        *,
        create: bool = False,
        segment_bytes: int | None = None,
        retain_bytes: int | None = None,
        salvage: bool = False,
        scan: Literal["all", "tail"] = "all",
        mode: int | None = None,
    ) -> Self: ...
    @property
    def name(self) -> str: ...
    @property
    def closed(self) -> bool: ...
    @property
    def durable_lsn(self) -> int: ...
    @property
    def last_lsn(self) -> int: ...
    @property
    def recovery(self) -> dict[str, Any]: ...
    def append_batch(self, records: list[Any], durable: bool) -> int: ...
    def try_append(self, completions: Completions, record: ReadableBuffer) -> tuple[int, bool] | None: ...
    def start_group(self, completions: Completions, number: int, records: list[bytes]) -> None: ...
    def start_append(
        self, completions: Completions, number: int, records: list[Any], durable: bool
    ) -> Running: ...
    def wait_durable(self, lsn: int) -> None: ...
    def start_wait_durable(self, completions: Completions, number: int, lsn: int) -> Running: ...
    def reader(self, lsn: int, skip_damage: bool) -> LogReader: ...
    def backup(self, destination: Path) -> dict[str, Any]: ...
    def start_backup(self, completions: Completions, number: int, destination: Path) -> Running: ...
    def truncate_prefix(self, lsn: int) -> None: ...
    def truncate_suffix(self, lsn: int) -> None: ...
    def close(self) -> None: ...

@disjoint_base
class Mapping:
    """A read-only memory map of a file."""

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

def rename(source: Path, target: Path) -> None: ...
def map_file(file: File | Path | int | HasFileno, offset: int = 0, length: int | None = None) -> Mapping: ...
def map_gather(mapping: Mapping, ranges: list[tuple[int, int]]) -> None: ...
def populate(mapping: Mapping, how: dict[str, object], progress: Any = None) -> dict[str, Any]: ...
def start_populate(
    completions: Completions, number: int, mapping: Mapping, how: dict[str, object]
) -> Running: ...

@final
class Lease:
    """Bytes of a cached file, which stay in place until the lease and its views are released.

    A read-only buffer: `memoryview(lease)`, `numpy.frombuffer(lease)`. A lease of a range within one page
    pins the page: the cache cannot reuse its memory. So release leases soon, or copy what you keep. In a
    forked child, a pinned page reads zeros.
    """

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    @property
    def is_copy(self) -> bool:
        """True if the bytes are a copy, which pins no page."""
    def release(self) -> None:
        """Unpins the page, or frees the copy. Raises `BufferError` while a view of the lease exists."""
    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ...

@disjoint_base
class PageCache:
    def __new__(
        cls,
        capacity_bytes: int,
        page_bytes: int = 16384,
        *,
        wait_max_s: float = 10.0,
        read_ahead_bytes_max: int = 262144,
    ) -> Self: ...
    @property
    def page_bytes(self) -> int:
        """Bytes of a page."""
    @property
    def capacity_bytes(self) -> int:
        """Current capacity in bytes."""
    def set_capacity_bytes(self, capacity_bytes: int) -> int:
        """Sets the capacity, at most that of the constructor; returns the new one, in whole pages."""
    def counters(self) -> dict[str, int]: ...

@disjoint_base
class CachedFile:
    def __new__(
        cls, cache: PageCache, file: File | Path | int | HasFileno, access: Access = "immutable"
    ) -> Self: ...
    @property
    def name(self) -> str: ...
    def size(self) -> int:
        """Size in bytes at the last comparison, by `open` or `revalidate`."""
    def get(self, offset: int, length: int) -> Lease:
        """Returns a lease of `length` bytes from `offset`; reads them if they are not cached.

        A range within one page is leased in place; a range that crosses a page boundary is copied. A range
        that ends beyond the end of the file raises `EndOfFileError`. The call releases the GIL while it
        waits.
        """
    def try_get(self, offset: int, length: int) -> Lease | None:
        """Returns a lease if all bytes are cached; never waits."""
    def gather(self, offsets: Integers, lengths: Lengths, out: WriteableBuffer | None = None) -> Gathered:
        """Reads ranges like `nowait.gather`: copies cached ones, and reads the others in one batch.

        The result pins no page. A range longer than half of the capacity bypasses the cache; `gather`
        also lets a range bypass it that would delay signals.
        """
    def invalidate(self, offset: int = 0, length: int | None = None) -> None:
        """Drops the cached pages of a range; without `length`, to the end of the file. Leases keep their
        bytes.
        """
    def revalidate(self) -> bool:
        """Compares the file's size and times with those of the last comparison (`fstat(2)`); returns true if
        it dropped the cached pages. With access "revalidate", it also drops them if the times were at most
        two seconds old at the last comparison.
        """
    def counters(self) -> dict[str, int]: ...

def start_cached_get(
    completions: Completions, number: int, file: CachedFile, offset: int, length: int
) -> tuple[Lease, bool] | None: ...
def start_cached_gather(
    completions: Completions,
    number: int,
    file: CachedFile,
    offsets: Integers,
    lengths: Lengths,
    out: WriteableBuffer | None,
) -> Running: ...
def probe_json(path: Path, shallow: bool, evict: bool, requests: int) -> str: ...
def copy(sources: list[Any], target: Path, progress: Any, how: dict[str, object]) -> dict[str, Any]: ...
def start_copy(sources: list[Any], target: Path, tells_progress: bool, how: dict[str, object]) -> Copying: ...

# What has ended at once is returned: its result, and whether others are to have their turn first. Of
# what has not, the result comes to `completions` under `number`.
def start_open(
    completions: Completions, number: int, path: Path, mode: str, direct: bool, permissions: int
) -> tuple[File, bool] | None: ...
def start_close(completions: Completions, number: int, file: File) -> tuple[None, bool] | None: ...
def start_read(
    completions: Completions, number: int, file: File, offset: int, length: int
) -> tuple[bytes, bool] | None: ...
def start_readinto(
    completions: Completions, number: int, file: File, offset: int, buffer: WriteableBuffer
) -> tuple[int, bool] | None: ...
def start_write(
    completions: Completions, number: int, file: File, offset: int | None, data: ReadableBuffer, durable: bool
) -> tuple[int, bool] | None: ...
def start_sync(
    completions: Completions, number: int, file: File, metadata: bool
) -> tuple[None, bool] | None: ...
def start_truncate(
    completions: Completions, number: int, file: File, length: int
) -> tuple[None, bool] | None: ...
def start_settle(completions: Completions, number: int, file: File) -> Running: ...
def start_size(completions: Completions, number: int, file: File) -> tuple[int, bool] | None: ...
def start_gather(
    completions: Completions,
    number: int,
    file: File | Path | int | HasFileno,
    offsets: Integers,
    lengths: Lengths,
    out: WriteableBuffer | None,
    partial: bool,
) -> Running: ...
def start_each(
    file: File | Path | int | HasFileno,
    offsets: Integers,
    lengths: Lengths,
    out: WriteableBuffer | None,
    partial: bool,
) -> tuple[Arrivals, Gathered]: ...
def start_files(
    requests: list[Any],
    out: WriteableBuffer | None,
    partial: bool,
    completions: Completions | None = None,
    number: int = 0,
) -> Any: ...
def end() -> None: ...
def pending_releases() -> int: ...
