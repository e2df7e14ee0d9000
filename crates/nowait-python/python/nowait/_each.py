"""Ranges as they complete, and ranges of many files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nowait import _nowait

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from _typeshed import WriteableBuffer

    from nowait._nowait import Gathered
    from nowait._types import HasFileno, Integers, Lengths, Path


def gather_each(
    file: _nowait.File | Path | int | HasFileno,
    offsets: Integers,
    lengths: Lengths,
    out: WriteableBuffer | None = None,
    *,
    partial: bool = False,
) -> Iterator[tuple[int, memoryview]]:
    """Reads ranges as `nowait.gather` does, and yields each as it completes: its index, and its bytes.

    The order is that of completion. All ranges are under way from the first `next()` on, at a bounded
    depth; who leaves the loop gives the rest up.
    """
    arrivals, rows = _nowait.start_each(file, offsets, lengths, out, partial)
    try:
        while arrived := arrivals.wait():
            for index, length in arrived:
                yield index, rows[index][:length]
    finally:
        arrivals.cancel()
        # An exception keeps the frames that it passed, and what they have.
        del rows


def gather_files(
    requests: Iterable[tuple[_nowait.File | Path | int | HasFileno, Integers, Lengths]],
    out: WriteableBuffer | None = None,
    *,
    partial: bool = False,
) -> list[Gathered]:
    """Reads ranges of several files by one call: each request is a file, offsets and lengths.

    Returns a `Gathered` for each request. All lie in one memory, one after the other. The index in an
    error is that within its file's ranges. There may be more paths than the process may have files
    open: a bounded number of them is open at a time.
    """
    listed = list(requests)
    if len(listed) == 1:
        # On this thread, which costs less.
        file, offsets, lengths = listed[0]
        return [_nowait.gather(file, offsets, lengths, out, partial=partial)]
    gathered: list[Gathered] = _nowait.start_files(listed, out, partial)
    return gathered
