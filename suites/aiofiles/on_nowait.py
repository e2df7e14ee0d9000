"""Replaces `aiofiles.open` by `nowait.aio.open`, as the guide says. A plugin of pytest.

Only the argument `buffering` is taken away: `nowait.aio.open` refuses it, since its writes are never buffered."""

from __future__ import annotations

from typing import Any

import aiofiles
import aiofiles.threadpool
import nowait.aio


def opened(file: Any, mode: str = "r", buffering: int = -1, **keywords: Any) -> Any:
    if buffering not in (-1, 0):
        raise ValueError(f"nowait has no buffer of {buffering} bytes")
    return nowait.aio.open(file, mode, **keywords)


aiofiles.open = aiofiles.threadpool.open = opened
