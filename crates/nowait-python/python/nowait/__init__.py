"""Many reads of files in one call, on Linux: cached data at once, the rest at the depth of the disk.

    import nowait

    rows = nowait.gather("table.dat", offsets, 4096)     # offsets: any integers
    array = numpy.asarray(rows)                          # one row for each offset, no copy

`nowait.aio` has the same to be awaited, `nowait.fsspec`, `nowait.torch` and `nowait.obspec` have it
in the forms that others ask for. The guide is docs/guide/python.md in the repository.
"""

from __future__ import annotations

from collections.abc import Sequence as _Sequence
from typing import TYPE_CHECKING as _TYPE_CHECKING

from nowait._bench import bench, probe
from nowait._copy import CopyError, CopyProgress, CopyReport, copy
from nowait._each import gather_each, gather_files
from nowait._errors import (
    BlockingError,
    ClosedError,
    DamagedError,
    DirectoryError,
    EndOfFileError,
    Error,
    ExistsError,
    NoDirectoryError,
    NotFoundError,
    PermissionDeniedError,
    RangeError,
    SyncFailedError,
    UnsupportedError,
)
from nowait._files import File, open
from nowait._log import Log, Record
from nowait._map import Map, Populated
from nowait._nowait import Buffer, Gathered, __version__, gather

if _TYPE_CHECKING:
    from nowait._rows import Rows

_Sequence.register(Gathered)


def __getattr__(name: str) -> object:
    # What needs numpy comes when it is asked for.
    if name == "Rows":
        from nowait._rows import Rows

        return Rows
    raise AttributeError(f"module 'nowait' has no attribute {name!r}")


__all__ = [
    "BlockingError",
    "Buffer",
    "ClosedError",
    "CopyError",
    "CopyProgress",
    "CopyReport",
    "DamagedError",
    "DirectoryError",
    "EndOfFileError",
    "Error",
    "ExistsError",
    "File",
    "Gathered",
    "Log",
    "Map",
    "NoDirectoryError",
    "NotFoundError",
    "PermissionDeniedError",
    "Populated",
    "RangeError",
    "Record",
    "Rows",
    "SyncFailedError",
    "UnsupportedError",
    "__version__",
    "bench",
    "copy",
    "gather",
    "gather_each",
    "gather_files",
    "open",
    "probe",
]
