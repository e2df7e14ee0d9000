#!/usr/bin/env python3
"""Has the library become slower than its recorded bars? `make bench-check` runs this; --help tells the rest.

Instructions per operation, counted by callgrind where valgrind is installed, do not depend on the machine's load: a count may exceed its
bar by 3 %. Speeds are ratios to a hand-written floor of the same round of `nowait bench`: the median of a ratio may lie below its bar by
the noise, which is what two medians of that many rounds differ by in 19 cases of 20 where nothing has changed, as the rounds scatter.
What lies lower is measured once more, and the better of both counts: a shared disk has moods that last minutes, slower code is slow again.

Exit codes: 0 no bar is broken; 1 one is, or something cannot be measured; 2 wrong usage; 3 the noise is too large for a verdict.
"""
import argparse
import collections
import json
import math
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
# Case of the example `instructions`, and its operations: enough that start-up is lost in the difference of two runs. With a source file,
# only what was written there counts, wherever it was inlined: not what the standard library does for it (atomics, sorting, memory).
COUNTED = {
    "read-into": ("read-into", 20_000, None),
    "read-wait": ("read-wait", 20_000, None),
    "read-future": ("read-future", 20_000, None),
    "selector": ("read-future", 20_000, "nowait/src/core/policy.rs"),
    "gather": ("gather", 1_000, None),
    "gather-plan": ("gather-plan", 1_000, None),
    "gather planning": ("gather-plan", 1_000, "nowait/src/gather/queued.rs"),
}

# Case, floor, arguments. Rounds of 0.3 s, as `nowait bench` has them without --quick: a shared disk's moods last longer than a short round.
READS = ["reads", "--depths", "1,32", "--size", "256M"]
SPEEDS = [
    ("cached threads=1", "pread", ["cached", "--size", "64M"]),
    ("reads depth=1", "pread", READS),
    ("reads depth=32", "ring", READS),
    ("gather records=64,cold", "ring", ["gather", "--records", "64", "--size", "256M"]),
    # Quick: on the directory's own file system alone.
    ("writes depth=1", "pwrite", ["writes", "--quick", "--depths", "1", "--size", "64M"]),
    ("log writers=8 size=256", "thread-batch", ["log", "--writers", "8", "--sizes", "256"]),
]
ROUNDS = 15
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
    """Instructions by source file."""
    with tempfile.NamedTemporaryFile(suffix=".callgrind") as profile:
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={profile.name}"]
        command += [os.path.join(TARGET, "release/examples/instructions"), case, str(operations), directory]
        run(command)
        with open(profile.name, encoding="utf-8") as lines:
            return by_file(lines)


def by_file(profile):
    """Own instructions of each source file; inlined ones are of the file they were written in (callgrind's format, "fi" and "fe")."""
    counts = collections.Counter()
    names = {}
    here = None
    called = False
    for line in profile:
        if named := re.match(r"(fl|fi|fe|cfi|cfl)=(\(\d+\))(?: (.*))?$", line):
            kind, number, name = named.groups()
            if name is not None:
                names[number] = name
            if not kind.startswith("c"):
                here = names[number]
        elif line.startswith("calls="):
            called = True
        elif re.match(r"[+\-*\d]", line):
            # What follows a call is the callee's.
            if not called:
                counts[here] += int(line.split()[1])
            called = False
    return counts


def count(directory):
    counted = {}
    profiles = {}
    for name, (case, n, source) in COUNTED.items():
        if case not in profiles:
            profiles[case] = [collected(case, operations, directory) for operations in (n, 2 * n)]
        once, twice = (of_source(profile, source) for profile in profiles[case])
        if twice <= once:
            raise Failed(f"{name}: nothing is counted from {source}; is the example built with debuginfo, or the file renamed?")
        counted[name] = round((twice - once) / n, 1)
    return counted


def of_source(profile, source):
    return sum(count for file, count in profile.items() if source is None or file.endswith(source))


def measure(directory, names=None):
    """Ratio and error of each case, or of these, and the environment that `nowait bench` found."""
    speeds = {}
    reports = {}
    for name, floor, arguments in SPEEDS:
        if names is not None and name not in names:
            continue
        key = tuple(arguments)
        if key not in reports:
            reports[key] = bench(arguments, directory)
        of = {row["way"]: row["rounds"] for row in reports[key]["rows"] if is_case(row, name)}
        if not {"nowait", floor} <= of.keys():
            raise Failed(f"{name}: no row of nowait or {floor}; was a way left out, or a case renamed?")
        ratios = [ours / theirs for ours, theirs in zip(of["nowait"], of[floor])]
        speeds[name] = {"floor": floor, "ratio": round(statistics.median(ratios), 3), "error": round(error(ratios), 3)}
    return speeds, reports[key]["environment"]


def error(ratios):
    """The standard error of their median, from the distance of the quartiles: a few rounds that are far off do not change it. (Of a
    normal distribution: 1.25 standard deviations of 1 / 1.35 of that distance each, divided by the root of the number.)"""
    low, _, high = statistics.quantiles(ratios, n=4)
    return 0.926 * (high - low) / math.sqrt(len(ratios))


def noise(one, other):
    """What two medians may differ by."""
    return 1.96 * math.hypot(one["error"], other["error"])


def is_below(found, bar):
    return found["ratio"] < bar["ratio"] - noise(found, bar)


def looked_at_again(speeds, bars, directory):
    """The speeds, of those below their bars the better of two."""
    below = [name for name, found in speeds.items() if "error" in bars.get(name, {}) and is_below(found, bars[name])]
    if not below:
        return speeds
    ratios = [f"{name} {speeds[name]['ratio']:.3f}" for name in below]
    print(f"below their bars, and measured once more: {', '.join(ratios)}")
    again, _ = measure(directory, below)
    return speeds | {name: max(speeds[name], again[name], key=lambda speed: speed["ratio"]) for name in below}


def is_case(row, name):
    # Writes name their directory's file system, too.
    table, case = name.split(" ", 1)
    return row["table"] == table and f" {row['case']}".endswith(f" {case}")


def bench(arguments, directory):
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        floors = {floor for _, floor, of_it in SPEEDS if of_it == arguments}
        command = [os.path.join(TARGET, "release/nowait"), "bench", "--rounds", str(ROUNDS), "--dir", directory]
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
        if bar is None or bar["floor"] != found["floor"] or "error" not in bar:
            broken = True
            print(f"  {name:24} {found['ratio']:9.3f} of {found['floor']}, no bar  BROKEN")
            continue
        less = noise(found, bar)
        word = "holds"
        if is_below(found, bar):
            broken, word = True, "BROKEN"
        elif less > NOISE_MAX * bar["ratio"]:
            unclear, word = True, "cannot tell"
        print(f"  {name:24} {found['ratio']:9.3f} of {found['floor']}, bar {bar['ratio']:.3f} less {less:.3f}  {word}")
    return broken, unclear


def environment(report):
    known = {key: report[key] for key in ("kernel", "filesystem", "device", "cpus", "cpu_model")}
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
        if not options.record:
            found["speeds"] = looked_at_again(found["speeds"], bars["speeds"], options.dir)
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
        measured = {} if options.only == "counts" else found["speeds"]
        loose = [name for name, bar in measured.items() if noise(bar, bar) > NOISE_MAX * bar["ratio"]]
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
