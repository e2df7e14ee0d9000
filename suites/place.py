"""Where a suite runs: a temporary folder, the sources that it is made of, and file systems. Nothing outside of
the folder and the cache is changed. `guard.py` gives all of it back, however the driver ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import guard

REPOSITORY = Path(__file__).resolve().parent.parent
#: The virtual environment of `make python-test`.
BUILT_PYTHON = REPOSITORY / "target/python/bin/python"


class Unavailable(Exception):
    """A suite cannot be fetched or built here. The message says what to install or to set."""


@dataclass
class Outcome:
    """What a suite reported, test by test."""

    #: Version of the suite, as its package or commit names it.
    version: str
    passed: int = 0
    #: Names of the tests that failed.
    failed: list[str] = field(default_factory=list)
    #: Names of the tests that do not apply, each with the reason.
    excluded: dict[str, str] = field(default_factory=dict)

    def add(self, test: str, passed: bool, excluded: dict[str, str]) -> None:
        """Counts a test. One that is excluded counts as such whether it passes or not."""
        if test in excluded:
            self.excluded[test] = excluded[test]
        elif passed:
            self.passed += 1
        else:
            self.failed.append(test)


class Place:
    """A suite's folder. `log` receives the output of all commands.

    Two runs of one suite with the same cache are made one after the other."""

    def __init__(self, name: str, cache: Path) -> None:
        self.name = name
        #: Downloads, and builds of what is fetched; kept between runs.
        self.cache = cache
        try:
            cache.mkdir(parents=True, exist_ok=True)
        except OSError as reason:
            raise Unavailable(f"cannot create the cache: {reason}; SUITES_CACHE says where") from None
        #: Cargo's target directory for the library's own parts of suites.
        self.target = cache / "target"
        self.log_path = cache / f"{name}.log"
        self.log = self.log_path.open("a")
        lock(self.log, f"another run of {name}")
        self.log.truncate(0)
        self._guard = subprocess.Popen([sys.executable, guard.__file__, name], stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE, text=True, start_new_session=True)
        assert self._guard.stdout
        self.folder = Path(self._guard.stdout.readline().strip())
        if not self.folder.is_absolute():
            raise Unavailable("no temporary folder can be made; SUITES_DIR says where")

    def __enter__(self) -> Place:
        return self

    def __exit__(self, *_: object) -> None:
        """Ends running commands, unmounts what was mounted, and removes the folder."""
        self._guard.communicate()
        if self._guard.returncode != 0:
            warn(f"suites/run: {self.folder} cannot be removed")
        self.log.close()

    def run(
        self,
        *command: str | Path,
        cwd: Path | None = None,
        env: dict[str, str] | None = None,
        check: bool = True,
        timeout: float | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command in a process group of its own; returns its output, both streams in one.

        Raises Unavailable if it cannot be started, or, with `check`, if it fails. A command that takes more than
        `timeout` seconds is killed with all processes of the suite, and has exit code -9."""
        words = [str(word) for word in command]
        self.log.write(f"\n$ {' '.join(words)}\n")
        self.log.flush()
        try:
            running = subprocess.Popen(
                words,
                cwd=cwd or self.folder,
                env=os.environ | (env or {}) | {guard.MARK: str(self.folder)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        except FileNotFoundError:
            raise Unavailable(f"there is no command {words[0]}") from None
        except OSError as reason:
            raise Unavailable(f"{words[0]} cannot be started: {reason}") from None
        try:
            output, _ = running.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            guard.end_processes(self.folder)
            output, _ = running.communicate()
            output += f"\nkilled after {timeout:.0f} s\n"
        self.log.write(output)
        self.log.flush()
        if check and running.returncode != 0:
            last = output.strip().splitlines()[-1:] or ["no output"]
            raise Unavailable(f"{' '.join(words[:3])} failed ({running.returncode}): {last[0]}; see {self.log_path}")
        return subprocess.CompletedProcess(words, running.returncode, output)

    def cargo(self, *arguments: str | Path, cwd: Path, env: dict[str, str] | None = None, check: bool = True,
              timeout: float | None = None) -> subprocess.CompletedProcess[str]:
        """Runs cargo with the suites' target directory, which one run uses at a time."""
        # cargo waits, too, but within `timeout`.
        with (self.cache / "cargo.lock").open("w") as file:
            lock(file, "cargo in another run")
            return self.run("cargo", *arguments, cwd=cwd, env={"CARGO_TARGET_DIR": str(self.target)} | (env or {}),
                            check=check, timeout=timeout)

    def crate(self, name: str, version: str) -> Path:
        """Returns a copy of a published crate's source, in the folder, where it may be changed."""
        probe = self.cache / f"fetch-{name}-{version}"
        with self.fetching(probe):
            if not (probe / "Cargo.lock").exists():
                (probe / "src").mkdir(parents=True, exist_ok=True)
                (probe / "src/lib.rs").touch()
                (probe / "Cargo.toml").write_text(
                    '[package]\nname = "fetch"\nversion = "0.0.0"\nedition = "2021"\n'
                    f'[dependencies]\n{name} = "={version}"\n[workspace]\n')
            # Checks the sum that the registry states.
            self.run("cargo", "vendor", "--versioned-dirs", "vendor", cwd=probe)
            source = probe / "vendor" / f"{name}-{version}"
            if not source.is_dir():
                raise Unavailable(f"the registry's {name} {version} is not in {probe}")
            copy = self.folder / name
            shutil.copytree(source, copy)
        return copy

    def debian_source(self, package: str) -> tuple[Path, str]:
        """Returns a copy of the source of a Debian package, with Debian's patches, and its version."""
        kept = self.cache / f"debian-{package}"
        with self.fetching(kept) as part:
            if not kept.exists():
                self.run(REPOSITORY / "suites/debian_source", package, part)
                part.rename(kept)
        version = (kept / "version").read_text().strip()
        copy = self.folder / package
        shutil.copytree(kept / "source", copy, symlinks=True)
        return copy, version

    def repository(self, owner_and_name: str, commit: str, *, only: Sequence[str] = ()) -> Path:
        """Returns a copy of the files of a commit of a public repository; with `only`, of these paths.

        The repository is a clone, bare or not, in SUITES_REPOSITORIES/OWNER+NAME; without one it is cloned from
        GitHub."""
        given = os.environ.get("SUITES_REPOSITORIES")
        name = owner_and_name.replace("/", "+")
        clone = Path(given) / name if given else self.cache / name
        url = f"https://github.com/{owner_and_name}"
        if given and not clone.exists():
            raise Unavailable(f"no {clone}; make it by: git clone --bare {url} {clone}")
        with self.fetching(clone) as part:
            if not clone.exists():
                made = self.run("git", "clone", "--bare", "--filter=blob:none", url, part, check=False, timeout=600)
                if made.returncode != 0:
                    raise Unavailable(f"{url} cannot be cloned (see {self.log_path}); elsewhere: git clone --bare "
                                      f"{url} {name}, then set SUITES_REPOSITORIES to the folder that contains {name}")
                part.rename(clone)
        copy = self.folder / owner_and_name.split("/")[1]
        copy.mkdir()
        archive = self.folder / f"{name}.tar"
        made = self.run("git", "--git-dir", clone if (clone / "HEAD").exists() else clone / ".git", "archive",
                        f"--output={archive}", commit, *only, check=False)
        if made.returncode != 0:
            raise Unavailable(f"{clone} lacks commit {commit}; fetch it by: git -C {clone} fetch origin {commit}")
        with tarfile.open(archive) as files:
            files.extractall(copy, filter="tar")
        archive.unlink()
        return copy

    def python(self, *packages: str) -> Path:
        """Returns the interpreter of a virtual environment with this repository's Python package, as
        `make python-test` builds it, and these packages."""
        if not BUILT_PYTHON.exists():
            raise Unavailable("the Python package is not built; run: make python-test")
        python = self.folder / "python/bin/python"
        self.run(BUILT_PYTHON, "-m", "venv", "--without-pip", self.folder / "python")
        purelib = "import sysconfig; print(sysconfig.get_path('purelib'))"
        built, own = (self.run(each, "-c", purelib).stdout.strip() for each in (BUILT_PYTHON, python))
        # The package, and what it was tested with, come from there; what a suite needs stays here.
        Path(own, "nowait-under-test.pth").write_text(built + "\n")
        if packages:
            self.pip(python, "install", *packages)
        return python

    def pip(self, python: Path, *arguments: str) -> None:
        """Runs pip for an interpreter that `python` returned."""
        self.run(BUILT_PYTHON, "-m", "pip", "--python", python, "--quiet", "--disable-pip-version-check", *arguments)

    @contextlib.contextmanager
    def file_system(self, kind: str, mebibytes: int = 1024) -> Iterator[Path]:
        """Mounts a new file system, and yields a directory on it. `here` is the suite's own folder."""
        if kind == "here":
            directory = Path(tempfile.mkdtemp(dir=self.folder))
            yield directory
            shutil.rmtree(directory, ignore_errors=True)
            return
        if os.geteuid() != 0:
            raise Unavailable(f"mounting {kind} needs root")
        point = Path(tempfile.mkdtemp(prefix=f"{kind}-", dir=self.folder))
        if kind == "tmpfs":
            self.run("mount", "-t", "tmpfs", "-o", f"size={mebibytes}M", "nowait-suite", point)
        else:
            image = point.with_suffix(".image")
            with image.open("wb") as file:
                file.truncate(mebibytes << 20)
            quiet = {"ext4": ["-q", "-F"], "xfs": ["-q"], "btrfs": ["-q"]}[kind]
            self.run(f"mkfs.{kind}", *quiet, image)
            self.run("mount", "-o", "loop", image, point)
        yield point
        # After an exception, the guard does it.
        self.run("umount", point)
        point.with_suffix(".image").unlink(missing_ok=True)

    @contextlib.contextmanager
    def fetching(self, kept: Path) -> Iterator[Path]:
        """Keeps other runs from fetching the same into the cache. Yields a name for what is not complete yet."""
        part = self.cache / f"{kept.name}.part"
        with (self.cache / f"{kept.name}.lock").open("w") as file:
            lock(file, f"another run that fetches {kept.name}")
            shutil.rmtree(part, ignore_errors=True)
            yield part
            shutil.rmtree(part, ignore_errors=True)


def cargo_tests(output: str) -> dict[str, bool]:
    """Returns the tests that `cargo test` reports: name, and whether it passed. Ignored tests are left out."""
    found = re.findall(r"^test (\S+)(?: - should panic)? \.\.\. (ok|FAILED)$", output, re.MULTILINE)
    return {name: word == "ok" for name, word in found}


def lock(file: IO[str], holder: str) -> None:
    """Locks a file until it is closed, or the process ends. `holder` says what another lock means."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        warn(f"suites/run: waits for {holder}")
        fcntl.flock(file, fcntl.LOCK_EX)


def warn(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
