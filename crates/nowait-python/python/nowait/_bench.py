"""What this machine's files are like: how they are served, and how fast."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

from nowait import _nowait
from nowait._errors import make

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nowait._types import Path


def probe(path: Path, *, shallow: bool = True, evict: bool = False, requests: int = 32) -> dict[str, Any]:
    """Finds out how files are served at a path: by io_uring, request by request, and by this library.

    Returns what `nowait probe --json` prints. Of a directory, by scratch files in it. Takes about a
    second, or some if it is not `shallow`.
    """
    found: dict[str, Any] = json.loads(_nowait.probe_json(path, shallow, evict, requests))
    return found


def bench(
    tables: str | Sequence[str] = (),
    *,
    directory: Path = ".",
    quick: bool = False,
    size: int | None = None,
    rounds: int | None = None,
    arguments: Sequence[str] = (),
    command: str | None = None,
) -> list[dict[str, Any]]:
    """Measures this machine's files, as `nowait bench` does, and returns its rows, for pandas or a plot.

    `tables` are those of the command ("reads", "cached", "gather", ...), `arguments` more of its
    options. Without any it is the command's first run: six cases in less than a minute. `command` is the
    program, else `nowait` in `PATH`, which `cargo install --locked --path crates/nowait-cli` installs.
    """
    program = command or shutil.which("nowait")
    if program is None:
        text = (
            "there is no command nowait in PATH; cargo install --locked --path crates/nowait-cli installs it"
        )
        raise make("NotFound", None, text, "nowait", None, None, None)
    options = ["--dir", os.fsdecode(directory), "--json", "-"]
    options += ["--quick"] if quick else []
    options += ["--size", str(size)] if size is not None else []
    options += ["--rounds", str(rounds)] if rounds is not None else []
    names = [tables] if isinstance(tables, str) else list(tables)
    ended = subprocess.run(
        [program, "bench", *names, *options, *arguments], stdout=subprocess.PIPE, check=False
    )
    if ended.returncode != 0:
        text = f"{program} bench ended with {ended.returncode}; what it said is on standard error"
        raise make("Other", None, text, program, None, None, None)
    rows: list[dict[str, Any]] = json.loads(ended.stdout)["rows"]
    return rows
