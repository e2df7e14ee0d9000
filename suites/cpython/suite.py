"""CPython's own tests of files, on `nowait.open(...).raw()`."""

from __future__ import annotations

from pathlib import Path

from place import Outcome, Place, Unavailable
from pytests.pytests import unittests

TITLE = "CPython's tests of files"
LICENCE = "PSF-2.0"
SHOWS = "the raw file of the Python package behaves as io.FileIO, also below Python's buffers and text"
MINUTES = 2
CI = True

_CURSOR = "the file position belongs to the object, not to the descriptor (docs/guide/python.md, Files)"
EXCLUDED = {
    "test_fileio.CAutoFileTests.testBlksize": "tests a private attribute of io.FileIO",
    "test_fileio.CAutoFileTests.testRepr": "tests the repr of io.FileIO",
    "test_fileio.CAutoFileTests.testRecursiveRepr": "tests the repr of io.FileIO, whose name can be assigned to",
    "test_fileio.COtherFileTests.testUnclosedFDOnException": "opens a descriptor; nowait.open takes paths",
    "test_fileio.CAutoFileTests.testErrnoOnClosedSeek": _CURSOR,
    "test_fileio.CAutoFileTests.testErrnoOnClosedTell": _CURSOR,
    "test_largefile.CLargeFileTest.test_lseek": _CURSOR,
    "test_largefile.PyLargeFileTest.test_lseek": _CURSOR,
}


def run(place: Place) -> Outcome:
    python = place.python()
    if place.run(python, "-c", "from test import test_io", check=False).returncode != 0:
        raise Unavailable("this Python lacks its tests; Debian: apt-get install libpython3.11-testsuite")
    version = place.run(python, "-c", "import platform; print(platform.python_version())").stdout.strip()
    outcome = Outcome(version)
    for test, passed in unittests(place, python, Path(__file__).with_name("on_nowait.py")).items():
        outcome.add(test, passed, EXCLUDED)
    return outcome
