"""Tests of another project's crate, in a package whose library, the suite's attached.rs, stands for that crate."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from place import REPOSITORY, Outcome, Place, Unavailable, cargo_tests


def package(place: Place, suite: Path, name: str, edition: str, dependencies: str) -> Path:
    """Makes the package, to which the suite adds the tests. `dependencies` are lines of its Cargo.toml."""
    # Of one path in all runs, since cargo keeps the builds of each path.
    folder = place.cache / f"package-{place.name}"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "tests").mkdir(parents=True)
    (folder / "Cargo.toml").write_text(f"""
[package]
name = "{name}"
version = "0.0.0"
edition = "{edition}"
[lib]
path = "attached.rs"
[workspace]
[dependencies]
nowait = {{ path = "{REPOSITORY / 'crates/nowait'}" }}
{dependencies}""")
    shutil.copy(suite.with_name("attached.rs"), folder)
    return folder


def run_tests(
    place: Place,
    outcome: Outcome,
    package: Path,
    files: Sequence[str],
    excluded: dict[str, str],
    env: dict[str, str] | None = None,
    suffix: str = "",
) -> None:
    """Runs files of tests, and counts each test as `file::test` with the suffix."""
    place.cargo("test", "--tests", "--no-run", cwd=package)
    with place.file_system("here") as directory:
        for file in files:
            ran = place.cargo("test", "--test", file, "--no-fail-fast", cwd=package, check=False, timeout=300,
                              env={"TMPDIR": str(directory)} | (env or {}))
            results = cargo_tests(ran.stdout)
            if not results:
                raise Unavailable(f"no test of {file} ran; see {place.log_path}")
            if "\ntest result: " not in ran.stdout:
                outcome.failed.append(f"{file}::the last test, which did not end{suffix}")
            for test, passed in results.items():
                outcome.add(f"{file}::{test}{suffix}", passed, excluded)
