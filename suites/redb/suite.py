"""redb's own tests, on the adapter in integrations/redb.

The adapter's source is compiled as a module of redb, and takes the place of `FileBackend`: databases that the
tests open by path, file or backend are on it. Tests that use no file are not counted."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from place import REPOSITORY, Outcome, Place, Unavailable, cargo_tests

TITLE = "redb"
LICENCE = "MIT OR Apache-2.0"
SHOWS = "databases on nowait: transactions, repair after crashes and torn pages, failed I/O, locks between processes"
MINUTES = 4
CI = False
EXCLUDED: dict[str, str] = {}

VERSION = "4.6.0"
ADAPTER = REPOSITORY / "integrations/redb"
#: Fails if nowait does not serve the tests.
CHECK = "redb::tree_store::page_store::file_backend::attached::nowait_serves_a_database"
#: Where cargo names the program whose tests follow.
PROGRAM = re.compile(r"^ +Running .*\((?:\S*/)?(\w+)-[0-9a-f]+\)$", re.MULTILINE)


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    if old not in text:
        raise Unavailable(f"{path.name} of redb {VERSION} lacks {old!r}")
    path.write_text(text.replace(old, new))


def attach(source: Path) -> None:
    """Puts the adapter into a copy of redb, in the place of its `FileBackend`."""
    # The toolchain that redb is developed with.
    (source / "rust-toolchain").unlink()
    manifest = source / "Cargo.toml"
    manifest.write_text(manifest.read_text() + f"""
[workspace]

[dependencies.nowait]
path = "{REPOSITORY / 'crates/nowait'}"
""")
    backends = source / "src/tree_store/page_store/file_backend"
    module = backends / "nowait_backend"
    module.mkdir()
    for file in (ADAPTER / "src").glob("*.rs"):
        text = file.read_text().replace("redb::backends::FileBackend", "crate::tree_store::file_backend::StockBackend "
                                        "as FileBackend")
        (module / ("mod.rs" if file.name == "lib.rs" else file.name)).write_text(re.sub(r"\bredb::", "crate::", text))
    shutil.copy(Path(__file__).parent / "attached.rs", backends / "attached.rs")
    replace(backends / "mod.rs", "\npub use optimized::FileBackend;\n",
            "\npub use attached::FileBackend;\nmod attached;\nmod nowait_backend;\n"
            "pub use optimized::FileBackend as StockBackend;\n")


def results_of(output: str) -> dict[str, bool]:
    """Returns the tests of all programs, each with the program's name before its own."""
    _, *parts = PROGRAM.split(output)
    return {f"{program}::{test}": passed
            for program, tests in zip(parts[::2], parts[1::2], strict=True)
            for test, passed in cargo_tests(tests).items()}


def run(place: Place) -> Outcome:
    source = place.crate("redb", VERSION)
    attach(source)
    outcome = Outcome(f"redb {VERSION}")
    used = place.folder / "used"
    with place.file_system("here") as directory:
        ran = place.cargo("test", "--lib", "--tests", "--no-fail-fast", cwd=source, check=False, timeout=2400,
                          env={"SUITE_USED": str(used), "TMPDIR": str(directory), "RUST_BACKTRACE": "0"})
    results = results_of(ran.stdout)
    if not results.pop(CHECK, False) or not used.exists():
        last = ran.stdout.strip().splitlines()[-1:] or ["no output"]
        raise Unavailable(f"redb's tests did not run on nowait: {last[0]}; see {place.log_path}")
    programs = len(PROGRAM.findall(ran.stdout))
    if ran.stdout.count("\ntest result: ") != programs:
        outcome.failed.append("the last test of a program, which did not end")
    on_nowait = set(used.read_text().split())
    for test, passed in results.items():
        if test in on_nowait or not passed:
            outcome.add(test, passed, EXCLUDED)
    return outcome
