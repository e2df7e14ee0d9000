"""aiofiles' own tests of files, on `nowait.aio.open`."""

from __future__ import annotations

from pathlib import Path

from place import Outcome, Place
from pytests.pytests import pytest, source

VERSION = "25.1.0"

TITLE = "aiofiles"
LICENCE = "Apache-2.0"
SHOWS = "`nowait.aio.open` replaces `aiofiles.open`"
MINUTES = 1
CI = True

_BUFFERED = "expects that a write is buffered until flush; nowait.aio buffers nothing (docs/guide/from-python.md)"
_DETACH = ("detach and readall return or need objects of Python's io module; nowait.aio has its own classes "
           "(docs/guide/python.md)")
_MESSAGE = "compares the text of the error; its class and errno are Python's (docs/guide/python.md, Errors)"
EXCLUDED = {
    **{f"tests.threadpool.test_binary::test_simple_flush[-1-{mode}]": _BUFFERED for mode in ("rb+", "wb", "ab")},
    **{f"tests.threadpool.test_text::test_simple_flush[{mode}]": _BUFFERED for mode in ("r+", "w", "a")},
    "tests.threadpool.test_binary::test_simple_detach": _DETACH,
    "tests.threadpool.test_text::test_simple_detach": _DETACH,
    "tests.threadpool.test_binary::test_simple_readall": _DETACH,
    "tests.threadpool.test_open::test_file_not_found[r]": _MESSAGE,
    "tests.threadpool.test_open::test_file_not_found[rb]": _MESSAGE,
    "tests.threadpool.test_open::test_filetask_async_context_aexit": "reads a private attribute of aiofiles",
    "tests.threadpool.test_concurrency::test_slow_file":
        "replaces the open that aiofiles calls in a thread with a slow one",
}


def run(place: Place) -> Outcome:
    python = place.python(f"aiofiles=={VERSION}", "pytest", "pytest-asyncio")
    tests = source(place, python, "aiofiles", VERSION)
    outcome = Outcome(VERSION)
    ran = pytest(place, python, Path(__file__).with_name("on_nowait.py"), "tests/threadpool", "tests/test_simple.py",
                 cwd=tests)
    for test, passed in ran.items():
        outcome.add(test, passed, EXCLUDED)
    return outcome
