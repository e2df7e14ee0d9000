#!/usr/bin/env python3
"""Tables of Markdown from the JSON of `nowait bench`: printed, or put in place in the pages.

    tables.py FILE... [options]   prints a table
    tables.py                     makes all tables anew that stand in pages; `make tables` runs this

A table in a page stands between two marks. FILE is relative to the page, and the text between the
marks is not to be edited:

    <!-- generated: tables.py FILE... [options] -->
    <!-- end -->

Without options each case has a row and each way a cell: median operations a second, (slowest round -
fastest round, as fractions of it), processor time of the whole process per operation.

    --tables A,B    only these tables of the run
    --cases A;B     only these cases; patterns as of a shell
    --ways A,B      only these ways, in this order
    --transpose     a row for each way, a cell for each case
    --streams       MiB/s, (slowest - fastest), [ms of processor time per GiB]
    --columns A,B   a row for each case and way, with these columns: names of COLUMNS in this file, or
                    NAME=FIELD.FIELD/DIVISOR of the row's JSON
    --against WAY   one column more: the ratio of nowait to this way, with its interval
    --records       of all files in the page's folder: when they were measured, and at which commit
    --shares        FILE lists rows of runs; speed as a share of the best way's in the same rounds
    --bars          FILE lists what is to be reached: the ratio to the best of the ways named, and a
                    finding: "met" if its interval lies above the bar, "short" if below, else
                    "cannot tell"
    --judged        FILEs have judged what is to be reached by themselves, as those of the Python package
                    do: the median of the rounds' ratios, its quartiles, and what they come to
    --controls      FILEs have a run in each line: how far ways were from themselves, and how often the
                    verdict's rule would have called one behind itself
    --losses        numbers of rows in which the library loses, and of latencies (losses.py)
"""
import argparse
import fnmatch
import glob
import json
import math
import os
import re
import shlex
import statistics
import sys

import losses
import rounds

ROOT = losses.ROOT
MARKED = re.compile(r"(<!-- generated: tables\.py(?P<options>.*?) -->\n)(?P<table>.*?)(<!-- end -->)", re.DOTALL)
Refused = losses.Refused
loaded = losses.load


def rows_of(report):
    """Rows of a run, or of many runs of one round each in turn with fio."""
    if "rows" in report:
        return report["rows"]
    found = {}
    for turn in report["rounds"]:
        fio = turn["fio"]
        gib = fio["bytes_per_s"] * fio["runtime_ms"] / 1e3 / 2**30
        cpu = fio["runtime_ms"] * (fio["usr_cpu"] + fio["sys_cpu"]) / 100 / gib
        case = {"table": "dd", "case": turn["rows"][0]["case"]}
        for row in [case | {"way": "fio", "bytes_per_s": fio["bytes_per_s"], "cpu_ms_per_gib": cpu}, *turn["rows"]]:
            found.setdefault((row["case"], row["way"]), []).append(row)
    pooled = []
    for rows in found.values():
        of = {name: [row[name] for row in rows] for name in ("bytes_per_s", "cpu_ms_per_gib")}
        middles = {name: statistics.median(values) for name, values in of.items()}
        pooled.append(rows[0] | middles | {"rounds": of["bytes_per_s"]})
    return pooled


def number(value):
    return f"{value / 1e3:.1f}k" if value < 1e5 else f"{value / 1e3:.0f}k"


def digits_of(value):
    """Three digits, or all before the point."""
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def short(value):
    return f"{value / 1e3:.3g}k" if value < 1e5 else f"{value / 1e3:.0f}k"


def spread(row):
    median = statistics.median(row["rounds"])
    return f"({min(row['rounds']) / median:.2f}–{max(row['rounds']) / median:.2f})"


def mib(row):
    return f"{row['bytes_per_s'] / 2**20:.0f}"


def micros(name):
    return lambda row: in_micros(row["latency_ns"][name])


def in_micros(nanos):
    return f"{nanos / 1e3:.3g}" if nanos < 1e5 else f"{nanos / 1e3:.0f}"


def millis(row, name, digits):
    return f"{row['latency_ns'][name] / 1e6:.{digits}f}"


def of_populate(name):
    return lambda row: f"{row['populate'][name]:.1f}"


COLUMNS = {
    "ops/s": lambda row: f"{short(row['ops_per_s'])} {spread(row)}",
    "commits/s": lambda row: f"{short(row['ops_per_s'])} {spread(row)}",
    "rows/s": lambda row: f"{short(row['ops_per_s'])} {spread(row)}",
    "ms": lambda row: digits_of(1e3 / row["ops_per_s"]),
    "kpages/s": lambda row: f"{row['ops_per_s'] / 1e3:.0f} {spread(row)}",
    "MiB/s": mib,
    "p50 µs": micros("p50"),
    "p99 µs": micros("p99"),
    "p99.9 µs": micros("p999"),
    "p99.9 ms": lambda row: millis(row, "p999", 3),
    "longest ms": lambda row: millis(row, "max", 1),
    "CPU µs": lambda row: f"{row['cpu_us_per_op']['total']:.1f}",
    "CPU ms/GiB": lambda row: f"{row['cpu_ms_per_gib']:.0f}",
    "switches": lambda row: f"{row['context_switches_per_op']:.2f}",
    "bytes": lambda row: f"{row['file_bytes_per_byte']:.2f}",
    "in gaps > 1 ms": lambda row: f"{row['stalled_fraction'] * 100:.0f} %",
    "inline": lambda row: f"{row['inline_fraction']:.2f}",
    "first chunk ms": of_populate("first_chunk_ms"),
    "all ms": of_populate("all_ms"),
    "longest gap ms": of_populate("longest_gap_ms"),
    "idle gap ms": of_populate("idle_gap_ms"),
    "announced p99 µs": lambda row: in_micros(row["populate"]["announced_touch_ns"]["p99"]),
    "warm p99 µs": lambda row: in_micros(row["populate"]["warm_touch_ns"]["p99"]),
}


def plain_cell(row):
    return f"{number(row['ops_per_s'])} {spread(row)} {row['cpu_us_per_op']['total']:.1f} µs"


def stream_cell(row):
    return f"{mib(row)} {spread(row)} [{row['cpu_ms_per_gib']:.0f}]"


def grid(head, body):
    return [f"| {' | '.join(head)} |", "|---" * len(head) + "|", *(f"| {' | '.join(line)} |" for line in body)]


def chosen(rows, options):
    tables = options.tables.split(",") if options.tables else list(dict.fromkeys(row["table"] for row in rows))
    cases = options.cases.split(";") if options.cases else ["*"]
    ways = options.ways.split(",") if options.ways else list(dict.fromkeys(row["way"] for row in rows))
    rows = [row for row in rows if row["table"] in tables and row["way"] in ways]
    found = [row for row in rows if any(fnmatch.fnmatchcase(row["case"], case) for case in cases)]
    if not found:
        raise Refused("no row fits the options")
    return found, tables, ways


def name_of(table, case):
    return f"whole file, {case}" if table == "whole" else case


def rated(ours, other):
    if ours is None or other is None:
        return "–"
    found = rounds.interval(ours["rounds"], other["rounds"], above=rounds.BELOW)
    return "–" if found is None else "{:.2f} ({:.2f}–{:.2f})".format(*found)


def table(paths, options):
    rows, tables, ways = chosen([row for path in paths for row in rows_of(loaded(path))], options)
    of = {(row["table"], row["case"], row["way"]): row for row in rows}
    if len(of) != len(rows):
        raise Refused("a case is in two of the files: make a table of each")
    cases = [case for table in tables for case in dict.fromkeys(key[:2] for key in of) if case[0] == table]
    if options.columns:
        columns = options.columns.split(",")
        return grid(["case", "way", *(column.partition("=")[0] for column in columns)], [
            [name_of(*case), way, *(column_of(of[(*case, way)], column) for column in columns)]
            for case in cases for way in ways if (*case, way) in of
        ])
    cell = stream_cell if options.streams else plain_cell

    def cell_of(case, way):
        return cell(of[(*case, way)]) if (*case, way) in of else "–"

    if options.transpose:
        return grid(["way", *(name_of(*case) for case in cases)], [
            [way, *(cell_of(case, way) for case in cases)] for way in ways
        ])
    head = ["case", *ways]
    body = [[name_of(*case), *(cell_of(case, way) for way in ways)] for case in cases]
    if options.against:
        head.append(f"nowait / {options.against}")
        for case, line in zip(cases, body):
            line.append(rated(of.get((*case, losses.OURS)), of.get((*case, options.against))))
    return grid(head, body)


def column_of(row, column):
    """A cell of a row; a dash if the row does not have the figure."""
    name, _, path = column.partition("=")
    if not path and name not in COLUMNS:
        raise Refused(f"there is no column {name}")
    try:
        return field(row, path) if path else COLUMNS[name](row)
    except (KeyError, TypeError):
        return "–"


def field(row, path):
    """A field of the row's JSON: names with dots between, and what it is divided by."""
    names, _, divisor = path.partition("/")
    for name in names.split("."):
        row = row[name]
    return digits_of(row / float(divisor or 1))


def records(folder):
    body = []
    for path in sorted(glob.glob(os.path.join(folder, "*.json"))):
        found = loaded(path)
        # What was not written by `nowait bench --json` has an environment for each round.
        environment = found.get("environment") or found["rounds"][0].get("environment", {})
        command = environment.get("command")
        body.append([
            f"[{os.path.basename(path)}]({os.path.basename(path)})",
            environment.get("date", "–")[:16].replace("T", " "),
            environment.get("commit") or "**not recorded**",
            f"`{command}`" if command else "not recorded; see the table's text",
        ])
    return grid(["file", "measured (UTC)", "commit", "command"], body)


def shares(path):
    """Rows of a file of lines "label, JSON, table, case"; its first line names the columns and their ways."""
    first, *lines = losses.read(path)
    columns = [column.split("=") for column in first]
    body = []
    for label, name, *of_case in lines:
        rows = loaded(os.path.join(os.path.dirname(path), name))["rows"]
        rows = [row for row in rows if [row["table"], row["case"]] == of_case]
        speeds = {row["way"]: statistics.geometric_mean(row["rounds"]) for row in rows}
        best = max(speeds.values())
        shown = [next(speeds[way] for way in ways.split("|") if way in speeds) for _, ways in columns]
        body.append([label, *(f"{speed / best:.2f}" for speed in shown)])
    return grid(["", *(name for name, _ in columns)], body)


def bars(path):
    """Rows of a file of lines "point, ways, bar, JSON, table, case, way"; "*" are all ways but the library's."""
    body = []
    for point, against, bar, name, of_table, of_case, way in losses.read(path):
        report = loaded(os.path.join(os.path.dirname(path), name))
        rows = [row for row in rows_of(report) if row["table"] == of_table]
        cases = [case for case in dict.fromkeys(row["case"] for row in rows) if fnmatch.fnmatchcase(case, of_case)]
        if not cases:
            raise Refused(f"{point}: no case {of_case} in {name}")
        for case in cases:
            of = {row["way"]: row for row in rows if row["case"] == case}
            others = {other for other in of if not other.startswith(losses.OURS)}
            others = others if against == "*" else others & set(against.split("|"))
            if not others or way not in of:
                raise Refused(f"{point}: {case} of {name} has not both {way} and one of {against}")
            best = max(sorted(others), key=lambda other: statistics.geometric_mean(of[other]["rounds"]))
            ratio, low, high = rounds.interval(of[way]["rounds"], of[best]["rounds"], above=rounds.BELOW)
            found = "met" if low >= float(bar) else "**short**" if high < float(bar) else "cannot tell"
            said = f"{ratio:.2f} ({low:.2f}–{high:.2f})"
            body.append([point, name_of(of_table, case), way, best, bar, said, found, dearer(of[way], of[best])])
    return grid(["point", "case", "way", "best other", "to reach", "ratio", "finding", "CPU of it"], body)


def judged(paths):
    """What reports have judged by themselves."""
    body = []
    for bar in (bar for path in paths for bar in loaded(path)["bars"]):
        # A latency is told in milliseconds, all others are ratios.
        scale, unit = (1e3, " ms") if bar["figure"].endswith("gap_s") else (1, "")
        is_upper = bool(unit) or bar["figure"] == "processor_s"
        low, high = (f"{figure * scale:.2f}" for figure in bar["quartiles"])
        said = f"{bar['median'] * scale:.2f}{unit} ({low}–{high})"
        found = {"met": "met", "undecided": "cannot tell", "not met": "**short**"}[bar["verdict"]]
        what = {"processor_s": "processor time", "seconds": "speed"}.get(bar["figure"], "longest gap")
        limit = f"{'≤' if is_upper else '≥'} {bar['limit'] * scale:g}{unit}"
        body.append([bar["point"], bar["way"], bar.get("against", "–"), what, limit, said, found])
    return grid(["point", "way", "against", "figure", "to reach", "found", "finding"], body)


def dearer(ours, other):
    """Ratio of processor times, where both are known."""
    for name in ("cpu_ms_per_gib", "cpu_us_per_op"):
        both = [row.get(name) for row in (ours, other)]
        if all(both):
            mine, theirs = (one["total"] if isinstance(one, dict) else one for one in both)
            return f"{mine / theirs:.2f}"
    return "–"


def made(words, folder):
    parser = argparse.ArgumentParser(prog="tables.py", add_help=False, exit_on_error=False)
    parser.add_argument("files", nargs="*")
    for flag in ("transpose", "streams", "records", "shares", "bars", "judged", "controls", "losses"):
        parser.add_argument(f"--{flag}", action="store_true")
    for option in ("tables", "cases", "ways", "columns", "against"):
        parser.add_argument(f"--{option}")
    options = parser.parse_args(words)
    paths = [os.path.join(folder, file) for file in options.files]
    if options.records:
        return records(folder)
    if options.losses:
        return losses.counted()
    if options.bars:
        return bars(*paths)
    if options.judged:
        return judged(paths)
    if options.controls:
        return controls(paths)
    return shares(*paths) if options.shares else table(paths, options)


def controls(paths):
    body = []
    for path in paths:
        with open(path, encoding="utf-8") as file:
            runs = [json.loads(line) for line in file]
        wrong, distances = 0, []
        for run in runs:
            of_run = run["controls"]
            for one, two in ((control["rounds"], control["again"]) for control in of_run):
                distances.append(math.exp(abs(statistics.fmean(rounds.logs(one, two)))) - 1)
                intervals = [rounds.interval(*pair, len(of_run)) for pair in ((one, two), (two, one))]
                wrong += any(interval is not None and interval[2] < 1 for interval in intervals)
        distances.sort()
        at = lambda share: f"{distances[int(len(distances) * share)] * 100:.1f} %"
        name = os.path.basename(path)
        dates = [run["environment"]["date"][:16].replace("T", " ") for run in runs]
        commits = ", ".join(sorted({run["environment"]["commit"] for run in runs}))
        body.append([f"[{name}]({name})", f"{min(dates)} to {max(dates)[11:]}", commits,
                     str(len(runs)), str(len(distances)), at(0.5), at(0.9), str(wrong)])
    return grid(["file", "measured (UTC)", "commit", "runs", "controls", "from itself, middle", "9 in 10 below",
                 "false claims"], body)


def pages():
    """All pages of the repository that are not in a folder of builds."""
    found = [os.path.join(ROOT, name) for name in os.listdir(ROOT) if name.endswith(".md")]
    for top in ("docs", "crates", "bench"):
        found += glob.glob(os.path.join(ROOT, top, "**/*.md"), recursive=True)
    return sorted(path for path in found if "/target/" not in path)


def renewed(path):
    """A page as it is, and as it is with its tables made anew."""
    with open(path, encoding="utf-8") as file:
        text = file.read()

    def renew(mark):
        try:
            lines = made(shlex.split(mark["options"]), os.path.dirname(path))
        except Refused as refused:
            raise Refused(f"{path}: {mark['options'].strip()}: {refused}") from None
        return "\n".join([mark[1], *lines, "", mark[4]])

    return text, MARKED.sub(renew, text)


def main(words):
    if words:
        print("\n".join(made(words, ".")))
        return
    for path in pages():
        was, now = renewed(path)
        if was != now:
            with open(path, "w", encoding="utf-8") as file:
                file.write(now)
            print(f"{os.path.relpath(path, ROOT)}: made anew")


if __name__ == "__main__":
    if sys.argv[1:] in (["-h"], ["--help"]):
        print(__doc__)
    else:
        try:
            main(sys.argv[1:])
        except (Refused, argparse.ArgumentError) as error:
            sys.exit(f"tables: {error}")
