"""Names that exist on Linux only."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import nowait
import nowait.aio
from nowait import _system


def test_names_of_linux() -> None:
    modules = {"nowait": nowait, "nowait.aio": nowait.aio}
    assert modules.keys() == _system._ON_LINUX.keys()
    for module, names in _system._ON_LINUX.items():
        for name in names:
            if sys.platform == "linux":
                assert getattr(modules[module], name) and name in modules[module].__all__
                continue
            with pytest.raises(AttributeError, match=rf"{module}\.{name} needs Linux; \w+"):
                getattr(modules[module], name)
            assert name not in modules[module].__all__ and name not in dir(modules[module])


def test_other_names() -> None:
    for module in (nowait, nowait.aio):
        assert {getattr(module, name) is None for name in module.__all__} == {False}
        with pytest.raises(AttributeError, match="has no attribute 'missing'"):
            getattr(module, "missing")  # noqa: B009


def test_other_systems(path: Path) -> None:
    """Imports the package as macOS would, except for the extension."""
    program = f"""
import sys
import asyncio
sys.platform = "darwin"
from nowait import *
import nowait, nowait.aio
assert len(gather({path.as_posix()!r}, [0], 4)) == 1
for module, name in ((nowait, "PageCache"), (nowait.aio, "copy")):
    try:
        getattr(module, name)
    except AttributeError as error:
        print(error)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    lines = ended.stdout.splitlines()
    assert [line.split(";")[0] for line in lines] == [
        "nowait.PageCache needs Linux",
        "nowait.aio.copy needs Linux",
    ]
