"""Random reads by this package and by what people use, in one run: python benchmarks/reads.py --json FILE.

Each round runs every way once, in an order that rotates, over the same offsets, on one file. Cold means
that the file was dropped from the page cache before each way (`posix_fadvise`), and that `mincore` says
so. A figure is the median of the rounds; ratios are of the same round, and their median.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import json
import mmap
import os
import platform
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy

import nowait
import nowait.aio

BLOCK = 4096
LIBC = ctypes.CDLL(None, use_errno=True)


class Run:
    """The file, and where to read in it."""

    def __init__(self, path: Path, size: int, cold: int, hot: int, seed: int) -> None:
        self.path = path
        self.size = size
        generator = numpy.random.default_rng(seed)
        blocks = size // BLOCK
        self.cold = generator.choice(blocks, cold, replace=False).astype(numpy.int64) * BLOCK
        self.hot = generator.choice(blocks, hot, replace=hot > blocks).astype(numpy.int64) * BLOCK
        self.out = numpy.zeros((max(cold, hot), BLOCK), dtype=numpy.uint8)
        self.fd = os.open(path, os.O_RDONLY)
        self.file = nowait.open(path)
        self.map = mmap.mmap(self.fd, size, prot=mmap.PROT_READ)

    def evict(self) -> float:
        """Drops the file from the page cache; returns the share of its pages that stayed."""
        os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_DONTNEED)
        return self.resident()

    def resident(self) -> float:
        pages = -(-self.size // BLOCK)
        seen = (ctypes.c_ubyte * pages)()
        address = int(numpy.frombuffer(self.map, dtype=numpy.uint8).ctypes.data)
        if LIBC.mincore(ctypes.c_void_p(address), ctypes.c_size_t(self.size), seen) != 0:
            raise OSError(ctypes.get_errno(), "mincore")
        return float(numpy.frombuffer(seen, dtype=numpy.uint8).__and__(1).mean())

    def warm(self) -> None:
        with self.path.open("rb") as file:
            while file.read(1 << 20):
                pass


def check(run: Run, offsets: Any, rows: Any) -> None:
    """Each block begins with its own number."""
    found = numpy.asarray(rows)[:, :8].copy().view("<u8").ravel()
    expected = numpy.asarray(offsets) // BLOCK
    if not (found == expected).all():
        raise RuntimeError("a way has read something else")


def by_pread(run: Run, offsets: Any) -> Any:
    fd = run.fd
    return [os.pread(fd, BLOCK, offset) for offset in offsets.tolist()]


def by_preadv(run: Run, offsets: Any) -> Any:
    fd, out = run.fd, memoryview(run.out).cast("B")
    for index, offset in enumerate(offsets.tolist()):
        os.preadv(fd, [out[index * BLOCK : (index + 1) * BLOCK]], offset)
    return run.out[: len(offsets)]


def by_gather(run: Run, offsets: Any) -> Any:
    return run.file.gather(offsets, BLOCK, out=run.out)


def by_gather_fresh(run: Run, offsets: Any) -> Any:
    return run.file.gather(offsets, BLOCK)


def by_gather_async(run: Run, offsets: Any) -> Any:
    async def main() -> Any:
        return await nowait.aio.gather(run.file, offsets, BLOCK, out=run.out)

    return asyncio.run(main())


def by_memmap(run: Run, offsets: Any) -> Any:
    array = numpy.memmap(run.path, dtype=numpy.uint8, mode="r").reshape(-1, BLOCK)
    return array[offsets // BLOCK]


def by_memmap_willneed(run: Run, offsets: Any) -> Any:
    with run.path.open("rb") as file, mmap.mmap(file.fileno(), run.size, prot=mmap.PROT_READ) as memory:
        memory.madvise(mmap.MADV_RANDOM)
        for offset in offsets.tolist():
            memory.madvise(mmap.MADV_WILLNEED, offset, BLOCK)
        return numpy.frombuffer(memory, dtype=numpy.uint8).reshape(-1, BLOCK)[offsets // BLOCK].copy()


def by_ayafileio(run: Run, offsets: Any) -> Any:
    import ayafileio  # type: ignore[import-not-found]

    async def main() -> Any:
        async with ayafileio.open(str(run.path), "rb") as file:
            return await file.read_many([(offset, BLOCK) for offset in offsets.tolist()])

    return asyncio.run(main())


def by_fsspec(run: Run, offsets: Any) -> Any:
    from fsspec.implementations.local import LocalFileSystem

    starts = offsets.tolist()
    return LocalFileSystem().cat_ranges(
        [str(run.path)] * len(starts), starts, [start + BLOCK for start in starts]
    )


def by_nowait_fsspec(run: Run, offsets: Any) -> Any:
    from nowait.fsspec import NowaitFileSystem

    starts = offsets.tolist()
    return NowaitFileSystem().cat_ranges(
        [str(run.path)] * len(starts), starts, [start + BLOCK for start in starts]
    )


def by_rows(run: Run, offsets: Any) -> Any:
    return run.file.gather_rows("u1", (run.size // BLOCK, BLOCK), offsets // BLOCK)


COLD: dict[str, Callable[[Run, Any], Any]] = {
    "pread": by_pread,
    "memmap": by_memmap,
    "memmap-willneed": by_memmap_willneed,
    "ayafileio": by_ayafileio,
    "fsspec": by_fsspec,
    "gather": by_gather,
    "gather-fresh": by_gather_fresh,
    "gather-async": by_gather_async,
    "gather-rows": by_rows,
    "nowait-fsspec": by_nowait_fsspec,
}
HOT: dict[str, Callable[[Run, Any], Any]] = {
    "pread": by_pread,
    "preadv": by_preadv,
    "memmap": by_memmap,
    "fsspec": by_fsspec,
    "gather": by_gather,
    "gather-fresh": by_gather_fresh,
    "gather-async": by_gather_async,
    "nowait-fsspec": by_nowait_fsspec,
}


def processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measure(
    run: Run, ways: dict[str, Callable[[Run, Any], Any]], offsets: Any, rounds: int, cold: bool
) -> dict[str, Any]:
    names = list(ways)
    rows: dict[str, Any] = {name: {"seconds": [], "processor_s": [], "resident": []} for name in names}
    for number in range(-1, rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            resident = run.evict() if cold else 1.0
            before, began = processor_s(), time.perf_counter()
            found = ways[name](run, offsets)
            took, used = time.perf_counter() - began, processor_s() - before
            if number < 0:
                # The first round is to warm up, and to look.
                array = (
                    numpy.frombuffer(b"".join(found), numpy.uint8).reshape(-1, BLOCK)
                    if isinstance(found, list)
                    else found
                )
                check(run, offsets, array)
                continue
            rows[name]["seconds"].append(took)
            rows[name]["processor_s"].append(used)
            rows[name]["resident"].append(resident)
    return rows


def heartbeat(run: Run, rounds: int) -> dict[str, Any]:
    """The longest gap of a heartbeat of 1 ms during one gather of cold reads."""

    async def once() -> tuple[float, float]:
        gaps = [0.0]
        stop = False

        async def beat() -> None:
            last = time.perf_counter()
            while not stop:
                await asyncio.sleep(0.001)
                now = time.perf_counter()
                gaps.append(now - last - 0.001)
                last = now

        task = asyncio.create_task(beat())
        await asyncio.sleep(0.01)
        gaps.clear()
        began = time.perf_counter()
        await nowait.aio.gather(run.file, run.cold, BLOCK, out=run.out)
        took = time.perf_counter() - began
        stop = True
        await task
        return max(gaps), took

    longest, seconds = [], []
    for _ in range(rounds):
        run.evict()
        gap, took = asyncio.run(once())
        longest.append(gap)
        seconds.append(took)
    return {"longest_gap_s": longest, "seconds": seconds}


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


def refused(run: Run, rounds: int, seed: int) -> dict[str, Any]:
    """The cold gathers in processes with and without io_uring, one after the other."""
    rows: dict[str, Any] = {}
    for number in range(rounds):
        for name in ("ring", "refused") if number % 2 else ("refused", "ring"):
            told = subprocess.run(
                [
                    sys.executable,
                    __file__,
                    "--one",
                    name,
                    "--file",
                    str(run.path),
                    "--seed",
                    str(seed),
                    "--cold",
                    str(len(run.cold)),
                ],
                check=True,
                capture_output=True,
                text=True,
            )
            for way, seconds in json.loads(told.stdout).items():
                rows.setdefault(f"{way}-{name}", {"seconds": []})["seconds"].append(seconds)
    return rows


def rust(run: Run, rounds: int, seed: int) -> dict[str, Any]:
    """The same gather by Rust and by Python, each in a process of its own, one after the other."""
    program = Path(__file__).parents[3] / "target" / "release" / "examples" / "timed_gather"
    if not program.exists():
        print("without Rust's: cargo build --release -p nowait --example timed_gather", file=sys.stderr)
        return {}
    offsets = "".join(f"{offset}\n" for offset in run.cold.tolist())
    python = [sys.executable, __file__, "--one", "ring", "--file", str(run.path), "--seed", str(seed)]
    rows: dict[str, Any] = {"rust": {"seconds": []}, "gather": {"seconds": []}}
    for number in range(rounds):
        for name in ("rust", "gather") if number % 2 else ("gather", "rust"):
            if name == "rust":
                told = subprocess.run(
                    [program, run.path], input=offsets, check=True, stdout=subprocess.PIPE, text=True
                )
                rows[name]["seconds"].append(float(told.stdout))
            else:
                command = [*python, "--cold", str(len(run.cold))]
                told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
                rows[name]["seconds"].append(json.loads(told.stdout)["gather"])
    return rows


def one(name: str, path: Path, cold: int, seed: int) -> None:
    if name == "refused":
        refuse_io_uring()
    run = Run(path, path.stat().st_size, cold, 1, seed)
    seconds = {}
    for way in ("gather", "gather-async"):
        for _ in range(2):
            run.evict()
            began = time.perf_counter()
            COLD[way](run, run.cold)
            seconds[way] = time.perf_counter() - began
    print(json.dumps(seconds))


def make(path: Path, size: int) -> None:
    """A file in which each block begins with its own number."""
    with path.open("wb") as file:
        filler = random.Random(0).randbytes(BLOCK - 8)
        for first in range(0, size // BLOCK, 256):
            last = min(first + 256, size // BLOCK)
            file.write(b"".join(block.to_bytes(8, "little") + filler for block in range(first, last)))
        file.flush()
        os.fsync(file.fileno())


def environment() -> dict[str, Any]:
    here = Path(__file__).parent
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=here, capture_output=True, text=True, check=False
    )
    return {
        "commit": commit.stdout.strip(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "nowait": nowait.__version__,
        "processors": os.cpu_count(),
        "date": time.strftime("%F"),
        "command": "python " + " ".join(["benchmarks/reads.py", *sys.argv[1:]]),
    }


# Point, way, against which, the least ratio.
BARS = [
    ("cold", "gather", "pread", 5.0),
    ("cold", "gather", "memmap-willneed", 1.0),
    ("cold", "gather", "ayafileio", 1.0),
    ("rust", "gather", "rust", 0.95),
    ("cold", "gather-rows", "memmap", 10.0),
    ("cold", "nowait-fsspec", "fsspec", 8.0),
    ("hot", "gather", "preadv", 1.0),
    ("hot", "nowait-fsspec", "fsspec", 1.0),
    ("refused", "gather-refused", "gather-ring", 0.7),
    ("refused", "gather-async-refused", "gather-async-ring", 0.7),
]


def ratios(rows: dict[str, Any], way: str, other: str, figure: str = "seconds") -> list[float]:
    pairs = zip(rows[way][figure], rows[other][figure], strict=True)
    return [theirs / ours for ours, theirs in pairs]


def show(report: dict[str, Any]) -> None:
    for point in ("cold", "hot", "refused", "rust"):
        count = report["reads"]["hot" if point == "hot" else "cold"]
        for name, row in report[point].items():
            used = f"  {median(row['processor_s']) / count * 1e6:6.1f} µs CPU" if "processor_s" in row else ""
            print(f"{point:8} {name:22} {count / median(row['seconds']) / 1000:8.1f} k reads/s{used}")
    for point, way, other, bar in BARS:
        if way in report[point] and other in report[point]:
            found = ratios(report[point], way, other)
            met = "met" if median(found) >= bar else "NOT MET"
            spread = f"({min(found):.2f} to {max(found):.2f})"
            print(f"{point}: {way} makes {median(found):.2f} of {other} {spread}, bar {bar}: {met}")
            if point == "cold" and "processor_s" in report[point][way]:
                less = [1 / ratio for ratio in ratios(report[point], way, other, "processor_s")]
                print(f"      and takes {median(less):.2f} of its processor time")
    gaps = report["heartbeat"]["longest_gap_s"]
    longest = f"{median(gaps) * 1000:.2f} ms ({max(gaps) * 1000:.2f} at most)"
    print(f"asyncio: longest gap of a heartbeat {longest}, bar 3 ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--size", type=int, default=1 << 30)
    parser.add_argument("--cold", type=int, default=4000)
    parser.add_argument("--hot", type=int, default=20000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        return one(options.one, options.file, options.cold, options.seed)
    path = options.dir / f"nowait-python-{os.getpid()}.dat"
    try:
        make(path, options.size)
        run = Run(path, options.size, options.cold, options.hot, options.seed)
        available = {name: way for name, way in COLD.items() if name != "ayafileio" or _has("ayafileio")}
        report: dict[str, Any] = {
            "environment": environment(),
            "reads": {"cold": options.cold, "hot": options.hot, "bytes": BLOCK, "file_bytes": options.size},
            "cold": measure(run, available, run.cold, options.rounds, True),
            "heartbeat": heartbeat(run, options.rounds),
            "refused": refused(run, options.rounds, options.seed),
            "rust": rust(run, options.rounds, options.seed),
        }
        run.warm()
        report["hot"] = measure(run, HOT, run.hot, options.rounds, False)
    finally:
        path.unlink(missing_ok=True)
    show(report)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return None


def _has(module: str) -> bool:
    try:
        __import__(module)
    except ImportError:
        return False
    return True


if __name__ == "__main__":
    main()
