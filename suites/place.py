"""Where a suite runs: a temporary folder, the sources that it is made of, and file systems. Nothing outside of
the folder is changed, and `Place.close` gives all of it back."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent


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
    """A suite's folder. `log` receives the output of all commands."""

    def __init__(self, name: str, cache: Path) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"nowait-suite-{name}-", dir=os.environ.get("SUITES_DIR")))
        #: Downloads, and builds of what is fetched; kept between runs.
        self.cache = cache
        cache.mkdir(parents=True, exist_ok=True)
        #: Cargo's target directory for the library's own parts of suites.
        self.target = cache / "target"
        self.log_path = cache / f"{name}.log"
        self.log = self.log_path.open("w")
        self._mounted: list[Path] = []
        self._running: subprocess.Popen[str] | None = None

    def close(self) -> None:
        """Ends the running command, unmounts what was mounted, and removes the folder."""
        if self._running is not None and self._running.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._running.pid, signal.SIGKILL)
            self._running.wait()
        for point in reversed(self._mounted):
            # This gives back the loop device, too.
            if subprocess.run(["umount", point], stderr=self.log).returncode != 0:
                subprocess.run(["umount", "--lazy", point], stderr=self.log)
        self._mounted.clear()
        shutil.rmtree(self.folder, ignore_errors=True)
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

        Raises Unavailable if there is no such command, or, with `check`, if it fails. A command that takes more
        than `timeout` seconds is killed with its group, and has exit code -9."""
        words = [str(word) for word in command]
        self.log.write(f"\n$ {' '.join(words)}\n")
        self.log.flush()
        try:
            self._running = subprocess.Popen(
                words,
                cwd=cwd or self.folder,
                env=os.environ | (env or {}),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        except FileNotFoundError:
            raise Unavailable(f"there is no command {words[0]}") from None
        running = self._running
        try:
            output, _ = running.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)
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
        """Runs cargo with the suites' target directory."""
        return self.run("cargo", *arguments, cwd=cwd, env={"CARGO_TARGET_DIR": str(self.target)} | (env or {}),
                        check=check, timeout=timeout)

    def crate(self, name: str, version: str) -> Path:
        """Returns a copy of a published crate's source, in the folder, where it may be changed."""
        probe = self.cache / f"fetch-{name}-{version}"
        if not (probe / "Cargo.lock").exists():
            (probe / "src").mkdir(parents=True, exist_ok=True)
            (probe / "src/lib.rs").touch()
            (probe / "Cargo.toml").write_text(
                f'[package]\nname = "fetch"\nversion = "0.0.0"\nedition = "2021"\n[dependencies]\n{name} = "={version}"\n'
                "[workspace]\n")
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
        if not kept.exists():
            part = kept.with_suffix(".part")
            shutil.rmtree(part, ignore_errors=True)
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
        if not clone.exists():
            url = f"https://github.com/{owner_and_name}"
            if given:
                raise Unavailable(f"no {clone}; make it by: git clone --bare {url} {clone}")
            made = self.run("git", "clone", "--bare", "--filter=blob:none", url, clone, check=False, timeout=600)
            if made.returncode != 0:
                shutil.rmtree(clone, ignore_errors=True)
                raise Unavailable(f"{url} cannot be cloned; elsewhere: git clone --bare {url}, then set "
                                  f"SUITES_REPOSITORIES to the folder with {name}")
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
        python = REPOSITORY / "target/python/bin/python"
        if not python.exists():
            raise Unavailable("the Python package is not built; run: make python-test")
        environment = self.cache / "python"
        own = environment / "bin/python"
        if not own.exists():
            self.run(python, "-m", "venv", environment)
        packages_of = self.run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").stdout.strip()
        purelib = self.run(own, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").stdout.strip()
        # The package, and what it was tested with, come from there; what a suite needs stays here.
        Path(purelib, "nowait-under-test.pth").write_text(packages_of + "\n")
        if packages:
            self.run(own, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages)
        return own

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
        self._mounted.append(point)
        try:
            yield point
        finally:
            self.run("umount", point)
            self._mounted.remove(point)
            with contextlib.suppress(FileNotFoundError):
                point.with_suffix(".image").unlink()


def cargo_tests(output: str) -> dict[str, bool]:
    """Returns the tests that `cargo test` reports: name, and whether it passed. Ignored tests are left out."""
    found = re.findall(r"^test (\S+)(?: - should panic)? \.\.\. (ok|FAILED)$", output, re.MULTILINE)
    return {name: word == "ok" for name, word in found}


def warn(text: str) -> None:
    print(text, file=sys.stderr)
