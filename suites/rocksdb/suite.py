"""RocksDB's own tests, its stress test and its crash test, on the adapter in integrations/rocksdb.

Debian's library is unchanged: the suite preloads the adapter, and opens it by its URI. Each run is first made with
RocksDB's own file system, and excluded if it fails there."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from compiled_in import replace
from place import REPOSITORY, Outcome, Place, Unavailable

TITLE = "RocksDB's tests and crash test"
LICENCE = "GPL-2.0 OR Apache-2.0"
SHOWS = "databases that are killed and verified; buffered and direct I/O, MultiGet, backups, checkpoints, recycled logs"
MINUTES = 30
CI = False
EXCLUDED: dict[str, str] = {}
STOCK = "fails with RocksDB's own file system, too"

#: Contains the version of Debian's librocksdb-dev.
HEADER = Path("/usr/include/rocksdb/version.h")
#: Calls of the library that counted.c counts.
COUNTED = ("read_at", "try_read_at", "submit_reads", "submit_read", "write_at", "sync", "sync_dir")
URIS = ("nowait://", "nowait://uring", "nowait://aio", "nowait://pool", "nowait://strict")
CRASHED = ("nowait://", "nowait://pool", "nowait://strict")
TESTS = ("db_basic_test", "fault_injection_test", "prefetch_test")

#: Small files, so that reads of files, flushes and compactions are frequent.
SMALL = ("--max_key=100000 --write_buffer_size=262144 --target_file_size_base=262144 "
         "--max_bytes_for_level_base=1048576 --cache_size=262144 --mmap_read=0").split()
BUFFERED = "--use_direct_reads=0 --use_direct_io_for_flush_and_compaction=0".split()
DIRECT = "--use_direct_reads=1 --use_direct_io_for_flush_and_compaction=1".split()
STRESS = ("--ops_per_thread=10000 --threads=4 --reopen=3 --use_multiget=1 --checkpoint_one_in=5000 "
          "--backup_one_in=5000 --recycle_log_file_num=1 --bytes_per_sync=65536 --wal_bytes_per_sync=65536 "
          "--read_fault_one_in=0 --clear_column_family_one_in=0").split()
#: Runs of the stress test.
STRESSES = {
    "buffered": [*BUFFERED, "--column_families=3"],
    "direct": [*DIRECT, "--column_families=3"],
    # Reads of several blocks at once.
    "multiget": [*DIRECT, *"--max_key=20000 --value_size_mult=33 --compression_type=none --bloom_bits=0".split()],
    "faults": [*DIRECT, "--write_fault_one_in=500", "--max_background_compactions=2"],
}
#: Runs of the crash test. "blackbox" is killed from outside, "whitebox" kills itself around writes and syncs.
CRASHES = {
    "blackbox": "--duration=40 --interval=6".split(),
    "whitebox": "--duration=60 --ops_per_thread=2000 --random_kill_odd=8887".split(),
}
#: Each write reaches the adapter before it is acknowledged, so a killed process loses none.
WAL = "--disable_wal=0 --manual_wal_flush_one_in=0".split()

NAMED_FILE_SYSTEM = """
static std::shared_ptr<FileSystem> NamedFileSystem() {
  std::shared_ptr<FileSystem> fs = FileSystem::Default();
  const char* uri = getenv("TEST_FS_URI");
  EXPECT_OK(uri == nullptr ? Status::OK() : FileSystem::CreateFromString(ConfigOptions(), uri, &fs));
  return fs;
}
"""


def version_of(header: Path) -> str:
    return ".".join(re.findall(r"^#define ROCKSDB_(?:MAJOR|MINOR|PATCH) (\d+)", header.read_text(), re.MULTILINE))


class Programs:
    """RocksDB's test programs, and the adapter."""

    def __init__(self, place: Place) -> None:
        self.place = place
        if not HEADER.exists():
            raise Unavailable(f"there is no {HEADER} (Debian: apt-get install librocksdb-dev)")
        self.source, self.version = place.debian_source("rocksdb")
        built_for = version_of(self.source / "include/rocksdb/version.h")
        if version_of(HEADER) != built_for:
            raise Unavailable(f"the installed RocksDB is {version_of(HEADER)}, and the source {built_for}")
        # This version of the test passes the URI as that of an Env, and so would use RocksDB's own file system.
        replace(self.source / "env/env_basic_test.cc", 'CreateFromUri(ConfigOptions(), uri, "", &fs_env,',
                'CreateFromUri(ConfigOptions(), "", uri, &fs_env,')
        # These tests use RocksDB's own file system, which reads asynchronously only in a build with liburing.
        replace(self.source / "file/prefetch_test.cc", "FileSystem::Default()", "NamedFileSystem()")
        replace(self.source / "file/prefetch_test.cc", "class MockFS;\n", f"{NAMED_FILE_SYSTEM}class MockFS;\n")
        replace(self.source / "file/prefetch_test.cc", "bool read_async_called = false;",
                'bool read_async_called = getenv("TEST_FS_URI") != nullptr;')
        # The same random options with every file system.
        replace(self.source / "tools/db_crashtest.py", "import random\n",
                'import random; random.seed(os.environ["ROCKSDB_SUITE_SEED"])\n')
        self.folder = place.cache / f"rocksdb-{self.version}"
        self.folder.mkdir(exist_ok=True)
        place.run("make", "-j2", "-f", Path(__file__).with_name("Makefile"), f"SOURCE={self.source}", cwd=self.folder)
        self.edge_cases = place.folder / "edge_cases"
        place.run("c++", "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror",
                  Path(__file__).with_name("edge_cases.cc"), "-o", self.edge_cases, "-lrocksdb")
        self.adapter = self.build_adapter()
        self.calls = place.folder / "calls"

    def build_adapter(self) -> Path:
        place, include = self.place, REPOSITORY / "crates/nowait-c/include"
        place.cargo("build", "--locked", "--release", "-p", "nowait-c", cwd=REPOSITORY)
        common = ("-O2", "-g", "-Wall", "-Wextra", "-Werror", "-fPIC", "-I", include, "-c")
        counted, files = place.folder / "counted.o", place.folder / "nowait_fs.o"
        place.run("cc", "-std=c11", "-D_GNU_SOURCE", *common, Path(__file__).with_name("counted.c"), "-o", counted)
        place.run("c++", "-std=c++17", *common, REPOSITORY / "integrations/rocksdb/nowait_fs.cc", "-o", files)
        adapter = place.folder / "librocksdb-nowait.so"
        place.run("c++", "-shared", "-o", adapter, files, counted, *(f"-Wl,--wrap=nowait_{name}" for name in COUNTED),
                  place.target / "release/libnowait_c.a", "-lrocksdb", "-lgcc_s", "-lpthread", "-lm", "-ldl")
        return adapter

    def env(self, uri: str | None) -> dict[str, str]:
        return {"LD_PRELOAD": str(self.adapter), "ROCKSDB_SUITE_CALLS": str(self.calls)} if uri else {}

    def served(self, uri: str | None) -> bool:
        """Returns whether the adapter read and wrote through the library since the last call."""
        counts = memoryview(self.calls.read_bytes()).cast("Q").tolist() if self.calls.exists() else [0] * 5
        self.calls.unlink(missing_ok=True)
        self.place.log.write(f"\nreads, submissions, writes, syncs, syncs of directories: {counts}\n")
        reads, submissions, writes, *_ = counts
        return uri is None or min(reads + submissions, writes) > 0


class Suite:
    """Runs programs with both file systems."""

    def __init__(self, programs: Programs) -> None:
        self.programs, self.place = programs, programs.place
        self.outcome = Outcome(programs.version)

    def gtest(self, program: str, pattern: str, uri: str | None) -> dict[str, bool]:
        """Returns the tests of a program with their results; without a URI, on RocksDB's own file system."""
        with self.place.file_system("here") as directory:
            env = self.programs.env(uri) | {"TEST_TMPDIR": str(directory)} | ({"TEST_FS_URI": uri} if uri else {})
            ran = self.place.run(self.programs.folder / program, f"--gtest_filter={pattern}", env=env, check=False,
                                 timeout=900)
        found = re.findall(r"^\[ +(OK|FAILED) +\] ([\w/.]+)", ran.stdout, re.MULTILINE)
        results = {test: word == "OK" for word, test in found}
        # A test without a result ended the program, and failed.
        results = dict.fromkeys(re.findall(r"^\[ RUN +\] ([\w/.]+)$", ran.stdout, re.MULTILINE), False) | results
        if not self.programs.served(uri):
            results["use of the library"] = False
        return results

    def tests(self, program: str, uri: str, stock: dict[str, bool], pattern: str = "*") -> None:
        for test, passed in self.gtest(program, pattern, uri).items():
            name = f"{program} {test} at {uri}"
            self.outcome.add(name, passed, EXCLUDED if stock.get(test, True) else {name: STOCK})

    def edge_cases(self, uri: str | None) -> str:
        with self.place.file_system("here") as directory:
            ran = self.place.run(self.programs.edge_cases, uri or "", directory / "file", env=self.programs.env(uri),
                                 check=False, timeout=60)
        return ran.stdout if ran.returncode == 0 and self.programs.served(uri) else ""

    def stress(self, uri: str | None, options: list[str]) -> bool:
        with self.place.file_system("here") as directory:
            database, expected = directory / "database", directory / "expected"
            for folder in (database, expected):
                folder.mkdir()
            ran = self.place.run(self.programs.folder / "db_stress", f"--db={database}",
                                 f"--expected_values_dir={expected}", *SMALL, *STRESS, *options, *at(uri),
                                 env=self.programs.env(uri), check=False, timeout=300)
        return ran.returncode == 0 and "Verification successful" in ran.stdout and self.programs.served(uri)

    def crash(self, uri: str | None, kind: str, options: list[str]) -> bool:
        """Runs the crash test: it kills the stress test, starts it again, and verifies the database."""
        with self.place.file_system("here") as directory:
            ran = self.place.run("python3", self.programs.source / "tools/db_crashtest.py", kind, "--simple",
                                 f"--stress_cmd={self.programs.folder / 'db_stress'}", *CRASHES[kind], *SMALL,
                                 *WAL, *options, *at(uri), check=False, timeout=600, env=self.programs.env(uri) |
                                 {"TEST_TMPDIR": str(directory), "ROCKSDB_SUITE_SEED": " ".join((kind, *options))})
        kills = len(re.findall(r"^KILLED|exitcode=-\d", ran.stdout, re.MULTILINE))
        return ran.returncode == 0 and kills > 0 and self.programs.served(uri)

    def compare(self, name: str, passes: Callable[[str | None], bool], uris: Iterable[str]) -> None:
        """Counts a run at each URI, unless it fails with RocksDB's own file system."""
        passes_stock = passes(None)
        for uri in uris:
            run = f"{name} at {uri}"
            self.outcome.add(run, passes(uri), EXCLUDED if passes_stock else {run: STOCK})


def at(uri: str | None) -> list[str]:
    return [f"--fs_uri={uri}"] if uri else []


def run(place: Place) -> Outcome:
    suite = Suite(Programs(place))
    stock = suite.gtest("env_basic_test", "EnvDefault/*", None)
    if not stock or not all(stock.values()):
        raise Unavailable("env_basic_test fails with RocksDB's own file system")
    for uri in URIS:
        suite.tests("env_basic_test", uri, {}, "CustomEnv/*")
    expected = suite.edge_cases(None)
    for uri in URIS:
        suite.outcome.add(f"edge cases at {uri}", suite.edge_cases(uri) == expected != "", EXCLUDED)
    for program in TESTS:
        stock = suite.gtest(program, "*", None)
        for uri in URIS if program == "prefetch_test" else URIS[:1]:
            suite.tests(program, uri, stock)
    for name, options in STRESSES.items():
        suite.compare(f"db_stress, {name}", partial(suite.stress, options=options), URIS)
    for kind, (mode, options) in itertools.product(CRASHES, {"buffered": BUFFERED, "direct": DIRECT}.items()):
        suite.compare(f"crash test, {kind}, {mode}", partial(suite.crash, kind=kind, options=options),
                      CRASHED if kind == "blackbox" else URIS[:1])
    return suite.outcome
