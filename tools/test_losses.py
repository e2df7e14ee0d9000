#!/usr/bin/env python3
"""Intervals of ratios, and the page of the rows in which the library loses."""
import os
import unittest
from unittest import mock

import losses
import rounds

class Intervals(unittest.TestCase):
    def test_rounds_that_cannot_be_paired_have_none(self):
        self.assertIsNone(rounds.interval([1.0, 1.0], [1.0, 1.0]))
        self.assertIsNone(rounds.interval([1.0, 1.0, 1.0], [1.0, 1.0]))
        self.assertIsNone(rounds.interval([1.0, 0.0, 1.0], [1.0, 1.0, 1.0]))

    def test_quantiles_of_students_t(self):
        for above, freedom, exact in [(0.025, 1, 12.706), (0.025, 14, 2.145), (0.005, 5, 4.032), (0.1, 30, 1.310)]:
            self.assertAlmostEqual(rounds.student(above, freedom), exact, 3)


def row(way, speed, case="depth=1"):
    return {"table": "reads", "case": case, "way": way, "rounds": [speed] * 5}


class Page(unittest.TestCase):
    def test_it_is_what_make_losses_writes(self):
        with open(losses.PAGE, encoding="utf-8") as file:
            self.assertEqual(file.read(), losses.page(), "run `make losses`")

    def test_all_pages_are_listed(self):
        with open(losses.CONTENTS, encoding="utf-8") as file:
            text = file.read()
        self.assertEqual(text, losses.contents(), "run `make losses`")
        for folder in losses.folders():
            self.assertEqual(text.count(f"({folder}/README.md)"), 1, folder)

    def test_all_ways_are_explained(self):
        said = ""
        for name in ("docs/guide/bench.md", "bench/peers.md"):
            with open(os.path.join(losses.ROOT, name), encoding="utf-8") as file:
                said += file.read()
        ways = {row["way"] for _, name in losses.lines("current.tsv") for row in losses.loaded(name)["rows"]}
        self.assertEqual([way for way in sorted(ways) if f"`{way}`" not in said], [])

    def page(self, rows, causes=()):
        files = {"current.tsv": [["reads", "run/reads.json"]], "causes.tsv": list(causes)}
        report = {"rows": rows, "environment": {"date": "2026-11-23T00:00:00Z"}}
        with (
            mock.patch.object(losses, "lines", lambda name: files[name]),
            mock.patch.object(losses, "loaded", lambda _: report),
        ):
            return losses.page(), losses.stale()

    def test_a_row_is_lost_to_the_best_other_way_and_not_to_our_own(self):
        page, _ = self.page([row("pread", 50), row("ring", 100), row("nowait-aio", 900), row("nowait", 94)])
        self.assertIn("| reads depth=1 | nowait | ring | **0.94** | 0.94–0.94 | not known |", page)
        self.assertIn("`nowait`: 1 of 1 rows; in 1 the whole", page)
        self.assertIn("`nowait-tokio`: 0 of 0 rows", page)
        self.assertIn("| 2026-11-23 | **not recorded** |", page)
        page, _ = self.page([row("ring", 100), row("nowait", 96), row("nowait-tokio", 96)])
        self.assertNotIn("not known |", page)

    def test_the_speed_of_arrivals_is_no_row(self):
        latency = {"latency_ns": {"p99": 10}}
        paced = [row(way, speed) | latency | {"table": "load"} for way, speed in [("ring", 100), ("nowait", 50)]]
        page, _ = self.page(paced)
        self.assertIn("`nowait`: 0 of 0 rows", page)

    def test_a_latency_is_longer_than_the_lowest_other_of_its_figure(self):
        def mixed(way, cold, late):
            of = {"cold_latency_ns": {"p50": cold, "p99": cold}, "late_ns": {"p50": late, "p99": late}}
            return row(way, 100) | of | {"table": "mixed"}

        rows = [mixed("plain", 100, 50), mixed("ring", 200, 10), mixed("nowait-smol", 1, 1)]
        page, _ = self.page(rows + [mixed("nowait", 300, 11), mixed("nowait-tokio", 125, 12)])
        self.assertIn("| case | way | cold p50 | cold p99 | late p50 | late p99 |", page)
        self.assertIn("| depth=1 | nowait | 3 plain | 3 plain | – | – |", page)
        self.assertNotIn("| depth=1 | nowait-tokio |", page)
        self.assertIn("* `nowait`: 2 of 4 latencies are more than 1.25 times the lowest.", page)
        self.assertIn("* `nowait-tokio`: 0 of 4 latencies", page)
        loaded = [row(way, 100) | {"table": "load", "latency_ns": {"p99": of}} for way, of in [("ring", 10), ("nowait", 13)]]
        page, _ = self.page(loaded)
        self.assertIn("| depth=1 | nowait | 1.3 ring |", page)

    def test_the_first_cause_that_fits_is_named_and_one_that_fits_nothing_is_said(self):
        causes = [
            ["*", "reads", "depth=2|depth=4", "nowait", "*", "Two.", "page.md"],
            ["*/reads.json", "reads", "depth=*", "nowait", "ring", "One.", "page.md"],
            ["*", "*", "*", "*", "*", "All.", "page.md"],
        ]
        page, stale = self.page([row("ring", 100), row("nowait", 50)], causes)
        self.assertIn("| 0.50–0.50 | 1 |", page)
        self.assertIn("1. One. ([source](page.md))", page)
        self.assertEqual(stale, ["Two.", "All."])

    def test_sources_of_causes_exist(self):
        for *_, source in losses.lines("causes.tsv"):
            self.assertTrue(os.path.exists(os.path.join(losses.FOLDER, source)), source)


if __name__ == "__main__":
    unittest.main()
