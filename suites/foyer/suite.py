"""foyer's own tests of its storage, on an I/O engine that calls the library.

The types of foyer's trait `IoEngine` are private, so the engine is compiled as a module of foyer-storage, in the
place of its engine with pread(2) and pwrite(2), which is the default."""

from __future__ import annotations

import shutil
from pathlib import Path

from place import REPOSITORY, Outcome, Place, Unavailable, cargo_tests

TITLE = "foyer"
LICENCE = "Apache-2.0"
SHOWS = "a cache's disk tier on nowait: blocks, tombstones, recovery, reclaim; buffers that foyer owns"
MINUTES = 2
CI = True
EXCLUDED: dict[str, str] = {}

VERSION = "0.22.6"
#: Fails if nowait does not serve the tests.
CHECK = "io::engine::attached::nowait_serves_an_engine"


def attach(source: Path) -> None:
    """Puts the engine into a copy of foyer-storage, in the place of its default."""
    manifest = source / "Cargo.toml"
    manifest.write_text(manifest.read_text() + f"""
[workspace]

[dependencies.nowait]
path = "{REPOSITORY / 'crates/nowait'}"
""")
    engines = source / "src/io/engine"
    shutil.copy(Path(__file__).parent / "attached.rs", engines / "attached.rs")
    text = (engines / "mod.rs").read_text()
    stock = "\npub mod psync;\n"
    if stock not in text:
        raise Unavailable(f"foyer-storage {VERSION} has no module psync")
    (engines / "mod.rs").write_text(text.replace(stock, """
pub mod attached;
pub mod psync {
    pub use super::attached::{NowaitIoEngine as PsyncIoEngine, NowaitIoEngineConfig as PsyncIoEngineConfig};
}
"""))


def run(place: Place) -> Outcome:
    source = place.crate("foyer-storage", VERSION)
    attach(source)
    outcome = Outcome(f"foyer-storage {VERSION}")
    used = place.folder / "used"
    with place.file_system("here") as directory:
        ran = place.cargo("test", "--lib", "--tests", "--features", "test_utils", "--no-fail-fast", cwd=source,
                          check=False, timeout=1800,
                          env={"SUITE_USED": str(used), "TMPDIR": str(directory), "RUST_BACKTRACE": "0"})
    results = cargo_tests(ran.stdout)
    if not results.pop(CHECK, False) or not used.exists():
        last = ran.stdout.strip().splitlines()[-1:] or ["no output"]
        raise Unavailable(f"foyer's tests did not run on nowait: {last[0]}; see {place.log_path}")
    if "\ntest result: " not in ran.stdout:
        outcome.failed.append("the last test, which did not end")
    on_nowait = set(used.read_text().split())
    for test, passed in results.items():
        if test in on_nowait or not passed:
            outcome.add(test, passed, EXCLUDED)
    return outcome
