"""Files to read, whose contents a test can tell by themselves."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


def becomes_free(buffer: bytearray, within_s: float = 20) -> None:
    """Waits until a buffer is lent to nobody: until then it cannot be resized."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            return buffer.append(1)
        except BufferError:
            assert time.monotonic() < deadline, "the buffer is still lent"
            time.sleep(0.001)


def evict(path: Path) -> None:
    """Drops a file from the page cache; on systems that cannot, it stays there."""
    with path.open("r+b") as file:
        os.fsync(file.fileno())
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@contextmanager
def no_file_longer_than(size: int) -> Iterator[None]:
    """Has writes beyond `size` bytes fail. Python ignores SIGXFSZ."""
    import resource

    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limit[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)


@pytest.fixture
def seed() -> int:
    """A seed, printed when a test fails; `NOWAIT_TEST_SEED` repeats one."""
    seed = int(os.environ.get("NOWAIT_TEST_SEED") or random.SystemRandom().getrandbits(32))
    print(f"NOWAIT_TEST_SEED={seed}")
    return seed


@pytest.fixture
def contents(seed: int) -> bytes:
    """A little more than 1 MiB that does not end at a page."""
    return random.Random(seed).randbytes((1 << 20) + 777)


@pytest.fixture
def path(tmp_path: Path, contents: bytes) -> Path:
    path = tmp_path / "table.dat"
    path.write_bytes(contents)
    return path


@pytest.fixture
def cold(path: Path) -> Path:
    """The file, out of the page cache."""
    evict(path)
    return path


Run = Callable[[Callable[[], Coroutine[Any, Any, Any]]], Any]


def on_asyncio(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    return asyncio.run(main())


def on_uvloop(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    uvloop = pytest.importorskip("uvloop")
    return uvloop.run(main())


def on_trio(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    trio = pytest.importorskip("trio")
    return trio.run(main)


def on_anyio_trio(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    pytest.importorskip("trio")
    return pytest.importorskip("anyio").run(main, backend="trio")


def on_anyio_asyncio(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    return pytest.importorskip("anyio").run(main, backend="asyncio")


@pytest.fixture(params=[on_asyncio, on_uvloop, on_trio, on_anyio_trio, on_anyio_asyncio])
def run(request: pytest.FixtureRequest) -> Run:
    return request.param
