"""tantivy's own tests of directories and indexes, on the adapter in integrations/tantivy.

The adapter's source is compiled as a module of tantivy: its tests see private parts of the crate, and a
separate crate would implement the trait of another copy. In the tests, the adapter replaces both of
tantivy's directories. Tests that open no directory are not counted."""

from __future__ import annotations

import re
from pathlib import Path

import compiled_in
from place import REPOSITORY, Outcome, Place

TITLE = "tantivy"
LICENCE = "MIT"
SHOWS = "indexes on nowait: segments, commits, merges, deletion of files in use, locks, reloads"
MINUTES = 14
CI = False
EXCLUDED: dict[str, str] = {}

VERSION = "0.27.0"
#: Fails if nowait does not serve the tests.
CHECK = "tantivy::directory::attached::nowait_serves_an_index"


def attach(source: Path) -> None:
    """Puts the adapter into a copy of tantivy, in the place of its directories."""
    manifest = (source / "Cargo.toml").read_text()
    # Benchmarks and examples, and the large crates that only these need.
    unused = r"\[bench\]|\[example\]|dev-dependencies\.binggan|target\..*\.dev-dependencies\.criterion"
    manifest = re.sub(rf"^\[(?:{unused})\].*\n(?:[^\[\n].*\n|\n)*", "", manifest, flags=re.MULTILINE)
    (source / "Cargo.toml").write_text(manifest)
    compiled_in.add_dependencies(source, f"""
[dependencies.nowait-cache]
path = "{REPOSITORY / 'crates/nowait-cache'}"
features = ["stable-deref"]

[dependencies.async-trait]
version = "0.1"

[dependencies.rustix]
version = "1"
features = ["fs"]

[dependencies.stable_deref_trait]
version = "1.2"
""")
    directory = source / "src/directory"
    compiled_in.add_adapter("tantivy", directory / "nowait_directory",
                            lambda text: re.sub(r"\btantivy::", "crate::", text))
    compiled_in.add_attached(Path(__file__), directory)
    for name, path in (("RamDirectory", "ram_directory"), ("MmapDirectory", "mmap_directory")):
        stock = f"pub use self::{path}::{name};"
        compiled_in.replace(directory / "mod.rs", stock,
                            f"#[cfg(not(test))]\n{stock}\n#[cfg(test)]\npub use self::attached::Attached as {name};")
    compiled_in.replace(directory / "mod.rs", "\nmod directory;\n",
                        "\n#[cfg(test)]\nmod attached;\nmod directory;\n#[allow(unused)]\nmod nowait_directory;\n")
    # `cfg` on the previous item's line would hold for the first of the two only.
    compiled_in.replace(directory / "mod.rs", '#[cfg(feature = "mmap")]\n#[cfg(not(test))]', "#[cfg(not(test))]")


def run(place: Place) -> Outcome:
    source = place.crate("tantivy", VERSION)
    attach(source)
    outcome = Outcome(f"tantivy {VERSION}")
    compiled_in.run_tests(place, source, outcome, CHECK, EXCLUDED, "--lib", timeout=3000)
    return outcome
