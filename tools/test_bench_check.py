#!/usr/bin/env python3
"""What `make bench-check` concludes from made measurements, and how it counts."""
import contextlib
import glob
import io
import json
import math
import os
import random
import statistics
import tempfile
import unittest
from unittest import mock

import bench_check
import rounds

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

HELD = {"floor": "pread", "ratio": 1.0, "error": 0.01, "runs": 16}


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
            policy, queued = 1000 + 20 * operations, 300 * operations
            return {"/nowait/src/core/policy.rs": policy, "/nowait/src/gather/queued.rs": queued}

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
    def verdict(self, ratio, error=0.01, bar=HELD, floor="pread"):
        found = {"floor": floor, "ratio": ratio, "error": error, "runs": 8}
        return quiet(bench_check.verdict_of_speeds, {"reads": found}, {"reads": bar})

    def test_a_ratio_may_fall_by_the_noise_and_no_more(self):
        wider = (0.955, 0.012, False)
        for ratio, error, broken in [(0.96, 0.01, False), (0.94, 0.01, True), wider, (2.0, 0.01, False)]:
            self.assertEqual(self.verdict(ratio, error)[0], (broken, False), ratio)

    def test_too_large_an_error_is_no_verdict_unless_the_loss_is_larger(self):
        self.assertEqual(self.verdict(0.9, 0.1)[0], (False, True))
        self.assertEqual(self.verdict(0.6, 0.1)[0], (True, False))
        loose = HELD | {"error": 0.1}
        self.assertEqual(self.verdict(0.9, bar=loose)[0], (False, True))

    def test_a_bar_of_an_older_kind_is_to_be_recorded_again(self):
        verdict, said = self.verdict(1.0, bar={"floor": "pread", "ratio": 1.0, "error": 0.1})
        self.assertEqual(verdict, (False, True))
        self.assertIn("record again", said)

    def test_another_floor_is_another_bar(self):
        self.assertEqual(self.verdict(1.0, floor="ring")[0], (True, False))

    def test_without_scatter_any_fall_is_one(self):
        bar = HELD | {"error": 0.0}
        self.assertEqual(self.verdict(1.0, 0.0, bar)[0], (False, False))
        self.assertEqual(self.verdict(0.99, 0.0, bar)[0], (True, False))

    def test_ratios_are_those_of_the_same_round(self):
        def bench(arguments, floor, _):
            rows = []
            for name, _, of_it in bench_check.SPEEDS:
                if of_it == arguments:
                    table, case = name.split(" ", 1)
                    both = [("nowait", [9.0, 90.0, 900.0]), (floor, [10.0, 100.0, 1000.0])]
                    case = {"table": table, "case": f"dir=ext4 {case}"}
                    rows += [case | {"way": way, "rounds": speeds} for way, speeds in both]
            return {"rows": rows, "environment": {"kernel": "this"}}

        runs = bench_check.Runs("unused")
        with mock.patch.object(bench_check, "bench", bench):
            speeds = bench_check.check(runs.figure, {})
        self.assertEqual(runs.environment, {"kernel": "this"})
        found = {(speed["ratio"], speed["error"], speed["runs"]) for speed in speeds.values()}
        self.assertEqual(found, {(0.9, 0.0, 8)})

    def test_a_case_that_was_not_measured_is_said(self):
        with mock.patch.object(bench_check, "bench", lambda *_: {"rows": [], "environment": {}}):
            with self.assertRaises(bench_check.Failed):
                bench_check.check(bench_check.Runs("unused").figure, {})

    def test_the_runs_of_a_case_lie_apart_and_a_calm_case_ends_first(self):
        names = [name for name, _, _ in bench_check.SPEEDS]
        made = random.Random(1)
        order = []

        def figure(name, *_):
            order.append(name)
            return made.gauss(0, 0.001 if name == names[0] else 0.08)

        bars = {name: HELD | {"floor": floor} for name, floor, _ in bench_check.SPEEDS}
        speeds = bench_check.check(figure, bars)
        self.assertEqual(order[:12], names * 2)
        self.assertEqual(speeds[names[0]]["runs"], 8)
        self.assertGreater(speeds[names[1]]["runs"], 8)


def normal(scatter, of_runs=0.0):
    """Scatter of each way's rounds, and of whole runs. A run's mean is drawn at once."""
    error = math.hypot(scatter * math.sqrt(2 / bench_check.ROUNDS), of_runs)
    return lambda made: lambda: made.gauss(0, error)


def in_moods(scatter, correlation):
    """Runs that scatter like this, and that are like the one before (AR(1))."""

    def of(made):
        last = made.gauss(0, scatter)

        def draw():
            nonlocal last
            last = correlation * last + made.gauss(0, scatter * math.sqrt(1 - correlation**2))
            return last

        return draw

    return of


def recorded():
    """Logs of the rounds' ratios of `nowait` and its floors, less their mean, by case. They are widened
    by what so few rounds hide of their scatter."""
    floors = {floor for _, floor, _ in bench_check.SPEEDS}
    cases = []
    for path in sorted(glob.glob(os.path.join(bench_check.ROOT, "docs/measurements/**/*.json"), recursive=True)):
        with open(path, encoding="utf-8") as file:
            rows = json.load(file).get("rows", [])
        of = {(row["table"], row["case"], row["way"]): row["rounds"] for row in rows}
        for (table, case, way), ours in of.items():
            for floor in sorted(floors if way == "nowait" else []):
                logs = rounds.logs(ours, of.get((table, case, floor), []))
                if logs and len(logs) >= bench_check.ROUNDS:
                    wider = math.sqrt(len(logs) / (len(logs) - 1))
                    cases.append([(log - statistics.mean(logs)) * wider for log in logs])
    return cases


def from_recorded(pools):
    """Each case of a run has the scatter of one of these."""

    def of(made):
        pool = made.choice(pools)
        return lambda: math.fsum(made.choices(pool, k=bench_check.ROUNDS)) / bench_check.ROUNDS

    return of


class Correlation(unittest.TestCase):
    def test_runs_that_are_alike_have_a_larger_error(self):
        drift = [0.0, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07]
        middle, error = rounds.mean(drift)
        self.assertEqual(rounds.mean_in_turn(drift)[0], middle)
        self.assertGreater(rounds.mean_in_turn(drift)[1], 2 * error)

    def test_no_error_becomes_smaller(self):
        for values in ([0.01, -0.01] * 8, [0.0] * 8, [0.1, 0.2, 0.3]):
            self.assertEqual(rounds.mean_in_turn(values), rounds.mean(values))

    def test_a_correlation_is_found_and_chance_is_none(self):
        made = random.Random(3)
        for given in (0.0, 0.8):
            found = []
            for _ in range(200):
                draw = in_moods(1.0, given)(made)
                found.append(rounds.correlation([draw() for _ in range(40)]))
            self.assertLess(abs(statistics.mean(found) - given), 0.1, given)


class Power(unittest.TestCase):
    """A simulation of the docstring's promises: recordings and checks of all cases by the tool's own
    loops, of figures drawn from a distribution. The seed is fixed, so that it gives what it gave."""

    def simulated(self, scatter, loss, checks):
        """Verdicts on each case, of so many checks, each with bars of its own."""
        made = random.Random(17)
        verdicts = []
        for _ in range(checks):
            draws = {name: scatter(made) for name, _, _ in bench_check.SPEEDS}
            bars = bench_check.record(lambda name, *_: draws[name]())
            speeds = bench_check.check(lambda name, *_: draws[name]() - loss, bars)
            of_cases = []
            for name, found in speeds.items():
                told = bench_check.is_told(found, bars[name])
                below = bench_check.is_below(found, bars[name])
                of_cases.append("BROKEN" if below else "holds" if told else "cannot tell")
            verdicts.append(of_cases)
        return verdicts

    def alarms(self, scatter, checks):
        return sum("BROKEN" in of_cases for of_cases in self.simulated(scatter, 0, checks)) / checks

    def share(self, word, scatter, checks):
        found = [verdict for of_cases in self.simulated(scatter, bench_check.LOSS, checks) for verdict in of_cases]
        return found.count(word) / len(found)

    def test_a_loss_of_10_per_cent_is_found_and_nothing_else(self):
        scatters = {
            "5 %": normal(0.05),
            "15 %": normal(0.15),
            "5 %, and runs by 5 %": normal(0.05, 0.05),
            "as recorded, all in one": from_recorded([sum(recorded(), [])]),
        }
        for name, scatter in scatters.items():
            alarms, found = self.alarms(scatter, 400), self.share("BROKEN", scatter, 60)
            self.assertLessEqual(alarms, 0.05, name)
            self.assertGreaterEqual(found, 0.9, name)

    def test_runs_that_are_alike_raise_fewer_alarms_than_their_scatter_alone_would(self):
        # As the docstring has it.
        for correlation, most, without in [(0.5, 0.2, 0.18), (0.8, 0.42, 0.5)]:
            for scatter in (0.03, 0.095):
                moods = in_moods(scatter, correlation)
                self.assertLessEqual(self.alarms(moods, 200), most, (correlation, scatter))
                with mock.patch.object(rounds, "correlation", lambda _: 0.0):
                    self.assertGreaterEqual(self.alarms(moods, 100), without, (correlation, scatter))

    def test_where_the_scatter_is_too_large_it_says_so(self):
        cases = recorded()
        self.assertGreater(len(cases), 200)
        scatter = from_recorded(cases)
        self.assertLessEqual(self.alarms(scatter, 200), 0.05)
        # As the docstring has it. It depends on the hosts on which the records were made.
        self.assertGreaterEqual(self.share("BROKEN", scatter, 60), 0.75)
        self.assertLessEqual(self.share("holds", scatter, 60), 0.05)
        noisy = from_recorded([case for case in cases if statistics.pstdev(case) > 0.4])
        self.assertLessEqual(self.share("holds", noisy, 60), 0.05)


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
