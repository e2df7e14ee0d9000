"""Loops that end early, and loops in loops."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from pathlib import Path
from typing import Any

import pytest
from conftest import skip_without_trio

import nowait
import nowait.aio


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
