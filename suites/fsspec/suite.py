"""fsspec's abstract suites on the file system of `nowait://`."""

from __future__ import annotations

from pathlib import Path

from place import Outcome, Place
from pytests.pytests import pytest

VERSION = "2026.9.0"

TITLE = "fsspec"
LICENCE = "BSD-3-Clause"
SHOWS = "copy, get and put of `nowait://` do what every file system of fsspec does"
MINUTES = 1
CI = True

EXCLUDED: dict[str, str] = {}


def run(place: Place) -> Outcome:
    python = place.python(f"fsspec=={VERSION}", "pytest")
    tests = Path(__file__).with_name("test_nowait.py")
    outcome = Outcome(VERSION)
    for test, passed in pytest(place, python, None, f"--rootdir={tests.parent}", tests, cwd=place.folder).items():
        outcome.add(test, passed, EXCLUDED)
    return outcome
