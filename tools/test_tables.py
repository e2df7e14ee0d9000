#!/usr/bin/env python3
"""Tables in pages are what their JSON says."""
import contextlib
import glob
import io
import json
import os
import tempfile
import unittest
from unittest import mock

import losses
import tables


def row(way, rounds, case="depth=1", **more):
    of = {"table": "reads", "case": case, "way": way, "ops_per_s": sorted(rounds)[len(rounds) // 2], "rounds": rounds}
    return of | {"cpu_us_per_op": {"total": 2.0}} | more


RUN = {
    "environment": {"date": "2026-11-23T10:00:00Z", "commit": "0123456789ab", "command": "nowait bench reads"},
    "rows": [
        row("ring", [10e3, 20e3, 40e3]),
        row("nowait", [5e3, 10e3, 20e3], latency_ns={"p50": 1234}),
        row("ring", [100e3, 100e3, 100e3], "depth=8"),
    ],
}


class Pages(unittest.TestCase):
    def test_their_tables_are_what_make_tables_writes(self):
        marked = 0
        for path in tables.pages():
            was, now = tables.renewed(path)
            self.assertEqual(was, now, f"{path}: run `make tables`")
            marked += len(tables.MARKED.findall(was))
        self.assertGreater(marked, 30)

    def test_no_mark_is_misspelled(self):
        for path in tables.pages():
            with open(path, encoding="utf-8") as file:
                text = file.read()
            self.assertEqual(text.count("<!-- generated"), len(tables.MARKED.findall(text)), path)

    def test_a_page_of_files_lists_them_and_is_current_or_history(self):
        current = {os.path.dirname(name) for _, name in losses.lines("current.tsv")}
        for folder in {os.path.dirname(path) for path in glob.glob(os.path.join(losses.FOLDER, "*/*.json"))}:
            with open(os.path.join(folder, "README.md"), encoding="utf-8") as file:
                text = file.read()
            self.assertIn("tables.py --records", text, folder)
            # What an example or a script of Python's measured is no topic of `nowait bench`.
            files = [losses.load(path) for path in glob.glob(os.path.join(folder, "*.json"))]
            commands = [file.get("environment", {}).get("command", "") for file in files]
            is_other = all("release/examples/" in one or one.startswith("python ") for one in commands)
            if os.path.basename(folder) not in current and not is_other:
                self.assertIn("**History.**", "".join(text.splitlines(True)[:6]), folder)


class Made(unittest.TestCase):
    def made(self, options, run=RUN):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "run.json"), "w", encoding="utf-8") as file:
                json.dump(run, file)
            return tables.made(options.split(" "), folder)

    def test_a_cell_has_speed_spread_and_processor_time(self):
        lines = self.made("run.json")
        self.assertEqual(lines[0], "| case | ring | nowait |")
        self.assertEqual(lines[2:], [
            "| depth=1 | 20.0k (0.50–2.00) 2.0 µs | 10.0k (0.50–2.00) 2.0 µs |",
            "| depth=8 | 100k (1.00–1.00) 2.0 µs | – |",
        ])

    def test_options_choose(self):
        self.assertEqual(self.made("run.json --ways nowait,ring --cases *=1 --transpose")[2:], [
            "| nowait | 10.0k (0.50–2.00) 2.0 µs |",
            "| ring | 20.0k (0.50–2.00) 2.0 µs |",
        ])
        self.assertEqual(self.made("run.json --against ring --cases *=1")[2].split(" | ")[-1], "0.50 (0.50–0.50) |")
        lines = self.made("run.json --columns switches,p50=latency_ns.p50/1000 --cases *=1")
        self.assertEqual(lines[0], "| case | way | switches | p50 |")
        self.assertEqual(lines[2:], ["| depth=1 | ring | – | – |", "| depth=1 | nowait | – | 1.23 |"])

    def listed(self, lines, option):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in [("run.json", json.dumps(RUN)), ("list.tsv", "# Comment.\n" + lines)]:
                with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                    file.write(text)
            return tables.made(["list.tsv", option], folder)

    def test_shares_are_of_the_best_way_of_the_same_rounds(self):
        made = self.listed("by hand=pread|ring\tours=nowait\ncold\trun.json\treads\tdepth=1\n", "--shares")
        self.assertEqual(made[2:], ["| cold | 1.00 | 0.50 |"])

    def test_a_bar_is_met_or_short_by_the_whole_interval(self):
        line = "cold\t*\t{}\trun.json\treads\tdepth=1\tnowait\n"
        for bar, finding in [("0.4", "met"), ("0.6", "**short**")]:
            cells = self.listed(line.format(bar), "--bars")[2].split(" | ")
            self.assertEqual(cells[3:], ["ring", bar, "0.50 (0.50–0.50)", finding, "1.00 |"])
        scattered = {**RUN, "rows": [row("ring", [10.0, 20.0, 40.0]), row("nowait", [20.0, 20.0, 20.0])]}
        with mock.patch.dict(RUN, scattered):
            self.assertIn("| cannot tell |", self.listed(line.format("1"), "--bars")[2])
        with self.assertRaises(tables.Refused):
            self.listed(line.replace("depth=1", "depth=9").format("1"), "--bars")

    def test_what_a_report_has_judged_is_told_in_its_words(self):
        bar = {"point": "cold", "way": "gather", "against": "pread", "figure": "seconds", "limit": 5.0, "median": 6.1,
               "quartiles": [5.5, 6.25], "verdict": "met"}
        gap = {"point": "beat", "way": "gather", "figure": "longest_gap_s", "limit": 0.003, "median": 0.0041,
               "quartiles": [0.0035, 0.005], "verdict": "not met"}
        lines = self.made("--judged run.json", {"bars": [bar, gap]})[2:]
        self.assertEqual(lines, [
            "| cold | gather | pread | speed | ≥ 5 | 6.10 (5.50–6.25) | met |",
            "| beat | gather | – | longest gap | ≤ 3 ms | 4.10 ms (3.50–5.00) | **short** |",
        ])

    def test_controls_tell_how_often_a_way_was_called_behind_itself(self):
        def run(again):
            controls = [{"rounds": [100.0, 101.0, 99.0, 100.0, 100.0], "again": again}]
            return json.dumps({"environment": {"date": "2026-11-23T10:00:00Z", "commit": "abc"}, "controls": controls})

        level, behind = [100.0, 99.0, 101.0, 100.0, 100.0], [50.0, 50.5, 49.5, 50.0, 50.0]
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "runs.jsonl"), "w", encoding="utf-8") as file:
                file.write("\n".join(map(run, (level, behind, level))) + "\n")
            cells = tables.made(["runs.jsonl", "--controls"], folder)[2].split(" | ")
        self.assertEqual(cells[2:], ["abc", "3", "3", "0.0 %", "100.0 %", "1 |"])

    def test_runs_in_turn_with_fio_are_one_run_of_many_rounds(self):
        fio = {"bytes_per_s": 2**30, "runtime_ms": 1000, "usr_cpu": 5.0, "sys_cpu": 5.0}
        stream = {"table": "dd", "case": "read", "way": "dd", "cpu_ms_per_gib": 200.0}
        turns = [{"fio": fio, "rows": [stream | {"bytes_per_s": speed * 2.0**20}]} for speed in (100, 200, 300)]
        made = self.made("run.json --streams", {"rounds": turns})
        self.assertEqual(made[2], "| read | 1024 (1.00–1.00) [100] | 200 (0.50–1.50) [200] |")

    def test_what_cannot_be_made_is_refused(self):
        for options in ("run.json --ways other", "run.json --columns other", "run.json run.json"):
            with self.assertRaises(tables.Refused, msg=options):
                self.made(options)

    def test_a_run_without_its_commit_is_refused_unless_it_is_older_than_that(self):
        run = RUN | {"environment": {"date": "2026-11-23T10:00:00Z"}}
        with self.assertRaises(tables.Refused):
            self.made("run.json", run)
        old = RUN | {"environment": {"date": "2026-11-21T10:00:00Z"}}
        self.assertIn("**not recorded**", self.made("--records", old)[2])
        self.assertIn("0123456789ab | `nowait bench reads`", self.made("--records")[2])

    def test_a_table_is_put_between_its_marks_and_the_rest_is_left(self):
        with tempfile.TemporaryDirectory() as folder:
            page = os.path.join(folder, "page.md")
            for name, text in [
                ("run.json", json.dumps(RUN)),
                ("page.md", "Before.\n\n<!-- generated: tables.py run.json -->\nold\n<!-- end -->\n\nAfter.\n"),
            ]:
                with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                    file.write(text)
            with mock.patch.object(tables, "pages", lambda: [page]), contextlib.redirect_stdout(io.StringIO()):
                tables.main([])
            was, now = tables.renewed(page)
        self.assertEqual(was, now)
        self.assertTrue(now.startswith("Before.\n\n<!-- generated: tables.py run.json -->\n\n| case |"))
        self.assertTrue(now.endswith("µs | – |\n\n<!-- end -->\n\nAfter.\n"))


if __name__ == "__main__":
    unittest.main()
