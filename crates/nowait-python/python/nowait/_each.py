"""Gathers that yield ranges as they complete, and gathers of many files."""

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
    """Reads ranges like `nowait.gather`, and yields index and bytes of each range as it completes.

    Ranges are yielded in the order of completion. The first `next()` starts the reads, at a bounded depth.
    Leaving the loop cancels the rest.
    """
    arrivals, rows = _nowait.start_each(file, offsets, lengths, out, partial)
    try:
        while arrived := arrivals.wait():
            for index, length in arrived:
                yield index, rows[index][:length]
    finally:
        arrivals.cancel()
        # An exception would keep this frame, and with it the rows.
        del rows


def gather_files(
    requests: Iterable[tuple[_nowait.File | Path | int | HasFileno, Integers, Lengths]],
    out: WriteableBuffer | None = None,
    *,
    partial: bool = False,
) -> list[Gathered]:
    """Reads ranges of several files by one call. Each request consists of a file, offsets and lengths.

    Returns a `Gathered` for each request; all share one memory. The index in an error counts within the
    ranges of its file. The list may name more paths than the process may open at a time: the call keeps a
    bounded number of them open.
    """
    listed = list(requests)
    if len(listed) == 1:
        # One request runs on this thread, which costs less.
        file, offsets, lengths = listed[0]
        return [_nowait.gather(file, offsets, lengths, out, partial=partial)]
    gathered: list[Gathered] = _nowait.start_files(listed, out, partial)
    return gathered
