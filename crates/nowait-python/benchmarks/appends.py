"""CPU time of durable appends of many tasks: `AsyncLog`, and a group commit by hand.

    python benchmarks/appends.py [DIRECTORY] [--tasks 256] [--rounds 7]

Each round runs all ways, in another order than the one before. Printed are the medians of the rounds,
and in brackets the least and the greatest. CPU time is that of the process, in all its threads; work
of the kernel's own threads is not in it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import nowait
import nowait.aio

RECORD = bytes(range(100))
Append = Callable[[bytes], Awaitable[object]]


class ByHand:
    """One `write` and one `fdatasync` for all that was appended while the last ones were made."""

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.records: list[bytes] = []
        self.futures: list[asyncio.Future[None]] = []
        self.is_writing = False

    async def append(self, record: bytes) -> None:
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self.records.append(record)
        self.futures.append(future)
        if not self.is_writing:
            self.is_writing = True
            loop.call_soon(self.begin, loop)
        await future

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        records, futures, self.records, self.futures = self.records, self.futures, [], []
        written = loop.run_in_executor(None, self.write, b"".join(records))
        written.add_done_callback(lambda written: self.end(loop, futures, written.exception()))

    def write(self, data: bytes) -> None:
        os.write(self.descriptor, data)
        os.fdatasync(self.descriptor)

    def end(
        self,
        loop: asyncio.AbstractEventLoop,
        futures: list[asyncio.Future[None]],
        failed: BaseException | None,
    ) -> None:
        for future in futures:
            # Its task may have been cancelled.
            if not future.done():
                if failed is None:
                    future.set_result(None)
                else:
                    future.set_exception(failed)
        self.is_writing = bool(self.records)
        if self.is_writing:
            self.begin(loop)


async def measure(append: Append, tasks: int, appends: int) -> tuple[float, float]:
    """Returns microseconds of CPU and of time for each append."""

    async def one(appends: int) -> None:
        for _ in range(appends):
            await append(RECORD)

    # Threads are started, and files prepared.
    await asyncio.gather(*(one(10) for _ in range(tasks)))
    cpu, began = time.process_time(), time.perf_counter()
    await asyncio.gather(*(one(appends) for _ in range(tasks)))
    count = tasks * appends / 1e6
    return (time.process_time() - cpu) / count, (time.perf_counter() - began) / count


def by_hand(directory: Path, tasks: int, appends: int) -> tuple[float, float]:
    log = ByHand(directory / "by-hand")
    try:
        return asyncio.run(measure(log.append, tasks, appends))
    finally:
        os.close(log.descriptor)


def by_nowait(directory: Path, tasks: int, appends: int) -> tuple[float, float]:
    with nowait.Log(directory / "log", create=True, segment_bytes=64 << 20) as opened:
        log = nowait.aio.AsyncLog(opened)
        return asyncio.run(measure(partial(log.append, durable=True), tasks, appends))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", nargs="?", default=".")
    parser.add_argument("--tasks", type=int, default=256)
    parser.add_argument("--appends", type=int, default=200, help="of each task")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    ways = {"by hand": by_hand, "AsyncLog": by_nowait}
    cpu: dict[str, list[float]] = {name: [] for name in ways}
    elapsed: dict[str, list[float]] = {name: [] for name in ways}
    for round in range(options.rounds + 1):
        for name in list(ways)[:: 1 if round % 2 else -1]:
            with tempfile.TemporaryDirectory(dir=options.directory) as directory:
                measured = ways[name](Path(directory), options.tasks, options.appends)
            # The first warms up.
            if round > 0:
                cpu[name].append(measured[0])
                elapsed[name].append(measured[1])
    print(f"{options.tasks} tasks, {len(RECORD)} bytes a record, {options.rounds} rounds")
    for name in ways:
        of_cpu, of_time = cpu[name], elapsed[name]
        print(
            f"{name:10} {statistics.median(of_cpu):6.2f} µs of CPU ({min(of_cpu):.2f} to {max(of_cpu):.2f}),"
            f" {statistics.median(of_time):6.2f} µs of time ({min(of_time):.2f} to {max(of_time):.2f})"
        )
    ratios = [ours / hand for ours, hand in zip(cpu["AsyncLog"], cpu["by hand"], strict=True)]
    print(
        f"CPU of AsyncLog / by hand: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    )


if __name__ == "__main__":
    main()
