"""OpenDAL's behaviour tests on the library's object store, which object_store_opendal makes a service of OpenDAL."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from place import REPOSITORY, Outcome, Place, Unavailable

TITLE = "OpenDAL"
LICENCE = "Apache-2.0"
SHOWS = "the object store as a service of OpenDAL: reads, writes in parts, lists, deletes"
MINUTES = 5
CI = False

COMMIT = "68a76e499f57fbf707de0bee9b33e47721c45eb6"
VERSION = "0.58.2"
# `LocalFileSystem` of object_store fails in these four, too.
EXCLUDED = {
    "behavior::test_delete_not_existing":
        "OpenDAL's delete ignores a missing object; object_store's file stores return an error",
    "behavior::test_delete_with_recursive_basic":
        "deletes `name/`, which object_store's paths do not distinguish from the directory `name`",
    "behavior::test_list_with_start_after": "creates a directory, which object_store_opendal's service refuses",
    "behavior::test_list_dir_with_file_path": "lists `name` to find `name/`, which object_store's paths cannot express",
}

MANIFEST = f"""
[package]
name = "attached"
version = "0.0.0"
edition = "2024"
[lib]
path = "attached.rs"
[[test]]
name = "behavior"
harness = false
[dependencies]
nowait-object-store = {{ path = "{REPOSITORY / 'crates/nowait-object-store'}" }}
async-trait = "0.1"
bytes = "1"
futures = "0.3"
object_store = "0.14"
object_store_opendal = "=0.59.0"
opendal = {{ version = "={VERSION}", default-features = false, features = ["executors-tokio", "tests"] }}
tempfile = "3"
[dev-dependencies]
anyhow = "1"
http = "1.4"
libtest-mimic = "0.8"
log = "0.4"
logforth = {{ version = "0.30.1", features = ["starter-log"] }}
rand = "0.10"
reqwest = {{ version = "0.13", default-features = false }}
sha2 = "0.11"
size = "0.5"
tokio = {{ version = "1", features = ["fs", "macros", "rt-multi-thread"] }}
uuid = {{ version = "1", features = ["serde", "v4"] }}
[workspace]
"""


def run(place: Place) -> Outcome:
    source = place.repository("apache/opendal", COMMIT, only=("core/tests/behavior",))
    package = place.folder / "package"
    shutil.copytree(source / "core/tests/behavior", package / "tests/behavior")
    (package / "Cargo.toml").write_text(MANIFEST)
    shutil.copy(Path(__file__).parent / "attached.rs", package)
    main = package / "tests/behavior/main.rs"
    text = main.read_text()
    if text.count("use opendal::tests::init_test_service;") != 1:
        raise Unavailable("OpenDAL's main.rs makes its operator in another way")
    main.write_text(text.replace("use opendal::tests::init_test_service;", "use attached::init_test_service;"))
    place.cargo("test", "--no-run", cwd=package)
    report = place.folder / "report"
    with place.file_system("here") as directory:
        ran = place.cargo("test", "--test", "behavior", "--", f"--logfile={report}", cwd=package, check=False,
                          timeout=900, env={"TMPDIR": str(directory)})
    text = report.read_text() if report.exists() else ""
    results = re.findall(r"^test (\S+) +\.\.\. (ok|FAILED)$", text, re.MULTILINE)
    if f"running {len(results)} tests" not in text:
        raise Unavailable(f"OpenDAL's tests did not end ({ran.returncode}); see {place.log_path}")
    outcome = Outcome(f"{VERSION} ({COMMIT[:7]})")
    for test, word in results:
        outcome.add(test, word == "ok", EXCLUDED)
    return outcome
