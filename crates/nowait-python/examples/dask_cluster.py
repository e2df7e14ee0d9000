"""One machine outgrown: random rows and a scan of columns on a cluster of Dask workers.

    python examples/dask_cluster.py --workers 2

Each worker reads its own part of the data by `nowait://`, and for comparison by fsspec's local file
system. What changes from a laptop to a cluster is the address that `Client` is given, and that workers
import nowait; paths have to be of disks that every worker sees.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import dask
import fsspec
import numpy
import pandas
from dask.distributed import Client, LocalCluster

ROW = 4096


def make(directory: Path, files: int, rows: int) -> list[str]:
    """Files of rows that begin with their numbers, and a table of columns beside each."""
    generator = numpy.random.default_rng(1)
    paths = []
    for number in range(files):
        path = directory / f"part-{number}.bin"
        block = generator.integers(0, 256, (rows, ROW), dtype=numpy.uint8)
        block[:, :8] = numpy.arange(rows, dtype="<u8").view(numpy.uint8).reshape(rows, 8)
        with path.open("wb") as file:
            file.write(block.tobytes())
            os.fsync(file.fileno())
        frame = pandas.DataFrame({f"c{n}": generator.standard_normal(rows * 8) for n in range(8)})
        frame.to_parquet(directory / f"part-{number}.parquet", row_group_size=rows)
        paths.append(str(path))
    return paths


def evict(paths: list[str]) -> None:
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        os.fdatasync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def sample(protocol: str, path: str, rows: list[int]) -> int:
    """Reads rows of a part; returns the sum of their numbers."""
    fs = fsspec.filesystem(protocol)
    found = fs.cat_ranges([path] * len(rows), [row * ROW for row in rows], [(row + 1) * ROW for row in rows])
    return sum(int.from_bytes(row[:8], "little") for row in found)


def scan(protocol: str, path: str) -> float:
    """Reads two of the eight columns of a part; returns their mean."""
    frame = pandas.read_parquet(f"{protocol}://{path}", columns=["c1", "c5"])
    return float(frame.to_numpy().mean())


def run(client: Client, protocol: str, paths: list[str], rows: int, count: int, cold: bool) -> dict[str, Any]:
    generator = numpy.random.default_rng(2)
    picked = [generator.choice(rows, count, replace=False).tolist() for _ in paths]
    tables = [path.replace(".bin", ".parquet") for path in paths]
    if cold:
        evict(paths + tables)
    began = time.perf_counter()
    sums = client.gather(
        [client.submit(sample, protocol, *part, pure=False) for part in zip(paths, picked, strict=True)]
    )
    sampled = time.perf_counter()
    assert sums == [sum(rows) for rows in picked]
    if cold:
        evict(paths + tables)
    again = time.perf_counter()
    means = client.gather([client.submit(scan, protocol, table, pure=False) for table in tables])
    return {"sample_s": sampled - began, "scan_s": time.perf_counter() - again, "means": means}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--workers", type=int, default=2, help="worker processes, on loopback")
    parser.add_argument("--address", help="a scheduler that runs already, instead of a cluster of its own")
    parser.add_argument("--dir", type=Path, help="where the data are made; every worker sees it")
    parser.add_argument("--files", type=int, default=4)
    parser.add_argument("--rows", type=int, default=16384, help="rows of 4 KiB in each file")
    parser.add_argument("--count", type=int, default=1000, help="rows that are picked of each file")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    dask.config.set({"distributed.admin.large-graph-warning-threshold": "1GB"})
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(dir=options.dir) as name:
        paths = make(Path(name), options.files, options.rows)
        cluster = None
        if options.address is None:
            cluster = LocalCluster(
                n_workers=options.workers,
                threads_per_worker=1,
                processes=True,
                dashboard_address=None,
                host="127.0.0.1",
            )
        with Client(cluster or options.address) as client:
            for number in range(-1, options.rounds):
                for cold in (True, False):
                    ways = ("nowait", "file") if number % 2 else ("file", "nowait")
                    for protocol in ways:
                        found = run(client, protocol, paths, options.rows, options.count, cold)
                        if number >= 0:
                            results.append({"protocol": protocol, "cold": cold, "round": number, **found})
        if cluster is not None:
            cluster.close()
    assert len({tuple(result["means"]) for result in results}) == 1
    for what in ("sample_s", "scan_s"):
        for cold in (True, False):
            seconds = {
                protocol: numpy.median(
                    [r[what] for r in results if (r["protocol"], r["cold"]) == (protocol, cold)]
                )
                for protocol in ("nowait", "file")
            }
            state = "cold" if cold else "hot"
            ours, theirs = seconds["nowait"], seconds["file"]
            print(
                f"{what[:-2]} {state}: {ours:.3f} s, fsspec's own {theirs:.3f} s: {theirs / ours:.2f} times"
            )
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
