"""Tests of suites/run, on a copy of it with suites of a few lines; and of what all suites have in common."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Callable, Iterator
from pathlib import Path

SUITES = Path(__file__).resolve().parent.parent
FRAME = ("run", "place.py", "guard.py", "page.md")

HEAD = """
import os, sys, time
from place import BUILT_PYTHON, Outcome, Place, Unavailable
TITLE, LICENCE, SHOWS, MINUTES, CI, EXCLUDED = "A title", "MIT", "what it shows", 1, True, {"known": "a reason"}

def run(place):
    outcome = Outcome("1.0")
"""
GREEN = """
    outcome.add("a", True, EXCLUDED)
    outcome.add("known", False, EXCLUDED)
    return outcome
"""
#: Runs until it is killed, and starts a process in another session.
SLEEPS = """
    place.run("sh", "-c", "setsid sleep 1000 & touch started; exec sleep 1000")
"""
MOUNTED = """
    with place.file_system("ext4", 64) as point:
        place.run("sh", "-c", f"cd {point}; setsid sleep 1000 & touch started; exec sleep 1000")
"""


#: Each with the driver's exit code.
SIGNALS = ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, -1), (signal.SIGKILL, -9))


def eventually(is_so: Callable[[], object], seconds: float = 20) -> bool:
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


class RunTest(unittest.TestCase):
    def setUp(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="nowait-suites-test-")).resolve()
        self.addCleanup(shutil.rmtree, self.root, ignore_errors=True)
        self.suites, self.folders = self.root / "suites", self.root / "folders"
        for folder in (self.suites, self.folders, self.root / "docs"):
            folder.mkdir()
        for file in FRAME:
            shutil.copy(SUITES / file, self.suites)

    def suite(self, name: str, body: str) -> None:
        (self.suites / name).mkdir(exist_ok=True)
        (self.suites / name / "suite.py").write_text(HEAD + body)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        env = os.environ | {"SUITES_DIR": str(self.folders), "SUITES_CACHE": str(self.root / "cache")}
        # These tests may run under nohup(1) or in the background, where a program ignores the two signals.
        heard = ["env", "--default-signal=HUP,INT"]
        return subprocess.Popen([*heard, sys.executable, self.suites / "run", *arguments], env=env, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)

    def run_suites(self, *arguments: str, code: int) -> str:
        """Runs suites, which must end with the code and leave nothing. Returns the output."""
        ran = self.start(*arguments)
        output, _ = ran.communicate(timeout=120)
        self.assertEqual(ran.returncode, code, output)
        self.assertNothingIsLeft()
        return output

    def leftovers(self) -> list[str]:
        """Returns folders, mounts, loop devices and processes of suites."""
        mark = str(self.folders)
        left = [str(path) for path in self.folders.iterdir()]
        left += [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if mark in line]
        for loop in Path("/sys/block").glob("loop*/loop/backing_file"):
            with contextlib.suppress(OSError):
                left += [str(loop)] * (mark in loop.read_text())
        for process in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                left += [str(process)] * (f"NOWAIT_SUITE_FOLDER={mark}/".encode() in process.read_bytes())
        return left

    def assertNothingIsLeft(self) -> None:
        eventually(lambda: not self.leftovers())
        self.assertEqual(self.leftovers(), [])

    def test_a_green_suite(self) -> None:
        self.suite("green", GREEN)
        output = self.run_suites(code=0)
        self.assertIn("1 passed, 0 failed, 1 excluded", output)
        self.assertIn("suites: 1 passed, 0 failed\n", output)

    def test_a_failed_test_is_named_and_fails_the_table(self) -> None:
        self.suite("red", "    outcome.add('the test', False, EXCLUDED)\n" + GREEN)
        self.assertIn("failed: the test", self.run_suites(code=1))

    def test_a_suite_that_cannot_run_fails_the_table_and_the_others_run(self) -> None:
        bodies = {
            "unavailable": "    raise Unavailable('get it there')",
            "command": "    place.run('no-such-command')",
            "denied": "    place.run('/')",
            "build": "    place.run('sh', '-c', 'echo the last line; exit 3')",
            "crate": "    place.crate('nowait-suites-no-such-crate', '0.0.0')",
            "clone": "    place.repository('owner/name', 'abcdef')",
            "python": "    place.python()",
            "mkfs": "    with place.file_system('tmpfs', -1): pass",
            "own_fault": "    [][0]",
            "none": "    return outcome",
        }
        for name, body in bodies.items():
            self.suite(name, body)
        self.suite("z_green", GREEN)
        with environment(SUITES_REPOSITORIES=str(self.root), CARGO_NET_OFFLINE="true"):
            output = self.run_suites(code=1)
        for name in bodies:
            self.assertRegex(output, rf"(?m)^{name.replace('_', '-')} +— not run: \S")
        for reason in ("get it there", "no-such-command", "the last line", "git clone --bare",
                       "make python-test", "IndexError", "no test ran"):
            self.assertIn(reason, output)
        self.assertRegex(output, r"(?m)^z-green +1 passed")
        self.assertIn(f"{len(bodies)} suites not run", output)

    def test_a_folder_or_cache_that_cannot_be_made_fails_the_table(self) -> None:
        self.suite("green", GREEN)
        (self.root / "cache").touch()
        self.assertIn("not run: ", self.run_suites(code=1))
        (self.root / "cache").unlink()
        self.folders.rmdir()
        ran = self.start()
        self.assertIn("SUITES_DIR", ran.communicate()[0])
        self.assertEqual(ran.returncode, 1)

    def test_a_suite_that_cannot_be_loaded_fails(self) -> None:
        self.suite("broken", GREEN + "\nimport no_such_module")
        self.assertIn("no_such_module", self.run_suites(code=1))

    def test_wrong_usage(self) -> None:
        self.suite("green", GREEN)
        self.suite("other_one", GREEN)
        output = self.run_suites("green", "unknown", code=2)
        self.assertIn("there is no suite unknown; there are: green, other-one", output)
        self.assertNotIn("passed", output)
        self.run_suites("--ci", "green", code=2)
        self.run_suites("--no-such-option", code=2)

    def test_ci_runs_those_that_say_so(self) -> None:
        self.suite("green", GREEN)
        self.suite("large", GREEN + "\nCI = False\n")
        output = self.run_suites("--ci", code=0)
        self.assertRegex(output, "(?m)^suites/run: not for CI: large$")
        self.assertNotRegex(output, "(?m)^large")
        self.assertIn("large", self.run_suites("--list", code=0))

    def test_results_change_only_when_recorded_and_only_of_suites_that_ran(self) -> None:
        for name in ("first", "second", "third"):
            self.suite(name, GREEN)
        self.run_suites(code=0)
        results, page = self.suites / "results.json", self.root / "docs/suites.md"
        self.assertFalse(results.exists() or page.exists())
        self.run_suites("--record", code=0)
        before = json.loads(results.read_text())
        text, written = page.read_text(), page.stat().st_mtime_ns
        self.suite("second", "    raise Unavailable('a | b')")
        self.run_suites("second", code=1)
        self.assertEqual((json.loads(results.read_text()), page.stat().st_mtime_ns), (before, written))
        self.run_suites("second", "--record", code=1)
        after = json.loads(results.read_text())
        self.assertEqual(after.pop("second")["unavailable"], "a | b")
        self.assertEqual(before.pop("second")["passed"], 1)
        self.assertEqual(after, before)
        rows = [set(each.splitlines()) for each in (text, page.read_text())]
        self.assertEqual(len(rows[0] - rows[1]), 1, "other rows stay")
        self.assertTrue(any("**not run**" in row and "a \\| b" in row for row in rows[1] - rows[0]))
        self.assertFalse(list(self.root.rglob("*.part")))

    def test_a_suite_that_is_ended_gives_all_back(self) -> None:
        bodies = {"sleeps": SLEEPS}
        if os.geteuid() == 0:
            bodies["mounted"] = MOUNTED
        elif os.environ.get("NOWAIT_REQUIRE_MOUNTS"):
            self.fail("mounting needs root")
        else:
            print("skipped: suites that are ended with a mounted file system: needs root")
        self.suite("z_green", GREEN)
        for name, body in bodies.items():
            self.suite(name, body)
            for number, code in SIGNALS:
                with self.subTest(suite=name, signal=number.name):
                    ran = self.start(name, "z-green")
                    self.assertTrue(eventually(lambda: list(self.folders.rglob("started"))))
                    # Those of the mark, and on ext4 the mount and its loop device.
                    self.assertGreaterEqual(len(self.leftovers()), 4 if name == "mounted" else 3)
                    os.killpg(ran.pid, number)
                    output, _ = ran.communicate(timeout=60)
                    self.assertEqual(ran.returncode, code, output)
                    self.assertNotIn("passed", output)
                    self.assertNothingIsLeft()

    def test_a_fault_within_a_mounted_file_system_gives_it_back(self) -> None:
        if os.geteuid() != 0:
            self.skipTest("mounting needs root")
        self.suite("busy", """
    with place.file_system("ext4", 64) as point:
        place.run("sh", "-c", f"cd {point}; setsid sleep 1000 >/dev/null 2>&1 &")
        raise Unavailable("in the middle")
""")
        self.assertIn("not run: in the middle", self.run_suites(code=1))

    def test_a_command_that_takes_too_long_ends_with_its_children(self) -> None:
        self.suite("slow", """
    ran = place.run("sh", "-c", "setsid sleep 1000 & exec sleep 1000", check=False, timeout=0.5)
    outcome.add(f"{ran.returncode} {ran.stdout.strip()}", False, EXCLUDED)
    return outcome
""")
        self.assertIn("failed: -9 killed after 0 s", self.run_suites(code=1))

    def test_two_runs_at_once(self) -> None:
        self.suite("one", """
    count = place.cache / "inside"
    outcome.add("alone", not count.exists(), EXCLUDED)
    count.touch()
    place.run("sleep", "1")
    count.unlink()
    return outcome
""")
        self.suite("fetches", """
    kept = place.cache / "fetched"
    with place.fetching(kept) as part:
        if not kept.exists():
            outcome.add("no other fetches", not part.exists(), EXCLUDED)
            part.mkdir()
            place.run("sleep", "1")
            part.rename(kept)
    outcome.add("it is there", kept.exists(), EXCLUDED)
    return outcome
""")
        shutil.copytree(self.suites / "fetches", self.suites / "fetches_too")
        runs = [self.start("one", "--record"), self.start("one"), self.start("fetches", "--record"),
                self.start("fetches-too", "--record")]
        outputs = [ran.communicate(timeout=60)[0] for ran in runs]
        self.assertEqual([ran.returncode for ran in runs], [0] * 4, "\n".join(outputs))
        self.assertIn("waits for another run of one", "".join(outputs[:2]))
        self.assertIn("waits for another run that fetches", "".join(outputs[2:]))
        self.assertEqual(set(json.loads((self.suites / "results.json").read_text())), {"one", "fetches", "fetches-too"})
        self.assertNothingIsLeft()

    def test_waiting_for_cargo_of_another_run_does_not_count_as_time_of_a_suite(self) -> None:
        self.suite("quick", """
    ran = place.cargo("--version", cwd=place.folder, timeout=5, check=False)
    outcome.add("in time", ran.returncode == 0, EXCLUDED)
    return outcome
""")
        (self.root / "cache").mkdir()
        with (self.root / "cache/cargo.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            ran = self.start("quick")
            time.sleep(6)
        output, _ = ran.communicate(timeout=60)
        self.assertEqual(ran.returncode, 0, output)
        self.assertIn("waits for cargo in another run", output)

    def test_what_an_interrupted_fetch_left_is_fetched_again(self) -> None:
        self.suite("fetches", """
    with place.fetching(place.cache / "fetched") as part:
        outcome.add("from the start", not part.exists(), EXCLUDED)
    return outcome
""")
        (self.root / "cache/fetched.part").mkdir(parents=True)
        self.run_suites(code=0)


class SuitesTest(unittest.TestCase):
    """Those of this repository."""

    def test_each_says_what_it_is(self) -> None:
        listed = subprocess.run([SUITES / "run", "--list"], text=True, capture_output=True, check=True).stdout
        names = {path.parent.name for path in SUITES.glob("*/suite.py")}
        self.assertEqual({line.split()[0].replace("-", "_") for line in listed.splitlines()}, names)
        for path in SUITES.glob("*/suite.py"):
            text = path.read_text()
            for constant in ("TITLE", "LICENCE", "SHOWS", "MINUTES", "CI", "EXCLUDED"):
                self.assertRegex(text, rf"(?m)^{constant}\b.* = ", path)

    def test_ci_clones_nothing(self) -> None:
        for path in SUITES.glob("*/suite.py"):
            text = path.read_text()
            if re.search(r"^CI = True$", text, re.MULTILINE):
                self.assertNotIn("place.repository(", text, f"{path}: CI reaches Debian, crates.io and PyPI only")


@contextlib.contextmanager
def environment(**variables: str) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


if __name__ == "__main__":
    unittest.main()
