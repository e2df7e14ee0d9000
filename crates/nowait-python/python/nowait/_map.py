"""Files in memory, whose pages are brought in before they are touched."""

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
    """How populating ended: bytes that are in, those that were read, and why it stopped early."""

    bytes: int
    read: int
    stopped: str | None


class Map(_nowait.View):
    """A range of a file as read-only memory: a buffer, `numpy.frombuffer(map, dtype)` for instance.

    The first touch of a page waits for the disk; `populate` brings pages in before, in the background
    of other threads, `gather` a list of ranges. A file that is shortened meanwhile ends the process
    at the next touch past its end, as with `mmap`.
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
        """Brings in the pages of a range, and blocks until they are.

        `first` are ranges, start and stop, that come first. `progress` is called with the bytes that
        are in, and all. It stops before it takes more than `memory_share` of the available memory.
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
        """Brings in the pages of a range: see `populate`. Cancelled, it stops after a chunk."""
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
        """Brings in the pages of ranges, offset and length, at the depth of the disk."""
        _nowait.map_gather(self._mapping, list(ranges))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """Does nothing: the memory goes with its last view."""
