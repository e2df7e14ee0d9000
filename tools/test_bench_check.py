#!/usr/bin/env python3
"""What `make bench-check` concludes from made measurements, and how it counts."""
import contextlib
import io
import json
import os
import random
import statistics
import tempfile
import unittest
from unittest import mock

import bench_check

# As callgrind writes it: names once, then by number; lines as differences; the cost of a call is its callee's.
PROFILE = """\
version: 1
events: Ir
fl=(1) /src/select.rs
fn=(1) nowait::select::Selector::plan
10 5
+2 7
fi=(2) /src/stats.rs
30 100
fe=(1)
-1 3
cfi=(3) /src/op.rs
cfn=(2) nowait::op::run
calls=4 1
* 900

fl=(3)
fn=(2)
1 60
totals: 175
"""

HELD = {"floor": "pread", "ratio": 1.0, "error": 0.025}


def quiet(verdict, *arguments):
    with contextlib.redirect_stdout(io.StringIO()) as said:
        return verdict(*arguments), said.getvalue()


class Counts(unittest.TestCase):
    def test_instructions_belong_to_the_file_they_were_written_in(self):
        counts = bench_check.by_file(io.StringIO(PROFILE))
        self.assertEqual(counts, {"/src/select.rs": 15, "/src/stats.rs": 100, "/src/op.rs": 60})
        self.assertEqual(bench_check.of_source(counts, None), 175)
        self.assertEqual(bench_check.of_source(counts, "select.rs"), 15)

    def test_start_up_is_not_counted(self):
        def collected(_, operations, __):
            return {"/nowait/src/core/policy.rs": 1000 + 20 * operations, "/nowait/src/gather/queued.rs": 300 * operations}

        with mock.patch.object(bench_check, "collected", collected):
            counts = bench_check.count("unused")
        self.assertEqual((counts["selector"], counts["gather planning"], counts["read-future"]), (20, 300, 320))

    def test_a_source_that_is_not_found_is_no_zero(self):
        with mock.patch.object(bench_check, "collected", lambda *_: {"/elsewhere.rs": 7}):
            with self.assertRaises(bench_check.Failed):
                bench_check.count("unused")

    def test_three_per_cent_more_break_a_bar_and_less_does_not(self):
        for found, broken in [(100, False), (102.9, False), (103.1, True), (50, False)]:
            self.assertEqual(quiet(bench_check.verdict_of_counts, {"read": found}, {"read": 100})[0], broken, found)

    def test_what_has_no_bar_is_broken(self):
        self.assertTrue(quiet(bench_check.verdict_of_counts, {"read": 1}, {})[0])


class Speeds(unittest.TestCase):
    def verdict(self, ratio, error=0.025, bar=HELD):
        return quiet(bench_check.verdict_of_speeds, {"reads": {"floor": "pread", "ratio": ratio, "error": error}}, {"reads": bar})

    def test_a_ratio_may_fall_by_the_noise_and_no_more(self):
        for ratio, error, broken in [(0.96, 0.005, False), (0.94, 0.005, True), (0.94, 0.05, False), (2.0, 0.005, False)]:
            self.assertEqual(self.verdict(ratio, error)[0], (broken, False), ratio)

    def test_noise_beyond_a_quarter_is_no_verdict_unless_it_is_exceeded(self):
        self.assertEqual(self.verdict(0.9, 0.15)[0], (False, True))
        self.assertEqual(self.verdict(0.6, 0.15)[0], (True, False))

    def test_where_nothing_has_changed_one_in_forty_falls_below_and_a_loss_is_seen(self):
        seed = random.randrange(1 << 32)
        made = random.Random(seed)

        def measured(mean):
            ratios = [made.gauss(mean, 0.1) for _ in range(bench_check.ROUNDS)]
            return {"floor": "pread", "ratio": statistics.median(ratios), "error": bench_check.error(ratios)}

        def broken(mean):
            verdicts = [quiet(bench_check.verdict_of_speeds, {"reads": measured(mean)}, {"reads": measured(1)})[0][0] for _ in range(2000)]
            return sum(verdicts) / len(verdicts)

        self.assertLess(broken(1), 0.06, f"seed {seed}")
        self.assertGreater(broken(0.8), 0.9, f"seed {seed}")

    def test_a_bar_of_an_older_kind_is_none(self):
        self.assertEqual(self.verdict(1.0, bar={"floor": "pread", "ratio": 1.0, "noise": 0.1})[0], (True, False))

    def test_another_floor_is_another_bar(self):
        self.assertEqual(self.verdict(1.0, bar=HELD | {"floor": "ring"})[0], (True, False))

    def test_ratios_are_those_of_the_same_round(self):
        def bench(arguments, _):
            rows = []
            for name, floor, of_it in bench_check.SPEEDS:
                if of_it == arguments:
                    table, case = name.split(" ", 1)
                    both = [("nowait", [9.0, 90.0, 900.0]), (floor, [10.0, 100.0, 1000.0])]
                    rows += [{"table": table, "case": f"dir=ext4 {case}", "way": way, "rounds": rounds} for way, rounds in both]
            return {"rows": rows, "environment": {"kernel": "this"}}

        with mock.patch.object(bench_check, "bench", bench):
            speeds, environment = bench_check.measure("unused")
        self.assertEqual(environment, {"kernel": "this"})
        self.assertEqual({(speed["ratio"], speed["error"]) for speed in speeds.values()}, {(0.9, 0.0)})

    def test_what_is_below_its_bar_is_measured_again_and_the_better_counts(self):
        bars = {"reads": HELD, "writes": HELD, "log": HELD | {"error": 0.5}}
        first = {name: HELD | {"ratio": 0.5} for name in bars}
        asked = []

        def measure(_, names):
            asked.extend(names)
            return {"reads": HELD | {"ratio": 0.99}, "writes": HELD | {"ratio": 0.4}}, {}

        with mock.patch.object(bench_check, "measure", measure):
            speeds, said = quiet(bench_check.looked_at_again, first, bars, "unused")
        self.assertEqual(asked, ["reads", "writes"])
        self.assertEqual({name: speed["ratio"] for name, speed in speeds.items()}, {"reads": 0.99, "writes": 0.5, "log": 0.5})
        self.assertIn("writes 0.500", said)

    def test_a_case_that_was_not_measured_is_said(self):
        with mock.patch.object(bench_check, "bench", lambda *_: {"rows": [], "environment": {}}):
            with self.assertRaises(bench_check.Failed):
                bench_check.measure("unused")


class Recorded(unittest.TestCase):
    def test_there_is_a_bar_for_all_that_is_measured(self):
        with open(bench_check.BARS, encoding="utf-8") as file:
            bars = json.load(file)
        self.assertEqual(set(bars["instructions"]), set(bench_check.COUNTED))
        self.assertEqual(set(bars["speeds"]), {name for name, _, _ in bench_check.SPEEDS})

    def test_a_broken_bar_is_exit_code_1_and_recording_mends_it(self):
        with tempfile.TemporaryDirectory() as folder:
            bars = os.path.join(folder, "bars.json")
            with open(bars, "w", encoding="utf-8") as file:
                json.dump({"environment": {}, "instructions": {"read": 50}, "speeds": {}}, file)
            with (
                mock.patch.object(bench_check, "BARS", bars),
                mock.patch.object(bench_check, "count", lambda _: {"read": 100}),
                mock.patch.object(bench_check.shutil, "which", lambda _: "valgrind"),
            ):
                def check(*arguments):
                    with mock.patch.object(bench_check.sys, "argv", ["bench_check", "--only", "counts", *arguments]):
                        return quiet(bench_check.main)[0]

                self.assertEqual([check(), check("--record"), check()], [1, 0, 0])


if __name__ == "__main__":
    unittest.main()
