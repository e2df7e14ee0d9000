"""Types of arguments, only for type checkers."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Literal, Protocol, SupportsIndex, TypeAlias, Union

Path: TypeAlias = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]


class HasFileno(Protocol):
    """An object with a file descriptor."""

    def fileno(self) -> int: ...


class HasArray(Protocol):
    """An array-like object: a numpy array, a pandas series, a torch tensor."""

    def __array__(self, *arguments: Any, **keywords: Any) -> Any: ...


Integers: TypeAlias = Iterable[SupportsIndex] | HasArray
Lengths: TypeAlias = SupportsIndex | Integers
Advice: TypeAlias = Literal["normal", "random", "sequential", "willneed", "dontneed", "noreuse"]
Access: TypeAlias = Literal["immutable", "revalidate", "exclusive"]
