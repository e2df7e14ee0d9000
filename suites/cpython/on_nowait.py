"""Runs CPython's tests of files with nowait's raw file in the place of `io.FileIO`: on_nowait.py REPORT.

The tests make files by `FileIO` and by `open`. Here `open` is Python's own code, over a `FileIO` of nowait, once
with the buffers and text of `io`, once with those of `_pyio`. Descriptors and openers are left to `io.FileIO`:
`nowait.open` takes paths.

REPORT receives the tests, by name, and whether each passed. Skipped tests are left out, and those that passed
without a call of nowait: most of test_io is about objects in memory and pipes."""

from __future__ import annotations

import _pyio
import inspect
import io
import itertools
import json
import sys
import types
import unittest
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nowait
from nowait._files import RawFile
from test import test_bufio, test_file, test_fileio, test_io, test_largefile, test_univnewlines

import served


class FileIO(RawFile):
    """`nowait.open(file, mode).raw()` with the arguments of `io.FileIO`, whose file it closes and warns about."""

    closefd = True

    def __new__(cls, file: Any, mode: str = "r", closefd: bool = True, opener: Any = None) -> Any:
        if isinstance(file, int) or not closefd or opener is not None:
            return io.FileIO(file, mode, closefd, opener)
        return super().__new__(cls)

    def __init__(self, file: Any, mode: str = "r", closefd: bool = True, opener: Any = None) -> None:
        served.calls += 1
        super().__init__(nowait.open(file, mode), owns=True)

    def __del__(self) -> None:
        if "_file" in vars(self) and not self.closed:
            self._dealloc_warn(self)
            super().__del__()

    def _dealloc_warn(self, source: object) -> None:
        """The buffers of `io` call this for a raw file that they are about to close unasked."""
        warnings.warn(f"unclosed file {self!r}", ResourceWarning, stacklevel=2, source=source)


_pyio.RawIOBase.register(FileIO)


def open_of(names: dict[str, Any]) -> Callable[..., Any]:
    """Returns Python's `open` with other classes."""
    code = inspect.unwrap(_pyio.open)
    return types.FunctionType(code.__code__, vars(_pyio) | names, "open", code.__defaults__)


open_of_io = open_of({"FileIO": FileIO} | {name: getattr(io, name) for name in (
    "BufferedRandom", "BufferedReader", "BufferedWriter", "TextIOWrapper")})
open_of_pyio = open_of({"FileIO": FileIO})


def tests() -> Iterator[unittest.TestCase]:
    for module in (test_fileio, test_io, test_file, test_bufio, test_univnewlines, test_largefile):
        for test in itertools.chain(*unittest.defaultTestLoader.loadTestsFromModule(module)):
            case = type(test)
            # Classes of `io` begin with C, those of `_pyio` with Py; those of test_fileio differ by `FileIO` alone.
            # Tests of signals use pipes, and wait for seconds.
            if not case.__name__.startswith("C" if module is test_fileio else ("C", "Py")):
                continue
            if isinstance(test, test_io.SignalsTest):
                continue
            case.FileIO = FileIO
            case.open = staticmethod(open_of_io if case.__name__.startswith("C") else open_of_pyio)
            yield test


class Result(unittest.TextTestResult):
    """Collects the tests that called nowait, or failed."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.outcomes: dict[str, bool] = {}

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self._before = served.calls, self._bad(), len(self.skipped)

    def stopTest(self, test: unittest.TestCase) -> None:
        super().stopTest(test)
        calls, bad, skipped = self._before
        failed = self._bad() > bad
        if failed or (served.calls > calls and len(self.skipped) == skipped):
            self.outcomes[test.id().removeprefix("test.")] = not failed

    def _bad(self) -> int:
        return len(self.failures) + len(self.errors)


def main() -> None:
    suite = unittest.TestSuite(tests())
    result = unittest.TextTestRunner(sys.stdout, resultclass=Result).run(suite)
    Path(sys.argv[1]).write_text(json.dumps(result.outcomes))


main()
