"""Datasets for PyTorch: each batch is one gather, and the next batches are read ahead.

    import torch.utils.data, nowait.torch

    rows = nowait.torch.RowDataset("table.npy")
    loader = torch.utils.data.DataLoader(rows, 256, shuffle=True, collate_fn=nowait.torch.collate)

A loader requests a whole batch (`__getitems__`), which is one gather with many requests in flight. Without
worker processes, `prefetch` reads the next batches while the program processes this one.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy
import torch
from torch.utils.data import Dataset, default_collate

from nowait import _nowait
from nowait._rows import Rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import SupportsIndex

    from numpy.typing import DTypeLike

    from nowait._types import Path

__all__ = ["RowDataset", "collate", "prefetch"]


class Batch(list[Any]):
    """The untransformed rows of a batch, and the tensor that contains them."""

    tensor: Any


class RowDataset(Dataset):  # type: ignore[misc]
    """Rows of an array in a file, as tensors. The file is a `.npy` file, or a packed array of `dtype` and
    `shape`.

    `transform` is applied to each row. To transform a whole batch at once, do it in the collate function.
    Workers of a loader may be forked or spawned: each opens the file separately.
    """

    def __init__(
        self,
        path: Path,
        dtype: DTypeLike | None = None,
        shape: SupportsIndex | tuple[SupportsIndex, ...] | None = None,
        offset: int = 0,
        transform: Callable[[Any], Any] | None = None,
    ) -> None:
        if (dtype is None) != (shape is None):
            raise ValueError("give dtype and shape, or neither for a .npy file")
        self._arguments = (path, dtype, shape, offset)
        self._rows: Rows | None = None
        self.transform = transform
        self._length = len(self.rows)

    @property
    def rows(self) -> Rows:
        """The array."""
        if self._rows is None:
            path, dtype, shape, offset = self._arguments
            if dtype is None or shape is None:
                self._rows = Rows.open(path)
            else:
                self._rows = Rows(path, dtype, shape, offset)
        return self._rows

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        return self._batch(self.rows.gather(numpy.asarray(indices)))

    def _batch(self, array: Any) -> list[Any]:
        tensor = torch.from_numpy(array)
        if self.transform is not None and len(tensor) > 0:
            return [self.transform(row) for row in tensor.unbind(0)]
        batch = Batch(tensor.unbind(0))
        batch.tensor = tensor
        return batch

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_rows": None}


def collate(batch: Any) -> Any:
    """Returns the tensor that contains a batch, without a copy; collates other batches like torch."""
    return batch.tensor if isinstance(batch, Batch) else default_collate(batch)


def prefetch(dataset: RowDataset, batches: Iterable[Sequence[int]], ahead: int = 2) -> Iterator[Any]:
    """Yields collated batches, while the next `ahead` batches are being read."""
    rows, under_way = dataset.rows, deque[tuple[_nowait.Arrivals, _nowait.Gathered, int]]()

    def finish() -> Any:
        arrivals, gathered, count = under_way.popleft()
        arrivals.finish()
        return collate(dataset._batch(rows._array(gathered, count)))

    try:
        for batch in batches:
            offsets = rows.offsets(numpy.asarray(batch))
            started = _nowait.start_each(rows.file, offsets, rows.row_bytes, None, False)
            under_way.append((*started, len(offsets)))
            if len(under_way) > ahead:
                yield finish()
        while under_way:
            yield finish()
    finally:
        for arrivals, _, _ in under_way:
            arrivals.cancel()
