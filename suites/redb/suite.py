"""redb's own tests, on the adapter in integrations/redb.

The adapter's source is compiled as a module of redb, and replaces `FileBackend`: databases that the tests
open by path, file or backend use it. Tests that use no file are not counted."""

from __future__ import annotations

import re
from pathlib import Path

import compiled_in
from place import Outcome, Place

TITLE = "redb"
LICENCE = "MIT OR Apache-2.0"
SHOWS = "databases on nowait: transactions, repair after crashes and torn pages, failed I/O, locks between processes"
MINUTES = 4
CI = False
EXCLUDED: dict[str, str] = {}

VERSION = "4.6.0"
#: Fails if nowait does not serve the tests.
CHECK = "redb::tree_store::page_store::file_backend::attached::nowait_serves_a_database"


def attach(source: Path) -> None:
    """Puts the adapter into a copy of redb, in the place of its `FileBackend`."""
    # The toolchain that redb is developed with.
    (source / "rust-toolchain").unlink()
    compiled_in.add_dependencies(source)
    backends = source / "src/tree_store/page_store/file_backend"
    stock = "crate::tree_store::file_backend::StockBackend as FileBackend"
    compiled_in.add_adapter("redb", backends / "nowait_backend", lambda text: re.sub(
        r"\bredb::", "crate::", text.replace("redb::backends::FileBackend", stock)))
    compiled_in.add_attached(Path(__file__), backends)
    compiled_in.replace(backends / "mod.rs", "\npub use optimized::FileBackend;\n",
                        "\npub use attached::FileBackend;\nmod attached;\nmod nowait_backend;\n"
                        "pub use optimized::FileBackend as StockBackend;\n")


def run(place: Place) -> Outcome:
    source = place.crate("redb", VERSION)
    attach(source)
    outcome = Outcome(f"redb {VERSION}")
    compiled_in.run_tests(place, source, outcome, CHECK, EXCLUDED, "--lib", "--tests", timeout=2400)
    return outcome
