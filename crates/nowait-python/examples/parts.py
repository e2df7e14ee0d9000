"""Data of the examples that outgrow one machine."""

from __future__ import annotations

import os
from pathlib import Path

import numpy
import pandas

# Bytes of a row.
ROW = 4096


class Parts:
    """Files of rows that begin with their numbers, and a table of eight columns beside each."""

    def __init__(self, directory: Path, parts: int, rows: int) -> None:
        generator = numpy.random.default_rng(1)
        self.rows = rows
        self.files = [str(directory / f"part-{number}.bin") for number in range(parts)]
        self.tables = [str(directory / f"part-{number}.parquet") for number in range(parts)]
        for file, table in zip(self.files, self.tables, strict=True):
            block = generator.integers(0, 256, (rows, ROW), dtype=numpy.uint8)
            block[:, :8] = numpy.arange(rows, dtype="<u8").view(numpy.uint8).reshape(rows, 8)
            Path(file).write_bytes(block.tobytes())
            columns = {f"c{number}": generator.standard_normal(rows * 64) for number in range(8)}
            pandas.DataFrame(columns).to_parquet(table, row_group_size=rows * 8)

    def evict(self) -> None:
        """Drops all of it from the page cache."""
        for path in self.files + self.tables:
            with Path(path).open("rb") as file:
                os.fdatasync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
