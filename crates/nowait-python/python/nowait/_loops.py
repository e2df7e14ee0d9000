"""Event loops: how each loop is notified of completions.

On Linux, a loop watches one eventfd for all of its operations (`Completions`), without a thread for each
call. asyncio and uvloop watch the eventfd by `add_reader`, trio by a task that waits until it is readable.
anyio runs on asyncio or trio. On other systems, one thread for each loop waits for the completions, and
wakes the loop (`_waiter.py`).

Nothing here occupies a loop's thread for more than some hundred microseconds. A loop takes 16 results at a
time, and operations that end at once yield to other tasks after about 50 µs.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import os
import sys
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from nowait import _waiter
from nowait._nowait import Completions, Running

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    import trio

T = TypeVar("T")


class Waiter(Protocol):
    """A receiver of a result."""

    def done(self) -> bool: ...
    def set_result(self, result: Any, /) -> object: ...
    def set_exception(self, error: BaseException, /) -> object: ...


class Future(Waiter, Protocol):
    """A result that a task awaits."""

    def __await__(self) -> Generator[Any, None, Any]: ...


class Loop:
    """Pending operations of one loop, by number."""

    # True if each await must yield to other tasks, as a checkpoint of trio does.
    always_rests = False

    def __init__(self) -> None:
        self.completions = Completions()
        self.number = 0
        self.waiting: dict[int, Waiter] = {}

    def next(self) -> int:
        self.number += 1
        return self.number

    def take(self) -> None:
        """Delivers results to their waiters."""
        for number, succeeded, value in self.completions.drain():
            waiter = self.waiting.pop(number, None)
            if waiter is None or waiter.done():
                continue
            if succeeded:
                waiter.set_result(value)
            else:
                waiter.set_exception(value)

    def wake(self) -> None:
        """Schedules `take` on the loop. Any thread may call this.

        Raises `RuntimeError` if the loop is closed.
        """
        raise NotImplementedError

    async def wait(self, number: int, running: Running | None) -> Any:
        future = self.waiting[number] = self.futures()()
        try:
            return await future
        finally:
            if self.waiting.pop(number, None) is not None and running is not None:
                running.cancel()

    def futures(self) -> Callable[[], Future]:
        """Returns the factory of futures for the running loop."""
        raise NotImplementedError

    def soon(self, function: Callable[[], object]) -> None:
        """Schedules a function to run after the tasks that are ready."""
        raise NotImplementedError

    async def rest(self) -> None:
        """Yields to other tasks."""
        raise NotImplementedError

    def event(self) -> asyncio.Event | trio.Event:
        raise NotImplementedError

    async def in_thread(self, function: Callable[[], T]) -> T:
        raise NotImplementedError


class _Asyncio(Loop):
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = weakref.ref(loop)
        notifier = self.completions.notifier()
        if sys.platform == "linux":
            loop.add_reader(notifier, self.take)
        else:
            # Keeps this object alive as long as the loop. (On Linux, the reader's callback does.)
            loop._nowait = self  # type: ignore[attr-defined]
            _waiter.start(notifier, self)

    def wake(self) -> None:
        loop = self._loop()
        if loop is not None:
            loop.call_soon_threadsafe(self.take)

    def futures(self) -> Callable[[], Future]:
        return asyncio.get_running_loop().create_future

    def soon(self, function: Callable[[], object]) -> None:
        asyncio.get_running_loop().call_soon(function)

    async def rest(self) -> None:
        await asyncio.sleep(0)

    def event(self) -> asyncio.Event:
        return asyncio.Event()

    async def in_thread(self, function: Callable[[], T]) -> T:
        return await asyncio.to_thread(function)


class _TrioFuture:
    """A result that one task of trio awaits."""

    __slots__ = ("_event", "_result", "_succeeded")

    def __init__(self) -> None:
        self._event = current().event()
        self._succeeded = False
        self._result: Any = None

    def done(self) -> bool:
        return self._event.is_set()

    def set_result(self, result: Any, /) -> None:
        self._succeeded, self._result = True, result
        self._event.set()

    def set_exception(self, error: BaseException, /) -> None:
        self._result = error
        self._event.set()

    def __await__(self) -> Generator[Any, None, Any]:
        yield from self._event.wait().__await__()
        if self._succeeded:
            return self._result
        raise self._result


class _Trio(Loop):
    always_rests = True

    def __init__(self) -> None:
        super().__init__()
        import trio

        self.trio = trio
        self._token = weakref.ref(trio.lowlevel.current_trio_token())
        notifier = self.completions.notifier()
        if sys.platform == "linux":
            trio.lowlevel.spawn_system_task(self._watch, notifier, name="nowait")
        else:
            _waiter.start(notifier, self)

    async def _watch(self, notifier: int) -> None:
        while True:
            await self.trio.lowlevel.wait_readable(notifier)
            self.take()

    def wake(self) -> None:
        token = self._token()
        if token is not None:
            token.run_sync_soon(self.take)

    def futures(self) -> Callable[[], Future]:
        return _TrioFuture

    def soon(self, function: Callable[[], object]) -> None:
        self.trio.lowlevel.current_trio_token().run_sync_soon(function)

    async def rest(self) -> None:
        await self.trio.lowlevel.checkpoint()

    def event(self) -> trio.Event:
        return self.trio.Event()

    async def in_thread(self, function: Callable[[], T]) -> T:
        return await self.trio.to_thread.run_sync(function)


# Only the loop holds a strong reference, by its reader or an attribute. Pending futures refer to the
# loop, which may be closed before they are done.
_asyncio: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.ref[_Asyncio]] = (
    weakref.WeakKeyDictionary()
)
# The last loop that was looked up, which is usually the only one.
_last: tuple[weakref.ref[asyncio.AbstractEventLoop], weakref.ref[_Asyncio]] | None = None
_trio: weakref.WeakKeyDictionary[trio.lowlevel.TrioToken, _Trio] = weakref.WeakKeyDictionary()


def current() -> Loop:
    """Returns the running loop."""
    global _last
    loop = asyncio._get_running_loop()
    if "trio" in sys.modules and (loop is None or _is_guest()):
        import trio

        if trio.lowlevel.in_trio_run():
            token = trio.lowlevel.current_trio_token()
            ours = _trio.get(token)
            if ours is None:
                ours = _trio[token] = _Trio()
            return ours
    if loop is not None:
        last = _last
        if last is not None and last[0]() is loop and (known := last[1]()) is not None:
            return known
        held = _asyncio.get(loop)
        known = held() if held is not None else None
        if known is None:
            known = _Asyncio(loop)
            _asyncio[loop] = weakref.ref(known)
        _last = (weakref.ref(loop), weakref.ref(known))
        return known
    raise RuntimeError("no event loop of asyncio or trio runs here")


def _forget() -> None:
    """Forgets all loops: one that is used after this starts a new thread."""
    global _last
    _last = None
    _asyncio.clear()
    _trio.clear()


def _end() -> None:
    """Ends the threads of all loops: an interpreter must not have any when it ends beside others."""
    _waiter.stop()
    _forget()


if sys.platform != "linux":
    atexit.register(_end)
    if hasattr(os, "register_at_fork"):
        # A forked child has no threads of loops.
        os.register_at_fork(after_in_child=_forget)


def _is_guest() -> bool:
    """Returns whether the current task belongs to trio, with an asyncio loop as its host."""
    import sniffio

    return sniffio.thread_local.name == "trio"


class Turn:
    """A fair lock for tasks of asyncio and trio: tasks hold it in the order of their requests."""

    __slots__ = ("_waiting", "is_held")

    def __init__(self) -> None:
        self.is_held = False
        self._waiting: deque[asyncio.Event | trio.Event] = deque()

    async def __aenter__(self) -> None:
        if not self.is_held:
            self.is_held = True
            return
        event = current().event()
        self._waiting.append(event)
        try:
            await event.wait()
        except BaseException:
            # A cancelled task may already have the turn.
            if event.is_set():
                self._pass_on()
            else:
                self._waiting.remove(event)
            raise

    async def __aexit__(self, *exception: object) -> None:
        self._pass_on()

    def _pass_on(self) -> None:
        if self._waiting:
            self._waiting.popleft().set()
        else:
            self.is_held = False


async def call(start: Callable[..., tuple[T, bool] | None], *arguments: Any) -> T:
    """Starts an operation, and waits unless it has already ended.

    A cancelled operation continues in the background, and keeps its buffer until it ends.
    """
    loop = current()
    number = loop.next()
    ended = start(loop.completions, number, *arguments)
    if ended is None:
        result: T = await loop.wait(number, None)
        return result
    value, turn_is_over = ended
    if turn_is_over or loop.always_rests:
        await loop.rest()
    return value


async def run(start: Callable[..., Running], *arguments: Any) -> Any:
    """Starts a task of the driver, and waits for it. Cancelling the call cancels the task."""
    loop = current()
    number = loop.next()
    return await loop.wait(number, start(loop.completions, number, *arguments))


async def poll(take: Callable[[Completions, int], T | None]) -> T:
    """Takes a result, or waits until one is available. Always yields to other tasks."""
    loop = current()
    number = loop.next()
    taken = take(loop.completions, number)
    if taken is not None:
        await loop.rest()
        return taken
    while taken is None:
        await loop.wait(number, None)
        number = loop.next()
        taken = take(loop.completions, number)
    return taken


async def in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Calls a function that may block, on a worker thread of the loop."""
    return await current().in_thread(functools.partial(function, *arguments))
