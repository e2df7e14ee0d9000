"""Copies of files and trees."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from nowait import _nowait
from nowait._errors import Error

if TYPE_CHECKING:
    from collections.abc import Callable

    from nowait._types import Path


class CopyProgress(TypedDict):
    """Progress of a copy."""

    bytes: int
    files: int
    bytes_found: int
    files_found: int
    is_walked: bool
    elapsed_s: float
    left_s: float | None


@dataclass(frozen=True)
class CopyReport:
    """Result of a copy. `failures` were not copied; `warnings` were copied without some metadata, or
    changed.
    """

    files: int
    directories: int
    nodes: int
    hard_links: int
    bytes: int
    skipped: int
    verified: int
    resumed_bytes: int
    elapsed_s: float
    failures: list[Error] = field(default_factory=list)
    warnings: list[Error] = field(default_factory=list)


class CopyError(Error):
    """Several files could not be copied, and the others were. `report.failures` contains the errors."""


class CopyOptions(TypedDict, total=False):
    """Options of a copy."""

    sync: Literal["none", "file", "all"]
    reflink: Literal["auto", "always", "never"]
    update: Literal["all", "older", "none"]
    verify: bool
    resume: bool
    cache_neutral: bool
    dry_run: bool
    no_target_directory: bool
    bytes_per_second_max: int | None
    include: Sequence[str]
    exclude: Sequence[str]


def copy(
    source: Path | Sequence[Path],
    target: Path,
    progress: Callable[[CopyProgress], object] | None = None,
    **options: Unpack[CopyOptions],
) -> CopyReport:
    """Copies files or trees with all metadata that `cp -a` keeps, by the fastest way for each file.

    If the target is a directory, the copy is created in it under the source's name. Each name in the target
    refers to the old file or the complete new one. `progress` is called about twenty times a second. An
    exception in it, or `KeyboardInterrupt`, ends the copy.

    Options, with the default first:

    * `sync`: `"none"`, `"file"` or `"all"`, what is durable at the end;
    * `reflink`: `"auto"`, `"always"` or `"never"`;
    * `update`: `"all"`, `"older"` or `"none"`, which files of the target are replaced;
    * `verify`, `resume`, `cache_neutral`, `dry_run` and `no_target_directory`: `False`;
    * `bytes_per_second_max`: `None`;
    * `include` and `exclude`: patterns of names.

    If a file cannot be copied, the others still are. At the end its error is raised, or `CopyError` if
    several files failed; `error.report` contains the result.
    """
    return finished(_nowait.copy(listed(source), target, progress, how(**options)))


def listed(source: Path | Sequence[Path]) -> list[Path]:
    """Returns one source, or several, as a list."""
    return [source] if isinstance(source, str | bytes | os.PathLike) else list(source)


def how(
    *,
    sync: Literal["none", "file", "all"] = "none",
    reflink: Literal["auto", "always", "never"] = "auto",
    update: Literal["all", "older", "none"] = "all",
    verify: bool = False,
    resume: bool = False,
    cache_neutral: bool = False,
    dry_run: bool = False,
    no_target_directory: bool = False,
    bytes_per_second_max: int | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
) -> dict[str, object]:
    """Returns the options, completed by their defaults."""
    return {
        "sync": sync,
        "reflink": reflink,
        "update": update,
        "verify": verify,
        "resume": resume,
        "cache_neutral": cache_neutral,
        "dry_run": dry_run,
        "no_target_directory": no_target_directory,
        "bytes_per_second_max": bytes_per_second_max,
        "include": list(include),
        "exclude": list(exclude),
    }


def finished(told: dict[str, Any]) -> CopyReport:
    """Returns the report of a copy that has ended; raises if it failed."""
    report = CopyReport(**told)
    if not report.failures:
        return report
    first, others = report.failures[0], report.failures[1:]
    if not others:
        first.report = report
        raise first
    error = CopyError(first.errno, f"{first} ({len(others)} more: see report.failures)", first.filename)
    error.kind, error.index, error.offset, error.length = first.kind, None, first.offset, first.length
    error.report = report
    raise error
