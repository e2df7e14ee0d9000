"""anyio's own tests of files, on `nowait.aio.open`, with asyncio and trio."""

from __future__ import annotations

import shutil
from pathlib import Path

from place import Outcome, Place
from pytests.pytests import pytest, source

VERSION = "4.16.0"

TITLE = "anyio"
LICENCE = "MIT"
SHOWS = "`nowait.aio.open` in the place of `anyio.open_file`, on asyncio and trio"
MINUTES = 1
CI = True

_LOOPS = ("asyncio", "asyncio+uvloop", "trio")
EXCLUDED = {f"test_fileio.TestAsyncFile::test_open_close[{loop}-{limited}]":
            "tests the argument limiter, which bounds threads; calls of nowait.aio occupy none "
            "(docs/guide/from-python.md)"
            for loop in _LOOPS for limited in (False, True)}
EXCLUDED |= {f"test_fileio.TestAsyncFile::test_readinto1[{loop}]":
             "nowait.aio has the methods of aiofiles, which has no readinto1 (docs/guide/python.md)"
             for loop in _LOOPS}


def run(place: Place) -> Outcome:
    python = place.python(f"anyio=={VERSION}", "trio", "uvloop", "pytest")
    tests = source(place, python, "anyio", VERSION)
    # Replaces the folder's conftest.py, which imports packages that these tests do not need.
    alone = place.folder / "alone"
    alone.mkdir()
    shutil.copy(tests / "tests/test_fileio.py", alone)
    shutil.copy(Path(__file__).with_name("conftest_on_nowait.py"), alone / "conftest.py")
    outcome = Outcome(VERSION)
    ran = pytest(place, python, None, "test_fileio.py", "-k", "TestAsyncFile", "-o", "anyio_mode=auto",
                 "-p", "no:asyncio", cwd=alone)
    for test, passed in ran.items():
        outcome.add(test, passed, EXCLUDED)
    return outcome
