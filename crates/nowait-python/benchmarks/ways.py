"""The ways that are compared: each takes the file and offsets, and returns the blocks there."""

from __future__ import annotations

import asyncio
import mmap
import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy
from testfile import BLOCK, TestFile

import nowait.aio

Way = Callable[[TestFile, Any], Any]


def by_pread(test: TestFile, offsets: Any) -> Any:
    fd = test.fd
    return [os.pread(fd, BLOCK, offset) for offset in offsets.tolist()]


def by_preadv(test: TestFile, offsets: Any) -> Any:
    fd, out = test.fd, memoryview(test.out).cast("B")
    for index, offset in enumerate(offsets.tolist()):
        os.preadv(fd, [out[index * BLOCK : (index + 1) * BLOCK]], offset)
    return test.out[: len(offsets)]


def by_gather(test: TestFile, offsets: Any) -> Any:
    return test.file.gather(offsets, BLOCK, out=test.out)


def by_gather_fresh(test: TestFile, offsets: Any) -> Any:
    return test.file.gather(offsets, BLOCK)


def by_gather_async(test: TestFile, offsets: Any) -> Any:
    async def main() -> Any:
        return await nowait.aio.gather(test.file, offsets, BLOCK, out=test.out)

    return asyncio.run(main())


def by_gather_direct(test: TestFile, offsets: Any) -> Any:
    """Past the page cache: what is read is not cached afterwards."""
    rows = test.direct.gather(offsets, BLOCK, out=test.aligned)
    return numpy.asarray(rows)


def by_memmap(test: TestFile, offsets: Any) -> Any:
    array = numpy.memmap(test.path, dtype=numpy.uint8, mode="r").reshape(-1, BLOCK)
    return array[offsets // BLOCK]


def by_memmap_willneed(test: TestFile, offsets: Any) -> Any:
    with test.path.open("rb") as file, mmap.mmap(file.fileno(), test.size, prot=mmap.PROT_READ) as memory:
        memory.madvise(mmap.MADV_RANDOM)
        for offset in offsets.tolist():
            memory.madvise(mmap.MADV_WILLNEED, offset, BLOCK)
        return numpy.frombuffer(memory, dtype=numpy.uint8).reshape(-1, BLOCK)[offsets // BLOCK]


def by_ayafileio(test: TestFile, offsets: Any) -> Any:
    import ayafileio  # type: ignore[import-not-found]

    async def main() -> Any:
        async with ayafileio.open(str(test.path), "rb") as file:
            return await file.read_many([(offset, BLOCK) for offset in offsets.tolist()])

    return asyncio.run(main())


def by_fsspec(test: TestFile, offsets: Any) -> Any:
    from fsspec.implementations.local import LocalFileSystem

    starts = offsets.tolist()
    return LocalFileSystem().cat_ranges(
        [str(test.path)] * len(starts), starts, [start + BLOCK for start in starts]
    )


def by_nowait_fsspec(test: TestFile, offsets: Any) -> Any:
    from nowait.fsspec import NowaitFileSystem

    starts = offsets.tolist()
    return NowaitFileSystem().cat_ranges(
        [str(test.path)] * len(starts), starts, [start + BLOCK for start in starts]
    )


def by_rows(test: TestFile, offsets: Any) -> Any:
    return test.file.gather_rows("u1", (test.size // BLOCK, BLOCK), offsets // BLOCK)


COLD: dict[str, Way] = {
    "pread": by_pread,
    "memmap": by_memmap,
    "memmap-willneed": by_memmap_willneed,
    "fsspec": by_fsspec,
    "gather": by_gather,
    "gather-fresh": by_gather_fresh,
    "gather-async": by_gather_async,
    "gather-direct": by_gather_direct,
    "gather-rows": by_rows,
    "nowait-fsspec": by_nowait_fsspec,
}
if find_spec("ayafileio") is not None:
    COLD["ayafileio"] = by_ayafileio
HOT: dict[str, Way] = {
    "pread": by_pread,
    "preadv": by_preadv,
    "memmap": by_memmap,
    "fsspec": by_fsspec,
    "gather": by_gather,
    "gather-fresh": by_gather_fresh,
    "gather-async": by_gather_async,
    "nowait-fsspec": by_nowait_fsspec,
}
