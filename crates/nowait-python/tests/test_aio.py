"""Files that are awaited, on every loop that can be had."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import numpy
import pytest
from conftest import Run, becomes_free, evict, is_notified

import nowait
import nowait.aio


def test_reads_and_writes(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with await nowait.aio.open_file(tmp_path / "new", "w+") as file:
            assert await file.write_at(0, b"hello") == 5
            assert await file.append(bytearray(b" world"), durable=True) == 6
            assert await file.write_at(0, memoryview(b"H"), durable=True) == 1
            await file.sync()
            await file.sync(metadata=True)
            assert await file.size() == 11
            assert await file.read_at(0, 100) == b"Hello world"
            out = bytearray(5)
            assert await file.readinto_at(6, out) == 5 and out == b"world"
            out.append(1)
            await file.truncate(4)
            assert await file.read_at(0, 100) == b"Hell"
        assert file.closed
        with pytest.raises(nowait.ClosedError):
            await file.read_at(0, 1)

    run(main)


@pytest.mark.parametrize("is_cold", [False, True])
def test_gathers(run: Run, path: Path, contents: bytes, is_cold: bool) -> None:
    offsets = numpy.arange(200)[::-1] * 4999

    async def main() -> None:
        out = numpy.zeros((200, 100), dtype=numpy.uint8)
        async with await nowait.aio.open_file(path) as file:
            descriptors = [] if sys.platform == "win32" else [file.fileno()]
            for source in (path, file, nowait.open(path), *descriptors):
                if is_cold:
                    evict(path)
                out[:] = 0
                rows = await nowait.aio.gather(source, offsets, 100, out=out)
                expected = [contents[at : at + 100] for at in offsets]
                assert [bytes(row) for row in rows] == expected == [bytes(row) for row in out]
            assert bytes((await file.gather([0, 9], [1, 2]))[1]) == contents[9:11]

    run(main)


def test_errors_are_those_of_calls_that_block(run: Run, path: Path, tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(FileNotFoundError):
            await nowait.aio.open_file(tmp_path / "missing")
        with pytest.raises(IsADirectoryError):
            await nowait.aio.gather(tmp_path, [0], 1)
        with pytest.raises(nowait.EndOfFileError) as caught:
            await nowait.aio.gather(path, [0, 1 << 40], 1)
        assert caught.value.index == 1
        with pytest.raises(nowait.RangeError):
            await nowait.aio.gather(path, [-1], 1)
        with pytest.raises(BufferError):
            await nowait.aio.gather(path, [0], 1, out=b"1")
        assert (await nowait.aio.gather(path, [1 << 40], 1, partial=True)).short == [(0, 0)]
        async with await nowait.aio.open_file(path) as file:
            with pytest.raises(nowait.Error):
                await file.write_at(0, b"x")
            with pytest.raises(nowait.Error):
                await file.write_at(0, b"x", durable=True)

    run(main)


def test_many_at_a_time(path: Path, contents: bytes) -> None:
    async def main() -> None:
        evict(path)
        async with await nowait.aio.open_file(path) as file:
            reads = [file.read_at(at, 300) for at in range(0, 1 << 20, 1111)]
            gathers = [file.gather([at, 0], 50) for at in range(0, 1 << 20, 55555)]
            for at, read in zip(range(0, 1 << 20, 1111), await asyncio.gather(*reads), strict=True):
                assert read == contents[at : at + 300]
            for at, rows in zip(range(0, 1 << 20, 55555), await asyncio.gather(*gathers), strict=True):
                assert bytes(rows[0]) == contents[at : at + 50]

    asyncio.run(main())


def test_no_thread_for_a_call(path: Path) -> None:
    def threads() -> int:
        return len(list(Path("/proc/self/task").iterdir()))

    async def main() -> None:
        async with await nowait.aio.open_file(path) as file:
            evict(path)
            await asyncio.gather(*(file.read_at(at, 10) for at in range(0, 1 << 20, 4096)))
            await file.gather([0], 1)
            before = threads()
            evict(path)
            await asyncio.gather(*(file.gather([at], 10) for at in range(0, 1 << 20, 4096)))
            assert threads() <= before + 1

    asyncio.run(main())


def test_few_results_are_taken_at_a_time(path: Path) -> None:
    """Whatever has ended meanwhile: timers and other descriptors have their turn in between."""
    completions = nowait._nowait.Completions()
    file = nowait.open(path)
    for number in range(1000):
        nowait._nowait.start_gather(completions, number, file, [], 1, None, False)
    # Tasks of the driver run in order: those above have ended.
    nowait.gather_files([(file, [0], 1)] * 2)
    found: list[list[int]] = []
    while sum(map(len, found)) < 1000:
        assert is_notified(completions)
        found.append([number for number, _, _ in completions.drain()])
    assert [len(some) for some in found] == [16] * 62 + [8]
    assert sorted(number for some in found for number in some) == list(range(1000))


async def turns_during(work: Coroutine[Any, Any, None]) -> int:
    """How often another task of the loop has its turn."""
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    await work
    task.cancel()
    return turns


def test_ranges_that_are_complete_let_others_run(path: Path) -> None:
    async def main() -> None:
        async with await nowait.aio.open_file(path) as file:

            async def work() -> None:
                count = 0
                async for _ in nowait.aio.gather_each(file, range(10_000), 10):
                    if count == 0:
                        # A task of the driver that is as long and began later: all have arrived.
                        nowait.gather_files([(path, range(10_000), 10)] * 2)
                    count += 1
                assert count == 10_000

            assert await turns_during(work()) >= 10_000 // 16 - 1

    asyncio.run(main())


def test_cached_reads_let_others_run(path: Path) -> None:
    async def main() -> None:
        async with await nowait.aio.open_file(path) as file:

            async def work() -> None:
                for _ in range(1000):
                    await file.read_at(0, 4096)

            assert await turns_during(work()) >= 1000 // 32

    asyncio.run(main())


def test_bytes_that_are_copied_at_once_count(path: Path) -> None:
    async def main() -> None:
        async with await nowait.aio.open_file(path) as file:
            out = bytearray(1 << 18)

            async def work() -> None:
                for _ in range(100):
                    await file.read_at(0, 1 << 18)
                    await file.readinto_at(0, out)

            assert await turns_during(work()) >= 200

    asyncio.run(main())


PEAK = """
import asyncio, pathlib, re, sys, nowait, nowait.aio
async def main():
    async with await nowait.aio.open_file(sys.argv[1]) as file:
        assert await file.read_at(5, 1 << 30) == nowait.open(sys.argv[1]).read_at(5, 1 << 30)
asyncio.run(main())
print(re.search(r"VmHWM:\\s*(\\d+) kB", pathlib.Path("/proc/self/status").read_text())[1])
"""


def test_memory_of_a_long_read_is_not_touched_beforehand(path: Path) -> None:
    """It would be on the loop's thread: 1 GiB takes as long as some thousand reads of a disk."""
    command = [sys.executable, "-c", PEAK, str(path)]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert int(told) < 512 << 10


def test_a_cancelled_read_keeps_its_buffer_until_the_kernel_is_done(path: Path, contents: bytes) -> None:
    """A buffer that is freed or resized while the kernel writes to it would be memory of others."""

    cancelled = 0

    async def main() -> None:
        nonlocal cancelled
        async with await nowait.aio.open_file(path) as file:
            for attempt in range(200):
                evict(path)
                out = bytearray(1 << 16)
                task = asyncio.create_task(
                    file.readinto_at(0, out)
                    if attempt % 2
                    else nowait.aio.gather(file, range(16), 4096, out=out)
                )
                await asyncio.sleep(0)
                task.cancel()
                try:
                    await task
                except asyncio.CancelledError:
                    cancelled += 1
                del task
                deadline = time.monotonic() + 10
                while True:
                    # Refused while it is lent.
                    try:
                        out.append(1)
                        break
                    except BufferError:
                        assert time.monotonic() < deadline
                        await asyncio.sleep(0)
                taken = bytes(out)
                await asyncio.sleep(0)
                assert bytes(out) == taken

    asyncio.run(main())
    # A read whose pages were not dropped after all ends at once.
    assert cancelled > 10


def test_a_loop_that_ends_with_reads_in_flight(path: Path) -> None:
    outs = [bytearray(4096) for _ in range(100)]
    tasks: list[asyncio.Future[object]] = []

    async def main() -> None:
        file = await nowait.aio.open_file(path)
        evict(path)
        tasks.extend(asyncio.ensure_future(file.readinto_at(0, out)) for out in outs)
        tasks.extend(asyncio.ensure_future(file.gather([0, 100], 100, out=out)) for out in outs)
        await asyncio.sleep(0)

    asyncio.run(main())
    tasks.clear()
    gc.collect()
    for out in outs:
        becomes_free(out)
    assert nowait._nowait.pending_releases() == 0


def test_loops_of_several_threads(path: Path, contents: bytes) -> None:
    failures: list[BaseException] = []

    async def main() -> None:
        async with await nowait.aio.open_file(path) as file:
            for at in range(0, 1 << 20, 40961):
                assert await file.read_at(at, 10) == contents[at : at + 10]
                assert bytes((await file.gather([at], 10))[0]) == contents[at : at + 10]

    def thread() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:
            failures.append(error)

    evict(path)
    threads = [threading.Thread(target=thread) for _ in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not failures


def test_outside_of_a_loop_there_is_an_error(path: Path) -> None:
    with pytest.raises(RuntimeError, match="event loop"):
        nowait.aio.gather(path, [0], 1).send(None)


TEXT = "erste Zeile\nzweite: äöü €\n\nletzte ohne Ende"


def test_a_cursor_is_what_python_has(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "text"

    async def main() -> None:
        async with nowait.aio.open(path, "w", encoding="utf-8") as file:
            assert await file.write(TEXT[:10]) == 10
            await file.writelines([TEXT[10:20], TEXT[20:]])
            await file.flush()
        assert path.read_text("utf-8") == TEXT
        with path.open(encoding="utf-8") as python:
            lines = python.readlines()
        async with nowait.aio.open(path, encoding="utf-8") as file:
            assert await file.readlines() == lines
            assert [line async for line in file] == []
            await file.seek(0)
            assert [line async for line in file] == lines
            await file.seek(0)
            assert await file.read(20) == TEXT[:20]
            assert await file.read() == TEXT[20:]
            assert await file.read() == ""
        data = path.read_bytes()
        file = await nowait.aio.open(path, "rb")
        assert await file.read(3) == data[:3] and await file.tell() == 3
        assert await file.readline() == data[3:].split(b"\n")[0] + b"\n"
        assert await file.readline(2) == data[data.index(b"\n") + 1 :][:2]
        assert await file.seek(-4, os.SEEK_END) == len(data) - 4
        assert await file.read() == data[-4:]
        await file.close()
        async with nowait.aio.open(path, "ab") as file:
            await file.write(b"more")
            assert await file.tell() == len(data) + 4
        async with nowait.aio.open(path, "r+b") as file:
            await file.write(b"E")
            assert await file.truncate(5) == 5
        assert path.read_bytes() == b"E" + data[1:5]

    run(main)
