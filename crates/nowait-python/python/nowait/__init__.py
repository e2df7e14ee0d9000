"""Many file reads in one call. Cached data is copied at once; the rest is read with many requests
in flight.

    import nowait

    rows = nowait.gather("table.dat", offsets, 4096)     # offsets: any integers
    array = numpy.asarray(rows)                          # one row for each offset, no copy

`nowait.aio` contains the asynchronous versions. `nowait.fsspec`, `nowait.torch` and `nowait.obspec`
implement the interfaces of those packages. The guide is docs/guide/python.md in the repository.
"""

from __future__ import annotations

from collections.abc import Sequence as _Sequence
from importlib import import_module as _import
from typing import TYPE_CHECKING as _TYPE_CHECKING

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
    TimedOutError,
    UnsupportedError,
)
from nowait._files import File, open
from nowait._nowait import Buffer, Gathered, __version__, gather
from nowait._system import ABSENT as _ABSENT
from nowait._system import missing as _missing

if _TYPE_CHECKING:
    from nowait._bench import bench, probe
    from nowait._cache import CachedFile, CacheStats, PageCache
    from nowait._copy import CopyError, CopyProgress, CopyReport, copy
    from nowait._log import Log, Record
    from nowait._map import Map, Populated
    from nowait._nowait import Lease
    from nowait._rows import Rows

_Sequence.register(Gathered)


# Names whose modules are imported on first use. These modules need asyncio, dataclasses or numpy,
# whose import takes longer than that of the package.
_LATER = {
    "CacheStats": "_cache",
    "CachedFile": "_cache",
    "CopyError": "_copy",
    "CopyProgress": "_copy",
    "CopyReport": "_copy",
    "Lease": "_nowait",
    "Log": "_log",
    "Map": "_map",
    "PageCache": "_cache",
    "Populated": "_map",
    "Record": "_log",
    "Rows": "_rows",
    "bench": "_bench",
    "copy": "_copy",
    "probe": "_bench",
}
for _name in _ABSENT.get("nowait", ()):
    del _LATER[_name]


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise _missing("nowait", name)
    found: object = getattr(_import(f"nowait.{_LATER[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})


__all__ = [
    "BlockingError",
    "Buffer",
    "CacheStats",
    "CachedFile",
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
    "Lease",
    "Log",
    "Map",
    "NoDirectoryError",
    "NotFoundError",
    "PageCache",
    "PermissionDeniedError",
    "Populated",
    "RangeError",
    "Record",
    "Rows",
    "SyncFailedError",
    "TimedOutError",
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
__all__ = [name for name in __all__ if name not in _ABSENT.get("nowait", ())]
