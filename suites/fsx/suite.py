"""fsx: random reads, writes, truncations, holes and maps of one file, compared with a copy in memory."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from place import Outcome, Place, Unavailable
from preload.preload import Preload, ways

TITLE = "fsx (xfstests)"
LICENCE = "APSL-2.0, GPL-2.0"
SHOWS = "random operations on one file, mixed with maps, holes, clones and truncations by the kernel"
MINUTES = 40
CI = False
EXCLUDED: dict[str, str] = {}

COMMIT = "63a2972"
FILE_SYSTEMS = ("ext4", "xfs", "btrfs", "tmpfs")
OPERATIONS = 400_000


def build(place: Place) -> Path:
    """Builds fsx of xfstests alone, without the rest of its tree."""
    source = place.repository("kdave/xfstests", COMMIT, only=("ltp/fsx.c", "src/global.h", "src/common.h", "include"))
    # What its configure finds on any Linux.
    have = [f"-DHAVE_{name}=1" for name in (
        "FALLOCATE", "LINUX_FALLOC_H", "LINUX_FS_H", "SYS_TYPES_H", "FCNTL_H", "STDLIB_H", "STRING_H", "UNISTD_H",
        "ERRNO_H", "SYS_STAT_H", "SYS_STATVFS_H", "SYS_TIME_H", "SYS_IOCTL_H", "SYS_WAIT_H", "MALLOC_H", "STRINGS_H",
        "DIRENT_H", "ASSERT_H", "LIMITS_H", "STDINT_H", "SYS_PARAM_H", "SYS_MMAN_H", "STDBOOL_H", "TIME_H")]
    for header in ("xfs/libxfs.h", "xfs/xfs.h", "xfs/jdm.h", "sys/acl.h"):
        stub = place.folder / "stubs" / header
        stub.parent.mkdir(parents=True, exist_ok=True)
        stub.touch()
    program = place.folder / "fsx"
    place.run("cc", "-O2", "-D_GNU_SOURCE", "-D_FILE_OFFSET_BITS=64", '-DVERSION="suite"', *have,
              "-I", source / "src", "-I", source / "include", "-idirafter", place.folder / "stubs",
              source / "ltp/fsx.c", "-o", program)
    return program


def run(place: Place) -> Outcome:
    program, preload = build(place), Preload(place)
    outcome = Outcome(f"xfstests {COMMIT}")
    for kind in FILE_SYSTEMS:
        with place.file_system(kind) as directory:
            for engine, calls in ways():
                for direct in (False, True) if kind != "tmpfs" else (False,):
                    name = f"{kind} {engine} {calls}" + (" direct" if direct else "")
                    # Direct I/O needs requests of whole blocks, for maps of the kernel's too.
                    flags = ["-Z", "-r", "4096", "-w", "4096", "-t", "4096"] if direct else []
                    ran = place.run(program, "-q", "-S", "1", "-N", str(OPERATIONS), *flags, directory / "file",
                                    env=preload.env(engine, calls), check=False, timeout=1200)
                    outcome.add(name, ran.returncode == 0 and is_complete(ran.stdout), EXCLUDED)
                    preload.served()
                    shutil.rmtree(directory / "file", ignore_errors=True)
                    (directory / "file").unlink(missing_ok=True)
    return outcome


def is_complete(output: str) -> bool:
    if not (found := re.search(r"All (?:\d+ )?operations completed", output)):
        raise Unavailable("fsx prints no end that is known; see the log") if not output.strip() else Unavailable(output[-200:])
    return bool(found)
