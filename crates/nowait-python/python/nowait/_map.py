"""Memory-mapped files whose pages are loaded before they are accessed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nowait import _loops, _nowait

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Self

    from nowait._types import HasFileno, Path


@dataclass(frozen=True)
class Populated:
    """Result of populating: bytes resident, bytes read, and the reason for an early stop."""

    bytes: int
    read: int
    stopped: str | None


class Map(_nowait.View):
    """A read-only memory map of a file range. It is a buffer, for example for `numpy.frombuffer(map,
    dtype)`.

    The first access to a page waits for the disk. `populate` loads the pages of a range in advance,
    and `gather` the pages of a list of ranges. If another process shortens the file, an access past
    its end kills this process, as with `mmap`.
    """

    _mapping: _nowait.Mapping

    def __new__(
        cls, file: _nowait.File | Path | int | HasFileno, offset: int = 0, length: int | None = None
    ) -> Self:
        mapping = _nowait.map_file(file, offset, length)
        self = super().__new__(cls, mapping)
        self._mapping = mapping
        return self

    @property
    def data(self) -> memoryview:
        """All bytes."""
        return memoryview(self._mapping)

    def __len__(self) -> int:
        return len(self._mapping)

    def __getitem__(self, key: Any) -> Any:
        return memoryview(self._mapping)[key]

    def populate(
        self,
        start: int = 0,
        stop: int | None = None,
        *,
        first: Sequence[tuple[int, int]] = (),
        progress: Callable[[int, int], object] | None = None,
        bytes_per_second: int | None = None,
        memory_share: float = 0.8,
        chunk_bytes: int = 2 << 20,
    ) -> Populated:
        """Loads the pages of a range, and blocks until they are resident.

        `first` lists ranges (start, stop) to load first. `progress` is called with the resident and the
        total number of bytes. Loading stops before it uses more than `memory_share` of the available
        memory.
        """
        how = self._how(start, stop, first, bytes_per_second, memory_share, chunk_bytes)
        return Populated(**_nowait.populate(self._mapping, how, progress))

    async def populate_async(
        self,
        start: int = 0,
        stop: int | None = None,
        *,
        first: Sequence[tuple[int, int]] = (),
        bytes_per_second: int | None = None,
        memory_share: float = 0.8,
        chunk_bytes: int = 2 << 20,
    ) -> Populated:
        """Loads the pages of a range: see `populate`. If cancelled, it stops after the current chunk."""
        how = self._how(start, stop, first, bytes_per_second, memory_share, chunk_bytes)
        return Populated(**await _loops.run(_nowait.start_populate, self._mapping, how))

    def _how(
        self,
        start: int,
        stop: int | None,
        first: Sequence[tuple[int, int]],
        bytes_per_second: int | None,
        memory_share: float,
        chunk_bytes: int,
    ) -> dict[str, object]:
        start, stop, _ = slice(start, stop).indices(len(self))
        return {
            "start": start,
            "stop": max(start, stop),
            "first": list(first),
            "bytes_per_second": bytes_per_second,
            "memory_share": memory_share,
            "chunk_bytes": chunk_bytes,
        }

    def gather(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Loads the pages of ranges (offset, length), with many requests in flight."""
        _nowait.map_gather(self._mapping, list(ranges))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """Does nothing: the memory is unmapped with its last view."""
