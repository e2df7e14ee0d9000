from collections.abc import Iterator
from typing import Any, Literal, Self, final

from _typeshed import ReadableBuffer, WriteableBuffer
from typing_extensions import disjoint_base

from nowait._copy import CopyProgress
from nowait._types import Advice, HasFileno, Integers, Lengths, Path

__version__: str

@final
class Buffer:
    """Memory of the library: page-aligned, in huge pages from 64 KiB on, used again when it is free.

    Its bytes are whatever an earlier use left there. Give it as `out` where reads repeat: memory that
    was used before needs no page faults.
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
    """Ranges that were read, in the caller's order, one after the other in one memory.

    A sequence of memoryviews, one for each range, and itself a buffer: `numpy.asarray(gathered)` has
    all bytes, one row for each range if the length was one for all, without a copy.
    """

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> memoryview: ...
    def __iter__(self) -> Iterator[memoryview]: ...
    @property
    def data(self) -> memoryview:
        """All bytes, one range after the other; zeros where the end of the file cut one short."""
    def to_list(self) -> list[bytes]:
        """Copies each range into `bytes` of its own."""
    @property
    def lengths(self) -> list[int]:
        """Bytes read of each range."""
    @property
    def short(self) -> list[tuple[int, int]]:
        """Ranges that the end of the file cut short: index, and bytes read."""

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

    `file` is a path, a descriptor, an object with `fileno()`, or a `File`, which learns from each call
    and is opened once. `lengths` is one length for all, or one for each offset. `out` is a writable,
    C-contiguous buffer of at least the sum; without it there is new memory.

    A range past the end of the file is an `EndOfFileError`; with `partial` it is shorter. The
    interpreter is free for other threads meanwhile.
    """

def gather_list(
    file: File | Path | int | HasFileno, offsets: Integers, lengths: Lengths, *, partial: bool = False
) -> list[bytes]:
    """As `gather`, into a list of `bytes`: each is copied while others are read."""

@final
class Completions:
    """Operations of one event loop that have ended, behind an eventfd."""

    def __new__(cls) -> Self: ...
    def fileno(self) -> int: ...
    def drain(self) -> list[tuple[int, bool, Any]]:
        """Takes some of what has ended: number, whether it succeeded, and the result or exception."""

@final
class Running:
    """A task of the driver's thread."""

    def cancel(self) -> None: ...

@final
class Arrivals:
    """A gather whose ranges are handed on as they complete."""

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
    def start_append(
        self, completions: Completions, number: int, records: list[Any], durable: bool
    ) -> Running: ...
    def wait_durable(self, lsn: int) -> None: ...
    def start_wait_durable(self, completions: Completions, number: int, lsn: int) -> Running: ...
    def reader(self, lsn: int) -> LogReader: ...
    def truncate_prefix(self, lsn: int) -> None: ...
    def truncate_suffix(self, lsn: int) -> None: ...
    def close(self) -> None: ...

@disjoint_base
class Mapping:
    """A file in memory, read-only."""

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

def map_file(file: File | Path | int | HasFileno, offset: int = 0, length: int | None = None) -> Mapping: ...
def map_gather(mapping: Mapping, ranges: list[tuple[int, int]]) -> None: ...
def populate(mapping: Mapping, how: dict[str, object], progress: Any = None) -> dict[str, Any]: ...
def start_populate(
    completions: Completions, number: int, mapping: Mapping, how: dict[str, object]
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
