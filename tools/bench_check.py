#!/usr/bin/env python3
"""Has the library become slower than its recorded bars? `make bench-check` runs this; --help tells the rest.

Instructions per operation, counted by callgrind where valgrind is installed, do not depend on the machine's load: a count may exceed its
bar by 3 %. Speeds are ratios to a hand-written floor of the same round of `nowait bench`: the median of a ratio may lie below its bar by
the noise, which is the distance between the quartiles of its rounds, today's or the bar's, whichever is larger.

Exit codes: 0 no bar is broken; 1 one is, or something cannot be measured; 2 wrong usage; 3 the noise is too large for a verdict.
"""
import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BARS = os.path.join(ROOT, "bench-bars.json")
TARGET = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))

TOLERANCE = 0.03
# Case of the example `instructions`, and its operations: enough that start-up is lost in the difference of two runs.
COUNTED = {"read-into": 20_000, "read-wait": 20_000, "read-future": 20_000, "gather": 1_000}

# Case, floor, arguments.
SPEEDS = [
    ("cached threads=1", "pread", ["cached"]),
    ("reads depth=1", "pread", ["reads", "--depths", "1,32"]),
    ("reads depth=32", "ring", ["reads", "--depths", "1,32"]),
    ("gather records=64,cold", "ring", ["gather"]),
    ("writes depth=1", "pwrite", ["writes", "--depths", "1"]),
]
ROUNDS = 9
# A bar that gives way by more than this would hold back nothing.
NOISE_MAX = 0.25


class Failed(Exception):
    """What could not be measured, and what to do."""


def run(command):
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Failed(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr.strip()}")
    return done


def collected(case, operations, directory):
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
    command += [os.path.join(TARGET, "release/examples/instructions"), case, str(operations), directory]
    return int(re.search(r"Collected : (\d+)", run(command).stderr)[1])


def count(directory):
    def per_operation(case, n):
        return (collected(case, 2 * n, directory) - collected(case, n, directory)) / n

    return {case: round(per_operation(case, n), 1) for case, n in COUNTED.items()}


def measure(directory):
    """Ratio and noise of each case, and the environment that `nowait bench` found."""
    speeds = {}
    reports = {}
    for name, floor, arguments in SPEEDS:
        key = tuple(arguments)
        if key not in reports:
            reports[key] = bench(arguments, directory)
        of = {row["way"]: row["rounds"] for row in reports[key]["rows"] if is_case(row, name)}
        if not {"nowait", floor} <= of.keys():
            raise Failed(f"{name}: no row of nowait or {floor}; was a way left out, or a case renamed?")
        ratios = [ours / theirs for ours, theirs in zip(of["nowait"], of[floor])]
        low, _, high = statistics.quantiles(ratios, n=4)
        speeds[name] = {"floor": floor, "ratio": round(statistics.median(ratios), 3), "noise": round(high - low, 3)}
    return speeds, reports[key]["environment"]


def is_case(row, name):
    # Writes name their directory's file system, too.
    table, case = name.split(" ", 1)
    return row["table"] == table and row["case"].split(" ")[-1] == case


def bench(arguments, directory):
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        floors = {"pwrite"} if arguments[0] == "writes" else {"pread", "ring"}
        command = [os.path.join(TARGET, "release/nowait"), "bench", "--quick", "--rounds", str(ROUNDS), "--dir", directory]
        command += ["--json", report.name, "--ways", ",".join([*sorted(floors), "nowait"]), *arguments]
        run(command)
        return json.load(report)


def verdict_of_counts(counts, bars):
    broken = False
    for case, found in counts.items():
        bar = bars.get(case)
        worse = bar is None or found > bar * (1 + TOLERANCE)
        broken |= worse
        print(f"  {case:24} {found:9.1f} instructions, bar {bar}  {'BROKEN' if worse else 'holds'}")
    return broken


def verdict_of_speeds(speeds, bars):
    broken = unclear = False
    for name, found in speeds.items():
        bar = bars.get(name)
        if bar is None or bar["floor"] != found["floor"]:
            broken = True
            print(f"  {name:24} {found['ratio']:9.3f} of {found['floor']}, no bar  BROKEN")
            continue
        noise = max(found["noise"], bar["noise"])
        word = "holds"
        if found["ratio"] < bar["ratio"] - noise:
            broken, word = True, "BROKEN"
        elif noise > NOISE_MAX * bar["ratio"]:
            unclear, word = True, "cannot tell"
        print(f"  {name:24} {found['ratio']:9.3f} of {found['floor']}, bar {bar['ratio']:.3f} less {noise:.3f}  {word}")
    return broken, unclear


def environment(report):
    known = {key: report[key] for key in ("kernel", "filesystem", "device", "cpus", "cpu_model", "file_bytes")}
    return known | {"rustc": run(["rustc", "--version"]).stdout.strip()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="make what is found the bars, in bench-bars.json")
    parser.add_argument("--only", choices=["counts", "speeds"], help="only these")
    parser.add_argument("--dir", default=TARGET, help="where the files are made: ext4, xfs or btrfs [default: cargo's target]")
    options = parser.parse_args()
    bars = {"environment": {}, "instructions": {}, "speeds": {}}
    if os.path.exists(BARS):
        with open(BARS, encoding="utf-8") as file:
            bars = json.load(file)
    found = dict(bars)
    broken = unclear = False

    if options.only != "speeds":
        if shutil.which("valgrind"):
            found["instructions"] = count(options.dir)
            print("instructions per operation (a gather: of 64 ranges)")
            broken |= verdict_of_counts(found["instructions"], bars["instructions"])
        elif options.only == "counts" or options.record:
            raise Failed("valgrind is not installed")
        else:
            print("skipped: instructions per operation; valgrind is not installed")
    if options.only != "counts":
        found["speeds"], report = measure(options.dir)
        found["environment"] = environment(report)
        for key, value in found["environment"].items():
            if bars["environment"].get(key) != value:
                print(f"{key} is {value}; the bars were recorded with {bars['environment'].get(key)}")
        print("speed")
        worse, unclear = verdict_of_speeds(found["speeds"], bars["speeds"])
        broken |= worse

    if options.record:
        with open(BARS, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=2)
            file.write("\n")
        print("recorded in bench-bars.json")
        loose = [name for name, bar in found["speeds"].items() if bar["noise"] > NOISE_MAX * bar["ratio"]]
        if loose:
            print(f"too noisy to hold anything back, record again on a calmer machine: {', '.join(loose)}")
        return 3 if loose else 0
    if broken:
        print("A bar is broken. If that is meant, say why in the commit and record new ones: python3 tools/bench_check.py --record")
    return 1 if broken else 3 if unclear else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as failed:
        sys.exit(f"bench-check: {failed}")
