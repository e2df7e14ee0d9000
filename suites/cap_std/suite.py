"""std's tests of files and directories, as cap-std ported them, on `nowait::fs` and `nowait::File`.

attached.rs stands for the crate cap_std in these tests. They run twice: blocking, and awaited."""

from __future__ import annotations

import shutil
from pathlib import Path

from place import REPOSITORY, Outcome, Place, Unavailable, cargo_tests

TITLE = "std's fs tests (cap-std)"
LICENCE = "Apache-2.0 WITH LLVM-exception, Apache-2.0, MIT"
SHOWS = "functions and files of nowait behave as those of std::fs"
MINUTES = 2
CI = False

COMMIT = "715e4ed"
TESTS = ("fs", "paths-containing-nul", "readdir", "rename-directory")
SANDBOX = "asserts that cap_std confines a path to its directory; nowait resolves paths as std does"
EXCLUDED = {
    f"{test} {calls}": reason
    for calls in ("wait", "await")
    for test, reason in {
        "fs::recursive_mkdir_slash": SANDBOX,
        "fs::dir_entry_debug": "asserts the text of cap_std's Debug",
    }.items()
}

MANIFEST = f"""
[package]
name = "cap_std"
version = "0.0.0"
edition = "2021"
[lib]
path = "attached.rs"
[dependencies]
nowait = {{ path = "{REPOSITORY / 'crates/nowait'}" }}
tempfile = "3"
[dev-dependencies]
rand = "0.9"
[workspace]
"""


def run(place: Place) -> Outcome:
    source = place.repository("bytecodealliance/cap-std", COMMIT, only=("tests",))
    package = place.folder / "package"
    package.mkdir()
    (package / "Cargo.toml").write_text(MANIFEST)
    shutil.copy(Path(__file__).parent / "attached.rs", package)
    shutil.copytree(source / "tests/sys_common", package / "tests/sys_common")
    (package / "tests/sys_common/io.rs").write_text("pub use cap_std::{TempDir, tmpdir};\n")
    for test in TESTS:
        text = (source / f"tests/{test}.rs").read_text()
        if test == "fs":
            for unused in ("#[macro_use]\nmod sys;\n", "    use cap_fs_ext::OpenOptionsMaybeDirExt;\n"):
                if unused not in text:
                    raise Unavailable(f"cap-std's {test}.rs lacks {unused!r}")
                text = text.replace(unused, "")
        (package / f"tests/{test}.rs").write_text(text)
    outcome = Outcome(f"cap-std {COMMIT}")
    place.cargo("test", "--tests", "--no-run", cwd=package)
    with place.file_system("here") as directory:
        for calls in ("wait", "await"):
            for file in TESTS:
                ran = place.cargo("test", "--test", file, "--no-fail-fast", cwd=package, check=False, timeout=300,
                                  env={"SUITE_CALLS": calls, "TMPDIR": str(directory)})
                results = cargo_tests(ran.stdout)
                if not results:
                    raise Unavailable(f"no test of {file} ran; see {place.log_path}")
                if "\ntest result: " not in ran.stdout:
                    outcome.failed.append(f"{file}::the last test, which did not end {calls}")
                for test, passed in results.items():
                    outcome.add(f"{file}::{test} {calls}", passed, EXCLUDED)
    return outcome
