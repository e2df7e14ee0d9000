"""std's tests of files and directories, as cap-std ported them, on `nowait::fs` and `nowait::File`.

attached.rs stands for the crate cap_std in these tests. They run twice: blocking, and awaited."""

from __future__ import annotations

import shutil
from pathlib import Path

import attached
from place import Outcome, Place, Unavailable

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

DEPENDENCIES = """
tempfile = "3"
[dev-dependencies]
rand = "0.9"
"""


def run(place: Place) -> Outcome:
    source = place.repository("bytecodealliance/cap-std", COMMIT, only=("tests",))
    package = attached.package(place, Path(__file__), "cap_std", "2021", DEPENDENCIES)
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
    for calls in ("wait", "await"):
        attached.run_tests(place, outcome, package, TESTS, EXCLUDED, env={"SUITE_CALLS": calls}, suffix=f" {calls}")
    return outcome
