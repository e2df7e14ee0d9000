"""Reports and measures how this machine serves file requests."""

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
    """Reports how io_uring and this library serve requests at a path.

    Returns the output of `nowait probe --json`. In a directory the call probes scratch files. Takes about a
    second if `shallow`, otherwise several.
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
    """Runs `nowait bench` and returns its rows, for pandas or a plot.

    `tables` names tables of the command ("reads", "cached", "gather", ...); `arguments` contains further
    options. Without tables and arguments it measures six cases in less than a minute. `command` is the
    program; the default is `nowait` in `PATH`. Install it with `cargo install --locked --path
    crates/nowait-cli`.
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
