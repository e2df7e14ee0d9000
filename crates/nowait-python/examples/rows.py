"""Random rows of a .npy file: a memory map waits for one page fault after the other, a gather for none.

python examples/rows.py [FILE.npy]
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
from pathlib import Path

import numpy

import nowait


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        if len(sys.argv) > 1:
            path = Path(sys.argv[1])
        else:
            path = Path(directory, "table.npy")
            numpy.save(
                path, numpy.random.default_rng(1).standard_normal((1 << 15, 1024), dtype=numpy.float32)
            )
        with nowait.Rows.open(path) as rows:
            picked = numpy.random.default_rng(2).integers(0, len(rows), 2000)
            rows.file.sync()
            for name, read in (
                ("numpy.memmap", lambda: numpy.load(path, mmap_mode="r")[picked]),
                ("nowait.Rows", lambda: rows[picked]),
            ):
                # Where a file cannot be evicted, this compares reads of cached data.
                with contextlib.suppress(nowait.UnsupportedError):
                    rows.file.advise("dontneed")
                began = time.perf_counter()
                found = read()
                print(f"{name}: {len(found)} rows in {(time.perf_counter() - began) * 1000:.1f} ms")


if __name__ == "__main__":
    main()
