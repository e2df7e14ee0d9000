"""Random reads by this package and by what people use, in one run: python benchmarks/reads.py --json FILE.

All ways read the same offsets of one file, round by round (`points.py`). Cold means that the file was
dropped from the page cache before each way (`posix_fadvise`), and that `mincore` says so. A figure is the
median of the rounds; ratios are of the same round, and their median (`bars.py`).
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from statistics import median
from typing import Any

import bars
import points
from environment import environment
from testfile import BLOCK, TestFile, make
from ways import COLD, HOT


def measure(path: Path, options: argparse.Namespace) -> dict[str, Any]:
    make(path, options.size)
    test = TestFile(path, options.cold, options.hot, options.seed)
    rounds = options.rounds
    report: dict[str, Any] = {
        "environment": environment(options.dir),
        "reads": {"cold": options.cold, "hot": options.hot, "bytes": BLOCK, "file_bytes": options.size},
        "rounds": rounds,
        "cold": points.interleaved(test, COLD, test.cold, rounds, True),
        "heartbeat": points.heartbeat(test, rounds),
        "refused": points.refused(test, rounds, options.seed),
        "rust": points.rust(test, rounds, options.seed),
    }
    test.warm()
    report["hot"] = points.interleaved(test, HOT, test.hot, rounds, False)
    report["bars"] = [judged for bar in bars.READS if (judged := bar.judge(report[bar.point])) is not None]
    gaps = report["heartbeat"]["gather"]["longest_gap_s"]
    late = {"point": "heartbeat", "way": "gather", "figure": "longest_gap_s", "limit": bars.HEARTBEAT_MAX_S}
    report["bars"].append({**late, **bars.judge(gaps, bars.HEARTBEAT_MAX_S, True)})
    return report


def show(report: dict[str, Any]) -> None:
    for point in ("cold", "hot", "refused", "rust"):
        count = report["reads"]["hot" if point == "hot" else "cold"]
        for name, row in report[point].items():
            used = f"  {median(row['processor_s']) / count * 1e6:6.1f} µs CPU" if "processor_s" in row else ""
            print(f"{point:8} {name:22} {count / median(row['seconds']) / 1000:8.1f} k reads/s{used}")
    for name, row in report["heartbeat"].items():
        gaps = [gap * 1000 for gap in row["longest_gap_s"]]
        print(f"heartbeat {name:21} longest gap {median(gaps):.2f} ms ({min(gaps):.2f} to {max(gaps):.2f})")
    for judged in report["bars"]:
        if judged["point"] == "heartbeat":
            text = "heartbeat: {median:.2f} ms ({least:.2f} to {most:.2f}), bar {limit:.0f} ms: {verdict}"
            gaps = {name: judged[name] * 1000 for name in ("median", "least", "most", "limit")}
            print(text.format(**gaps, verdict=judged["verdict"]))
        else:
            print(bars.told(judged))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--size", type=int, default=1 << 30)
    parser.add_argument("--cold", type=int, default=4000)
    parser.add_argument("--hot", type=int, default=20000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    path = options.dir / f"nowait-python-{os.getpid()}.dat"
    try:
        report = measure(path, options)
    finally:
        path.unlink(missing_ok=True)
    show(report)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
