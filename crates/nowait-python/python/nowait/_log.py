"""The durable log."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, NamedTuple, cast

from nowait import _loops, _nowait
from nowait._errors import DamagedError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator
    from typing import Any

    from _typeshed import ReadableBuffer

    from nowait._types import Path

    OnDamage = Callable[[DamagedError], object]


class Record(NamedTuple):
    """A record of a log: its number, its kind, and its bytes."""

    lsn: int
    kind: int
    data: bytes


class Log(_nowait.Log):
    """A durable log of small records.

    With `create`, opening creates the log if none exists, with the permission bits `mode` regardless of the
    umask. With `retain_bytes`, the log drops its oldest segments beyond that size. With `scan="tail"`,
    opening reads only the end of the log. `recovery` contains the result of the recovery. Any thread may use
    the log. Concurrent appends share writes.

    Only one process at a time can open the log; another gets a `BlockingError`. `nowait log tail -f` prints
    new records in another process.
    """

    def append(self, record: ReadableBuffer, *, durable: bool = False) -> int:
        """Appends a record; returns its number. With `durable`, waits until it is on stable storage.

        Otherwise the record is written when a thread or task calls `wait_durable`, or after some
        milliseconds.
        """
        return self.append_batch([record], durable)

    def append_all(self, records: Iterable[ReadableBuffer], *, durable: bool = False) -> int:
        """Appends a batch, which a crash keeps as a whole or not at all; returns the last number."""
        return self.append_batch(list(records), durable)

    def read(self, lsn: int = 1, *, on_damage: OnDamage | None = None) -> Iterator[Record]:
        """Iterates over durable records from `lsn` on, up to the last.

        Damage raises `DamagedError`. If `on_damage` is given, it is called with the error instead, once for
        each damaged place, and the iteration continues after that place.
        """
        return self._records(lsn, False, on_damage)

    def tail(self, lsn: int = 1, *, on_damage: OnDamage | None = None) -> Iterator[Record]:
        """Iterates over durable records from `lsn` on as `read`, and waits for later ones; never ends."""
        return self._records(lsn, True, on_damage)

    def _records(self, lsn: int, tail: bool, on_damage: OnDamage | None) -> Iterator[Record]:
        reader = self.reader(lsn, on_damage is not None)
        while True:
            try:
                records = reader.read(tail)
            except DamagedError as error:
                if on_damage is None:
                    raise
                # A traceback would refer to this frame, and so to the log and to the callback itself.
                on_damage(error.with_traceback(None))
                continue
            if not records:
                return
            yield from map(Record._make, records)

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<nowait.Log {self.name!r}{', closed' if self.closed else ''}>"


# Maximum number of tasks woken before other tasks run: about 100 µs.
_WOKEN_MAX = 256
# Larger records are not copied on the loop's thread.
_LARGE = 64 << 10


class _Group:
    """Records that tasks append in one iteration of a loop, and that share one write."""

    __slots__ = ("_log", "_loop", "_open_groups", "_outcomes", "_woken", "future", "futures", "records")

    def __init__(self, log: Log, loop: _loops.Loop, open_groups: dict[_loops.Loop, _Group]) -> None:
        self._log = log
        self._loop = loop
        # The groups of the loop, which contain this group until it is submitted.
        self._open_groups = open_groups
        self.records: list[bytes] = []
        self.futures: list[_loops.Future] = []
        self.future = loop.futures()
        self._outcomes: list[int | BaseException] = []
        self._woken = 0
        loop.soon(self._begin)

    def _begin(self) -> None:
        del self._open_groups[self._loop]
        number = self._loop.next()
        self._loop.waiting[number] = self
        try:
            self._log.start_group(self._loop.completions, number, self.records)
        except BaseException as error:
            del self._loop.waiting[number]
            self.set_exception(error)

    def done(self) -> bool:
        return False

    def set_result(self, outcomes: list[int | BaseException], /) -> None:
        self._outcomes = outcomes
        self._wake()

    def set_exception(self, error: BaseException, /) -> None:
        self.set_result([copy.copy(error) for _ in self.futures])

    def _wake(self) -> None:
        start, end = self._woken, self._woken + _WOKEN_MAX
        for future, outcome in zip(self.futures[start:end], self._outcomes[start:end], strict=True):
            if future.done():
                continue
            if type(outcome) is int:
                future.set_result(outcome)
            else:
                future.set_exception(cast("BaseException", outcome))
        self._woken = end
        if end < len(self.futures):
            self._loop.soon(self._wake)


class AsyncLog:
    """A log with awaitable operations, over an open `Log`.

    Records that tasks append in the same iteration of the loop become durable by one write.
    """

    def __init__(self, log: Log) -> None:
        self.log = log
        self._open_groups: dict[_loops.Loop, _Group] = {}

    async def append(self, record: ReadableBuffer, *, durable: bool = False) -> int:
        """Appends a record: see `Log.append`. A call that is cancelled while it waits still appends."""
        size = len(record) if type(record) is bytes else memoryview(record).nbytes
        if size > _LARGE:
            return await self._append([record], durable)
        loop = _loops.current()
        if durable:
            group = self._open_groups.get(loop)
            if group is None:
                group = self._open_groups[loop] = _Group(self.log, loop, self._open_groups)
            future = group.future()
            # Copy other buffers: the caller may change them before the group begins.
            group.records.append(record if type(record) is bytes else bytes(memoryview(record)))
            group.futures.append(future)
            lsn: int = await future
            return lsn
        appended = self.log.try_append(loop.completions, record)
        if appended is None:
            # The log has no room now.
            return await self._append([record], durable)
        lsn, turn_is_over = appended
        if turn_is_over or loop.always_rests:
            await loop.rest()
        return lsn

    async def append_all(self, records: Iterable[ReadableBuffer], *, durable: bool = False) -> int:
        """Appends records as one batch: see `Log.append_all`."""
        return await self._append(list(records), durable)

    async def _append(self, records: list[ReadableBuffer], durable: bool) -> int:
        lsn: int = await _loops.run(self.log.start_append, records, durable)
        return lsn

    async def wait_durable(self, lsn: int) -> None:
        """Waits until record `lsn`, which may be appended later, and all earlier ones are durable."""
        await _loops.run(self.log.start_wait_durable, lsn)

    async def backup(self, destination: Path) -> dict[str, Any]:
        """Copies the log to a new directory: see `Log.backup`. A begun copy ends also if cancelled."""
        recovery: dict[str, Any] = await _loops.run(self.log.start_backup, destination)
        return recovery

    def read(self, lsn: int = 1, *, on_damage: OnDamage | None = None) -> AsyncIterator[Record]:
        """Iterates over durable records from `lsn` on, up to the last: see `Log.read`."""
        return self._records(lsn, False, on_damage)

    def tail(self, lsn: int = 1, *, on_damage: OnDamage | None = None) -> AsyncIterator[Record]:
        """Iterates over durable records from `lsn` on as `read`, and waits for later ones; never ends."""
        return self._records(lsn, True, on_damage)

    async def _records(self, lsn: int, tail: bool, on_damage: OnDamage | None) -> AsyncIterator[Record]:
        reader = self.log.reader(lsn, on_damage is not None)
        while True:
            try:
                records = await _loops.run(reader.start_read, tail)
            except DamagedError as error:
                if on_damage is None:
                    raise
                # A traceback would refer to this frame, and so to the log and to the callback itself.
                on_damage(error.with_traceback(None))
                continue
            if not records:
                return
            for record in records:
                yield Record._make(record)
