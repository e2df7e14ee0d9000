"""turso's own tests, on the adapter in integrations/turso.

The adapter's source is compiled as a module of turso's core, and replaces `PlatformIO`: databases and temporary
files that the tests open use it. Tests that open no file are not counted. turso's SQL tests are not in the published
crate, and need a runner of their own. turso's own code still serves the file of shared memory."""

from __future__ import annotations

import re
from pathlib import Path

import compiled_in
from place import Outcome, Place, Unavailable

TITLE = "turso"
LICENCE = "MIT"
SHOWS = "databases on nowait: WAL and MVCC, checkpoints, recovery, several processes; files verified by SQLite"
MINUTES = 20
CI = False
EXCLUDED: dict[str, str] = {}

#: A test with one of these words expects that calls of the IO block, as those of `PlatformIO` do: it counts steps,
#: or has a statement yield at a certain step. Such tests run on the adapter's blocking calls.
BLOCKING = ("StepResult::Yield", "YieldInjector", "step_until_done(", "wal_file.size()")

#: A test: its indentation, its name, and its body.
TEST = re.compile(r"^( *)#\[test\]\n(?:\1#[^\n]*\n)*\1fn (\w+)\(\)(.*?)^\1}", re.MULTILINE | re.DOTALL)

VERSION = "0.9.0-pre.2"
#: Fails if nowait does not serve the tests.
CHECK = "turso_core::io::attached::nowait_serves_a_database"


def attach(source: Path) -> None:
    """Puts the adapter into a copy of turso's core, in the place of its `PlatformIO`."""
    manifest = (source / "Cargo.toml").read_text()
    # Benchmarks, and the large crates that only these need.
    unused = r"\[bench\]|\[test\]|dev-dependencies\.(?:codspeed-criterion-compat|criterion|divan|mimalloc)"
    manifest = re.sub(rf"^\[(?:{unused})\].*\n(?:[^\[\n].*\n|\n)*", "", manifest, flags=re.MULTILINE)
    (source / "Cargo.toml").write_text(manifest)
    compiled_in.add_dependencies(source, """features = ["bytes"]

[dependencies.bytes]
version = "1.9"

# A test looks for a function's name in a backtrace.
[profile.dev]
debug = "line-tables-only"
""")
    folder = source / "io"
    compiled_in.add_adapter("turso", folder / "nowait_io", lambda text: re.sub(r"\bturso_core::", "crate::", text))
    compiled_in.add_attached(Path(__file__), folder)
    names = ", ".join(f'"{test}"' for test in blocking_tests(source))
    compiled_in.replace(folder / "attached.rs", "BLOCKING: &[&str] = &[]", f"BLOCKING: &[&str] = &[{names}]")
    compiled_in.replace(folder / "mod.rs", "pub use unix::UnixIO as PlatformIO;\n",
                        "mod attached;\nmod nowait_io;\npub use attached::Attached as PlatformIO;\n")


def blocking_tests(source: Path) -> list[str]:
    """Returns the names of the tests with a word of BLOCKING, without their modules."""
    tests = []
    for file in source.rglob("*.rs"):
        for _, name, body in TEST.findall(file.read_text()):
            if any(word in body for word in BLOCKING):
                tests.append(name)
    if not tests:
        raise Unavailable("no test of turso expects blocking calls")
    return tests


def run(place: Place) -> Outcome:
    source = place.crate("turso_core", VERSION)
    attach(source)
    outcome = Outcome(f"turso_core {VERSION}")
    compiled_in.run_tests(place, source, outcome, CHECK, EXCLUDED, "--lib", timeout=3000)
    return outcome
