"""foyer's own tests of its storage, on an I/O engine that calls the library.

The types of foyer's trait `IoEngine` are private, so the engine is compiled as a module of foyer-storage, in the
place of its engine with pread(2) and pwrite(2), which is the default."""

from __future__ import annotations

from pathlib import Path

import compiled_in
from place import Outcome, Place

TITLE = "foyer"
LICENCE = "Apache-2.0"
SHOWS = "a cache's disk tier on nowait: blocks, tombstones, recovery, reclaim; buffers that foyer owns"
MINUTES = 2
CI = True
EXCLUDED: dict[str, str] = {}

VERSION = "0.22.6"
#: Fails if nowait does not serve the tests.
CHECK = "foyer_storage::io::engine::attached::nowait_serves_an_engine"


def attach(source: Path) -> None:
    """Puts the engine into a copy of foyer-storage, in the place of its default."""
    compiled_in.add_dependencies(source)
    engines = source / "src/io/engine"
    compiled_in.add_attached(Path(__file__), engines)
    compiled_in.replace(engines / "mod.rs", "\npub mod psync;\n", """
pub mod attached;
pub mod psync {
    pub use super::attached::{NowaitIoEngine as PsyncIoEngine, NowaitIoEngineConfig as PsyncIoEngineConfig};
}
""")


def run(place: Place) -> Outcome:
    source = place.crate("foyer-storage", VERSION)
    attach(source)
    outcome = Outcome(f"foyer-storage {VERSION}")
    compiled_in.run_tests(place, source, outcome, CHECK, EXCLUDED, "--lib", "--tests", "--features", "test_utils",
                          timeout=1800)
    return outcome
