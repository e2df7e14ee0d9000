"""Ranges as they complete, and ranges of many files."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
from conftest import becomes_free, evict

import nowait
import nowait.aio


def test_each_range_comes_once_with_its_bytes(cold: Path, contents: bytes, seed: int) -> None:
    offsets = numpy.random.default_rng(seed).integers(0, len(contents) - 5000, 700)
    lengths = numpy.random.default_rng(seed).integers(0, 5000, 700)
    seen = {}
    for index, row in nowait.gather_each(cold, offsets, lengths):
        assert index not in seen
        seen[index] = bytes(row)
        assert seen[index] == contents[offsets[index] : offsets[index] + lengths[index]]
    assert sorted(seen) == list(range(700))


def test_each_in_a_loop(cold: Path, contents: bytes) -> None:
    async def main() -> None:
        seen = set()
        async with await nowait.aio.open_file(cold) as file:
            out = bytearray(100 * 1000)
            async for index, row in nowait.aio.gather_each(file, range(100), 1000, out=out):
                assert bytes(row) == contents[index : index + 1000]
                seen.add(index)
            assert seen == set(range(100))
            async for _ in nowait.aio.gather_each(file, [0], 10):
                break

    asyncio.run(main())


def test_leaving_the_loop_gives_the_rest_up(path: Path) -> None:
    out = bytearray(1 << 20)
    for _, row in nowait.gather_each(path, range(256), 4096, out=out):
        row.release()
        break
    becomes_free(out)
    assert list(nowait.gather_each(path, [], 5)) == []


def test_errors_come_after_what_was_complete(path: Path, contents: bytes) -> None:
    size = len(contents)
    came = []
    with pytest.raises(nowait.EndOfFileError) as caught:
        for index, _ in nowait.gather_each(path, [0, size - 1, 5], 10):
            came.append(index)
    assert caught.value.index == 1 and sorted(came) == [0, 2]
    rows = dict(nowait.gather_each(path, [size - 1, size, 3], 10, partial=True))
    assert [bytes(rows[index]) for index in range(3)] == [contents[-1:], b"", contents[3:13]]


@pytest.fixture
def files(tmp_path: Path, contents: bytes) -> list[Path]:
    paths = [tmp_path / f"part-{number}" for number in range(5)]
    for number, path in enumerate(paths):
        path.write_bytes(contents[number * 1000 :])
        evict(path)
    return paths


def test_many_files_in_one_call(files: list[Path], contents: bytes) -> None:
    requests = [(path, [0, number * 4096, 7], [10, 0, 5000]) for number, path in enumerate(files)]

    def check(found: list[nowait.Gathered]) -> None:
        assert len(found) == len(files)
        for number, ((_, offsets, lengths), rows) in enumerate(zip(requests, found, strict=True)):
            base = number * 1000
            for offset, length, row in zip(offsets, lengths, rows, strict=True):
                assert bytes(row) == contents[base + offset : base + offset + length]

    check(nowait.gather_files(requests))
    out = bytearray(5 * 5010)
    check(nowait.gather_files(iter(requests), out=out))
    assert bytes(out[5010:5020]) == contents[1000:1010]
    assert nowait.gather_files([]) == []
    one = nowait.gather_files(requests[1:2], out=out)[0]
    assert bytes(one[0]) == contents[1000:1010] == bytes(out[:10])

    async def main() -> None:
        opened = [await nowait.aio.open_file(path) for path in files]
        check(
            await nowait.aio.gather_files(
                [(file, *request[1:]) for file, request in zip(opened, requests, strict=True)]
            )
        )

    asyncio.run(main())


def test_errors_of_many_files(files: list[Path], tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        nowait.gather_files([(files[0], [0], 1), (tmp_path / "missing", [0], 1)])
    with pytest.raises(nowait.EndOfFileError) as caught:
        nowait.gather_files([(files[0], [0], 1), (files[1], [0, 1 << 40], 1)])
    assert caught.value.index == 1 and caught.value.filename == str(files[1])
    with pytest.raises(ValueError, match="out has"):
        nowait.gather_files([(files[0], [0], 10)], out=bytearray(9))
    with pytest.raises(TypeError):
        nowait.gather_files([files[0]])


FEW_DESCRIPTORS = """
import asyncio, os, resource, sys
import nowait, nowait.aio
from nowait.fsspec import NowaitFileSystem

paths = sys.argv[2:]
# What the library opens once for all.
nowait.gather_files([(path, [0], 3) for path in paths[:2]])
asyncio.run(nowait.aio.gather_files([(path, [0], 3) for path in paths[:2]]))
spare = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 1 + spare,) * 2)
expected = [b"%03d" % number for number in range(len(paths))]


async def main():
    found = await nowait.aio.gather_files([(path, [0], 3) for path in paths])
    assert [bytes(rows.data) for rows in found] == expected


for _ in range(5):
    found = nowait.gather_files([(path, [0], 3) for path in paths])
    assert [bytes(rows.data) for rows in found] == expected
    assert NowaitFileSystem().cat_ranges(paths, 0, 3) == expected
    assert NowaitFileSystem().cat_ranges(paths, 0, 3, on_error="raise") == expected
# Asyncio opens some itself.
if spare > 10:
    asyncio.run(main())
with open(paths[0]) as one:
    found = nowait.gather_files([(one.fileno(), [0], 3)] * 500 + [(one, [0], 3)] * 500)
    assert [bytes(rows.data) for rows in found] == expected[:1] * 1000

taken = []
try:
    while True:
        taken.append(os.open(paths[0], os.O_RDONLY))
except OSError:
    pass
found = NowaitFileSystem().cat_ranges(paths[:3], 0, 3)
assert [error.errno for error in found] == [24] * 3, found
try:
    nowait.gather_files([(path, [0], 3) for path in paths])
    raise AssertionError("there are no descriptors")
except nowait.Error as error:
    assert error.errno == 24 and error.filename == paths[0]
for descriptor in taken:
    os.close(descriptor)
# Nothing was remembered.
assert NowaitFileSystem().cat_ranges(paths, 0, 3) == expected
print("done")
"""


@pytest.mark.parametrize("spare", [4, 40])
def test_more_files_than_may_be_open(tmp_path: Path, spare: int) -> None:
    pytest.importorskip("fsspec")
    paths = [tmp_path / f"{number:03d}" for number in range(400)]
    for path in paths:
        path.write_bytes(path.name.encode() + b"more")
    command = [sys.executable, "-c", FEW_DESCRIPTORS, str(spare), *map(str, paths)]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.stdout == "done\n", ended.stderr
