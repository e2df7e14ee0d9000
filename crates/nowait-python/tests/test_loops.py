"""Loops that end early, and loops in loops."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import queue
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
from conftest import skip_without_trio
from test_processes import in_a_fork

import nowait
import nowait.aio
from nowait import _waiter


@pytest.mark.parametrize("module", ["asyncio", "uvloop"])
def test_a_loop_that_is_closed_while_a_task_waits_is_freed(
    tmp_path: Path, module: str, caplog: pytest.LogCaptureFixture
) -> None:
    new_loop = pytest.importorskip(module).new_event_loop
    # Tasks that were never finished are reported.
    caplog.set_level(logging.CRITICAL, "asyncio")
    log = nowait.aio.AsyncLog(nowait.Log(tmp_path / "log", create=True))

    async def main() -> None:
        asyncio.ensure_future(log.wait_durable(1))  # noqa: RUF006 (nothing else keeps it)
        await asyncio.sleep(0)

    def run() -> weakref.ref[asyncio.AbstractEventLoop]:
        loop = new_loop()
        loop.run_until_complete(main())
        loop.close()
        return weakref.ref(loop)

    loops = [run() for _ in range(5)]
    gc.collect()
    assert [loop() for loop in loops] == [None] * 5
    log.log.close()


def test_trio_as_a_guest_of_asyncio(path: Path, contents: bytes) -> None:
    trio = pytest.importorskip("trio")
    skip_without_trio()

    async def guest() -> bytes:
        async with await nowait.aio.open_file(path) as file:
            return await file.read_at(100, 10) + bytes((await file.gather([200], 10))[0])

    async def main() -> tuple[bytes, bytes]:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[Any] = loop.create_future()
        trio.lowlevel.start_guest_run(
            guest,
            run_sync_soon_threadsafe=loop.call_soon_threadsafe,
            done_callback=ended.set_result,
            host_uses_signal_set_wakeup_fd=True,
        )
        return await guest(), (await ended).unwrap()

    expected = contents[100:110] + contents[200:210]
    assert asyncio.run(main()) == (expected, expected)


def test_a_loop_that_was_closed_disturbs_no_other(tmp_path: Path, path: Path, contents: bytes) -> None:
    """An operation of the closed loop ends while another loop has operations in flight."""
    log = nowait.aio.AsyncLog(nowait.Log(tmp_path / "log", create=True))
    closed = asyncio.new_event_loop()
    waiting = closed.create_task(log.wait_durable(1))
    closed.run_until_complete(asyncio.sleep(0))
    closed.close()

    async def main() -> None:
        async with await nowait.aio.open_file(path) as file:
            for _ in range(3):
                # A group of records, and gathers: both complete on other threads.
                _, rows = await asyncio.gather(log.append(b"1", durable=True), file.gather([7], 5))
                assert bytes(rows[0]) == contents[7:12]

    asyncio.run(asyncio.wait_for(main(), 60))
    assert not waiting.done()
    # Otherwise asyncio reports a pending task that is destroyed.
    waiting._log_destroy_pending = False
    log.log.close()


class Rings:
    """A waiter that a test rings."""

    def __init__(self) -> None:
        self.rings: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def wait(self) -> bool:
        return self.rings.get()

    def stop(self) -> None:
        self.rings.put(False)


class Woken:
    """A loop that counts how often it is woken."""

    def __init__(self) -> None:
        self.count = 0
        self.is_closed = False
        self.is_woken = threading.Semaphore(0)

    def wake(self) -> None:
        if self.is_closed:
            raise RuntimeError("Event loop is closed")
        self.count += 1
        self.is_woken.release()


def thread_of(waiter: Rings) -> threading.Thread | None:
    return next((thread for thread, other in _waiter._threads.items() if other is waiter), None)


@pytest.mark.parametrize("end", ["close", "free", "stop"])
def test_a_thread_serves_its_loop_until_that_ends(end: str) -> None:
    """Tests the threads of systems where loops cannot watch an eventfd."""
    waiters, loops = [Rings(), Rings()], [Woken(), Woken()]
    for waiter, loop in zip(waiters, loops, strict=True):
        _waiter.start(waiter, loop)
    threads = [thread_of(waiter) for waiter in waiters]
    for waiter, loop in zip(waiters, loops, strict=True):
        for _ in range(3):
            waiter.rings.put(True)
            assert loop.is_woken.acquire(timeout=20)
    first, second = threads
    assert first is not None and second is not None
    if end == "stop":
        waiters[0].stop()
    elif end == "close":
        loops[0].is_closed = True
    else:
        del loops[0], loop
        loops.insert(0, Woken())
        gc.collect()
    waiters[0].rings.put(True)
    first.join(20)
    assert not first.is_alive() and thread_of(waiters[0]) is None
    waiters[1].rings.put(True)
    assert loops[1].is_woken.acquire(timeout=20) and loops[1].count == 4
    waiters[1].stop()
    second.join(20)
    assert not second.is_alive()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_child_has_no_thread_of_a_loop() -> None:
    """Symptom: at its exit it asked a thread to end that only its parent has."""
    waiter, loop = Rings(), Woken()
    _waiter.start(waiter, loop)
    thread = thread_of(waiter)
    in_a_fork(lambda: os._exit(len(_waiter._threads)))
    assert thread is not None and thread_of(waiter) is thread
    waiter.stop()
    thread.join(20)
    assert not thread.is_alive()
