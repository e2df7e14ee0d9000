"""fsspec's abstract suites on the file system of `nowait://`, with the fixtures that fsspec uses for its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.local import make_path_posix
from fsspec.tests import abstract
from nowait.fsspec import NowaitFileSystem


class Fixtures(abstract.AbstractFixtures):
    @pytest.fixture
    def fs(self) -> Any:
        found = fsspec.filesystem("nowait", auto_mkdir=True)
        assert isinstance(found, NowaitFileSystem)
        return found

    @pytest.fixture
    def fs_path(self, tmpdir: Path) -> str:
        return str(tmpdir)

    @pytest.fixture
    def fs_sanitize_path(self) -> Any:
        return make_path_posix


class TestCopy(abstract.AbstractCopyTests, Fixtures):
    pass


class TestGet(abstract.AbstractGetTests, Fixtures):
    pass


class TestPut(abstract.AbstractPutTests, Fixtures):
    pass


class TestOpen(abstract.AbstractOpenTests, Fixtures):
    pass


class TestPipe(abstract.AbstractPipeTests, Fixtures):
    pass
