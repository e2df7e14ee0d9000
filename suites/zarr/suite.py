"""zarr's suites of stores on `nowait://` and on `nowait.obspec.NowaitStore`."""

from __future__ import annotations

from pathlib import Path

from place import Outcome, Place
from pytests.pytests import pytest

VERSION = "3.1.6"

TITLE = "zarr"
LICENCE = "MIT"
SHOWS = "zarr's stores on `nowait://` and on the object store, with random operations beside a model"
MINUTES = 2
CI = True

EXCLUDED = {
    "test_nowait::test_hierarchy[FsspecStore]":
        "FsspecStore.clear fails on files whose directory it has just removed, also with fsspec's own local files",
}


def run(place: Place) -> Outcome:
    python = place.python(f"zarr=={VERSION}", "obstore==0.12.1", "hypothesis==6.170.17", "fsspec", "pytest",
                          "pytest-asyncio")
    tests = Path(__file__).with_name("test_nowait.py")
    outcome = Outcome(VERSION)
    ran = pytest(place, python, None, f"--rootdir={tests.parent}", "-o", "asyncio_mode=auto", tests, cwd=place.folder)
    for test, passed in ran.items():
        outcome.add(test, passed, EXCLUDED)
    return outcome
