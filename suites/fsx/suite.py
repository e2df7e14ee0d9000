"""fsx: random reads, writes, truncations, holes and maps of one file, compared with a copy in memory."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import guard
from place import Outcome, Place, Unavailable
from preload.preload import Preload, ways

TITLE = "fsx (xfstests)"
LICENCE = "APSL-2.0, GPL-2.0"
SHOWS = "random reads and writes of one file, mixed with maps, holes, clones and truncations by the kernel"
MINUTES = 40
CI = False
EXCLUDED: dict[str, str] = {}

COMMIT = "63a2972"
FILE_SYSTEMS = ("ext4", "xfs", "btrfs", "tmpfs")
OPERATIONS = int(os.environ.get("SUITES_FSX_OPERATIONS", "400000"))
#: Headers that xfstests' configure finds on Linux, except those of XFS's own library.
HEADERS = ("ASSERT", "DIRENT", "ERRNO", "ERR", "LIBGEN", "LINUX_FALLOC", "MALLOC", "STDLIB", "STRINGS", "STRING",
           "SYS_IOCTL", "SYS_MMAN", "SYS_PARAM", "SYS_STATVFS", "SYS_STAT", "SYS_TIME", "SYS_TYPES", "SYS_WAIT",
           "TIME", "UNISTD", "WAIT", "SYS_FCNTL")


def build(place: Place) -> Path:
    """Builds only fsx from the tree of xfstests."""
    source = place.repository("kdave/xfstests", COMMIT, only=("ltp/fsx.c", "src"))
    config = "".join(f"#define HAVE_{header}_H 1\n" for header in HEADERS)
    config += "#define STDC_HEADERS 1\n#define HAVE_COPY_FILE_RANGE 1\n#include <getopt.h>\n"
    (source / "src/config.h").write_text(config)
    program = place.folder / "fsx"
    place.run("cc", "-O2", "-w", "-D_GNU_SOURCE", "-D_FILE_OFFSET_BITS=64", '-DVERSION="suite"', "-DFALLOCATE",
              "-I", source / "src", source / "ltp/fsx.c", "-o", program)
    return program


def run(place: Place) -> Outcome:
    program, preload = build(place), Preload(place)
    outcome = Outcome(f"xfstests {COMMIT}, {OPERATIONS:,} operations each")
    seeds = itertools.count(1)
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        try:
            for kind in FILE_SYSTEMS:
                run_on(place, kind, program, preload, threads, seeds, outcome)
        except BaseException:
            # Ctrl-C, too: the executor's end waits for runs that have begun.
            threads.shutdown(wait=False, cancel_futures=True)
            guard.end_processes(place.folder)
            raise
    return outcome


def run_on(place: Place, kind: str, program: Path, preload: Preload, threads: ThreadPoolExecutor,
           seeds: Iterator[int], outcome: Outcome) -> None:
    """Runs fsx in all ways on one file system, side by side."""
    with place.file_system(kind) as directory:
        runs = {}
        for (engine, calls), direct in itertools.product(ways(), (False, True)):
            if direct and kind == "tmpfs":
                continue
            # Direct I/O is not coherent with maps, so these runs use none; requests are whole blocks.
            flags = ["-Z", "-r", "4096", "-w", "4096", "-t", "4096", "-R", "-W"] if direct else []
            seed = next(seeds)
            runs[f"{kind} {engine} {calls}" + (" direct" if direct else "")] = threads.submit(
                place.run, program, "-q", "-S", str(seed), "-N", str(OPERATIONS), *flags, directory / f"file-{seed}",
                env=preload.env(engine, calls), check=False, timeout=60 + OPERATIONS / 500)
        for name, future in runs.items():
            ran = future.result()
            passed = ran.returncode == 0 and "operations completed A-OK!" in ran.stdout
            outcome.add(name, passed, EXCLUDED)
    transfers = [transfers for _, transfers, _ in preload.processes()]
    if len(transfers) < len(runs) or not all(transfers):
        raise Unavailable(f"runs on {kind} did not go through {preload.library}")
