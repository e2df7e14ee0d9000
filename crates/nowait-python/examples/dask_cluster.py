"""One machine outgrown: random rows and a scan of columns on a cluster of Dask workers.

    python examples/dask_cluster.py --workers 2

Each worker reads its own part of the data by `nowait://`, and for comparison by fsspec's own local file
system, `local://`. What changes from a laptop to a cluster is the address that `Client` is given, and that
workers import nowait; paths have to be of disks that every worker sees. `benchmarks/dask_job.py` measures
this job.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import fsspec
import numpy
import pandas
from dask.distributed import Client, LocalCluster
from parts import ROW, Parts


def sample(protocol: str, path: str, rows: list[int]) -> int:
    """Reads rows of a part; returns the sum of their numbers."""
    fs = fsspec.filesystem(protocol)
    found = fs.cat_ranges([path] * len(rows), [row * ROW for row in rows], [(row + 1) * ROW for row in rows])
    return sum(int.from_bytes(row[:8], "little") for row in found)


def scan(protocol: str, path: str) -> float:
    """Reads two of the eight columns of a part; returns their mean."""
    frame = pandas.read_parquet(f"{protocol}://{path}", columns=["c1", "c5"])
    return float(frame.to_numpy().mean())


def sample_all(client: Client, protocol: str, data: Parts, count: int) -> float:
    """Reads `count` random rows of each part, on the workers; returns the seconds that it took."""
    generator = numpy.random.default_rng(2)
    picked = [generator.choice(data.rows, count, replace=False).tolist() for _ in data.files]
    began = time.perf_counter()
    parts = zip(data.files, picked, strict=True)
    sums = client.gather([client.submit(sample, protocol, *part, pure=False) for part in parts])
    took = time.perf_counter() - began
    assert sums == [sum(rows) for rows in picked]
    return took


def scan_all(client: Client, protocol: str, data: Parts) -> float:
    """Scans two columns of each part, on the workers; returns the seconds that it took."""
    began = time.perf_counter()
    means = client.gather([client.submit(scan, protocol, table, pure=False) for table in data.tables])
    took = time.perf_counter() - began
    assert all(abs(mean) < 0.1 for mean in means)
    return took


@contextmanager
def connected(address: str | None, workers: int) -> Iterator[Client]:
    """Connects to a scheduler, or to a cluster of worker processes on loopback that ends with this."""
    if address is not None:
        with Client(address) as client:
            yield client
        return
    with (
        LocalCluster(
            workers, threads_per_worker=1, processes=True, dashboard_address=None, host="127.0.0.1"
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--workers", type=int, default=2, help="worker processes, on loopback")
    parser.add_argument("--address", help="a scheduler that runs already, instead of a cluster of its own")
    parser.add_argument("--dir", type=Path, help="where the data are made; every worker sees it")
    parser.add_argument("--parts", type=int, default=4)
    parser.add_argument("--rows", type=int, default=16384, help="rows of 4 KiB in each part")
    parser.add_argument("--count", type=int, default=1000, help="rows that are picked of each part")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(dir=options.dir) as name,
        connected(options.address, options.workers) as client,
    ):
        data = Parts(Path(name), options.parts, options.rows)
        # The first time, workers import what they need.
        for protocol in ("nowait", "local", "nowait", "local"):
            data.evict()
            sampled = sample_all(client, protocol, data, options.count)
            data.evict()
            scanned = scan_all(client, protocol, data)
            print(f"{protocol}: {sampled:.3f} s for random rows, {scanned:.3f} s for the scan")


if __name__ == "__main__":
    main()
