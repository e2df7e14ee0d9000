"""SQLite's own tests, with the example VFS as the default, and with the stock VFS on the preloaded library."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

from place import REPOSITORY, Outcome, Place, Unavailable
from preload.preload import Preload

TITLE = "SQLite's TCL tests (veryquick)"
LICENCE = "public domain"
SHOWS = "transactions, hot journals, WAL, locks, crashes, full disks and failing I/O under SQLite"
MINUTES = 15
CI = False

STOCK = "fails on the stock VFS, too"
MAPS = "needs PRAGMA mmap_size, which has no effect: the VFS reads by calls of the library (head of sqlite_vfs.c)"
UNIX = "replaces system calls of the stock VFS, or expects that VFS's messages in SQLite's log"
#: Patterns of names of tests that fail on the VFS.
EXCLUDED: dict[str, str] = {
    "backup2-10": "nowait_file_open refuses a directory; SQLite's own VFS fails only at the first read (nowait.h)",
    "external_reader-1.*": "locks belong to open files, so another process looks like another connection "
                           "(docs/guide/c.md)",
    "incrvacuum-16.1": MAPS,
    "mmap[13]-*": MAPS,
    "oserror-[12].?.[23]": UNIX,
    "rowallock-1.?.2": MAPS,
    "temptable2-10.2": MAPS,
    "unixexcl-1.2.4.singleproc":
        "opens a database by two VFSes in one process, which is not supported (head of sqlite_vfs.c)",
    "wal64k-1.[12]": UNIX,
}

#: Patterns of names of tests that do not run on the VFS.
NOT_RUN = {
    "*-oom-*": "one test per allocation; the VFS makes fewer allocations than the stock VFS",
    "mmap2-*": MAPS,
    "syscall-*": UNIX,
}

#: Rounds that end once a random crash comes too late. Their number differs between runs.
ROUNDS = "crash-4.?.*"

#: Files for the preloaded library, in every journal mode, on a disk.
FILES = ("pager1", "wal", "wal2", "wal5", "journal1", "jrnlmode", "io", "crash", "savepoint", "lock", "lock2",
         "corrupt", "backup2", "incrvacuum", "tempdb", "sort", "mmap1", "multiplex")

ENGINES = ("uring", "pool")

#: Functions of the library that hooks.c replaces in the VFS of the tests.
HOOKED = ("read_at", "write_at", "sync", "sync_dir", "file_set_length", "file_size", "file_try_lock_range",
          "file_unlock_range", "file_is_range_locked", "remove_file")


class Result(NamedTuple):
    """Results that a test program reported."""

    tests: int
    failed: list[str]
    names: set[str]


def build(place: Place) -> tuple[Path, Path, str]:
    """Builds SQLite's test program with the VFS and its hooks. Returns program, folder of tests, version."""
    tcl = Path(place.run("sh", "-c", "ls -d /usr/lib/*/tcl8.6 /usr/lib/tcl8.6 | head -n 1").stdout.strip())
    if not (tcl / "tclConfig.sh").exists():
        raise Unavailable("there is no tclConfig.sh (Debian: apt-get install tcl tcl-dev)")
    source, version = place.debian_source("sqlite3")
    place.cargo("build", "--locked", "--release", "-p", "nowait-c", cwd=REPOSITORY)
    library = place.target / "release/libnowait_c.a"
    build = place.folder / "build"
    build.mkdir()
    place.run(source / "configure", f"--with-tcl={tcl}", "--disable-shared", "CFLAGS=-O1", cwd=build)
    makefile = (build / "Makefile").read_text()
    # Both runs sync, so that this is tested, too.
    place.run("make", "sqlite3.h", cwd=build)
    sources = (REPOSITORY / "crates/nowait-c/examples/sqlite_vfs.c", REPOSITORY / "suites/sqlite/hooks.c")
    renamed = [f"-Dnowait_{name}=suite_{name}" for name in HOOKED]
    objects = [place.folder / f"{path.stem}.o" for path in sources]
    for path, compiled, defines in zip(sources, objects, (renamed, []), strict=True):
        place.run("cc", "-std=c11", "-D_GNU_SOURCE", "-O1", "-g", "-Wall", "-Wextra", "-Werror", *defines, "-I", build,
                  "-I", REPOSITORY / "crates/nowait-c/include", "-c", path, "-o", compiled)
    for old, new in (("-DSQLITE_NO_SYNC=1", "-DSQLITE_EXTRA_INIT=suite_init"),
                     ("-o $@ $(TESTFIXTURE_SRC)", "-o $@ $(TESTFIXTURE_SRC) $(SUITE)")):
        if old not in makefile:
            raise Unavailable(f"SQLite's Makefile has no {old}")
        makefile = makefile.replace(old, new)
    (build / "Makefile").write_text(makefile)
    place.run("make", "testfixture", f"SUITE={' '.join(map(str, objects))} {library} -lgcc_s -lpthread -lm -ldl",
              cwd=build)
    return build / "testfixture", source / "test", version


def result(output: str) -> Result:
    """Reads the summary of a test program."""
    summary = re.search(r"^(\d+) errors out of (\d+) tests", output, re.MULTILINE)
    if not summary:
        last = re.findall(r"^(\S+)\.\.\.", output, re.MULTILINE)[-1:] or ["the start"]
        return Result(0, [f"the program ended after {last[0]}"], set())
    names = re.search(r"^!Failures on these tests: (.*)$", output, re.MULTILINE)
    failed = names[1].split() if names else []
    if len(failed) != int(summary[1]):
        failed += [f"{int(summary[1]) - len(failed)} errors without a name"]
    return Result(int(summary[2]), failed, set(re.findall(r"^(\S+)\.\.\.", output, re.MULTILINE)))


class Runner:
    """Runs test programs. SQLite's tests need a user whom permissions restrict, so root runs them as user 65534."""

    def __init__(self, place: Place, program: Path, tests: Path) -> None:
        self.place, self.program, self.tests = place, program, tests
        self.user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []
        place.folder.chmod(0o755)

    def folder(self, parent: Path, name: str) -> Path:
        """Returns a folder to run in. Compared folders have names of equal length: some tests count it."""
        folder = parent / name
        (folder / "tmp").mkdir(parents=True)
        for path in (parent, folder, folder / "tmp"):
            path.chmod(0o755)
            if self.user:
                os.chown(path, 65534, 65534)
        return folder

    def file(self, path: Path) -> Path:
        """Makes a file that all test programs may append to."""
        path.touch()
        path.chmod(0o666)
        return path

    def run(self, script: str, *runs: tuple[Path, dict[str, str]]) -> list[Result]:
        """Runs a script of SQLite's tests in each folder with its environment, in parallel."""
        lines = []
        for folder, env in runs:
            env = {"TMPDIR": str(folder / "tmp"), "HOME": str(folder), **env}
            # Only the test programs get the environment, since it may preload a library.
            words = [*self.user, "env", *(f"{name}={value}" for name, value in env.items()), str(self.program),
                     f"{self.tests}/{script}.test"]
            lines.append(f"(cd {shlex.quote(str(folder))} && {shlex.join(words)} >output 2>&1) &")
            (folder / "output").touch()
        self.place.run("sh", "-c", "\n".join([*lines, "wait"]), timeout=3000)
        results = []
        for folder, _ in runs:
            output = (folder / "output").read_text(errors="replace")
            kept = [line for line in output.splitlines() if not line.endswith(" Ok")]
            self.place.log.write("\n".join([f"# {script} in {folder.name}", *kept, ""]))
            results.append(result(output))
        return results


def run(place: Place) -> Outcome:
    program, tests, version = build(place)
    runner = Runner(place, program, tests)
    outcome = Outcome(f"sqlite3 {version}")
    report = runner.file(place.folder / "served-vfs")
    with place.file_system("tmpfs" if os.geteuid() == 0 else "here", 2048) as directory:
        stock, ours = runner.run(
            "veryquick", (runner.folder(directory, "0"), {}),
            (runner.folder(directory, "1"), {"SUITE_VFS": "nowait", "SUITE_REPORT": str(report)}))
    # A test makes many calls of the library, most of them in the first program.
    if max(map(int, report.read_text().split()), default=0) < ours.tests:
        raise Unavailable("SQLite's reads and writes did not go through the library")
    count(outcome, stock, ours, "")

    preload = Preload(place)
    preload.library = Path(shutil.copy(preload.library, place.folder))
    with place.file_system("here") as directory:
        for file in FILES:
            reports = [runner.file(place.folder / f"served-{engine}") for engine in ENGINES]
            stock, *theirs = runner.run(
                file, (runner.folder(directory, f"{file}-0"), {}),
                *((runner.folder(directory, f"{file}-{number}"),
                   preload.env(engine) | {"NOWAIT_PRELOAD_REPORT": str(report)})
                  for number, (engine, report) in enumerate(zip(ENGINES, reports, strict=True), 1)))
            for engine, report, ours in zip(ENGINES, reports, theirs, strict=True):
                count(outcome, stock, ours, f"{engine} {file}: ")
                if not any(map(int, report.read_text().split())):
                    raise Unavailable(f"no call of {file} went through {preload.library}")
                report.unlink()
    return outcome


def count(outcome: Outcome, stock: Result, ours: Result, prefix: str) -> None:
    """Counts the tests of one run, compared with those of the stock VFS."""
    outcome.passed += max(ours.tests - len(ours.failed), 0)
    missing = [name for name in sorted(stock.names - ours.names) if ours.tests and not fnmatch(name, ROUNDS)]
    for name in [*ours.failed, *missing]:
        # The preloaded library is below the stock VFS: no test that passes there is excluded.
        known = {} if prefix else NOT_RUN if name in missing else EXCLUDED
        reasons = [reason for pattern, reason in known.items() if fnmatch(name, pattern)]
        if name in stock.failed:
            reasons = [STOCK]
        test = f"{prefix}{name}" + (" (did not run)" if name in missing else "")
        outcome.add(test, False, {test: reasons[0]} if reasons else {})
