#!/usr/bin/env python3
"""Prints the tables of a `nowait bench --json FILE` as Markdown: python3 tables.py FILE

A cell: median operations a second, (slowest round - fastest round, as fractions of it), CPU time per operation.
"""
import json
import sys


def number(value):
    return f"{value / 1e3:.1f}k" if value < 1e5 else f"{value / 1e3:.0f}k"


def cell(row):
    if row is None:
        return "–"
    median = row["ops_per_s"]
    rounds = [r["ops_per_s"] if isinstance(r, dict) else r for r in row["rounds"]]
    spread = f"{min(rounds) / median:.2f}–{max(rounds) / median:.2f}"
    return f"{number(median)} ({spread}) {row['cpu_us_per_op']['total']:.1f} µs"


def main(path):
    with open(path, encoding="utf-8") as file:
        rows = json.load(file)["rows"]
    cells = {(row["table"], row["case"], row["way"]): row for row in rows}
    for table in dict.fromkeys(row["table"] for row in rows):
        cases = dict.fromkeys(row["case"] for row in rows if row["table"] == table)
        ways = dict.fromkeys(row["way"] for row in rows if row["table"] == table)
        print(f"\n## {table}\n")
        print("| case | " + " | ".join(ways) + " |")
        print("|---" * (len(ways) + 1) + "|")
        for case in cases:
            print(f"| {case} | " + " | ".join(cell(cells.get((table, case, way))) for way in ways) + " |")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
