"""Tests of a crate, on an adapter that is compiled as a module of the crate.

The suite's attached.rs stands for the part of the crate that the adapter replaces, and records each test that
uses it, by record_test.rs. Tests that do not use it are not counted, unless they fail."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

from place import REPOSITORY, Outcome, Place, Unavailable, cargo_tests

#: Where cargo names the program whose tests follow.
PROGRAM = re.compile(r"^ +Running .*\((?:\S*/)?(\w+)-[0-9a-f]+\)$", re.MULTILINE)


def replace(path: Path, old: str, new: str) -> None:
    """Replaces a text of the crate's source, which must be there."""
    text = path.read_text()
    if old not in text:
        raise Unavailable(f"{path} lacks {old!r}")
    path.write_text(text.replace(old, new))


def add_dependencies(source: Path, more: str = "") -> None:
    """Makes the crate a workspace of its own that depends on nowait. `more` are tables of its Cargo.toml."""
    manifest = source / "Cargo.toml"
    manifest.write_text(f"""{manifest.read_text()}
[workspace]

[dependencies.nowait]
path = "{REPOSITORY / 'crates/nowait'}"
{more}""")


def add_attached(suite: Path, folder: Path) -> None:
    """Puts the suite's attached.rs into a folder of the crate, and what it includes beside that folder."""
    shutil.copy(suite.with_name("attached.rs"), folder)
    shutil.copy(Path(__file__).with_name("record_test.rs"), folder.parent)


def add_adapter(name: str, module: Path, adapted: Callable[[str], str]) -> None:
    """Makes the source of integrations/NAME a module of the crate. `adapted` replaces the crate's name in a file."""
    module.mkdir()
    for file in (REPOSITORY / "integrations" / name / "src").glob("*.rs"):
        (module / ("mod.rs" if file.name == "lib.rs" else file.name)).write_text(adapted(file.read_text()))


def run_tests(place: Place, source: Path, outcome: Outcome, check: str, excluded: dict[str, str], *options: str,
              timeout: float) -> None:
    """Runs the crate's tests, each counted as `program::test`. The test `check` fails if nowait serves none of them."""
    used = place.folder / "used"
    with place.file_system("here") as directory:
        ran = place.cargo("test", *options, "--no-fail-fast", cwd=source, check=False, timeout=timeout,
                          env={"SUITE_USED": str(used), "TMPDIR": str(directory), "RUST_BACKTRACE": "0"})
    _, *parts = PROGRAM.split(ran.stdout)
    programs, outputs = parts[::2], parts[1::2]
    results = {f"{program}::{test}": passed
               for program, output in zip(programs, outputs, strict=True)
               for test, passed in cargo_tests(output).items()}
    if not results.pop(check, False) or not used.exists():
        last = ran.stdout.strip().splitlines()[-1:] or ["no output"]
        raise Unavailable(f"the tests of {place.name} did not run on nowait: {last[0]}; see {place.log_path}")
    # A test may run its program anew, for one of its tests: these results are of filtered tests.
    if len(re.findall(r"^test result: .*\b0 filtered out", ran.stdout, re.MULTILINE)) != len(programs):
        outcome.failed.append("the last test of a program, which did not end")
    on_nowait = set(used.read_text().split())
    for test, passed in results.items():
        if test in on_nowait or not passed:
            outcome.add(test, passed, excluded)
