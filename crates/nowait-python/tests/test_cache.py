"""The page cache, against the contents of the files."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy
import pytest
from conftest import Run
from test_processes import Raised, in_a_fork, raised_after
from test_rows import KEYS

import nowait

PAGE = 16 << 10


def becomes_pinned(cache: nowait.PageCache, pages: int) -> None:
    """Waits until so many pages are pinned: the thread that completes a read pins its pages for a while."""
    deadline = time.monotonic() + 20
    while cache.stats().pinned != pages:
        assert time.monotonic() < deadline, cache.stats()
        time.sleep(0.001)


@pytest.fixture
def cache() -> nowait.PageCache:
    return nowait.PageCache(4 << 20)


def test_hits_and_misses(cache: nowait.PageCache, cold: Path, contents: bytes) -> None:
    table = cache.open(cold)
    assert (table.name, table.size()) == (str(cold), len(contents))
    assert (cache.capacity_bytes, cache.page_bytes) == (4 << 20, PAGE)
    assert table.try_get(5 * PAGE, 10) is None
    lease = table.get(5 * PAGE + 7, 100)
    assert (len(lease), lease.is_copy) == (100, False)
    assert bytes(lease) == memoryview(lease).tobytes() == contents[5 * PAGE + 7 :][:100]
    assert bytes(table.get(5 * PAGE, PAGE)) == contents[5 * PAGE :][:PAGE]
    found = table.try_get(5 * PAGE, 10)
    assert found is not None and bytes(found) == contents[5 * PAGE :][:10]
    stats = cache.stats()
    assert (stats.misses, stats.hits, stats.cached) == (1, 2, 1)
    assert (stats.reads, stats.read_bytes) == (1, PAGE)
    of_file = table.stats()
    assert (of_file.misses, of_file.hits, of_file.cached) == (1, 2, 1)
    becomes_pinned(cache, 1)
    del lease, found
    becomes_pinned(cache, 0)
    assert repr(cache) == "<nowait.PageCache: 4194304 bytes>" and str(cold) in repr(table)


@pytest.mark.parametrize("capacity", [8 << 10, 64 << 10, 4 << 20])
def test_any_range(seed: int, path: Path, contents: bytes, capacity: int) -> None:
    table = nowait.PageCache(capacity, 4096).open(path)
    drawn = random.Random(seed)
    for _ in range(300):
        offset = drawn.randrange(len(contents) + 1)
        length = min(drawn.choice([0, 1, 100, 4096, 10_000, 200_000]), len(contents) - offset)
        lease = table.get(offset, length)
        assert bytes(lease) == contents[offset : offset + length]
        assert lease.is_copy == (offset % 4096 + length > 4096) or length == 0


@pytest.mark.parametrize("kind", ["path", "File", "descriptor", "object", "direct"])
def test_files_of_any_kind(cache: nowait.PageCache, path: Path, contents: bytes, kind: str) -> None:
    with nowait.open(path, direct=kind == "direct") as file:
        with path.open("rb") as python:
            source = {"path": path, "descriptor": python.fileno(), "object": python}.get(kind, file)
            table = cache.open(source)
        # A descriptor is duplicated.
        assert bytes(table.get(len(contents) - 3, 3)) == contents[-3:]
    # All files of one inode share the pages.
    assert cache.open(path).try_get(len(contents) - 3, 3) is not None
    # A file of the package is not opened again.
    if kind in ("File", "direct"):
        assert table.try_get(len(contents) - 3, 3) is not None
        with pytest.raises(nowait.ClosedError):
            table.get(0, 1)


def test_gathers(cache: nowait.PageCache, path: Path, contents: bytes) -> None:
    table = cache.open(path)
    offsets = [900_000, 0, PAGE - 5, 900_000, len(contents) - 10, 7]
    lengths = [100, 0, 10, 50_000, 10, 1]
    expected = [contents[at : at + n] for at, n in zip(offsets, lengths, strict=True)]
    for _ in range(2):
        rows = table.gather(offsets, lengths)
        assert rows.to_list() == expected and rows.lengths == lengths
    becomes_pinned(cache, 0)
    out = numpy.empty((64, 256), numpy.uint8)
    at = numpy.arange(64)[::-1] * 5000
    rows = table.gather(at, 256, out)
    assert numpy.shares_memory(numpy.asarray(rows), out)
    assert [bytes(row) for row in out] == [contents[offset : offset + 256] for offset in at]
    assert len(table.gather([], 10)) == 0
    assert bytes(table.gather([len(contents)], 0)) == b""


def test_a_gather_of_many_and_of_long_ranges(cache: nowait.PageCache, tmp_path: Path, seed: int) -> None:
    path, size = tmp_path / "large", 70 << 20
    pattern = random.Random(seed).randbytes(1 << 16)
    with path.open("wb") as file:
        for at in range(0, size, 7 << 20):
            file.seek(at)
            file.write(pattern)
        file.truncate(size)
    table = cache.open(path)
    assert numpy.asarray(table.gather([0], size)).tobytes() == path.read_bytes()
    drawn = random.Random(seed)
    offsets = [drawn.randrange(size - 100) for _ in range(5000)]
    with nowait.open(path) as file:
        assert bytes(table.gather(offsets, 100)) == bytes(file.gather(offsets, 100))
    assert cache.stats().evictions > 0


def test_bad_input(cache: nowait.PageCache, path: Path, contents: bytes, tmp_path: Path) -> None:
    for arguments in [(4095,), (0,), (1 << 20, 5000), (1 << 20, 2 << 20), (1 << 20, 0)]:
        with pytest.raises(ValueError, match="bytes"):
            nowait.PageCache(*arguments)
    with pytest.raises(OverflowError):
        nowait.PageCache(-1)
    for wait in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="wait_max_s"):
            nowait.PageCache(1 << 20, wait_max_s=wait)
    with pytest.raises(nowait.Error):
        nowait.PageCache(1 << 62, 1 << 20)
    with pytest.raises(ValueError, match="access"):
        cache.open(path, "often")  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError):
        cache.open(tmp_path / "missing")
    with pytest.raises(TypeError):
        cache.open(1.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        nowait.CachedFile(path, path)  # type: ignore[arg-type]
    with pytest.raises(PermissionError), path.open("ab") as file:
        cache.open(file)
    with pytest.raises(nowait.UnsupportedError):
        cache.open("/dev/null")
    closed = nowait.open(path)
    closed.close()
    with pytest.raises(nowait.ClosedError):
        cache.open(closed)
    table = cache.open(path)
    for get in (table.get, table.try_get):
        with pytest.raises(OverflowError):
            get(-1, 10)
        with pytest.raises(OverflowError):
            get(0, -1)
        with pytest.raises(nowait.RangeError):
            get((1 << 63) - 1, 2)
        with pytest.raises(nowait.RangeError):
            get((1 << 64) - 1, (1 << 64) - 1)
        with pytest.raises(TypeError):
            get(0.5, 1)  # type: ignore[arg-type]
    assert table.try_get(len(contents), 1) is None
    with pytest.raises(EOFError) as caught:
        table.get(len(contents) - 5, 6)
    error = caught.value
    assert isinstance(error, nowait.EndOfFileError)
    assert (error.filename, error.offset, error.length) == (str(path), len(contents) - 5, 6)
    with pytest.raises(nowait.EndOfFileError, match="the file has") as caught:
        table.gather([0, len(contents)], [1, 1])
    assert (caught.value.index, caught.value.offset) == (1, len(contents))
    with pytest.raises(nowait.RangeError):
        table.gather([-1], 1)
    with pytest.raises(ValueError, match="out has 9 bytes"):
        table.gather([0], 10, bytearray(9))
    with pytest.raises(BufferError):
        table.gather([0], 10, bytes(10))
    with pytest.raises(TypeError, match="create"):
        nowait.Lease()
    becomes_pinned(cache, 0)


def test_leases_of_all_pages_make_reads_wait(path: Path, contents: bytes) -> None:
    cache = nowait.PageCache(2 * 4096, 4096, wait_max_s=0.05, read_ahead_bytes_max=0)
    table = cache.open(path)
    leases = [table.get(0, 10), table.get(8192, 10)]
    for read in (lambda: table.get(40_960, 10), lambda: table.gather([40_960], 10)):
        with pytest.raises(TimeoutError, match="pin") as caught:
            read()
        assert isinstance(caught.value, nowait.TimedOutError) and caught.value.kind == "TimedOut"
    becomes_pinned(cache, 2)
    leases.pop()
    assert bytes(table.get(40_960, 10)) == contents[40_960:][:10]
    assert bytes(leases[0]) == contents[:10]


def test_a_signal_ends_a_wait_for_a_page(path: Path) -> None:
    table = nowait.PageCache(4096, 4096, wait_max_s=600).open(path)
    lease = table.get(0, 10)
    for read in (lambda: table.get(8192, 10), lambda: table.gather([8192], 10)):
        began = time.monotonic()
        with raised_after(0.05), pytest.raises(Raised):
            read()
        assert time.monotonic() - began < 10
    lease.release()
    assert len(table.get(8192, 10)) == 10


def test_another_thread_frees_the_page_of_a_wait(path: Path, contents: bytes) -> None:
    table = nowait.PageCache(4096, 4096, wait_max_s=600).open(path)
    lease = table.get(0, 10)
    timer = threading.Timer(0.05, lease.release)
    timer.start()
    assert bytes(table.get(8192, 10)) == contents[8192:][:10]
    timer.join()


def test_releases(cache: nowait.PageCache, path: Path, contents: bytes) -> None:
    table = cache.open(path)
    with table.get(0, 10) as lease:
        with memoryview(lease) as view:
            assert view.readonly and view == contents[:10]
            with pytest.raises(BufferError, match="views"):
                lease.release()
        becomes_pinned(cache, 1)
    becomes_pinned(cache, 0)
    lease.release()
    for use in (len, memoryview, lambda lease: lease.is_copy):
        with pytest.raises(ValueError, match="released"):
            use(lease)
    assert repr(lease) == "<nowait.Lease: released>"
    with pytest.raises(TypeError):
        memoryview(table.get(0, 10))[0] = 1
    with pytest.raises(BufferError), nowait.open(path) as file:
        file.readinto_at(0, table.get(0, 10))
    with pytest.raises(BufferError), table.get(0, 10) as lease:
        view = memoryview(lease)
    view.release()
    lease.release()
    array = numpy.frombuffer(table.get(0, 16), "<u4")
    half = array[2:]
    del array
    becomes_pinned(cache, 1)
    del half
    becomes_pinned(cache, 0)


def test_an_array_keeps_its_bytes_without_the_cache(path: Path, contents: bytes) -> None:
    cache = nowait.PageCache(8 * 4096, 4096)
    table = cache.open(path)
    arrays = [numpy.frombuffer(table.get(at, 4096), numpy.uint8) for at in (0, 8192)]
    copied = numpy.frombuffer(table.get(100, 9000), numpy.uint8)
    assert not arrays[0].flags.writeable
    for at in range(0, len(contents) - 4096, 4096):
        table.get(at, 1)
    becomes_pinned(cache, 2)
    part = arrays.pop()[5:]
    del cache, table
    gc.collect()
    assert arrays[0].tobytes() == contents[:4096] and part.tobytes() == contents[8197:12288]
    assert copied.tobytes() == contents[100:9100]


def test_capacity(cache: nowait.PageCache, path: Path) -> None:
    table = cache.open(path)
    table.gather(range(0, 1 << 20, PAGE), 1)
    assert cache.stats().cached >= 64
    assert cache.set_capacity_bytes(8 * PAGE + 1) == cache.capacity_bytes == 8 * PAGE
    assert cache.stats().cached <= 8
    assert cache.set_capacity_bytes(1 << 40) == 4 << 20
    assert cache.set_capacity_bytes(0) == PAGE


def test_changes_of_files(cache: nowait.PageCache, path: Path, contents: bytes) -> None:
    with nowait.open(path, "r+") as file:
        ours = cache.open(file, "exclusive")
        lease = ours.get(10, 3)
        file.write_at(10, b"new")
        assert bytes(ours.get(10, 3)) == contents[10:13]
        ours.invalidate(10, 3)
        assert ours.try_get(10, 3) is None
        assert bytes(ours.get(10, 3)) == b"new" and bytes(lease) == contents[10:13]
        assert ours.revalidate()
        ours.get(100_000, 1)
        ours.invalidate()
        assert ours.try_get(100_000, 1) is None
        del ours
    others = cache.open(path, "revalidate")
    assert bytes(others.get(10, 3)) == b"new"
    path.write_bytes(b"shorter")
    assert others.revalidate() and others.size() == 7
    assert bytes(others.get(0, 7)) == b"shorter"
    with pytest.raises(nowait.EndOfFileError):
        others.get(0, 8)


def test_threads(path: Path, contents: bytes, seed: int) -> None:
    cache = nowait.PageCache(16 * 4096, 4096)
    table, wrong = cache.open(path), []

    def work(number: int) -> None:
        drawn = random.Random(seed + number)
        kept: list[tuple[int, nowait.Lease]] = []
        for _ in range(2000):
            at = drawn.randrange(len(contents) - 100)
            kept.append((at, table.get(at, 100)))
            if len(kept) > 1:
                at, lease = kept.pop(0)
                if bytes(lease) != contents[at : at + 100]:
                    wrong.append(at)
            if drawn.random() < 0.01:
                table.invalidate(at, 5000)
            if (
                drawn.random() < 0.01
                and bytes(table.gather([at, 0], 100)) != contents[at:][:100] + contents[:100]
            ):
                wrong.append(at)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    becomes_pinned(cache, 0)
    assert cache.stats().cached <= 16


def test_a_fork_gets_errors(cache: nowait.PageCache, path: Path, contents: bytes) -> None:
    table = cache.open(path)
    lease, copied = table.get(0, 100), table.get(100, PAGE)
    view = memoryview(lease)

    def child() -> None:
        for call in (
            lambda: table.get(0, 10),
            lambda: table.get(0, PAGE + 1),
            lambda: table.gather([0, 100_000], 10),
            lambda: asyncio.run(table.get_async(0, 10)),
            lambda: asyncio.run(table.gather_async([0], 10)),
            lambda: cache.open(path),
            lambda: nowait.Rows(path, "u1", (100,), cache=cache),
            table.revalidate,
        ):
            with pytest.raises(nowait.UnsupportedError, match="fork"):
                call()
        assert table.try_get(0, 10) is None
        table.invalidate()
        assert cache.capacity_bytes == cache.set_capacity_bytes(PAGE) == 0
        assert cache.stats().cached == 0
        # The memory of the pages is not inherited; a copy is.
        assert bytes(view) == bytes(100) and bytes(copied) == contents[100:][:PAGE]
        view.release()
        lease.release()
        another = nowait.PageCache(1 << 20)
        assert bytes(another.open(path).get(5, 10)) == contents[5:15]
        gc.collect()

    in_a_fork(child)
    assert view == contents[:100]
    assert bytes(table.get(50_000, 10)) == contents[50_000:][:10]


def test_awaitables(run: Run, cold: Path, contents: bytes) -> None:
    cache = nowait.PageCache(4 << 20)
    table = cache.open(cold)

    async def main() -> None:
        for _ in range(2):
            for at in [0, 5, PAGE - 3, 700_000, len(contents) - 10]:
                assert bytes(await table.get_async(at, 10)) == contents[at : at + 10]
        with pytest.raises(nowait.EndOfFileError):
            await table.get_async(len(contents), 1)
        offsets = list(range(0, 1 << 20, 777))
        for length in (100, 20_000):
            rows = await table.gather_async(offsets[:40], length)
            assert rows.to_list() == [contents[at : at + length] for at in offsets[:40]]
        out = bytearray(10 * len(offsets))
        await table.gather_async(offsets, 10, out)
        assert bytes(out) == b"".join(contents[at : at + 10] for at in offsets)
        with pytest.raises(nowait.EndOfFileError):
            await table.gather_async([len(contents)], 1)

    run(main)
    becomes_pinned(cache, 0)


def test_tasks_share_a_read_and_can_be_cancelled(cold: Path, contents: bytes) -> None:
    cache = nowait.PageCache(4096, 4096, wait_max_s=600)
    table = cache.open(cold)

    async def main() -> None:
        leases = await asyncio.gather(*(table.get_async(at, 10) for at in range(50)))
        assert [bytes(lease) for lease in leases] == [contents[at : at + 10] for at in range(50)]
        assert cache.stats().reads == 1
        out = bytearray(10)
        waiting = [
            asyncio.ensure_future(table.get_async(8192, 10)),
            asyncio.ensure_future(table.gather_async([8192], 10, out)),
        ]
        await asyncio.sleep(0.05)
        for task in waiting:
            assert not task.done()
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        del leases
        assert bytes(await table.get_async(12_288, 10)) == contents[12_288:][:10]

    asyncio.run(main())


def test_the_interpreter_ends_with_leases_and_waits(path: Path) -> None:
    program = f"""
import threading, nowait, time
cache = nowait.PageCache(4096, 4096, wait_max_s=600)
table = cache.open({str(path)!r})
view = memoryview(table.get(0, 10))
for read in (lambda: table.get(8192, 10), lambda: table.gather([8192], 10, bytearray(10))):
    threading.Thread(target=read, daemon=True).start()
time.sleep(0.1)
"""
    for _ in range(3):
        ended = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
        )
        assert (ended.returncode, ended.stderr) == (0, "")


@pytest.fixture
def npy(tmp_path: Path, seed: int) -> tuple[Path, numpy.ndarray]:
    array = numpy.random.default_rng(seed).standard_normal((1000, 3, 5)).astype(numpy.float32)
    numpy.save(tmp_path / "table.npy", array)
    return tmp_path / "table.npy", array


@pytest.mark.parametrize("key", KEYS, ids=repr)
def test_rows_are_the_same(npy: tuple[Path, numpy.ndarray], key: object) -> None:
    cache = nowait.PageCache(8 * 4096, 4096)
    with nowait.Rows.open(npy[0]) as plain, nowait.Rows.open(npy[0], cache=cache) as rows:
        expected = plain[key]
        for _ in range(2):
            found = rows[key]
            assert found.dtype == expected.dtype and found.shape == expected.shape
            numpy.testing.assert_array_equal(found, expected)
    becomes_pinned(cache, 0)


def test_rows_through_a_cache(npy: tuple[Path, numpy.ndarray], cache: nowait.PageCache) -> None:
    path, array = npy
    with nowait.Rows.open(path, cache=cache) as rows:
        assert rows.file.direct in (True, False)
        numpy.testing.assert_array_equal(numpy.asarray(rows), array)
        reads = cache.stats().reads
        out = numpy.empty((3, 3, 5), numpy.float32)
        assert numpy.shares_memory(rows.gather([9, 8, 999], out), out)
        numpy.testing.assert_array_equal(out, array[[9, 8, 999]])
        numpy.testing.assert_array_equal(numpy.stack(list(rows)), array)
        assert cache.stats().reads == reads
        with pytest.raises(IndexError):
            rows[[1000]]
        with pytest.raises(TypeError, match="cache"):
            pickle.dumps(rows)
    with pytest.raises(nowait.ClosedError):
        rows[[1]]
    with nowait.open(path) as file:
        shared = nowait.Rows(file, "f4", (1000, 3, 5), 128, cache=cache)
        numpy.testing.assert_array_equal(shared[[5, 7]], array[[5, 7]])
        assert cache.stats().reads == reads
    assert os.fspath(path) in repr(shared)
