"""openraft's test suite for implementations of its log storage, on the adapter in integrations/openraft."""

from __future__ import annotations

import re
from pathlib import Path

from place import REPOSITORY, Outcome, Place, Unavailable, cargo_tests

TITLE = "openraft"
LICENCE = "MIT OR Apache-2.0"
SHOWS = "a Raft log, its vote, purges and truncations on the durable log"
MINUTES = 3
CI = True
VERSION = "0.9.25"

STATE_MACHINE = "tests only a state machine; nowait-openraft has none"
EXCLUDED: dict[str, str] = {
    "last_applied_state": STATE_MACHINE,
    "snapshot_meta": STATE_MACHINE,
    "apply_single": STATE_MACHINE,
    "apply_multiple": STATE_MACHINE,
    "transfer_snapshot": STATE_MACHINE,
}


def published(source: Path) -> set[str]:
    """Returns the names of the tests that `Suite::test_all` runs."""
    suite = (source / "src/testing/suite.rs").read_text()
    named = re.findall(r"run_fut\((?:run_test\(builder, )?Self::(\w+)[(,)]", suite)
    if len(named) != suite.count("run_fut("):
        raise Unavailable(f"openraft {VERSION} calls its tests in another way: see {source}")
    return set(named)


def run(place: Place) -> Outcome:
    expected = published(place.crate("openraft", VERSION))
    tests = place.cargo("test", "--locked", "--package", "nowait-suite-openraft", "--no-fail-fast",
                        cwd=REPOSITORY / "suites", env={"TMPDIR": str(place.folder)}, check=False, timeout=900)
    results = cargo_tests(tests.stdout)
    if not results:
        raise Unavailable(f"openraft's suite cannot be built; see {place.log_path}")
    outcome = Outcome(VERSION)
    for test in sorted(expected | set(results)):
        # A test that is missing on either side fails.
        outcome.add(test, test in expected and results.get(test, False), EXCLUDED)
    return outcome
