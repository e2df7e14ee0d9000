"""The benchmark of the command `nowait`, run from Python."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

from nowait._errors import make

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nowait._types import Path


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
    options. `command` is the program; otherwise `nowait` is looked for in `PATH`. It is installed by
    `cargo install --path crates/nowait-cli`.
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
