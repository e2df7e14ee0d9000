"""LTP's programs that read, write and check files, on the preloaded library.

The programs come from LTP's lists of tests for system calls, files, direct I/O and kernel AIO. In programs with kernel
AIO, nowait serves the reads that check the files. fsstress checks nothing: its output and its tree must equal those of
a run without nowait.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from place import Outcome, Place, Unavailable
from preload.preload import Preload, ways

TITLE = "Linux Test Project"
LICENCE = "GPL-2.0"
SHOWS = "calls and errors like those of the kernel; files that many processes write, map, truncate and check"
MINUTES = 7
CI = False

COMMIT = "6958277"
CALLS = ("fdatasync", "fsync", "pread", "preadv", "preadv2", "pwrite", "pwritev", "pwritev2", "read", "readv", "write",
         "writev")
#: Folders of programs, below testcases/kernel.
PROGRAMS = ("fs/doio", "fs/fsstress", "fs/fsx-linux", "fs/ftest", "io/direct_io", "io/ltp-aiodio", "io/writetest",
            *(f"syscalls/{call}" for call in CALLS))
#: LTP's lists, and patterns of the commands that run: only some of those that differ only in sizes.
LISTS = {
    "syscalls": r"p?(?:read|write)v?2?\d|f(?:data)?sync\d",
    "fs": r"growfiles|rwtest|ftest|writetest",
    "dio": r"diotest",
    "ltp-aiodio.part1": r"aiocp -b (?:4|64)k -n 8 ",
    "ltp-aiodio.part2": r"dio_sparse .* -n 2$|aiodio_sparse .* -w (?:16|64|1024)k ",
    "ltp-aiodio.part3": r"fsx-linux",
    "ltp-aiodio.part4": r"(?:aio)?dio_",
}
#: Makes tests shorter: seconds, iterations, sizes.
SHORTER = (
    (r" -L \d+", " -L 1"),
    (r" -i \d+s", " -i 1s"),
    (r"(diotest.* -i) \d+", r"\1 10"),
    (r"(diotest4 -b) \d+", r"\1 4096"),
    (r"(dio_read.* -i) \d+", r"\1 1"),
    (r"(fsx-linux.* -N) \d+", r"\1 200"),
    (r"dio_append$", "dio_append -c 100"),
    (r"dio_truncate", "dio_truncate -a 10 -c 10"),
)
FSSTRESS_SEEDS = range(1, 6)

_NO_FILE = "tests only bad descriptors and offsets, directories and pipes, so no call reaches a file"
_POSIX_AIO = "tests POSIX AIO, whose calls the C library makes internally, past the preloaded library"
_NOWAIT = "reads with RWF_NOWAIT, which the preloaded library leaves to the kernel; also drops the machine's page cache"
EXCLUDED = {
    "aio-stress, aio01, aio02": "tests kernel AIO, which the preloaded library leaves to the kernel",
    "dio04, dio10: odd count, non-aligned buffer": "expects errors; nowait's direct I/O accepts any length "
                                                   "and memory address (docs/guide/direct.md)",
    **dict.fromkeys(("preadv203", "preadv203_64"), _NOWAIT),
    **dict.fromkeys(("fdatasync02", "fsync03", "pread02", "pread02_64", "read03", "write04", "gf12", "gf13"), _NO_FILE),
    **dict.fromkeys(("gf02", "gf05", "gf07", "gf09", "gf10", "gf11", "gf19"), _POSIX_AIO),
}
#: Failures that these tests may report: see `EXCLUDED`.
TOLERATED = dict.fromkeys(("dio04", "dio10"), r"[Oo]dd count|non-?aligned buf")
QUICK_WAYS = (("uring", "future"), ("pool", "future"))


def build(place: Place) -> Path:
    """Builds the programs, once for all runs with a cache. Returns LTP's tree."""
    missing = [tool for tool in ("autoconf", "automake", "pkg-config", "bash") if not shutil.which(tool)]
    missing += [] if Path("/usr/include/libaio.h").exists() else ["libaio-dev"]
    if missing:
        raise Unavailable(f"LTP's build and scripts need more packages (Debian: apt-get install {' '.join(missing)})")
    kept = place.cache / f"ltp-{COMMIT}"
    with place.fetching(kept) as part:
        if not kept.exists():
            source = place.repository("linux-test-project/ltp", COMMIT)
            place.run("make", "autotools", "AUTOCONFED_SUBDIRS=", cwd=source)
            place.run("./configure", cwd=source)
            for folder in PROGRAMS:
                place.run("make", "-s", "-j2", "-C", f"testcases/kernel/{folder}", cwd=source)
            shutil.move(source, part)
            part.rename(kept)
    return kept


def link(source: Path, root: Path) -> Path:
    """Puts the programs in one folder, where rwtest looks for the others."""
    programs = root / "testcases/bin"
    programs.mkdir(parents=True)
    for folder in PROGRAMS:
        for file in (source / "testcases/kernel" / folder).iterdir():
            if file.name == "rwtest":
                shutil.copy(file, programs)
                (programs / file.name).chmod(0o755)
            elif file.is_file() and os.access(file, os.X_OK):
                (programs / file.name).symlink_to(file)
    return programs


def tests(source: Path) -> dict[str, str]:
    """Returns the commands of LTP's lists, each once."""
    found: dict[str, str] = {}
    for listed, wanted in LISTS.items():
        for line in (source / "runtest" / listed).read_text().splitlines():
            name, *words = line.split() or [""]
            command = " ".join(words)
            is_wanted = re.match(rf"(?:export LTPROOT; |mkfifo \S+; )?(?:{wanted})", command)
            if is_wanted and not name.startswith("#") and command not in found.values():
                found[name] = command
    return found


@contextlib.contextmanager
def device(place: Place) -> Iterator[str]:
    """Attaches a loop device for tests that make a file system. Any end of this process detaches it."""
    image = place.folder / "device.image"
    with image.open("wb") as file:
        file.truncate(512 << 20)
    path = place.run("losetup", "--find", "--show", image).stdout.strip()
    with Path(path).open("rb"):
        # Takes effect at the last close.
        place.run("losetup", "--detach", path)
        yield path


class Runs:
    """Runs commands in a directory, which is empty before and after."""

    def __init__(self, place: Place, directory: Path, env: dict[str, str]) -> None:
        self.place, self.directory, self.env = place, directory, env

    def passes(self, command: str, env: dict[str, str], tolerated: str = "(?!)") -> bool:
        """Returns whether LTP reports success. Lines on failures that match `tolerated` do not count."""
        ran = self.place.run("sh", "-c", command, cwd=self.directory, env=self.env | env, check=False, timeout=120)
        for left in self.directory.iterdir():
            if left.name != "lost+found":
                shutil.rmtree(left) if left.is_dir() else left.unlink()
        output, removed = re.subn(rf".*TFAIL.*(?:{tolerated}).*", "", ran.stdout)
        # Bits: failed, broken, warned; 32 if a part does not apply.
        if ran.returncode & ~32 != bool(removed) or re.search(r"TFAIL|TBROK|TWARN", output):
            return False
        return bool(re.search(r"TPASS|Test passed", output))

    def fsstress(self, seed: int, env: dict[str, str]) -> tuple[str, dict[str, object]]:
        """Returns the output of fsstress, and the tree that it makes."""
        folder = self.directory / "fsstress"
        ran = self.place.run("fsstress", "-d", folder, "-s", str(seed), "-n", "1500", "-p", "1", "-c", "-v",
                             env=self.env | env, check=False, timeout=120)
        made = ran.stdout, tree(folder)
        shutil.rmtree(folder)
        return made


def tree(folder: Path) -> dict[str, object]:
    """Returns the files below a folder, each with its metadata, except times, and its contents."""
    found: dict[str, object] = {}
    for parent, folders, files in os.walk(folder):
        for path in (Path(parent, name) for name in (*folders, *files)):
            of = path.lstat()
            contents: object = None
            if stat.S_ISREG(of.st_mode):
                contents = of.st_size, hashlib.sha256(path.read_bytes()).hexdigest()
            elif stat.S_ISLNK(of.st_mode):
                contents = path.readlink()
            found[str(path.relative_to(folder))] = of.st_mode, of.st_uid, of.st_gid, of.st_nlink, of.st_rdev, contents
    return found


def is_served(preload: Preload, name: str) -> bool:
    """Returns whether a test's own programs made transfers through the library, or syncs in a test of syncs."""
    helpers = {"bash", "iogen", "mkfs.ext4"}
    served = [calls for program, calls in preload.served_by_program().items() if program not in helpers]
    return any(transfers or (syncs and "sync" in name) for transfers, syncs in served)


def run(place: Place) -> Outcome:
    source, preload = build(place), Preload(place)
    programs = link(source, place.folder / "root")
    outcome = Outcome(f"ltp {COMMIT}", excluded=dict(EXCLUDED))
    with place.file_system("ext4", 2048) as directory, device(place) as loop:
        runs = Runs(place, directory, {
            "LTPROOT": str(place.folder / "root"), "PATH": f"{programs}:{os.environ['PATH']}", "TMPDIR": str(directory),
            "LTP_DEV": loop, "LTP_SINGLE_FS_TYPE": "ext4", "LTP_RUNTIME_MUL": "0.01"})
        for name, command in tests(source).items():
            if name in EXCLUDED:
                continue
            for pattern, shorter in SHORTER:
                command = re.sub(pattern, shorter, command)
            # Most tests of one call take no time, so they run in all ways.
            of_one_call = re.match(rf"(?:{'|'.join(CALLS)})\d", name) and name != "writev03"
            for engine, calls in ways() if of_one_call else QUICK_WAYS:
                passed = runs.passes(command, preload.env(engine, calls), TOLERATED.get(name, "(?!)"))
                served = is_served(preload, name)
                if not passed and not runs.passes(command, {}):
                    outcome.excluded[name] = "fails without nowait, too"
                    break
                outcome.add(f"{name} on {engine}, {calls}" + ("" if served else ": no transfer"), passed and served, {})
        for seed in FSSTRESS_SEEDS:
            stock = runs.fsstress(seed, {})
            for engine, calls in QUICK_WAYS:
                same = runs.fsstress(seed, preload.env(engine, calls)) == stock
                preload.served()
                outcome.add(f"fsstress {seed} on {engine}, {calls}", same and bool(stock[1]), {})
    return outcome
