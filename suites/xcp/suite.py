"""xcp's tests: `nowait copy` behind the wrapper `xcp` of this folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from copying import Copying, without
from place import Outcome, Place, Unavailable, cargo_tests

TITLE = "xcp"
LICENCE = "GPL-3.0"
SHOWS = "trees, links, sockets, holes, shared extents and metadata of copies, by files and by blocks"
MINUTES = 3
CI = True

VERSION = "0.24.9"
FILE_SYSTEMS = ("ext4", "xfs", "btrfs")

NO_CLOBBER = "`nowait copy --update=none` keeps existing files without a failure (docs/guide/copy.md)"
NO_GLOB = "expects expansion of glob patterns, which `nowait copy` leaves to the shell"
KEEPS_ALL = "`nowait copy` always keeps all metadata (docs/guide/copy.md)"

#: Test → reason. A name stands for the test with each driver.
EXCLUDED: dict[str, str] = {
    "basic_help": "compares the wording of messages",
    "copy_dirs_backup": "`nowait copy` makes no backups: it refuses --backup (docs/guide/copy.md)",
    "copy_generated_tree": "writes gigabytes; ignored by default",
    "copy_generated_tree_sparse": "writes gigabytes; ignored by default",
    "copy_with_glob": NO_GLOB,
    "dest_file_exists": NO_CLOBBER,
    "dest_file_exists_noclobber": NO_CLOBBER,
    "dest_file_exists_not_writable":
        "`nowait copy` replaces files that cannot be opened for writing (docs/guide/copy.md)",
    "dest_file_in_dir_exists": NO_CLOBBER,
    "dir_copy_with_hidden_dir": "like cp, `nowait copy` does not create missing directories above DST",
    "dir_overwrite_with_noclobber": NO_CLOBBER,
    "dir_with_gitignore": "`nowait copy` has no --gitignore, but --exclude",
    "file_copy_no_perms": KEEPS_ALL,
    "file_copy_no_timestamps": KEEPS_ALL,
    "glob_pattern_error": NO_GLOB,
    "mix_noclobber_force": NO_CLOBBER,
    "source_missing_globbed": NO_GLOB,
    "test_hasher": "tests the suite's own helper functions",
}


def build(place: Place) -> tuple[list[Path], Copying]:
    """Builds the tests, and puts the wrapper in the place of xcp's program."""
    source = place.crate("xcp", VERSION)
    without(source / "tests/common.rs", r'^ *assert!\(stderr\.contains\("[^"]*"\)\);\n', "")
    built = place.cargo("test", "--locked", "--no-run", "--message-format=json", "--features=test_run_root", cwd=source)
    messages = [json.loads(line) for line in built.stdout.splitlines() if line.startswith("{")]
    # xcp's program is built as a test, too, which has the same name.
    programs = {(message["target"]["kind"][0], message["target"]["name"]): Path(message["executable"])
                for message in messages
                if message.get("executable")
                and (message["target"]["kind"] != ["bin"] or not message["profile"]["test"])}
    tests = [programs["test", name] for name in ("common", "linux")]
    copying = Copying(place, Path(__file__).with_name("xcp"))
    # Not over the file, which is a hard link to one that cargo keeps.
    program = programs["bin", "xcp"]
    program.unlink()
    shutil.copy(copying.adapter, program)
    return tests, copying


def run(place: Place) -> Outcome:
    tests, copying = build(place)
    outcome = Outcome(f"xcp {VERSION}", excluded=dict(EXCLUDED))
    outcome.excluded["all, messages"] = "compares the wording of messages"
    chosen = {test: names(place, test) for test in tests}
    if gone := EXCLUDED.keys() - {part for found in chosen.values() for name in found for part in name.split("::")}:
        raise Unavailable(f"the suite has changed: it lacks {', '.join(sorted(gone))}")
    for kind in FILE_SYSTEMS:
        with place.file_system(kind) as directory:
            (directory / "target").mkdir()
            for test, found in chosen.items():
                # ext4 cannot share extents.
                wanted = [name for name in found if not EXCLUDED.keys() & set(name.split("::"))
                          and not (kind == "ext4" and "reflink_always" in name)]
                # Without these capabilities, root cannot read all files, as the tests expect.
                ran = place.run("setpriv", "--bounding-set=-dac_override,-dac_read_search", test, "--exact", *wanted,
                                cwd=directory, env=copying.env(), check=False, timeout=300)
                passed = cargo_tests(ran.stdout)
                for name in wanted:
                    outcome.add(f"{kind} {name}", passed.get(name, False), {})
                if fault := copying.fault():
                    outcome.failed.append(f"{kind} {test.name}: {fault}")
    return outcome


def names(place: Place, test: Path) -> list[str]:
    """Returns the names of a program's tests."""
    listed = place.run(test, "--list").stdout
    return [line.removesuffix(": test") for line in listed.splitlines() if line.endswith(": test")]
