"""The log, against what was appended."""

from __future__ import annotations

import asyncio
import itertools
import threading
from pathlib import Path

import pytest

import nowait
import nowait.aio


def make(path: Path) -> nowait.Log:
    return nowait.Log(path, create=True, segment_bytes=1 << 20)


def test_records_come_back(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with make(path) as log:
        assert log.recovery["created"] and log.last_lsn == 0
        assert log.append(b"one") == 1
        assert log.append(bytearray(b"two"), durable=True) == 2
        assert log.durable_lsn == 2
        assert log.append_all([b"three", memoryview(b"four")]) == 4
        log.wait_durable(4)
        assert [record.data for record in log.read()] == [b"one", b"two", b"three", b"four"]
        assert [record.lsn for record in log.read(3)] == [3, 4]
        with pytest.raises(nowait.Error) as caught:
            make(path)
        assert isinstance(caught.value, BlockingIOError)
    assert log.closed
    with pytest.raises(nowait.ClosedError):
        log.append(b"x")
    with make(path) as log:
        assert log.recovery["last_lsn"] == 4 and log.recovery["closed"] and not log.recovery["damaged"]
        assert next(iter(log.read())) == nowait.Record(1, 0, b"one")
        log.truncate_suffix(2)
        assert log.append(b"new") == 3
        log.wait_durable(3)
        assert [record.data for record in log.read()] == [b"one", b"two", b"new"]


def test_many_records_in_batches(tmp_path: Path) -> None:
    with make(tmp_path / "log") as log:
        records = [str(number).encode() * (number % 50) for number in range(3000)]
        for record in records:
            last = log.append(record)
        log.wait_durable(last)
        assert [record.data for record in log.read()] == records


def test_a_tail_waits_for_records_to_come(tmp_path: Path) -> None:
    with make(tmp_path / "log") as log:
        log.append(b"0", durable=True)

        def write() -> None:
            for number in range(1, 20):
                log.append(str(number).encode(), durable=True)

        thread = threading.Thread(target=write)
        thread.start()
        found = [record.data for record in itertools.islice(log.tail(), 20)]
        thread.join()
        assert found == [str(number).encode() for number in range(20)]


def test_a_log_in_a_loop(tmp_path: Path) -> None:
    async def main() -> None:
        with make(tmp_path / "log") as opened:
            log = nowait.aio.AsyncLog(opened)
            lsns = await asyncio.gather(*(log.append(str(n).encode(), durable=True) for n in range(100)))
            assert sorted(lsns) == list(range(1, 101)) and opened.durable_lsn == 100
            assert [record.lsn async for record in log.read()] == list(range(1, 101))
            assert await log.append_all([b"a", b"b"]) == 102
            await log.wait_durable(102)
            tail, seen = log.tail(102), []
            appending = asyncio.create_task(log.append(b"c"))
            async for record in tail:
                seen.append(record.data)
                if len(seen) == 2:
                    break
            await appending
            assert seen == [b"b", b"c"]
            # Given up while it waits, and asked again.
            waiting = log.tail(104)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(anext(waiting), 0.05)
            await log.append(b"d", durable=True)
            assert (await asyncio.wait_for(anext(log.tail(104)), 10)).data == b"d"

    asyncio.run(main())


def test_bad_input(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        nowait.Log(tmp_path / "missing")
    with pytest.raises(ValueError, match="scan"):
        nowait.Log(tmp_path / "log", scan="some")  # type: ignore[arg-type]
    with make(tmp_path / "log") as log:
        with pytest.raises(TypeError):
            log.append("text")  # type: ignore[arg-type]
        with pytest.raises(ValueError):
            log.append_all([])
        with pytest.raises(ValueError):
            log.append(bytes(2 << 20))
        record = bytearray(b"1")
        log.append(record)
        record.append(1)
