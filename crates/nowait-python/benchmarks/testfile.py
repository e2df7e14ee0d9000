"""The file that all ways read, and where they read in it."""

from __future__ import annotations

import ctypes
import mmap
import os
import random
from pathlib import Path
from typing import Any

import numpy

import nowait

BLOCK = 4096
LIBC = ctypes.CDLL(None, use_errno=True)


def make(path: Path, size: int) -> None:
    """Makes a file in which each block begins with its own number."""
    with path.open("wb") as file:
        filler = random.Random(0).randbytes(BLOCK - 8)
        for first in range(0, size // BLOCK, 256):
            last = min(first + 256, size // BLOCK)
            file.write(b"".join(block.to_bytes(8, "little") + filler for block in range(first, last)))
        file.flush()
        os.fsync(file.fileno())


class TestFile:
    """The file, open, with offsets for cold and for hot reads."""

    def __init__(self, path: Path, cold: int, hot: int, seed: int) -> None:
        self.path = path
        self.size = path.stat().st_size
        generator = numpy.random.default_rng(seed)
        blocks = self.size // BLOCK
        self.cold = generator.choice(blocks, cold, replace=False).astype(numpy.int64) * BLOCK
        self.hot = generator.choice(blocks, hot, replace=hot > blocks).astype(numpy.int64) * BLOCK
        self.out = numpy.zeros((max(cold, hot), BLOCK), dtype=numpy.uint8)
        self.fd = os.open(path, os.O_RDONLY)
        self.file = nowait.open(path)
        self.direct = nowait.open(path, direct=True)
        self.aligned = nowait.Buffer(cold * BLOCK)
        self.map = mmap.mmap(self.fd, self.size, prot=mmap.PROT_READ)

    def evict(self) -> float:
        """Drops the file from the page cache; returns the share of its pages that stayed."""
        os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_DONTNEED)
        return self.resident()

    def resident(self) -> float:
        """Returns the share of its pages that are cached."""
        pages = -(-self.size // BLOCK)
        seen = (ctypes.c_ubyte * pages)()
        address = int(numpy.frombuffer(self.map, dtype=numpy.uint8).ctypes.data)
        if LIBC.mincore(ctypes.c_void_p(address), ctypes.c_size_t(self.size), seen) != 0:
            raise OSError(ctypes.get_errno(), "mincore")
        return float(numpy.frombuffer(seen, dtype=numpy.uint8).__and__(1).mean())

    def warm(self) -> None:
        """Reads all of it."""
        with self.path.open("rb") as file:
            while file.read(1 << 20):
                pass


def check(offsets: Any, found: Any) -> None:
    """Each block begins with its own number."""
    if isinstance(found, list):
        found = numpy.frombuffer(b"".join(found), numpy.uint8).reshape(-1, BLOCK)
    numbers = numpy.asarray(found)[:, :8].copy().view("<u8").ravel()
    if not (numbers == numpy.asarray(offsets) // BLOCK).all():
        raise RuntimeError("a way has read something else")
