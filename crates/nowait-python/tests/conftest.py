"""Files to read, with contents that a test can compute."""

from __future__ import annotations

import asyncio
import os
import random
import select
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import nowait

# Tests that only some systems can run, by the name of the file or the test, and what each needs.
ONLY_ON_LINUX = {
    "test_cache.py": "the page cache needs Linux",
    "test_copy.py": "copies need Linux",
    "test_a_failed_write_leaves_the_cursor": "/dev/full",
    "test_a_fork_with_reads_in_flight": "evictions",
    "test_a_long_partial_range_takes_the_memory_of_what_is_there": "/proc",
    "test_a_signal_ends_a_copy": "copies need Linux",
    "test_a_signal_ends_a_gather_of_a_map": "/proc",
    "test_a_name_of_any_bytes": "other systems refuse some bytes in names",
    "test_all_of_a_file_without_a_size": "/proc",
    "test_it_links_what_every_system_has": "/proc",
    "test_rows_of_the_command": "the command needs Linux",
    "test_the_benchmark_of_dask": "evictions",
    "test_the_benchmark_of_reads": "evictions",
    "test_the_notebook": "the command needs Linux",
    "test_without_the_command": "the command needs Linux",
    "test_memory_of_a_long_read_is_not_touched_beforehand": "/proc",
    "test_more_files_than_may_be_open": "/proc",
    "test_no_thread_for_a_call": "/proc",
    "test_ranges_of_a_file_without_a_size": "/proc",
}
NOT_ON_WINDOWS = {
    "test_a_fork_makes_what_it_needs_anew": "fork",
    "test_a_failed_put_names_its_object": "limits of a process",
    "test_a_failed_write_is_read_back": "limits of a process",
    "test_ranges_of_a_device_are_refused": "/dev/zero",
    "test_slow_parts_become_small_and_never_empty": "SIGALRM",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    absent = {"linux": {}, "win32": ONLY_ON_LINUX | NOT_ON_WINDOWS}.get(sys.platform, ONLY_ON_LINUX)
    for item in items:
        needed = absent.get(item.path.name) or absent.get(item.name.split("[")[0])
        if needed is not None:
            item.add_marker(pytest.mark.skip(reason=f"not on {sys.platform}: {needed}"))


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
    """Drops a file from the page cache, if the system can."""
    with path.open("r+b") as file:
        os.fsync(file.fileno())
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def is_notified(completions: nowait._nowait.Completions) -> bool:
    """Whether the loop was notified of results. Waits for the notification where no descriptor shows it."""
    notifier = completions.notifier()
    if isinstance(notifier, int):
        return bool(select.select([notifier], [], [], 0)[0])
    return notifier.wait()


def is_wine() -> bool:
    if sys.platform != "win32":
        return False
    import ctypes

    return hasattr(ctypes.windll.ntdll, "wine_get_version")


def make_link(link: Path, target: str) -> None:
    """Makes a symbolic link; skips the rest of the test where that is impossible."""
    try:
        link.symlink_to(target)
    except OSError as error:
        if getattr(error, "winerror", None) != 1314:
            raise
        pytest.skip("Windows lets only some users make symbolic links")
    if is_wine() and not link.is_symlink():
        pytest.skip("Wine 8 makes no symbolic link, and reports success")


@contextmanager
def no_file_longer_than(size: int) -> Iterator[None]:
    """Makes writes beyond `size` bytes fail. Python ignores SIGXFSZ."""
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


def skip_without_trio() -> None:
    if is_wine():
        pytest.skip("Wine 8 lacks SIO_BSP_HANDLE_SELECT, which trio needs to start")


def on_trio(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    trio = pytest.importorskip("trio")
    skip_without_trio()
    return trio.run(main)


def on_anyio_trio(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    pytest.importorskip("trio")
    skip_without_trio()
    return pytest.importorskip("anyio").run(main, backend="trio")


def on_anyio_asyncio(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    return pytest.importorskip("anyio").run(main, backend="asyncio")


@pytest.fixture(params=[on_asyncio, on_uvloop, on_trio, on_anyio_trio, on_anyio_asyncio])
def run(request: pytest.FixtureRequest) -> Run:
    return request.param
