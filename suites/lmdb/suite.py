"""LMDB's own test programs, which write pages, sync them, and read them through a map."""

from __future__ import annotations

import itertools

from place import Outcome, Place, Unavailable
from preload.preload import Preload, ways

TITLE = "LMDB's tests"
LICENCE = "OLDAP-2.8"
SHOWS = "pages written and synced by calls, and read through a map"
MINUTES = 3
CI = True
EXCLUDED: dict[str, str] = {}

PROGRAMS = ("mtest", "mtest2", "mtest3", "mtest4", "mtest5")


def run(place: Place) -> Outcome:
    source, version = place.debian_source("lmdb")
    library = source / "libraries/liblmdb"
    if not library.is_dir():
        raise Unavailable(f"LMDB's source has no libraries/liblmdb: {source}")
    place.run("make", "-j2", *PROGRAMS, cwd=library)
    preload = Preload(place)
    outcome = Outcome(version)
    for kind in ("here", "tmpfs"):
        with place.file_system(kind, 256) as directory:
            for (engine, calls), program in itertools.product(ways(), PROGRAMS):
                folder = directory / "testdb"
                folder.mkdir()
                ran = place.run(library / program, cwd=directory, env=preload.env(engine, calls), check=False,
                                timeout=120)
                outcome.add(f"{kind} {program} on {engine}, {calls}", ran.returncode == 0, EXCLUDED)
                preload.served()
                for left in folder.iterdir():
                    left.unlink()
                folder.rmdir()
    return outcome
