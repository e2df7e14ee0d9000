"""What differs between systems, except how a loop learns of completions (`_loops.py`)."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from nowait import _nowait
from nowait._errors import UnsupportedError

if TYPE_CHECKING:
    from nowait._nowait import File
    from nowait.aio import AsyncFile

# Names of the package that exist on Linux only, and what to use elsewhere.
_ON_LINUX = {
    "nowait": {
        "CacheStats": "nowait.open reads through the page cache of the system",
        "CachedFile": "nowait.open reads through the page cache of the system",
        "CopyError": "shutil copies files",
        "CopyProgress": "shutil copies files",
        "CopyReport": "shutil copies files",
        "Lease": "nowait.gather copies ranges into one array",
        "PageCache": "nowait.open reads through the page cache of the system",
        "bench": "it runs the command nowait, which exists on Linux only",
        "copy": "shutil.copy2 and shutil.copytree copy files",
        "probe": "it reports how io_uring serves a file",
    },
    "nowait.aio": {"copy": "shutil.copy2 in a thread copies a file"},
}
ABSENT = {} if sys.platform == "linux" else _ON_LINUX


def missing(module: str, name: str) -> AttributeError:
    """Returns the error for a name that a module does not have."""
    instead = ABSENT.get(module, {}).get(name)
    if instead is None:
        return AttributeError(f"module {module!r} has no attribute {name!r}")
    return AttributeError(f"{module}.{name} needs Linux; {instead}")


def status(file: File | AsyncFile) -> os.stat_result:
    """Returns the status of an open file, by its name if it has no descriptor (Windows)."""
    try:
        return os.fstat(file.fileno())
    except UnsupportedError:
        return Path(file.name).stat()


def isatty(file: File) -> bool:
    """Returns whether a file is a terminal."""
    try:
        return os.isatty(file.fileno())
    except UnsupportedError:
        # A terminal has a descriptor.
        return False


# Errors of a rename onto a directory. Windows denies access.
ON_DIRECTORY: tuple[type[OSError], ...] = (IsADirectoryError, FileExistsError)
if sys.platform == "win32":
    ON_DIRECTORY = (*ON_DIRECTORY, PermissionError)


def replace(source: Path, target: str | Path) -> None:
    """Renames a file; replaces another one, even while that is open."""
    if sys.platform == "win32":
        # `os.replace` replaces no open file there.
        _nowait.rename(source, target)
    else:
        source.replace(target)


def rename_new(source: Path, target: Path) -> None:
    """Renames a file; fails if `target` exists, also if it was created meanwhile."""
    if sys.platform == "win32":
        # `rename` replaces nothing there. Some file systems have no hard links.
        source.rename(target)
    else:
        os.link(source, target)
        source.unlink()


def copy_file(source: str | Path, target: str | Path) -> None:
    """Copies a file with its metadata. The target's name refers to the old file or the complete copy."""
    if sys.platform == "linux":
        from nowait._copy import copy

        copy(source, target, no_target_directory=True)
        return
    staged = Path(target).with_name(f".nowait-copy-{os.urandom(8).hex()}")
    try:
        shutil.copy2(source, staged)
        replace(staged, target)
    finally:
        staged.unlink(missing_ok=True)


async def copy_file_async(source: str | Path, target: str | Path) -> None:
    """Like `copy_file`, for an event loop."""
    if sys.platform == "linux":
        from nowait import aio

        await aio.copy(source, target, no_target_directory=True)
        return
    from nowait import _loops

    await _loops.in_thread(copy_file, source, target)
