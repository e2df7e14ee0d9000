"""The log, against what was appended."""

from __future__ import annotations

import asyncio
import gc
import itertools
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
from conftest import Run

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


def test_tasks_share_writes(run: Run, tmp_path: Path) -> None:
    """One wait for all tasks that append in the same turn, by whichever way each record is given."""
    begun = []

    class Log(nowait.Log):
        def start_group(self, completions: Any, number: int, records: list[bytes]) -> None:
            begun.append(len(records))
            super().start_group(completions, number, records)

    async def main() -> None:
        with Log(tmp_path / "log", create=True, segment_bytes=1 << 20) as opened:
            log = nowait.aio.AsyncLog(opened)
            lsns: list[int] = []

            async def one(number: int) -> None:
                for record in (b"%d" % number, bytearray(b"%d" % number)):
                    lsns.append(await log.append(record, durable=True))
                    assert opened.durable_lsn >= lsns[-1]

            await all_of([one(number) for number in range(1000)])
            assert sorted(lsns) == list(range(1, 2001))
            assert len(begun) < 1000
            assert sorted([record.data async for record in log.read()]) == sorted(
                b"%d" % number for number in range(1000) for _ in range(2)
            )

    run(main)


async def all_of(calls: list[Any]) -> None:
    if asyncio._get_running_loop() is not None:
        await asyncio.gather(*calls)
        return
    import trio

    async with trio.open_nursery() as nursery:
        for call in calls:
            nursery.start_soon(lambda call=call: call)


def test_appends_of_several_loops(tmp_path: Path) -> None:
    with make(tmp_path / "log") as opened:
        log = nowait.aio.AsyncLog(opened)

        def work(number: int) -> None:
            async def main() -> None:
                for _ in range(20):
                    await asyncio.gather(*(log.append(b"%d" % number, durable=True) for _ in range(20)))

            asyncio.run(main())

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert opened.durable_lsn == 1600
        found = [record.data for record in opened.read()]
        assert sorted(found) == [b"%d" % number for number in range(4) for _ in range(400)]
        assert not log._open_groups


def test_a_cancelled_append_is_in_the_log(tmp_path: Path) -> None:
    async def main() -> None:
        with make(tmp_path / "log") as opened:
            log = nowait.aio.AsyncLog(opened)
            tasks = [asyncio.create_task(log.append(b"%d" % number, durable=True)) for number in range(100)]
            await asyncio.sleep(0)
            for task in tasks[:-1]:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert [record.data async for record in log.read()] == [b"%d" % number for number in range(100)]

    asyncio.run(main())


def test_appends_that_find_no_room_wait_for_it(tmp_path: Path) -> None:
    async def main() -> None:
        with make(tmp_path / "log") as opened:
            log = nowait.aio.AsyncLog(opened)
            for size in (60_000, 100_000):
                appends = [log.append(bytes(size), durable=True) for _ in range(100)]
                # It is refused, and those beside it are not.
                appends.insert(50, log.append_all([]))
                lsns = await asyncio.gather(*appends, return_exceptions=True)
                assert isinstance(lsns.pop(50), ValueError)
                assert max(lsns) == opened.durable_lsn
                # Large ones are copied elsewhere, in no order.
                assert lsns == sorted(lsns) or size > 64 << 10
            assert opened.durable_lsn == 200
            # Others have their turn, too, where nothing is waited for.
            turns = 0

            async def other() -> None:
                nonlocal turns
                while True:
                    turns += 1
                    await asyncio.sleep(0)

            task = asyncio.create_task(other())
            for _ in range(1000):
                await log.append(b"x")
            task.cancel()
            assert turns > 10

    asyncio.run(main())


def test_appends_to_a_log_that_was_closed(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        opened = make(tmp_path / "log")
        log = nowait.aio.AsyncLog(opened)
        failures = []

        async def one() -> None:
            try:
                await log.append(b"x", durable=True)
            except nowait.ClosedError as error:
                failures.append(error)

        async def close() -> None:
            opened.close()

        # Closed between the appends and the write that they share.
        await all_of([one() for _ in range(50)] + [close()] + [one() for _ in range(50)])
        assert len(failures) + nowait.Log(tmp_path / "log").last_lsn >= 100
        assert len({id(failure) for failure in failures}) == len(failures) >= 1

    run(main)


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


def damaged(path: Path, text: bytes) -> None:
    """Flips a bit of a record's bytes."""
    # Only segments: maintenance may rename or remove other files meanwhile.
    for file in path.glob("*.seg"):
        if (at := file.read_bytes().find(text)) >= 0:
            with file.open("r+b") as opened:
                opened.seek(at)
                opened.write(bytes([text[0] ^ 1]))
            return
    raise AssertionError(f"no file contains {text!r}")


def test_a_reader_continues_behind_damage(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with make(path) as log:
        for number in range(1, 5):
            log.append(b"record %d" % number, durable=True)
    # Records of this opening are read from memory.
    with make(path) as log:
        log.append(b"record 5", durable=True)
        damaged(path, b"record 3")
        seen = []
        with pytest.raises(nowait.DamagedError):
            seen.extend(log.read())
        for record in log.read(2):
            assert record.lsn == 2
            break
        errors: list[nowait.DamagedError] = []
        records = list(log.read(on_damage=errors.append))
        assert [record.data for record in records] == [b"record %d" % number for number in (1, 2, 4, 5)]
        assert len(errors) == 1 and "3" in str(errors[0])

        async def work() -> None:
            opened = nowait.aio.AsyncLog(log)
            errors.clear()
            lsns = [record.lsn async for record in opened.read(on_damage=errors.append)]
            assert lsns == [1, 2, 4, 5] and len(errors) == 1
            tail, seen = opened.tail(on_damage=errors.append), []
            async for record in tail:
                seen.append(record.lsn)
                if len(seen) == 4:
                    break
            assert seen == [1, 2, 4, 5] and len(errors) == 2
            with pytest.raises(nowait.DamagedError):
                await opened.backup(tmp_path / "copy")

        asyncio.run(work())
        assert not (tmp_path / "copy").exists()


def test_errors_of_damage_do_not_keep_the_log(tmp_path: Path) -> None:
    with make(tmp_path / "log") as log:
        log.append(b"spoilt", durable=True)
        log.append(b"whole", durable=True)
    log = make(tmp_path / "log")
    damaged(tmp_path / "log", b"spoilt")
    errors: list[nowait.DamagedError] = []

    async def read(log: nowait.Log) -> list[int]:
        return [record.lsn async for record in nowait.aio.AsyncLog(log).read(on_damage=errors.append)]

    gc.disable()
    try:
        assert asyncio.run(read(log)) == [2]
        assert [record.lsn for record in log.read(on_damage=errors.append)] == [2]
        assert [error.__traceback__ for error in errors] == [None, None]
        kept = weakref.ref(log)
        del log
        assert kept() is None
    finally:
        gc.enable()


def test_a_reader_returns_the_records_before_damage(tmp_path: Path) -> None:
    with make(tmp_path / "log") as log:
        log.append(b"whole", durable=True)
        log.append(b"spoilt", durable=True)
    with make(tmp_path / "log") as log:
        damaged(tmp_path / "log", b"spoilt")
        records = log.read()
        assert next(records).data == b"whole"
        with pytest.raises(nowait.DamagedError):
            next(records)


def test_backup_and_mode(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with pytest.raises(ValueError, match="0o40700"):
        nowait.Log(path, create=True, mode=0o40700)
    assert not path.exists()
    with nowait.Log(path, create=True, mode=0o750) as log:
        if sys.platform != "win32":
            assert path.stat().st_mode & 0o7777 == 0o750
            assert {file.stat().st_mode & 0o7777 for file in path.iterdir() if file.is_file()} == {0o640}
        log.append(b"one", durable=True)
        assert log.backup(tmp_path / "first")["last_lsn"] == 1
        with pytest.raises(nowait.RangeError):
            log.backup(tmp_path / "first")
        log.append(b"two", durable=True)
        recovery = asyncio.run(nowait.aio.AsyncLog(log).backup(tmp_path / "second"))
        assert recovery["last_lsn"] == 2
    for name, count in (("first", 1), ("second", 2)):
        with nowait.Log(tmp_path / name) as copied:
            assert [record.data for record in copied.read()] == [b"one", b"two"][:count]
