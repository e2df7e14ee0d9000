"""fio writes blocks with checksums, and verifies them: by the library's engine for fio, and by psync on `preload`."""

from __future__ import annotations

import itertools

from place import REPOSITORY, Outcome, Place
from preload.preload import ENGINES, Preload

TITLE = "fio --verify"
LICENCE = "GPL-2.0"
SHOWS = "checksums of random, sequential, direct and durable writes, verified by reads"
MINUTES = 3
CI = True
EXCLUDED: dict[str, str] = {}

JOBS = {
    "randwrite": "--rw=randwrite --bs=4k --iodepth=32",
    "bsrange": "--rw=randwrite --bsrange=512-256k --bs_unaligned --iodepth=16",
    "write": "--rw=write --bs=128k --iodepth=8",
    "randrw": "--rw=randrw --bs=16k --iodepth=32",
    "fdatasync": "--rw=randwrite --bs=4k --iodepth=16 --fdatasync=8 --io_size=8m",
    "direct": "--rw=randwrite --bs=4k --iodepth=32 --direct=1",
    "direct-large": "--rw=randrw --bs=64k --iodepth=16 --direct=1",
    "backlog": "--rw=randwrite --bs=4k --iodepth=16 --verify_backlog=64",
}
COMMON = ("--name=suite --size=32m --verify=crc32c --verify_fatal=1 --do_verify=1 --randseed=7 --thread "
          "--group_reporting --minimal").split()


def run(place: Place) -> Outcome:
    version = place.run("fio", "--version").stdout.strip()
    fio_cache = str(place.cache / "fio")
    place.cargo("build", "--locked", "--release", "-p", "nowait-c", cwd=REPOSITORY)
    place.run(REPOSITORY / "crates/nowait-c/fio/build", "--fetch", env={"FIO_CACHE": fio_cache})
    place.run(REPOSITORY / "crates/nowait-c/install", "install",
              env={"FIO_CACHE": fio_cache, "PREFIX": str(place.folder / "installed"),
                   "STATIC": str(place.target / "release/libnowait_c.a")})
    engine = place.folder / "installed/lib/libnowait-fio.so"
    preload = Preload(place)
    outcome = Outcome(version)
    for kind in ("here", "tmpfs"):
        with place.file_system(kind, 512) as directory:
            jobs = [job for job in JOBS if not (kind == "tmpfs" and job.startswith("direct"))]
            for job in jobs:
                ran = place.run("fio", *COMMON, *JOBS[job].split(), f"--ioengine=external:{engine}",
                                f"--filename={directory / 'file'}", check=False, timeout=300)
                outcome.add(f"{kind} {job} engine", ran.returncode == 0, EXCLUDED)
            for job, way in itertools.product(jobs, ENGINES):
                ran = place.run("fio", *COMMON, *JOBS[job].split(), "--ioengine=psync",
                                f"--filename={directory / 'file'}", env=preload.env(way), check=False, timeout=300)
                outcome.add(f"{kind} {job} psync on {way}", ran.returncode == 0, EXCLUDED)
                preload.served()
    return outcome
