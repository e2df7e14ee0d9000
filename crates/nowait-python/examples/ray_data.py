"""Random rows and a scan of columns by Ray: python examples/ray_data.py.

A worker samples rows of its part by `nowait.gather`; Ray Data scans tables through the file system. On a
cluster, `--address` names it, workers import nowait, and paths have to be of disks that every worker sees.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy
import ray
import ray.data
from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem
from parts import ROW, Parts

from nowait.fsspec import NowaitFileSystem


@ray.remote
def sample(fs: AbstractFileSystem, path: str, rows: list[int]) -> int:
    """Reads rows of a part; returns the sum of their numbers."""
    found = fs.cat_ranges([path] * len(rows), [row * ROW for row in rows], [(row + 1) * ROW for row in rows])
    return sum(int.from_bytes(row[:8], "little") for row in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--address", help="a cluster that runs already, instead of its own on loopback")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--dir", type=Path, help="where the data are made; every worker sees it")
    parser.add_argument("--parts", type=int, default=4)
    parser.add_argument("--rows", type=int, default=16384, help="rows of 4 KiB in each part")
    parser.add_argument("--count", type=int, default=1000, help="rows that are picked of each part")
    options = parser.parse_args()
    own = {} if options.address else {"num_cpus": options.workers, "include_dashboard": False}
    ray.init(options.address, log_to_driver=False, **own)
    ray.data.DataContext.get_current().enable_progress_bars = False
    generator = numpy.random.default_rng(2)
    with tempfile.TemporaryDirectory(dir=options.dir) as name:
        data = Parts(Path(name), options.parts, options.rows)
        picked = [generator.choice(data.rows, options.count, replace=False).tolist() for _ in data.files]
        # The first time, workers start and import what they need.
        for fs in [NowaitFileSystem(), LocalFileSystem()] * 2:
            data.evict()
            began = time.perf_counter()
            parts = zip(data.files, picked, strict=True)
            sums = ray.get([sample.remote(fs, path, rows) for path, rows in parts])
            sampled = time.perf_counter()
            assert sums == [sum(rows) for rows in picked]
            data.evict()
            again = time.perf_counter()
            table = ray.data.read_parquet(data.tables, columns=["c1", "c5"], filesystem=fs)
            mean = table.mean("c1")
            scanned = time.perf_counter() - again
            assert table.count() == options.parts * options.rows * 64 and abs(mean) < 0.1
            took = f"{sampled - began:.3f} s for random rows, {scanned:.3f} s for the scan"
            print(f"{fs.protocol[0]}: {took}")
    ray.shutdown()


if __name__ == "__main__":
    main()
