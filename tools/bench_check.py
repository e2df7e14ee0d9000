#!/usr/bin/env python3
"""Has the library become slower than its recorded bars? `make bench-check` runs this.

Instructions per operation are counted by callgrind, where valgrind is installed. They do not depend
on the machine's load: a count may exceed its bar by 3 %.

Speeds are ratios to a hand-written floor. `nowait bench` is run again and again, 5 rounds a time,
all cases in turn, so that the runs of a case lie minutes apart. A run counts as one figure: the mean
of the logs of its rounds' ratios. The error comes from the scatter of these figures, and so has the
moods of the disk that last as long as a run. Where neighbouring runs are alike it is wider, by their
correlation (`rounds.mean_in_turn`). After 8, 16, 24, 32, 40 and 48 runs a case ends if its error,
with the bar's own, is small enough for what is promised below. Only the scatter decides that.
A bar is recorded from 16 to 96 runs. No figure is left out, and nothing is measured a second time.

Promised, and simulated with these functions in tools/test_bench_check.py:

* A true loss of 10 % in a case is found in 90 % of checks, or more.
* At most 5 % of checks find a loss in any of the 6 cases where nothing has changed.
* Both hold where each way's rounds scatter by 5 %, or by 15 % (standard deviation, normal; 7 % and
  21 % of a round's ratio), by 5 % with whole runs off by another 5 %, and as all recorded rounds in
  docs/measurements together, heavy tails included.
* Where the scatter does not allow it, the answer is "cannot tell": in one check of seven over the
  recorded cases taken one by one. A loss of 10 % is found in 85 % of these, and passes as "holds" in
  less than 5 %.

Not covered:

* Moods that last for some runs, wholly: so few runs tell their correlation badly. Where neighbouring
  runs correlate by 0.5 one check of six gives a false alarm, by 0.8 three or four of ten. By the
  scatter alone it would be one of four, and six or seven of ten.
* A machine, kernel, disk or compiler that changed between recording and checking: it may treat the
  library and the floor differently. What is known of a change is printed above the speeds.
* A mood of the disk that lasts for a whole check, or for a whole recording.
* A bar that was recorded too high, or too low, by chance. The rates above are over recordings and
  checks together; one unlucky bar can break again and again until it is recorded again.
* Losses below 10 %, and cases that are not in the list.

Exit codes: 0 no bar is broken; 1 one is, or something cannot be measured; 2 wrong usage; 3 cannot
tell: the scatter is too large, or a bar was recorded by an older version of this tool.
"""
import argparse
import collections
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile

import rounds

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BARS = os.path.join(ROOT, "bench-bars.json")
TARGET = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))

TOLERANCE = 0.03
# Case of the example `instructions`, and its operations: enough that start-up is lost in the
# difference of two runs. With a source file, only what was written there counts, wherever it was
# inlined: not what the standard library does for it (atomics, sorting, memory).
COUNTED = {
    "read-into": ("read-into", 20_000, None),
    "read-wait": ("read-wait", 20_000, None),
    "read-future": ("read-future", 20_000, None),
    "selector": ("read-future", 20_000, "nowait/src/core/policy.rs"),
    "gather": ("gather", 1_000, None),
    "gather-plan": ("gather-plan", 1_000, None),
    "gather planning": ("gather-plan", 1_000, "nowait/src/gather/queued.rs"),
}

# Case, floor, arguments. Rounds of 0.3 s, as `nowait bench` has them without --quick. Files are as
# large as a round's cold reads need.
SPEEDS = [
    ("cached threads=1", "pread", ["cached", "--size", "64M"]),
    ("reads depth=1", "pread", ["reads", "--depths", "1", "--size", "64M"]),
    ("reads depth=32", "ring", ["reads", "--depths", "32", "--size", "128M"]),
    ("gather records=64,cold", "ring", ["gather", "--records", "64", "--size", "128M"]),
    # Quick: on the directory's own file system alone.
    ("writes depth=1", "pwrite", ["writes", "--quick", "--depths", "1", "--size", "64M"]),
    ("log writers=8 size=256", "thread-batch", ["log", "--writers", "8", "--sizes", "256"]),
]
# Rounds of a run, which begins anew: its own files, its own process.
ROUNDS = 5
# Numbers of runs after which it is looked whether they are enough.
CHECKED = range(8, 49, 8)
RECORDED = range(16, 97, 16)

LOSS = -math.log(0.9)
POWER = 0.9
# Probability of a false alarm in one case, as it goes into the limit. The scatter that ends a case is
# more often too small than too large, which makes about twice as much of it: 3 % for all cases
# together, and 5 % are promised (simulated).
ALARM = 0.015 / len(SPEEDS)
# Of the error that is allowed, as a variance, a bar takes up this share.
BARS_SHARE = 1 / 3


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
    """Own instructions of each source file. Inlined ones are of the file they were written in
    (callgrind's format, "fi" and "fe")."""
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
            raise Failed(f"{name}: nothing is counted from {source}; built without debuginfo, or renamed?")
        counted[name] = round((twice - once) / n, 1)
    return counted


def of_source(profile, source):
    return sum(count for file, count in profile.items() if source is None or file.endswith(source))


class Runs:
    """Runs of `nowait bench`, and the environment that the last one found."""

    def __init__(self, directory):
        self.directory = directory
        self.environment = {}

    def figure(self, name, floor, arguments):
        report = bench(arguments, floor, self.directory)
        self.environment = report["environment"]
        return of_run(report["rows"], name, floor)


def measure(figure, looks, enough):
    """Speed of each case, from as many runs as one of `looks`: the first after which `enough(name,
    speed)`, else the last. `figure(*case)` is that of one run."""
    values = {name: [] for name, _, _ in SPEEDS}
    speeds = {}
    for runs in range(1, max(looks) + 1):
        for name, floor, arguments in SPEEDS:
            if name in speeds:
                continue
            if sys.stderr.isatty():
                print(f"\rrun {runs} of {min(looks)} to {max(looks)}: {name:24}", end="", file=sys.stderr, flush=True)
            values[name].append(figure(name, floor, arguments))
            if runs in looks:
                speed = {"floor": floor} | summed_up(values[name])
                if enough(name, speed) or runs == max(looks):
                    speeds[name] = speed
    if sys.stderr.isatty():
        print(file=sys.stderr)
    return {name: speeds[name] for name in values}


def of_run(rows, name, floor):
    """Mean of the logs of the rounds' ratios."""
    of = {row["way"]: row["rounds"] for row in rows if is_case(row, name)}
    if not {"nowait", floor} <= of.keys():
        raise Failed(f"{name}: no row of nowait or {floor}; was a way left out, or a case renamed?")
    logs = rounds.logs(of["nowait"], of[floor])
    if not logs:
        raise Failed(f"{name}: rounds of nowait and {floor} that are not paired, or without a speed")
    return math.fsum(logs) / len(logs)


def summed_up(values):
    """Ratio of the runs, the standard error of its log, and their number."""
    middle, error = rounds.mean_in_turn(values)
    return {"ratio": round(math.exp(middle), 4), "error": round(error, 4), "runs": len(values)}


def limits(found, bar):
    """How far the log of a ratio may lie below its bar's where nothing has changed, and how far below
    that limit a loss must lie to be found."""
    error = math.hypot(found["error"], bar["error"])
    if error == 0:
        return 0, 0
    # Welch and Satterthwaite.
    parts = [speed["error"] ** 4 / (speed["runs"] - 1) for speed in (found, bar)]
    freedom = int(error**4 / sum(parts))
    return error * rounds.student(ALARM, freedom), error * rounds.student(1 - POWER, freedom)


def is_below(found, bar):
    return math.log(found["ratio"] / bar["ratio"]) < -limits(found, bar)[0]


def is_told(found, bar):
    """Would a loss be found?"""
    return sum(limits(found, bar)) <= LOSS


def is_good_bar(bar):
    """Is it known well enough, so that a check can tell?"""
    error = bar["error"] / math.sqrt(BARS_SHARE)
    freedom = bar["runs"] - 1
    return error * (rounds.student(ALARM, freedom) + rounds.student(1 - POWER, freedom)) <= LOSS


def is_comparable(found, bar):
    return bar is not None and bar["floor"] == found["floor"] and "runs" in bar


def check(figure, bars):
    def enough(name, found):
        bar = bars.get(name)
        # More runs do not help where there is nothing to compare with, or a bar that is too loose.
        return not is_comparable(found, bar) or not is_good_bar(bar) or is_told(found, bar)

    return measure(figure, CHECKED, enough)


def record(figure):
    return measure(figure, RECORDED, lambda _, bar: is_good_bar(bar))


def is_case(row, name):
    # Writes name their directory's file system, too.
    table, case = name.split(" ", 1)
    return row["table"] == table and f" {row['case']}".endswith(f" {case}")


def bench(arguments, floor, directory):
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        command = [os.path.join(TARGET, "release/nowait"), "bench", "--rounds", str(ROUNDS), "--dir", directory]
        command += ["--json", report.name, "--ways", f"{floor},nowait", *arguments]
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
        said = f"  {name:24} {found['ratio']:6.3f} of {found['floor']}"
        if bar is None or bar["floor"] != found["floor"]:
            broken = True
            print(f"{said}, no bar  BROKEN")
            continue
        if not is_comparable(found, bar):
            unclear = True
            print(f"{said}, bar {bar['ratio']:.3f} of an older kind: record again  cannot tell")
            continue
        word = "holds"
        if is_below(found, bar):
            broken, word = True, "BROKEN"
        elif not is_told(found, bar):
            unclear, word = True, "cannot tell"
        lowest = bar["ratio"] * math.exp(-limits(found, bar)[0])
        print(f"{said}, bar {bar['ratio']:.3f}, lowest {lowest:.3f}, {found['runs']} runs  {word}")
    return broken, unclear


def environment(report):
    known = {key: report[key] for key in ("kernel", "filesystem", "device", "cpus", "cpu_model")}
    return known | {"rustc": run(["rustc", "--version"]).stdout.strip()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="make what is found the bars, in bench-bars.json")
    parser.add_argument("--only", choices=["counts", "speeds"], help="only these")
    parser.add_argument(
        "--dir", default=TARGET, help="where the files are made: ext4, xfs or btrfs [default: cargo's target]"
    )
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
        runs = Runs(options.dir)
        found["speeds"] = record(runs.figure) if options.record else check(runs.figure, bars["speeds"])
        found["environment"] = environment(runs.environment)
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
        loose = [name for name, bar in measured.items() if not is_good_bar(bar)]
        if loose:
            print(f"too noisy to find a loss of 10 %, record again on a calmer machine: {', '.join(loose)}")
        return 3 if loose else 0
    if broken:
        print("A bar is broken. If that is meant, say why in the commit and record new ones:")
        print("python3 tools/bench_check.py --record")
    return 1 if broken else 3 if unclear else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as failed:
        sys.exit(f"bench-check: {failed}")
