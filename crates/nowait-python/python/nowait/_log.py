"""The durable log."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from nowait import _loops, _nowait

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator

    from _typeshed import ReadableBuffer


class Record(NamedTuple):
    """A record of a log: its number, its kind, and its bytes."""

    lsn: int
    kind: int
    data: bytes


class Log(_nowait.Log):
    """A durable log: many small records, each on stable storage when it is said to be.

    `create` makes one if there is none; `retain_bytes` gives up the oldest segments beyond so many;
    `scan="tail"` reads only the end when it is opened. `recovery` has what was found. Any thread may
    use it, and threads that append share writes. One process at a time has it open: in another this is
    a `BlockingError`, and `nowait log tail -f` prints records as they come.
    """

    def append(self, record: ReadableBuffer, *, durable: bool = False) -> int:
        """Appends a record; returns its number. With `durable`, waits until it is on stable storage.

        Without, it is written when somebody waits (`wait_durable`), or after some milliseconds.
        """
        return self.append_batch([record], durable)

    def append_all(self, records: Iterable[ReadableBuffer], *, durable: bool = False) -> int:
        """Appends records that a crash keeps all or not at all; returns the number of the last."""
        return self.append_batch(list(records), durable)

    def read(self, lsn: int = 1) -> Iterator[Record]:
        """Iterates over durable records from `lsn` on, up to the last."""
        reader = self.reader(lsn)
        while records := reader.read(False):
            yield from map(Record._make, records)

    def tail(self, lsn: int = 1) -> Iterator[Record]:
        """Iterates over durable records from `lsn` on, and waits for those to come; never ends."""
        reader = self.reader(lsn)
        while True:
            yield from map(Record._make, reader.read(True))

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<nowait.Log {self.name!r}{', closed' if self.closed else ''}>"


class AsyncLog:
    """A log whose operations are awaited. Opened and closed as a `Log`."""

    def __init__(self, log: Log) -> None:
        self.log = log

    async def append(self, record: ReadableBuffer, *, durable: bool = False) -> int:
        """Appends a record: see `Log.append`."""
        return await self.append_all([record], durable=durable)

    async def append_all(self, records: Iterable[ReadableBuffer], *, durable: bool = False) -> int:
        """Appends records as one batch: see `Log.append_all`."""
        lsn: int = await _loops.run(self.log.start_append, list(records), durable)
        return lsn

    async def wait_durable(self, lsn: int) -> None:
        """Waits until record `lsn` is durable, with all before it, and for it to be appended if need be."""
        await _loops.run(self.log.start_wait_durable, lsn)

    async def read(self, lsn: int = 1) -> AsyncIterator[Record]:
        """Iterates over durable records from `lsn` on, up to the last."""
        reader = self.log.reader(lsn)
        while records := await _loops.run(reader.start_read, False):
            for record in records:
                yield Record._make(record)

    async def tail(self, lsn: int = 1) -> AsyncIterator[Record]:
        """Iterates over durable records from `lsn` on, and waits for those to come; never ends."""
        reader = self.log.reader(lsn)
        while True:
            for record in await _loops.run(reader.start_read, True):
                yield Record._make(record)
