"""compio-fs' tests on `nowait::fs` and `nowait::File`, with compio's runtime as their executor.

attached.rs stands for the crate compio_fs in these tests."""

from __future__ import annotations

import shutil
from pathlib import Path

import attached
from place import Outcome, Place

TITLE = "compio-fs"
LICENCE = "MIT"
SHOWS = "files and names of nowait on the runtime of another io_uring library"
MINUTES = 2
CI = True

VERSION = "0.12.1"
TESTS = ("dir", "file", "utils")
EXCLUDED = {"file::timeout_read": "reads a pipe; nowait is for files (docs/guide/when-not.md)"}

DEPENDENCIES = f"""
compio-buf = "0.8.3"
compio-io = "0.10.1"
stock = {{ package = "compio-fs", version = "={VERSION}" }}
[dev-dependencies]
# Without it, the runtime has a driver that does nothing.
compio-driver = {{ version = "0.12.5", features = ["io-uring"] }}
compio-macros = "0.2.1"
compio-runtime = {{ version = "0.12.6", features = ["time"] }}
futures-util = "0.3.29"
tempfile = "3"
"""


def run(place: Place) -> Outcome:
    source = place.crate("compio-fs", VERSION)
    package = attached.package(place, Path(__file__), "compio_fs", "2024", DEPENDENCIES)
    for test in TESTS:
        shutil.copy(source / f"tests/{test}.rs", package / "tests")
    outcome = Outcome(f"compio-fs {VERSION}")
    attached.run_tests(place, outcome, package, TESTS, EXCLUDED)
    return outcome
