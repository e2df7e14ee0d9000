"""Arguments that make no sense, by every way of calling: the right exception, with the index."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
from conftest import becomes_free

import nowait
import nowait.aio

Way = Callable[..., list[bytes]]


def gather(file: Any, offsets: Any, lengths: Any, **keywords: Any) -> list[bytes]:
    return [bytes(row) for row in nowait.gather(file, offsets, lengths, **keywords)]


def gather_of_a_file(file: Any, offsets: Any, lengths: Any, **keywords: Any) -> list[bytes]:
    if not isinstance(file, nowait.File):
        file = nowait.open(file)
    return [bytes(row) for row in file.gather(offsets, lengths, **keywords)]


def gather_each(file: Any, offsets: Any, lengths: Any, **keywords: Any) -> list[bytes]:
    found = {index: bytes(row) for index, row in nowait.gather_each(file, offsets, lengths, **keywords)}
    return [found[index] for index in range(len(found))]


def gather_files(file: Any, offsets: Any, lengths: Any, **keywords: Any) -> list[bytes]:
    requests = [(file, offsets, lengths), (file, [], [])]
    return [bytes(row) for row in nowait.gather_files(requests, **keywords)[0]]


def aio_gather(file: Any, offsets: Any, lengths: Any, **keywords: Any) -> list[bytes]:
    async def main() -> list[bytes]:
        return [bytes(row) for row in await nowait.aio.gather(file, offsets, lengths, **keywords)]

    return asyncio.run(main())


def aio_gather_each(file: Any, offsets: Any, lengths: Any, **keywords: Any) -> list[bytes]:
    async def main() -> list[bytes]:
        found = {}
        async for index, row in nowait.aio.gather_each(file, offsets, lengths, **keywords):
            found[index] = bytes(row)
        return [found[index] for index in range(len(found))]

    return asyncio.run(main())


def aio_gather_files(file: Any, offsets: Any, lengths: Any, **keywords: Any) -> list[bytes]:
    async def main() -> list[bytes]:
        return [
            bytes(row) for row in (await nowait.aio.gather_files([(file, offsets, lengths)], **keywords))[0]
        ]

    return asyncio.run(main())


@pytest.fixture(
    params=[
        gather,
        gather_of_a_file,
        gather_each,
        gather_files,
        aio_gather,
        aio_gather_each,
        aio_gather_files,
    ]
)
def way(request: pytest.FixtureRequest) -> Way:
    return request.param


def test_what_is_right_works_by_every_way(way: Way, path: Path, contents: bytes) -> None:
    out = bytearray(8)
    assert way(path, [5, 0], [3, 4], out=out) == [contents[5:8], contents[:4]]
    assert bytes(out) == contents[5:8] + contents[:4] + b"\0"


RANGES = [
    ([0, -1], 4, nowait.RangeError, 1),
    (numpy.array([0, 1, -9]), 4, nowait.RangeError, 2),
    ([0, 1], [4, -4], nowait.RangeError, 1),
    ([0], -4, nowait.RangeError, 0),
    ([0, 1 << 63], 4, nowait.RangeError, 1),
    ([0, 1 << 64], 4, nowait.RangeError, 1),
    ([0], 1 << 64, nowait.RangeError, 0),
    ([(1 << 63) - 1], 4, nowait.RangeError, 0),
    (numpy.array([0, 1 << 63], dtype=numpy.uint64), 4, nowait.RangeError, 1),
    ([0] * 5, 1 << 62, nowait.RangeError, 1),
    ([0, 1], [4], ValueError, None),
    ([0], [4, 4], ValueError, None),
    (numpy.zeros((2, 2), dtype=numpy.int64), 4, ValueError, None),
    ([0, 1], numpy.zeros((2, 1), dtype=numpy.int64), ValueError, None),
    ([0.0], 4, TypeError, None),
    (numpy.zeros(2), 4, TypeError, None),
    (numpy.float64(1), 4, ValueError, None),
    ([0], 4.0, TypeError, None),
    ([0], [4.0], TypeError, None),
    ([0], numpy.array([4.0]), TypeError, None),
    ([0], numpy.float64(4), ValueError, None),
    (numpy.zeros(1, dtype=complex), 4, TypeError, None),
    ([True], 4, TypeError, None),
    ([0], True, TypeError, None),
    ([0], [True], TypeError, None),
    (numpy.array([True]), 4, TypeError, None),
    ([0], numpy.array([True]), TypeError, None),
    (["a"], 4, TypeError, None),
    ("0", 4, TypeError, None),
    ([None], 4, TypeError, None),
    (5, 4, TypeError, None),
    (None, 4, TypeError, None),
    ([0], None, TypeError, None),
]


@pytest.mark.parametrize("number", range(len(RANGES)))
def test_bad_ranges(way: Way, path: Path, number: int) -> None:
    offsets, lengths, exception, index = RANGES[number]
    with pytest.raises(exception) as caught:
        way(path, offsets, lengths)
    assert getattr(caught.value, "index", None) == index
    if index is not None:
        assert isinstance(caught.value, OSError) and caught.value.filename == str(path) and caught.value.errno


def test_messages_name_the_argument_and_its_type(way: Way, path: Path) -> None:
    for offsets, lengths, message in [
        (5, 4, "the offsets are of type int; give integers"),
        (None, 4, "the offsets are of type NoneType; give integers"),
        ([0], 4.0, "the lengths are of type float; give integers"),
        ([0.5], 4, "one offset is of type float; give an integer"),
    ]:
        with pytest.raises(TypeError, match=message):
            way(path, offsets, lengths)


def test_a_request_without_lengths(path: Path) -> None:
    # `out` is not taken for the lengths.
    out = numpy.ones(1, dtype=numpy.int64)
    for requests in [[(path, [0])], [(path, [0]), (path, [0])]]:
        with pytest.raises((TypeError, ValueError)):
            nowait.gather_files(requests, out)


def test_bad_outputs(way: Way, path: Path) -> None:
    locked = numpy.zeros(8, dtype=numpy.uint8)
    locked.flags.writeable = False
    for out, exception, text in [
        (b"12345678", BufferError, "read-only"),
        (memoryview(bytearray(8)).toreadonly(), BufferError, "read-only"),
        (locked, BufferError, "read-only"),
        (numpy.zeros(16, dtype=numpy.uint8)[::2], BufferError, "contiguous"),
        (numpy.zeros((4, 4), dtype=numpy.uint8, order="F").T[::2], BufferError, "contiguous"),
        (bytearray(7), ValueError, "7 bytes"),
        ("12345678", TypeError, "no buffer"),
        ([0] * 8, TypeError, "no buffer"),
    ]:
        with pytest.raises(exception, match=f"out .*{text}"):
            way(path, [0], 8, out=out)


def test_bad_files(way: Way, path: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as missing:
        way(tmp_path / "missing", [0], 1)
    assert isinstance(missing.value, nowait.Error) and missing.value.filename == str(tmp_path / "missing")
    with pytest.raises(IsADirectoryError):
        way(tmp_path, [0], 1)
    file = nowait.open(path)
    file.close()
    with pytest.raises(nowait.ClosedError) as closed:
        way(file, [0], 1)
    assert isinstance(closed.value, ValueError) and closed.value.filename == str(path)
    with nowait.open(tmp_path / "new", "w") as write_only, pytest.raises(nowait.Error):
        write_only.write_at(0, b"12")
        way(write_only, [0], 1)
    for wrong in (True, None, 1.5, object()):
        with pytest.raises(TypeError):
            way(wrong, [0], 1)


def test_bad_descriptors(way: Way, tmp_path: Path) -> None:
    if way is gather_of_a_file:
        pytest.skip("it has its file")
    # Python on Windows cannot open a directory.
    if sys.platform != "win32":
        directory = os.open(tmp_path, os.O_RDONLY)
        with pytest.raises(IsADirectoryError):
            way(directory, [0], 1)
        os.close(directory)
    for closed in (-1, 1 << 30):
        with pytest.raises(nowait.Error) as bad:
            way(closed, [0], 1)
        assert bad.value.errno == 9
    reader, writer = os.pipe()
    with pytest.raises(nowait.Error, match="offsets"):
        way(reader, [0], 1)
    os.close(reader), os.close(writer)


def test_past_the_end(way: Way, path: Path, contents: bytes) -> None:
    """An error unless it may be partial, and never a silent short read."""
    size = len(contents)
    for offset, there in [(size - 10, 10), (size, 0), (1 << 40, 0)]:
        with pytest.raises(nowait.EndOfFileError) as caught:
            way(path, [0, offset, 5], 20)
        error = caught.value
        assert (error.index, error.offset, error.length, error.kind) == (1, offset, 20, "UnexpectedEof")
        assert error.filename == str(path) and isinstance(error, OSError | EOFError) and error.errno
        assert f"only {there} bytes are available" in str(error)
    out = bytearray(b"\xff" * 60)
    assert way(path, [0, size - 10, size + 5], 20, out=out, partial=True) == [
        contents[:20],
        contents[-10:],
        b"",
    ]
    assert bytes(out) == contents[:20] + contents[-10:] + bytes(30)


def test_the_output_is_given_back_after_an_error(way: Way, path: Path) -> None:
    """While it is lent it cannot be resized."""
    out = bytearray(100)
    for offsets, exception in [([-1], nowait.RangeError), ([1 << 40], nowait.EndOfFileError)]:
        with pytest.raises(exception):
            way(path, offsets, 100, out=out)
        becomes_free(out)
        del out[100:]
