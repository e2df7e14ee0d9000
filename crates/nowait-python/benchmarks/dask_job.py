"""The job of examples/dask_cluster.py by this package and by fsspec's own: python benchmarks/dask_job.py.

Each round runs every protocol once, cold and cached, in an order that rotates. `file` is there to be seen:
pandas gives such paths to arrow's own reader, not to fsspec.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import bars
from environment import environment
from points import Rows

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
# Worker processes are given the path, too.
import dask_cluster
from parts import Parts

PROTOCOLS = ["nowait", "local", "file"]


def measure(options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    points: dict[str, Rows] = {
        f"{what} {state}": {name: {"seconds": []} for name in PROTOCOLS}
        for what in ("sample", "scan")
        for state in ("cold", "hot")
    }
    with dask_cluster.connected(None, options.workers) as client:
        data = Parts(directory, options.parts, options.rows)
        for number in range(-1, options.rounds):
            turn = number % len(PROTOCOLS)
            for name in PROTOCOLS[turn:] + PROTOCOLS[:turn]:
                data.evict()
                took = {"sample cold": dask_cluster.sample_all(client, name, data, options.count)}
                took["sample hot"] = dask_cluster.sample_all(client, name, data, options.count)
                data.evict()
                took["scan cold"] = dask_cluster.scan_all(client, name, data)
                took["scan hot"] = dask_cluster.scan_all(client, name, data)
                # In the first round workers import what they need.
                if number >= 0:
                    for point, seconds in took.items():
                        points[point][name]["seconds"].append(seconds)
    return {
        "environment": environment(directory),
        "job": {name: getattr(options, name) for name in ("workers", "parts", "rows", "count")},
        "rounds": options.rounds,
        **points,
        "bars": [bar.judge(points[bar.point]) for bar in bars.DASK],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--parts", type=int, default=4)
    parser.add_argument("--rows", type=int, default=16384, help="rows of 4 KiB in each part")
    parser.add_argument("--count", type=int, default=1000, help="rows that are picked of each part")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.dir) as name:
        report = measure(options, Path(name))
    for judged in report["bars"]:
        for protocol, row in report[judged["point"]].items():
            print(f"{judged['point']:12} {protocol:8} {median(row['seconds']):.3f} s")
    for judged in report["bars"]:
        print(bars.told(judged))
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
