"""What is measured, round by round: each function returns figures by way."""

from __future__ import annotations

import asyncio
import ctypes
import json
import resource
import subprocess
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from testfile import BLOCK, LIBC, TestFile, check
from ways import COLD, Way

import nowait.aio

Rows = dict[str, dict[str, list[float]]]
TASKS = 64


def processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def interleaved(test: TestFile, ways: dict[str, Way], offsets: Any, rounds: int, cold: bool) -> Rows:
    """Each round runs every way once, in an order that rotates."""
    names = list(ways)
    rows: Rows = {name: {"seconds": [], "processor_s": [], "resident": []} for name in names}
    for number in range(-1, rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            resident = test.evict() if cold else 1.0
            before, began = processor_s(), time.perf_counter()
            found = ways[name](test, offsets)
            took, used = time.perf_counter() - began, processor_s() - before
            if number < 0:
                # The first round is to warm up, and to look.
                check(offsets, found)
                continue
            rows[name]["seconds"].append(took)
            rows[name]["processor_s"].append(used)
            rows[name]["resident"].append(resident)
    return rows


async def _gather(test: TestFile) -> None:
    await nowait.aio.gather(test.file, test.cold, BLOCK, out=test.out)


async def _each(test: TestFile) -> None:
    async for _ in nowait.aio.gather_each(test.file, test.cold, BLOCK, out=test.out):
        pass


async def _reads(test: TestFile) -> None:
    async with await nowait.aio.open_file(test.path) as file:
        offsets = iter(test.cold.tolist())

        async def work() -> None:
            for offset in offsets:
                await file.read_at(offset, BLOCK)

        await asyncio.gather(*(work() for _ in range(TASKS)))


async def _idle(_: TestFile) -> None:
    await asyncio.sleep(0.1)


async def _longest_gap(work: Coroutine[Any, Any, None]) -> tuple[float, float]:
    """Runs `work` beside a heartbeat of 1 ms: how much too late was it at most, and the time of `work`."""
    gaps: list[float] = []

    async def beat() -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(0.001)
            gaps.append(time.perf_counter() - began - 0.001)

    task = asyncio.create_task(beat())
    await asyncio.sleep(0.01)
    gaps.clear()
    began = time.perf_counter()
    await work
    took = time.perf_counter() - began
    # The last beat may be late by what the end of the work did.
    beats = len(gaps)
    while len(gaps) == beats:
        await asyncio.sleep(0.001)
    task.cancel()
    return max(gaps), took


def heartbeat(test: TestFile, rounds: int) -> Rows:
    """The longest gap of a heartbeat on asyncio: during cold reads, and with nothing to do."""
    works = {"idle": _idle, "gather": _gather, "each": _each, f"reads of {TASKS} tasks": _reads}
    rows: Rows = {name: {"longest_gap_s": [], "seconds": []} for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            test.evict()
            gap, took = asyncio.run(_longest_gap(work(test)))
            rows[name]["longest_gap_s"].append(gap)
            rows[name]["seconds"].append(took)
    return rows


def refused(test: TestFile, rounds: int, seed: int) -> Rows:
    """The cold gathers in processes with io_uring, and where a seccomp filter refuses it."""
    rows: Rows = {}
    for number in range(rounds):
        for name in ("ring", "refused") if number % 2 else ("refused", "ring"):
            for way, seconds in _in_a_process(test, name, seed).items():
                rows.setdefault(f"{way}-{name}", {"seconds": []})["seconds"].append(seconds)
    return rows


def rust(test: TestFile, rounds: int, seed: int) -> Rows:
    """The same gather by Rust and by Python, each in a process of its own."""
    program = Path(__file__).parents[3] / "target" / "release" / "examples" / "timed_gather"
    if not program.exists():
        print("without Rust's: cargo build --release -p nowait --example timed_gather", file=sys.stderr)
        return {}
    offsets = "".join(f"{offset}\n" for offset in test.cold.tolist())
    rows: Rows = {"rust": {"seconds": []}, "gather": {"seconds": []}}
    for number in range(rounds):
        for name in ("rust", "gather") if number % 2 else ("gather", "rust"):
            if name == "rust":
                told = subprocess.run(
                    [program, test.path], input=offsets, check=True, stdout=subprocess.PIPE, text=True
                )
                seconds = float(told.stdout)
            else:
                seconds = _in_a_process(test, "ring", seed)["gather"]
            rows[name]["seconds"].append(seconds)
    return rows


def _in_a_process(test: TestFile, name: str, seed: int) -> dict[str, float]:
    command = [sys.executable, __file__, name, str(test.path), str(len(test.cold)), str(seed)]
    told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    seconds: dict[str, float] = json.loads(told.stdout)
    return seconds


def _process(name: str, path: Path, cold: int, seed: int) -> None:
    """Times the cold gathers. The first time the memory is new, and the file unknown."""
    if name == "refused":
        refuse_io_uring()
    test = TestFile(path, cold, 1, seed)
    seconds = {}
    for way in ("gather", "gather-async"):
        for _ in range(2):
            test.evict()
            began = time.perf_counter()
            COLD[way](test, test.cold)
            seconds[way] = time.perf_counter() - began
    print(json.dumps(seconds))


def refuse_io_uring() -> None:
    """Installs a seccomp filter: io_uring_setup answers EPERM, as in many containers."""
    setup = 425
    instructions = [
        (0x20, 0, 0, 0),
        (0x15, 0, 1, setup),
        (0x06, 0, 0, 0x00050000 | 1),
        (0x06, 0, 0, 0x7FFF0000),
    ]
    packed = b"".join(
        code.to_bytes(2, "little") + bytes([true, false]) + value.to_bytes(4, "little")
        for code, true, false, value in instructions
    )
    program = ctypes.create_string_buffer(packed)

    class Filter(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]

    filtered = Filter(len(instructions), ctypes.addressof(program))
    if LIBC.prctl(38, 1, 0, 0, 0) != 0 or LIBC.prctl(22, 2, ctypes.byref(filtered), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    _process(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
