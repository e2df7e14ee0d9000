"""turso's own tests, on the adapter in integrations/turso.

The adapter's source is compiled as a module of turso's core, and replaces `PlatformIO`: databases and temporary
files that the tests open use it. Tests that open no file are not counted. turso's tests of SQL are not part of the
published crate, and need its own runner. Its file of shared memory and locks between processes stays on turso."""

from __future__ import annotations

import re
from pathlib import Path

import compiled_in
from place import Outcome, Place

TITLE = "turso"
LICENCE = "MIT"
SHOWS = "databases on nowait: WAL and MVCC, checkpoints, recovery, several processes; files verified by SQLite"
MINUTES = 20
CI = False
EXCLUDED: dict[str, str] = {}

#: Tests that count the steps of a statement, or look at a file right after a call: they expect blocking calls, as
#: those of `PlatformIO` are. They run on the adapter's.
BLOCKING = (
    "mvcc::database::tests::abandoned_commit_in_committed_state_should_not_block_subsequent_checkpoint",
    "mvcc::database::tests::group_commit_tests::commit_parks_once_while_another_transaction_holds_the_commit_lock",
    "mvcc::database::tests::group_commit_tests::parked_waiter_wakes_when_the_leader_makes_it_durable",
    "mvcc::database::tests::test_blocking_truncate_zeros_log_when_commit_races_acquire_lock",
    "mvcc::database::tests::test_exclusive_tx_does_not_deadlock_behind_preparing_concurrent_commit",
    "mvcc::database::tests::test_gc_keeps_finalized_tx_state_of_tx_still_in_txs",
    "mvcc::database::tests::test_global_header_cookie_no_regression_on_out_of_order_finalize",
    "mvcc::database::tests::test_global_header_regression_would_lose_committed_user_version",
    "mvcc::database::tests::test_integrity_check_after_checkpoint_io_yield_then_post_durable_failure_uses_user_apis",
    "mvcc::database::tests::test_passive_checkpoint_tolerates_concurrent_create_after_snapshot",
    "storage::wal::test::test_truncate_file",
)

VERSION = "0.9.0-pre.2"
#: Fails if nowait does not serve the tests.
CHECK = "turso_core::io::attached::nowait_serves_a_database"


def attach(source: Path) -> None:
    """Puts the adapter into a copy of turso's core, in the place of its `PlatformIO`."""
    manifest = (source / "Cargo.toml").read_text()
    # Benchmarks, and the large crates that only these need.
    unused = r"\[bench\]|\[test\]|dev-dependencies\.(?:codspeed-criterion-compat|criterion|divan|mimalloc)"
    manifest = re.sub(rf"^\[(?:{unused})\].*\n(?:[^\[\n].*\n|\n)*", "", manifest, flags=re.MULTILINE)
    (source / "Cargo.toml").write_text(manifest)
    compiled_in.add_dependencies(source, """features = ["bytes"]

[dependencies.bytes]
version = "1.9"

# A test looks for a function's name in a backtrace.
[profile.dev]
debug = "line-tables-only"
""")
    folder = source / "io"
    compiled_in.add_adapter("turso", folder / "nowait_io", lambda text: re.sub(r"\bturso_core::", "crate::", text))
    compiled_in.add_attached(Path(__file__), folder)
    names = ", ".join(f'"{test}"' for test in BLOCKING)
    compiled_in.replace(folder / "attached.rs", "BLOCKING: &[&str] = &[]", f"BLOCKING: &[&str] = &[{names}]")
    compiled_in.replace(folder / "mod.rs", "pub use unix::UnixIO as PlatformIO;\n",
                        "mod attached;\nmod nowait_io;\npub use attached::Attached as PlatformIO;\n")


def run(place: Place) -> Outcome:
    source = place.crate("turso_core", VERSION)
    attach(source)
    outcome = Outcome(f"turso_core {VERSION}")
    compiled_in.run_tests(place, source, outcome, CHECK, EXCLUDED, "--lib", timeout=3000)
    return outcome
