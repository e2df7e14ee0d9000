"""Counts the calls of nowait. As a plugin of pytest it adds each test's count to the report."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from nowait import _nowait
from nowait._files import File

calls = 0


def counted(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        global calls
        calls += 1
        return function(*arguments, **keywords)

    return call


for name, function in list(vars(_nowait).items()):
    if isinstance(function, types.BuiltinFunctionType):
        setattr(_nowait, name, counted(function))
for name in ("read_at", "readinto_at", "write_at", "append", "size", "truncate", "gather"):
    setattr(File, name, counted(getattr(File, name)))


@pytest.fixture(autouse=True)
def count(record_property: Callable[[str, object], None]) -> Iterator[None]:
    before = calls
    yield
    record_property("calls", calls - before)
