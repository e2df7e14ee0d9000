"""tantivy's own tests of directories and indexes, on the adapter in integrations/tantivy.

The adapter's source is compiled as a module of tantivy: its tests see private parts of the crate, and a
separate crate would implement the trait of another copy. In the tests, both of tantivy's directories are the
adapter's. Tests that open no directory are not counted."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from place import REPOSITORY, Outcome, Place, Unavailable, cargo_tests

TITLE = "tantivy"
LICENCE = "MIT"
SHOWS = "indexes on nowait: segments, commits, merges, deletion of files in use, locks, reloads"
MINUTES = 14
CI = False
EXCLUDED: dict[str, str] = {}

VERSION = "0.27.0"
ADAPTER = REPOSITORY / "integrations/tantivy"
#: Fails if nowait does not serve the tests.
CHECK = "directory::attached::nowait_serves_an_index"


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    if old not in text:
        raise Unavailable(f"{path.name} of tantivy {VERSION} lacks {old!r}")
    path.write_text(text.replace(old, new))


def attach(source: Path) -> None:
    """Puts the adapter into a copy of tantivy, in the place of its directories."""
    manifest = (source / "Cargo.toml").read_text()
    # Benchmarks and examples, and the large crates that only these need.
    unused = r"\[bench\]|\[example\]|dev-dependencies\.binggan|target\..*\.dev-dependencies\.criterion"
    manifest = re.sub(rf"^\[(?:{unused})\].*\n(?:[^\[\n].*\n|\n)*", "", manifest, flags=re.MULTILINE)
    (source / "Cargo.toml").write_text(manifest + f"""
[workspace]

[dependencies.nowait]
path = "{REPOSITORY / 'crates/nowait'}"

[dependencies.async-trait]
version = "0.1"

[dependencies.rustix]
version = "1"
features = ["fs"]

[dependencies.stable_deref_trait]
version = "1.2"
""")
    directory = source / "src/directory"
    module = directory / "nowait_directory"
    module.mkdir()
    for file in (ADAPTER / "src").glob("*.rs"):
        text = re.sub(r"\btantivy::", "crate::", file.read_text())
        (module / ("mod.rs" if file.name == "lib.rs" else file.name)).write_text(text)
    shutil.copy(Path(__file__).parent / "attached.rs", directory / "attached.rs")
    for name, path in (("RamDirectory", "ram_directory"), ("MmapDirectory", "mmap_directory")):
        stock = f"pub use self::{path}::{name};"
        replace(directory / "mod.rs", stock,
                f"#[cfg(not(test))]\n{stock}\n#[cfg(test)]\npub use self::attached::Attached as {name};")
    replace(directory / "mod.rs", "\nmod directory;\n",
            "\n#[cfg(test)]\nmod attached;\nmod directory;\n#[allow(unused)]\nmod nowait_directory;\n")
    # `cfg` on the previous item's line would hold for the first of the two only.
    replace(directory / "mod.rs", '#[cfg(feature = "mmap")]\n#[cfg(not(test))]', "#[cfg(not(test))]")


def run(place: Place) -> Outcome:
    source = place.crate("tantivy", VERSION)
    attach(source)
    outcome = Outcome(f"tantivy {VERSION}")
    used = place.folder / "used"
    with place.file_system("here") as directory:
        ran = place.cargo("test", "--lib", "--no-fail-fast", cwd=source, check=False, timeout=3000,
                          env={"SUITE_USED": str(used), "TMPDIR": str(directory), "RUST_BACKTRACE": "0"})
    results = cargo_tests(ran.stdout)
    if not results.pop(CHECK, False) or not used.exists():
        last = ran.stdout.strip().splitlines()[-1:] or ["no output"]
        raise Unavailable(f"tantivy's tests did not run on nowait: {last[0]}; see {place.log_path}")
    if "\ntest result: " not in ran.stdout:
        outcome.failed.append("the last test, which did not end")
    on_nowait = set(used.read_text().split())
    for test, passed in results.items():
        if test in on_nowait:
            outcome.add(test, passed, EXCLUDED)
    return outcome
