"""Page cache in user space: bytes of cached pages without a system call and without a copy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nowait import _loops, _nowait

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

    from nowait._nowait import Gathered, Lease
    from nowait._types import Access, HasFileno, Integers, Lengths, Path


@dataclass(frozen=True)
class CacheStats:
    """Counters of a cache or of one of its files. Each counts pages unless its description says otherwise."""

    hits: int
    """Pages that were found in the cache."""
    joins: int
    """Pages whose read was in flight already."""
    misses: int
    """Pages for which a read was begun."""
    uncached: int
    """Pages of ranges that bypassed the cache: longer than half of the capacity."""
    read_ahead: int
    """Pages read ahead."""
    read_ahead_unused: int
    """Pages read ahead that were evicted before a read used them."""
    reads: int
    """Reads that were begun, each of one or more adjacent pages."""
    read_bytes: int
    """Bytes that reads returned."""
    failures: int
    """Reads that failed."""
    evictions: int
    """Pages evicted. Zero in the counters of a file."""
    cached: int
    """Pages in the cache."""
    pinned: int
    """Pages that are leased or being read. The counters of a file count only its own."""


class PageCache(_nowait.PageCache):
    """A page cache in the memory of this process, up to a fixed capacity. Any thread may use it.

        cache = nowait.PageCache(64 << 20)
        table = cache.open("table.dat")
        row = memoryview(table.get(40_000, 100))

    A page has `page_bytes` bytes: a power of two from 4 KiB to 1 MiB. If leases pin all pages, a read fails
    with `TimedOutError` after `wait_max_s` seconds. Sequential reads read at most `read_ahead_bytes_max`
    bytes ahead.

    A forked child cannot use the cache of its parent: reads, `open` and `revalidate` raise
    `UnsupportedError`, and `try_get` returns None.
    """

    __slots__ = ()

    def open(self, file: _nowait.File | Path | int | HasFileno, access: Access = "immutable") -> CachedFile:
        """Returns the file, read through the cache.

        A path is opened with direct I/O, so that the kernel does not cache the same pages. Keep a `File` open
        while it is read through the cache. All files of one inode share its pages. The call drops them if
        the file's size or times have changed since the last comparison. `access` says who may change it:

        * "immutable": the file does not change while it is open;
        * "revalidate": other programs; `open` and `revalidate` detect a change;
        * "exclusive": only this program. It calls `invalidate` after a write, and `revalidate` after a
          change of the size. While such a handle exists, `open` does not compare.
        """
        return CachedFile(self, file, access)

    def stats(self) -> CacheStats:
        """Returns the counters since the cache was made."""
        return CacheStats(**self.counters())

    def __repr__(self) -> str:
        return f"<nowait.PageCache: {self.capacity_bytes} bytes>"


class CachedFile(_nowait.CachedFile):
    """A file that is read through a cache: see `PageCache.open`. Any thread may use it.

    Each object is a separate reader: sequential reads of one object read ahead.
    """

    __slots__ = ()

    async def get_async(self, offset: int, length: int) -> Lease:
        """Returns a lease: see `get`. If cancelled, the read continues in the background."""
        return await _loops.call(_nowait.start_cached_get, self, offset, length)

    async def gather_async(
        self, offsets: Integers, lengths: Lengths, out: WriteableBuffer | None = None
    ) -> Gathered:
        """Reads ranges by one future: see `gather`."""
        gathered: Gathered = await _loops.run(_nowait.start_cached_gather, self, offsets, lengths, out)
        return gathered

    def stats(self) -> CacheStats:
        """Returns the counters of the file, of all its readers."""
        return CacheStats(**self.counters())

    def __repr__(self) -> str:
        return f"<nowait.CachedFile: {self.name!r}>"
