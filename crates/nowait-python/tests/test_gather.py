"""Gathers, against slices of what the file holds."""

from __future__ import annotations

import array
import mmap
import os
import random
import signal
import sys
import threading
from pathlib import Path

import numpy
import pytest
from conftest import evict

import nowait
from nowait import _nowait


def expected(contents: bytes, offsets: list[int], lengths: list[int]) -> list[bytes]:
    return [contents[offset : offset + length] for offset, length in zip(offsets, lengths, strict=True)]


def some_ranges(contents: bytes, seed: int, count: int = 500) -> tuple[list[int], list[int]]:
    numbers = random.Random(seed)
    offsets = [numbers.randrange(len(contents) - 9000) for _ in range(count)]
    return offsets, [numbers.choice([0, 1, 100, 4096, 9000]) for _ in offsets]


@pytest.mark.parametrize(
    "form", [list, tuple, numpy.array, lambda n: array.array("q", n), iter, numpy.uint32]
)
def test_any_form_of_integers(cold: Path, contents: bytes, seed: int, form: type) -> None:
    offsets, lengths = some_ranges(contents, seed)
    rows = nowait.gather(cold, form(offsets), form(lengths))
    assert [bytes(row) for row in rows] == expected(contents, offsets, lengths)
    assert rows.lengths == lengths
    assert bytes(rows.data) == b"".join(expected(contents, offsets, lengths))


@pytest.mark.parametrize("kind", ["<i8", ">i8", "<u8", ">u4", "<i4", "<u2", "u1", "i1", ">i2"])
def test_integers_of_any_kind(path: Path, contents: bytes, kind: str) -> None:
    offsets = numpy.array([0, 5, 127, 3], dtype=kind)
    assert [bytes(row) for row in nowait.gather(path, offsets, 10)] == expected(
        contents, [0, 5, 127, 3], [10] * 4
    )


def test_arrays_that_are_not_contiguous(path: Path, contents: bytes) -> None:
    offsets = numpy.arange(100, dtype=numpy.int64)
    for view in (offsets[::3], offsets[::-1], offsets.reshape(10, 10)[:, 4]):
        assert [bytes(row) for row in nowait.gather(path, view, 7)] == expected(
            contents, list(view), [7] * len(view)
        )


class Tensor:
    """As torch's: no buffer, and `__index__` whatever its length."""

    def __init__(self, numbers: list[int]) -> None:
        self.numbers = numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __index__(self) -> int:
        raise TypeError("only integer tensors of a single element can be converted to an index")

    def __array__(self, *arguments: object, **keywords: object) -> numpy.ndarray:
        return numpy.array(self.numbers)


def test_tensors_and_scalars(path: Path, contents: bytes) -> None:
    rows = nowait.gather(path, Tensor([5, 1]), Tensor([3, 4]))
    assert [bytes(row) for row in rows] == expected(contents, [5, 1], [3, 4])
    for one in (numpy.array(3), numpy.uint8(3), 3):
        assert [bytes(row) for row in nowait.gather(path, [5, 1], one)] == expected(contents, [5, 1], [3, 3])


def test_one_length_makes_rows(path: Path, contents: bytes) -> None:
    rows = nowait.gather(path, [4096, 0, 8192], numpy.int64(1024))
    found = numpy.asarray(rows)
    assert found.shape == (3, 1024) and found.dtype == numpy.uint8
    assert [bytes(row) for row in found] == expected(contents, [4096, 0, 8192], [1024] * 3)
    assert bytes(rows[-1]) == contents[8192 : 8192 + 1024]
    with pytest.raises(IndexError):
        rows[3]


def test_any_form_of_file(path: Path, contents: bytes) -> None:
    with path.open("rb") as python, nowait.open(path) as ours:
        python.seek(10)
        text, raw = str(path), os.fsencode(path)
        for file in (path, text, raw, python, python.fileno(), ours):
            assert bytes(nowait.gather(file, [3], 5)[0]) == contents[3:8]
        # Neither closed nor moved.
        assert python.tell() == 10
        assert python.read(1) == contents[10:11]


def outputs(size: int) -> list[object]:
    shared = mmap.mmap(-1, size)
    floats = numpy.ones((size // 8, 1), dtype=numpy.float64)
    return [
        bytearray(size),
        memoryview(bytearray(size)),
        shared,
        floats,
        array.array("B", bytes(size)),
        nowait.Buffer(size),
    ]


@pytest.mark.parametrize("which", range(6))
def test_into_any_writable_buffer(cold: Path, contents: bytes, which: int) -> None:
    out = outputs(4096)[which]
    rows = nowait.gather(cold, [100, 9000], [1000, 2000], out=out)
    assert [bytes(row) for row in rows] == expected(contents, [100, 9000], [1000, 2000])
    assert bytes(memoryview(out).cast("B")[:3000]) == contents[100:1100] + contents[9000:11000]


def test_no_ranges_and_empty_ranges(path: Path) -> None:
    assert list(nowait.gather(path, [], [])) == []
    assert list(nowait.gather(path, numpy.array([], dtype=numpy.int64), 4096)) == []
    assert [bytes(row) for row in nowait.gather(path, [5, 9], 0)] == [b"", b""]
    assert numpy.asarray(nowait.gather(path, [], 10)).size == 0


def test_ranges_that_are_short(path: Path, contents: bytes) -> None:
    size = len(contents)
    rows = nowait.gather(path, [0, size - 10, size + 5], 20, out=bytearray(b"\xff" * 60), partial=True)
    assert rows.lengths == [20, 10, 0] and rows.short == [(1, 10), (2, 0)]
    assert bytes(rows.data) == contents[:20] + contents[-10:] + bytes(30)


@pytest.mark.parametrize("late", [3, 1023, 1024, 5000])
def test_the_index_is_that_of_the_whole_list(path: Path, contents: bytes, late: int) -> None:
    offsets = [0] * 6000
    offsets[late] = len(contents)
    with pytest.raises(nowait.EndOfFileError) as caught:
        nowait.gather(path, offsets, 1)
    assert caught.value.index == late and f"range {late} " in str(caught.value)
    assert nowait.gather(path, offsets, 1, partial=True).short == [(late, 0)]


def test_a_list_of_bytes(cold: Path, contents: bytes, seed: int) -> None:
    # Several parts, ranges that the end of the file cuts short among them, and one that is a part itself.
    offsets, lengths = some_ranges(contents, seed, 5000)
    size = len(contents)
    for index, offset in ((3000, size + 5), (17, size - 3), (4999, size)):
        offsets[index], lengths[index] = offset, 100
    read = _nowait.gather_list(cold, offsets, lengths, partial=True)
    assert all(type(one) is bytes for one in read)
    assert read == expected(contents, offsets, lengths)
    with pytest.raises(nowait.EndOfFileError) as caught:
        _nowait.gather_list(cold, offsets, lengths)
    assert caught.value.index == 17
    with pytest.raises(nowait.RangeError) as refused:
        _nowait.gather_list(cold, [0, (1 << 63) - 1, size], [4096, 100, 1], partial=True)
    assert refused.value.index == 1
    assert _nowait.gather_list(cold, [], []) == []


def test_a_list_with_a_long_range(tmp_path: Path) -> None:
    sparse = tmp_path / "sparse"
    length = 65 << 20
    with sparse.open("wb") as file:
        file.truncate(length - 5)
        file.seek(length - 10)
        file.write(b"end")
    read = _nowait.gather_list(sparse, [0, length - 10, 1 << 40], [length, 3, 8], partial=True)
    assert [len(one) for one in read] == [length - 5, 3, 0]
    assert read[0].endswith(b"\0end\0\0") and read[1] == b"end"


def test_slow_parts_become_small_and_never_empty(tmp_path: Path) -> None:
    # Another thread lets go of the interpreter so late that each part takes longer than a call should
    # between two looks at signals. The next part is half as large: 2,047 ranges down to one.
    offsets, over = [index << 17 for index in range(2060)], threading.Event()
    scattered = tmp_path / "scattered"
    with scattered.open("wb") as file:
        for offset in offsets:
            file.seek(offset)
            file.write(offset.to_bytes(8, "little"))
    evict(scattered)

    def spin() -> None:
        while not over.is_set():
            pass

    def fail(*_: object) -> None:
        raise TimeoutError("the gather makes no progress")

    interval, before = sys.getswitchinterval(), signal.signal(signal.SIGALRM, fail)
    spinning = threading.Thread(target=spin)
    try:
        sys.setswitchinterval(0.21)
        spinning.start()
        signal.alarm(60)
        read = nowait.gather(scattered, offsets[::-1], 8)
    finally:
        signal.alarm(0)
        over.set()
        sys.setswitchinterval(interval)
        signal.signal(signal.SIGALRM, before)
        spinning.join()
    assert [int.from_bytes(one, "little") for one in read.to_list()] == offsets[::-1]


def test_out_can_be_resized_afterwards_and_not_while_it_is_looked_at(path: Path) -> None:
    out = bytearray(100)
    rows = nowait.gather(path, [0], 100, out=out)
    with pytest.raises(BufferError):
        out.append(1)
    del rows
    out.append(1)
    with pytest.raises(nowait.RangeError):
        nowait.gather(path, [-1], 100, out=out)
    with pytest.raises(nowait.EndOfFileError):
        nowait.gather(path, [1 << 40], 100, out=out)
    out.append(2)


def test_the_interpreter_is_free_meanwhile(tmp_path: Path) -> None:
    """A reader of a FIFO-like slow file cannot be had; many large copies do: another thread counts on."""
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(64 << 20)
    counted, stop = [0], threading.Event()

    def count() -> None:
        while not stop.is_set():
            counted[0] += 1

    thread = threading.Thread(target=count)
    thread.start()
    try:
        out = bytearray(64 << 20)
        nowait.gather(path, [0], 64 << 20, out=out)
        before = counted[0]
        for _ in range(5):
            nowait.gather(path, [0], 64 << 20, out=out)
        assert counted[0] - before > 1000
    finally:
        stop.set()
        thread.join()


def test_a_long_partial_range_takes_the_memory_of_what_is_there(path: Path, contents: bytes) -> None:
    length = 4 << 30
    before = resident()
    rows = nowait.gather(path, [0, 10], length, partial=True)
    assert [len(row) for row in rows] == [len(contents), len(contents) - 10]
    assert bytes(rows[0][-5:]) == contents[-5:] and resident() - before < 1 << 30


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
