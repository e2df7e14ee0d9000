"""compio-fs' tests on `nowait::fs` and `nowait::File`, with compio's runtime as their executor.

attached.rs stands for the crate compio_fs in these tests."""

from __future__ import annotations

import shutil
from pathlib import Path

from place import REPOSITORY, Outcome, Place, Unavailable, cargo_tests

TITLE = "compio-fs"
LICENCE = "MIT"
SHOWS = "files and names of nowait on the runtime of another io_uring library"
MINUTES = 2
CI = True

VERSION = "0.12.1"
TESTS = ("dir", "file", "utils")
EXCLUDED = {"file::timeout_read": "reads a pipe; nowait is for files (docs/guide/when-not.md)"}

MANIFEST = f"""
[package]
name = "compio_fs"
version = "0.0.0"
edition = "2024"
[lib]
path = "attached.rs"
[dependencies]
compio-buf = "0.8.3"
compio-io = "0.10.1"
nowait = {{ path = "{REPOSITORY / 'crates/nowait'}" }}
stock = {{ package = "compio-fs", version = "={VERSION}" }}
[dev-dependencies]
# Without it, the runtime has a driver that does nothing.
compio-driver = {{ version = "0.12.5", features = ["io-uring"] }}
compio-macros = "0.2.1"
compio-runtime = {{ version = "0.12.6", features = ["time"] }}
futures-util = "0.3.29"
tempfile = "3"
[workspace]
"""


def run(place: Place) -> Outcome:
    source = place.crate("compio-fs", VERSION)
    package = place.folder / "package"
    (package / "tests").mkdir(parents=True)
    (package / "Cargo.toml").write_text(MANIFEST)
    shutil.copy(Path(__file__).parent / "attached.rs", package)
    for test in TESTS:
        shutil.copy(source / f"tests/{test}.rs", package / "tests")
    outcome = Outcome(f"compio-fs {VERSION}")
    place.cargo("test", "--tests", "--no-run", cwd=package)
    with place.file_system("here") as directory:
        for file in TESTS:
            ran = place.cargo("test", "--test", file, "--no-fail-fast", cwd=package, check=False, timeout=300,
                              env={"TMPDIR": str(directory)})
            results = cargo_tests(ran.stdout)
            if not results:
                raise Unavailable(f"no test of {file} ran; see {place.log_path}")
            if "\ntest result: " not in ran.stdout:
                outcome.failed.append(f"{file}::the last test, which did not end")
            for test, passed in results.items():
                outcome.add(f"{file}::{test}", passed, EXCLUDED)
    return outcome
