"""Forks, spawned processes, signals, and the end of the interpreter."""

from __future__ import annotations

import _thread
import asyncio
import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import nowait
import nowait.aio


def read_all_ways(path: str, file: nowait.File | None = None) -> bytes:
    async def main() -> bytes:
        async with await nowait.aio.open_file(path) as opened:
            rows = await opened.gather([5, 100], 10)
            return bytes(rows[0]) + await opened.read_at(5, 10)

    kept = bytes((file or nowait.open(path)).gather([5], 10)[0])
    each = [bytes(row) for _, row in nowait.gather_each(path, [5], 10)]
    return bytes(nowait.gather(path, [5], 10)[0]) + kept + each[0] + asyncio.run(main())


def in_a_fork(child: Callable[[], None]) -> None:
    """Runs a function in a fork; its exception, or its not ending, is a failure."""
    process = os.fork()
    if process == 0:
        try:
            child()
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
    deadline = time.monotonic() + 30
    while True:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            assert os.waitstatus_to_exitcode(status) == 0
            return
        if time.monotonic() > deadline:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            pytest.fail("the child does not end")
        time.sleep(0.01)


def test_a_fork_makes_what_it_needs_anew(path: Path, contents: bytes) -> None:
    expected = contents[5:15] * 5
    file = nowait.open(path)
    assert read_all_ways(str(path), file) == expected

    def child() -> None:
        assert read_all_ways(str(path), file) == expected
        in_a_fork(lambda: os._exit(0 if read_all_ways(str(path), file) == expected else 1))

    for _ in range(3):
        in_a_fork(child)
    assert read_all_ways(str(path), file) == expected


def test_a_fork_with_reads_in_flight(cold: Path, contents: bytes) -> None:
    async def main() -> None:
        async with await nowait.aio.open_file(cold) as file:
            reads = [asyncio.ensure_future(file.read_at(at, 100)) for at in range(0, 1 << 20, 4096)]
            gather = asyncio.ensure_future(file.gather(range(0, 1 << 20, 4096), 100))
            await asyncio.sleep(0)
            in_a_fork(lambda: os._exit(bytes(nowait.gather(cold, [7], 5)[0]) != contents[7:12]))
            assert [await read for read in reads] == [
                contents[at : at + 100] for at in range(0, 1 << 20, 4096)
            ]
            assert bytes((await gather)[1]) == contents[4096:4196]

    asyncio.run(main())


def test_spawned_processes(path: Path, contents: bytes) -> None:
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        found = pool.map(read_all_ways, [str(path)] * 4)
    assert found == [contents[5:15] * 5] * 4


class Raised(Exception):
    """By a signal's handler."""


@contextmanager
def raised_after(seconds: float) -> Iterator[None]:
    def handler(number: int, frame: object) -> None:
        raise Raised

    if sys.platform == "win32":
        # Windows has no timer signals: act as if a user pressed Ctrl+C.
        before, timer = (
            signal.signal(signal.SIGINT, handler),
            threading.Timer(seconds, _thread.interrupt_main),
        )
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            signal.signal(signal.SIGINT, before)
        return
    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_signal_ends_a_long_gather(tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(1 << 30)
    out = bytearray(1 << 29)
    offsets = range(0, 1 << 29, 2048)
    with raised_after(0.02), pytest.raises(Raised):
        while True:
            nowait.gather(path, offsets, 2048, out=out)
    with raised_after(0.02), pytest.raises(Raised), nowait.open(path) as opened:
        while True:
            opened.readinto_at(0, out)
    out.append(1)


def test_a_signal_ends_a_durable_append(tmp_path: Path) -> None:
    """It is one call: its bytes may be there all the same, whole."""
    data = bytes(1 << 29)
    with nowait.open(tmp_path / "large", "a") as file:
        began = time.monotonic()
        with raised_after(0.02), pytest.raises(Raised):
            while True:
                file.append(data, durable=True)
        ended = time.monotonic() - began
        file.sync()
        # The sync waits for the append: most of its time was still to come.
        assert ended < 0.9 * (time.monotonic() - began)
    assert (tmp_path / "large").stat().st_size in (0, len(data))


def test_a_signal_ends_a_wait_for_records(tmp_path: Path) -> None:
    with nowait.Log(tmp_path / "log", create=True, segment_bytes=1 << 20) as log:
        log.append(b"one", durable=True)
        tail = log.tail()
        assert next(tail).data == b"one"
        began = time.monotonic()
        with raised_after(0.05), pytest.raises(Raised):
            next(tail)
        assert time.monotonic() - began < 10
        log.append(b"two", durable=True)
        assert [record.data for record in itertools.islice(log.tail(), 2)] == [b"one", b"two"]


def test_a_signal_ends_a_copy(path: Path, tmp_path: Path) -> None:
    with raised_after(0.1), pytest.raises(Raised):
        nowait.copy(path, tmp_path / "copy", bytes_per_second_max=10_000)
    assert not (tmp_path / "copy").exists()


def test_a_signal_ends_a_gather_of_a_map(tmp_path: Path) -> None:
    path, size = tmp_path / "large", 4 << 30
    with path.open("wb") as file:
        file.truncate(size)
    memory = nowait.Map(path)
    path.unlink()

    def mapped() -> int:
        return int(Path("/proc/self/statm").read_text().split()[2]) * os.sysconf("SC_PAGESIZE")

    before = mapped()
    with raised_after(0.02), pytest.raises(Raised):
        memory.gather([(0, size)])
    # All of it takes some tenths of a second at least.
    assert mapped() - before < size


ENDS = [
    # Reads whose loop is left.
    """
    async def main():
        file = await nowait.aio.open_file(path)
        for at in range(0, 1 << 20, 4096):
            asyncio.ensure_future(file.readinto_at(at, bytearray(4096)))
            asyncio.ensure_future(file.gather([at], 4096, out=bytearray(4096)))
        await asyncio.sleep(0)
    asyncio.run(main())
    """,
    # Threads that are in calls when the interpreter ends.
    """
    import threading
    def work():
        while True:
            nowait.gather(path, range(0, 1 << 20, 512), 512, out=bytearray(1 << 20))
            for _ in nowait.gather_each(path, range(0, 1 << 20, 4096), 4096): pass
    for _ in range(4): threading.Thread(target=work, daemon=True).start()
    import time; time.sleep(0.1)
    """,
    # What is not closed.
    """
    file = nowait.open(path)
    rows = file.gather([0], 10)
    each = nowait.gather_each(path, range(256), 4096)
    next(each)
    log = nowait.Log(path + "-log", create=True, segment_bytes=1 << 20)
    log.append(b"one")
    sys.exit(0)
    """,
]


@pytest.mark.parametrize("which", range(len(ENDS)))
def test_the_interpreter_ends(cold: Path, which: int) -> None:
    lines = [line.removeprefix("    ") for line in ENDS[which].splitlines()]
    program = f"import asyncio, sys, nowait, nowait.aio\npath = {str(cold)!r}\n" + "\n".join(lines)
    for _ in range(5):
        ended = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
        )
        assert (ended.returncode, ended.stderr) == (0, "")


def test_interpreters_of_a_process_have_exceptions_of_their_own(path: Path) -> None:
    pytest.importorskip("_xxsubinterpreters")
    program = """
import _xxsubinterpreters as interpreters
import nowait

missing = '''
import nowait
try:
    nowait.open("/missing")
except nowait.NotFoundError:
    pass
'''
interpreters.run_string(interpreters.create(), missing)
exec(missing)
"""
    subprocess.run([sys.executable, "-c", program], timeout=60, check=True)


INTERPRETERS = """
import asyncio, gc, os, sys, time
try:
    import _xxsubinterpreters as interpreters
except ImportError:
    import _interpreters as interpreters
import nowait, nowait.aio


async def main():
    file = await nowait.aio.open_file(path)
    buffers = [bytearray(4096) for _ in range(64)]
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    tasks = [asyncio.ensure_future(file.gather([at * 4096], 4096, out=out)) for at, out in enumerate(buffers)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    one = bytearray(4096)
    await file.readinto_at(0, one)
    await file.close()
    return [*buffers, one]


def check():
    buffers, deadline = asyncio.run(main()), time.monotonic() + 60
    while buffers:
        nowait.gather(path, [0], 1)
        gc.collect()
        try:
            buffers[-1].append(1)
            buffers.pop()
        except BufferError:
            assert time.monotonic() < deadline, f"{len(buffers)} are still lent"
"""


def test_buffers_are_free_after_another_interpreter_has_ended(path: Path) -> None:
    program = f"""path = {str(path)!r}
{INTERPRETERS}
check()
used = 0
for create in (
    interpreters.create,
    lambda: interpreters.create(isolated=False),
    lambda: interpreters.create("legacy"),
):
    try:
        other = create()
    except (TypeError, ValueError):
        continue
    # Refused where interpreters have locks of their own.
    try:
        failed = interpreters.run_string(other, "import nowait; nowait.gather({path.as_posix()!r}, [0], 10)")
        used += failed is None
    except Exception:
        pass
    interpreters.destroy(other)
    check()
assert used or sys.version_info >= (3, 12)
print("done")
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ended.stdout, ended.stderr) == ("done\n", "")


def test_an_interpreter_ends_beside_the_main_one_with_an_open_loop(path: Path) -> None:
    pytest.importorskip("_testcapi")
    # On Windows, the default loop starts only in the main interpreter.
    loop = f"""
import asyncio, builtins, nowait.aio
async def main():
    async with await nowait.aio.open_file({path.as_posix()!r}) as file:
        return await file.gather([3], 4)
loop = builtins.loop = asyncio.SelectorEventLoop()
assert len(loop.run_until_complete(main())[0]) == 4
"""
    runs = f"assert [_testcapi.run_in_subinterp({loop!r}) for _ in range(3)] == [0, 0, 0]"
    program = f"import _testcapi\n{runs}\nprint('done')"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ended.stdout == "done\n", ended.stderr


def test_buffers_are_free_in_exit_handlers(path: Path) -> None:
    if sys.platform != "linux" and sys.version_info >= (3, 12):
        pytest.skip("the loop needs a thread, which Python cannot start in an exit handler")
    program = f"""
import atexit
atexit.register(lambda: (check(), print("done")))
path = {str(path)!r}
{INTERPRETERS}
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ended.stdout, ended.stderr) == ("done\n", "")


@pytest.mark.parametrize(
    "call",
    [
        "nowait.gather(path, [0], 1)",
        "nowait._nowait.gather_list(path, [0], [1])",
        "file.gather([0], 1).to_list()",
        "file.read_at(0, 1)",
        "file.readinto_at(0, bytearray(1))",
        "list(nowait.gather_each(path, [0], 1))",
    ],
)
def test_each_call_in_an_exit_handler_frees_what_another_thread_has_left(path: Path, call: str) -> None:
    """There are no pending calls at that time: the exports wait for the next call."""
    program = f"""
import atexit, time
path = {str(path)!r}

def check():
    completions, out = nowait._nowait.Completions(), bytearray(4096)
    nowait._nowait.start_gather(completions, 1, file, [0], 4096, out, False).cancel()
    deadline = time.monotonic() + 60
    while not nowait._nowait.pending_releases():
        # A gather that had ended has left its buffer here.
        completions = None
        assert time.monotonic() < deadline, "no thread leaves the buffer"
        time.sleep(0.001)
    {call}
    out.append(1)
    print("done")

atexit.register(check)
import nowait
file = nowait.open(path)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ended.stdout, ended.stderr) == ("done\n", "")


def test_it_links_what_every_system_has() -> None:
    """One extension for all versions of Python, and no library that a system may lack."""
    assert Path(nowait._nowait.__file__).name == "_nowait.abi3.so"
    program = "import nowait._nowait; print(open('/proc/self/maps').read())"
    command = [sys.executable, "-I", "-c", program]
    maps = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert "_nowait.abi3.so" in maps and "liburing" not in maps


def test_threads_share_a_file(path: Path, contents: bytes) -> None:
    file, wrong = nowait.open(path), []

    def work(number: int) -> None:
        for at in range(number, 1 << 19, 5003):
            rows = file.gather([at, at + 9], [10, 20])
            if [bytes(row) for row in rows] != [contents[at : at + 10], contents[at + 9 : at + 29]]:
                wrong.append(at)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
