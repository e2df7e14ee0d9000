#!/usr/bin/env python3
"""Writes docs/measurements/losses.md: every row of the current records in which the library loses.
`make losses` runs this. It also writes docs/measurements/README.md, the list of pages.

A row is lost if the ratio of speeds of `nowait`, or `nowait-tokio`, to the best other way is below
0.95. Latencies stand apart, where they are what a table measures. Files are those of
docs/measurements/current.tsv, causes those of docs/measurements/causes.tsv.
"""
import fnmatch
import json
import os
import sys

import rounds

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FOLDER = os.path.join(ROOT, "docs/measurements")
PAGE = os.path.join(FOLDER, "losses.md")
CONTENTS = os.path.join(FOLDER, "README.md")

OURS = "nowait"
ON_TOKIO = "nowait-tokio"
LOST = 0.95
# Tables that measure latency: the figures of a row, and their names.
LATENCIES = {
    "mixed": {
        "cold p50": ("cold_latency_ns", "p50"),
        "cold p99": ("cold_latency_ns", "p99"),
        "late p50": ("late_ns", "p50"),
        "late p99": ("late_ns", "p99"),
    },
    "load": {"p99": ("latency_ns", "p99")},
}
# Here requests arrive at a given rate: speed is that of the arrivals.
PACED = ["load"]
LONGER = 1.25
UNKNOWN = "not known"

# From here on `nowait bench` records the commit that it was built from.
COMMITS_SINCE = "2026-11-22T06:00:00Z"


class Refused(Exception):
    """What cannot be made into a page, and why."""


def read(path):
    """Fields of the lines of a file, without comments."""
    with open(path, encoding="utf-8") as file:
        return [line.rstrip("\n").split("\t") for line in file if line.strip() and not line.startswith("#")]


def lines(name):
    return read(os.path.join(FOLDER, name))


def load(path):
    """A report; refused if it should carry the commit and does not."""
    with open(path, encoding="utf-8") as file:
        report = json.load(file)
    environment = report.get("environment", {})
    if environment.get("date", "") >= COMMITS_SINCE and not environment.get("commit"):
        raise Refused(f"{path} carries no commit: measure with a build of a clone")
    return report


def loaded(name):
    return load(os.path.join(FOLDER, name))


def compared(report, way):
    """Of each case that has this way: the best other way, and the ratio to it with its interval (None for
    too few rounds). The best is the one to which the ratio is lowest. The library's other ways are left
    out: it is not compared with itself."""
    cases = {}
    for row in report["rows"]:
        cases.setdefault((row["table"], row["case"]), {})[row["way"]] = row["rounds"]
    for (table, case), ways in cases.items():
        if table in PACED:
            continue
        others = {name: of for name, of in ways.items() if not name.startswith(OURS)}
        if way not in ways or not others:
            continue
        # The middle of each is cheap, the interval of the lowest is not.
        logs = {name: rounds.logs(ways[way], of) for name, of in others.items()}
        means = {name: sum(of) / len(of) for name, of in logs.items() if of}
        if means:
            best = min(means, key=means.get)
            yield table, case, best, rounds.interval(ways[way], others[best], above=rounds.BELOW)


def latencies(report, way):
    """Of each case of a table that measures latency: each figure's ratio to the lowest of the other ways,
    and whose that is."""
    cases = {}
    for row in report["rows"]:
        if row["table"] in LATENCIES:
            cases.setdefault((row["table"], row["case"]), {})[row["way"]] = row
    for (table, case), ways in cases.items():
        others = {name: row for name, row in ways.items() if not name.startswith(OURS)}
        if way not in ways or not others:
            continue
        figures = {}
        for name, (of, quantile) in LATENCIES[table].items():
            best = min(others, key=lambda other: others[other][of][quantile])
            figures[name] = (ways[way][of][quantile] / others[best][of][quantile], best)
        yield table, case, figures


def cause(causes, **row):
    """Number of the first cause all of whose patterns fit; alternatives are separated by |."""
    for number, (*patterns, _, _) in enumerate(causes, 1):
        fields = [row[name] for name in ("file", "table", "case", "way", "best")]
        if all(
            any(fnmatch.fnmatchcase(field, one) for one in pattern.split("|"))
            for field, pattern in zip(fields, patterns)
        ):
            return number
    return None


def current():
    """All rows of the current records: topic, file, way, table, case, best other way, ratio."""
    for topic, name in lines("current.tsv"):
        report = loaded(name)
        for way in (OURS, ON_TOKIO):
            for found in compared(report, way):
                yield topic, name, way, *found


def current_latencies():
    """All latencies of the current records: file, way, table, case, figures."""
    for _, name in lines("current.tsv"):
        report = loaded(name)
        for way in (OURS, ON_TOKIO):
            for found in latencies(report, way):
                yield name, way, *found


def is_lost(ratio):
    return ratio is not None and ratio[0] < LOST


def page():
    rows = list(current())
    causes = lines("causes.tsv")
    used = {}
    topics = {}
    for topic, name, way, table, case, best, ratio in rows:
        if not is_lost(ratio):
            continue
        middle, low, high = ratio
        number = cause(causes, file=name, table=table, case=case, way=way, best=best)
        if number is not None:
            number = used.setdefault(number, len(used) + 1)
        sure = "**" if high < 1 else ""
        topics.setdefault(topic, []).append(
            f"| [{os.path.basename(name)[:-5]}]({name}) | {table} {case} | {way} | {best} | "
            f"{sure}{middle:.2f}{sure} | {low:.2f}–{high:.2f} | {UNKNOWN if number is None else number} |"
        )
    return "\n".join(head(rows) + body(topics) + why(causes, used) + latency() + records()) + "\n"


def summary(rows=None):
    """Numbers of lost rows, as a list."""
    rows = list(current()) if rows is None else rows
    said = []
    for way in (OURS, ON_TOKIO):
        ratios = [ratio for _, _, of, *_, ratio in rows if of == way]
        lost = [ratio for ratio in ratios if is_lost(ratio)]
        sure = sum(high < 1 for _, _, high in lost)
        said.append(f"* `{way}`: {len(lost)} of {len(ratios)} rows; in {sure} the whole interval is below 1.")
    return said


def summary_of_latencies(rows):
    """Numbers of longer latencies, as a list."""
    said = []
    for way in (OURS, ON_TOKIO):
        ratios = [ratio for _, of, _, _, figures in rows if of == way for ratio, _ in figures.values()]
        longer = sum(ratio > LONGER for ratio in ratios)
        said.append(f"* `{way}`: {longer} of {len(ratios)} latencies are more than {LONGER} times the lowest.")
    return said


def counted():
    """Both, for a page that sums them up."""
    return summary() + summary_of_latencies(list(current_latencies()))


def head(rows):
    return [
        "# Rows in which the library loses",
        "",
        "Generated by `make losses` (`tools/losses.py`); not to be edited. Of the rows of the current",
        "records, listed at the end, those in which `nowait` or `nowait-tokio` is below 0.95 of the best",
        "other way. This is about speed; [latency](#latency) is a section of its own. What a way is, and",
        "what a case, is in [the guide](../guide/bench.md#names-of-ways).",
        "",
        *summary(rows),
        "",
        "The ratio is `nowait`'s speed over that of the best of the others, paired round by round. The",
        "library's own other ways are not among the others. The table in",
        "[README.md](../../README.md#one-result) differs: its best may be `nowait` itself. Rows of the table",
        "`load` are left out: below saturation a way's speed is that of the arrivals.",
        "",
        "The ratio is a geometric mean, with its interval: the truth lies below it in one row of 40, and",
        "above it in one of 40. The best other way is the one to which the ratio is lowest. Bold: the whole",
        "interval is below 1. This errs against the library: of many ways that are level one always seems",
        "quicker. The verdict of `nowait bench` has the upper end farther out, by the number of ways and",
        "cases of its run, and calls fewer rows behind. A row whose interval reaches 1 may be no loss; a row",
        "that is not here may be one.",
    ]


def body(topics):
    said = []
    for topic, rows in topics.items():
        said += ["", f"## {topic[0].upper()}{topic[1:]}", ""]
        said += ["| record | case | way | best other way | ratio | interval | cause |", "|---" * 7 + "|", *rows]
    return said


def why(causes, used):
    said = ["", "## Causes", ""]
    for number, place in used.items():
        *_, text, source = causes[number - 1]
        said.append(f"{place}. {text} ([source]({source}))")
    return said + ["", f"“{UNKNOWN}”: none in [causes.tsv](causes.tsv)."]


def latency():
    """The tables of what is longer, one for each record. What is not is a dash."""
    rows = list(current_latencies())
    said = [
        "",
        "## Latency",
        "",
        "Latencies in the records of `mixed` and `load`: those of `nowait` and `nowait-tokio` that are more",
        f"than {LONGER} times the lowest of the other ways in the same case, as a multiple of it, and whose that",
        "is. Cold: of a read that is not cached; late: how late the heartbeat comes. In `load` each rate is a",
        "case, and latency counts from the arrival. Latencies are of all rounds together and have no interval.",
        "A dash: not longer.",
        "",
        *summary_of_latencies(rows),
    ]
    for name in dict.fromkeys(name for name, *_ in rows):
        of_file = [row for row in rows if row[0] == name]
        columns = list(dict.fromkeys(figure for *_, figures in of_file for figure in figures))
        said += ["", f"[{os.path.basename(name)[:-5]}]({name}):", ""]
        said += [f"| case | way | {' | '.join(columns)} |", "|---" * (2 + len(columns)) + "|"]
        for _, way, _, case, figures in of_file:
            if any(ratio > LONGER for ratio, _ in figures.values()):
                cells = [longer(*figures[column]) if column in figures else "–" for column in columns]
                said.append(f"| {case} | {way} | {' | '.join(cells)} |")
    return said


def longer(ratio, best):
    return f"{ratio:.3g} {best}" if ratio > LONGER else "–"


def records():
    said = ["", "## Records", "", "| record | measured | commit |", "|---|---|---|"]
    for _, name in lines("current.tsv"):
        found = loaded(name)["environment"]
        said.append(f"| [{name}]({name}) | {found['date'][:10]} | {found.get('commit') or '**not recorded**'} |")
    return said


def contents():
    """docs/measurements/README.md: pages with a current record by topic, then all others, newest first."""
    topics = {}
    for topic, name in lines("current.tsv"):
        topics.setdefault(os.path.dirname(name), topic)
    said = [
        "# Measurements",
        "",
        "Generated by `make losses` (`tools/losses.py`); not to be edited. A page is a folder: what was",
        "found, and the JSON that its tables are made of. [current.tsv](current.tsv) says which records are",
        "current, the newest of each topic. [losses.md](losses.md) has the rows of these in which the library",
        "loses, [causes.tsv](causes.tsv) why. A page that was measured again is in git alone.",
        "",
        "`bench/measure TOPIC` repeats the measurements of a topic, on an idle machine; without a topic it",
        "lists them. Each page names its commands. What a way is, and what a case, is in [the",
        "guide](../guide/bench.md#names-of-ways).",
        "",
        "## Current",
        "",
        "| topic | page | measured on |",
        "|---|---|---|",
    ]
    for folder, topic in topics.items():
        said.append(f"| {topic} | {entry(folder)} |")
    said += ["", "## Other questions", "", "| page | measured on |", "|---|---|"]
    others = [folder for folder in folders() if folder not in topics]
    said += [f"| {entry(folder)} |" for folder in others]
    return "\n".join(said) + "\n"


def folders():
    """Folders with a page, newest first."""
    found = [name for name in os.listdir(FOLDER) if os.path.exists(os.path.join(FOLDER, name, "README.md"))]
    return sorted(sorted(found), key=lambda name: name[:10], reverse=True)


def text_of(folder):
    with open(os.path.join(FOLDER, folder, "README.md"), encoding="utf-8") as file:
        return file.read()


def entry(folder):
    """Title of the page, without the date, and the date of its folder."""
    title = text_of(folder).splitlines()[0].removeprefix("# ")
    title = title.removeprefix(f"{folder[:10]}: ").removesuffix(f": {folder[:10]}")
    return f"[{title[0].upper()}{title[1:]}]({folder}/README.md) | {folder[:10]}"


def stale():
    """Causes that no lost row has."""
    causes = lines("causes.tsv")
    found = set()
    for _, name, way, table, case, best, ratio in current():
        if is_lost(ratio):
            found.add(cause(causes, file=name, table=table, case=case, way=way, best=best))
    return [text for number, (*_, text, _) in enumerate(causes, 1) if number not in found]


def main():
    made = page()
    for path, text in [(PAGE, made), (CONTENTS, contents())]:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    for text in stale():
        print(f"causes.tsv: no lost row has this cause any more: {text}")


if __name__ == "__main__":
    if len(sys.argv) != 1:
        sys.exit(__doc__)
    try:
        main()
    except Refused as refused:
        sys.exit(f"losses: {refused}")
