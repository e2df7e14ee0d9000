"""Threads that wait for the completions of event loops, on systems where loops cannot watch an eventfd.

Each loop has one thread, which waits without the interpreter's lock. It wakes the loop whenever the queue of
results becomes non-empty. A thread ends when its loop is closed or freed.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class Waiter(Protocol):
    """`_nowait.Waiter`, which Linux lacks."""

    def wait(self) -> bool: ...
    def stop(self) -> None: ...


class Woken(Protocol):
    """A loop that a thread can wake."""

    def wake(self) -> None: ...


_threads: dict[threading.Thread, Waiter] = {}
if hasattr(os, "register_at_fork"):
    # A forked child has none of them, and a thread may have held the lock of its waiter.
    os.register_at_fork(after_in_child=_threads.clear)


def start(waiter: Waiter, loop: Woken) -> None:
    """Starts a thread that calls `wake` of the loop whenever results are available."""
    # A daemon: the interpreter must not wait for loops that were not closed.
    thread = threading.Thread(target=_run, args=(waiter, weakref.ref(loop)), name="nowait-loop", daemon=True)
    _threads[thread] = waiter
    try:
        thread.start()
    except BaseException:
        del _threads[thread]
        raise


def _run(waiter: Waiter, held: Callable[[], Woken | None]) -> None:
    try:
        while waiter.wait():
            loop = held()
            if loop is None:
                return
            try:
                loop.wake()
            except RuntimeError:
                # The loop is closed.
                return
            del loop
    finally:
        _threads.pop(threading.current_thread(), None)


def stop() -> None:
    """Ends all threads."""
    for thread, waiter in list(_threads.items()):
        waiter.stop()
        thread.join()
