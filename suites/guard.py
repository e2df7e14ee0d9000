"""Makes a suite's folder, and gives back what the suite used when the driver ends, even if it is killed:
guard.py NAME. Prints the folder, and waits for the end of its standard input, which the driver holds open.

Then it ends the processes that carry the folder in their environment, unmounts what is mounted below it, and
removes it. Exit: 0 nothing is left; 1 something is."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

#: Variable that names the folder to all commands of a suite.
MARK = "NOWAIT_SUITE_FOLDER"


def processes(folder: Path) -> list[int]:
    """Returns the processes of a suite, without zombies, whose environment is empty."""
    mark = f"{MARK}={folder}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return found


def end_processes(folder: Path) -> None:
    """Kills a suite's processes, also those that they start meanwhile, and waits for their end."""
    deadline = time.monotonic() + 10
    while (found := processes(folder)) and time.monotonic() < deadline:
        for process in found:
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.01)


def mounts(folder: Path) -> list[str]:
    """Returns the mount points below a folder, the innermost first."""
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    points = [re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), point) for point in points]
    return [point for point in reversed(points) if Path(point).is_relative_to(folder)]


def give_back(folder: Path) -> bool:
    end_processes(folder)
    for point in mounts(folder):
        # This detaches the loop device, too; a lazy unmount does once nothing uses it.
        if subprocess.run(["umount", point], stderr=subprocess.DEVNULL).returncode != 0:
            subprocess.run(["umount", "--lazy", point])
    if not mounts(folder):
        shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def main() -> int:
    # Whoever ends the driver by its session or terminal must not end this.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        made = tempfile.mkdtemp(prefix=f"nowait-suite-{sys.argv[1]}-", dir=os.environ.get("SUITES_DIR"))
    except OSError as reason:
        print(f"suites/run: {reason}", file=sys.stderr)
        return 1
    folder = Path(made).resolve()
    try:
        with contextlib.suppress(BrokenPipeError):
            print(folder, flush=True)
        sys.stdin.read()
    finally:
        is_clean = give_back(folder)
    return 0 if is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
