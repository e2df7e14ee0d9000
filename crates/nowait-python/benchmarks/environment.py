"""Where something was measured."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("nowait", "numpy", "fsspec", "ayafileio", "distributed", "pandas", "pyarrow")


def environment(directory: Path) -> dict[str, Any]:
    """What a reader needs to judge the figures, and to repeat them."""
    here = Path(__file__).parent

    def told(*command: str) -> str:
        return subprocess.run(command, cwd=here, capture_output=True, text=True, check=False).stdout.strip()

    return {
        "commit": told("git", "describe", "--always", "--dirty"),
        "command": "python " + " ".join([f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "kernel": platform.release() + " " + platform.machine(),
        "filesystem": told("findmnt", "-n", "-o", "FSTYPE", "-T", str(directory.absolute())),
        "mount_options": told("findmnt", "-n", "-o", "OPTIONS", "-T", str(directory.absolute())),
        "processors": os.cpu_count(),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "packages": {name: found for name in PACKAGES if (found := _version(name)) is not None},
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
