"""Replaces `anyio.open_file` by `nowait.aio.open`: the conftest.py beside anyio's tests.

The files get anyio's name for `close`, and each test runs on the loops that anyio's own conftest.py names."""

from __future__ import annotations

from typing import Any

import anyio
import nowait.aio
import pytest
import uvloop

for kind in (nowait.aio.AsyncBinaryFile, nowait.aio.AsyncTextFile):
    kind.aclose = kind.close
anyio.open_file = nowait.aio.open


@pytest.fixture(params=[
    pytest.param(("asyncio", {"debug": True}), id="asyncio"),
    pytest.param(("asyncio", {"debug": True, "loop_factory": uvloop.new_event_loop}), id="asyncio+uvloop"),
    pytest.param(("trio", {}), id="trio"),
])
def anyio_backend(request: Any) -> Any:
    return request.param
