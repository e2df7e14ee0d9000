"""Rows of packed arrays: what indexing a memory map reads one page fault after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy

from nowait import _nowait
from nowait._files import File

if TYPE_CHECKING:
    from typing import Self

    from _typeshed import WriteableBuffer
    from numpy.typing import ArrayLike, DTypeLike, NDArray

    from nowait._types import Path


class Rows:
    """An array in a file, of which rows are read as they are asked for.

        rows = nowait.Rows.open("table.npy")
        some = rows[[5, 1_000_000, 7]]     # one gather

    `shape` is that of the array, `offset` its first byte. The array is in C order.
    """

    def __init__(
        self,
        file: File | Path,
        dtype: DTypeLike,
        shape: SupportsIndex | tuple[SupportsIndex, ...],
        offset: int = 0,
    ) -> None:
        self._owns = not isinstance(file, _nowait.File)
        self.file = file if isinstance(file, _nowait.File) else File(file)
        self.dtype: numpy.dtype[Any] = numpy.dtype(dtype)
        if self.dtype.hasobject:
            raise TypeError(f"{self.dtype} has Python objects, which a file cannot hold")
        lengths = shape if isinstance(shape, tuple) else (shape,)
        self.shape = tuple(int(length.__index__()) for length in lengths)
        if not self.shape or min(self.shape) < 0:
            raise ValueError(f"the shape is {self.shape}; give at least one length, and none below zero")
        self.offset = offset
        self.row_bytes = self.dtype.itemsize
        for length in self.shape[1:]:
            self.row_bytes *= length
        size, end = self.file.size(), offset + self.row_bytes * self.shape[0]
        if end > size:
            raise _end(self.file.name, offset, end - offset, size)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Opens a `.npy` file."""
        file = File(path)
        try:
            raw = file.raw()
            try:
                version = numpy.lib.format.read_magic(raw)
            except ValueError as error:
                raise ValueError(
                    f"{file.name} is no .npy file ({error}); give dtype and shape to Rows"
                ) from error
            read = {
                (1, 0): numpy.lib.format.read_array_header_1_0,
                (2, 0): numpy.lib.format.read_array_header_2_0,
            }
            if version not in read:
                raise ValueError(f"{file.name} is .npy of version {version}; save it with version 1.0 or 2.0")
            shape, fortran, dtype = read[version](raw)
            if fortran and len(shape) > 1:
                raise ValueError(
                    f"{file.name} is in Fortran order, whose rows do not lie together; save it in C order"
                )
            rows = cls(file, dtype, shape, raw.tell())
        except BaseException:
            file.close()
            raise
        rows._owns = True
        return rows

    def __len__(self) -> int:
        return self.shape[0]

    def offsets(self, rows: ArrayLike) -> NDArray[numpy.int64]:
        """Returns where rows begin in the file; a negative number counts from the end."""
        indices = numpy.asarray(rows)
        if indices.size == 0 and indices.dtype.kind == "f":
            # What an empty list becomes.
            indices = indices.astype(numpy.int64)
        if indices.dtype.kind not in "iu":
            hint = "; give numpy.flatnonzero(mask)" if indices.dtype.kind == "b" else ""
            raise TypeError(f"rows are numbered by integers, not by {indices.dtype}{hint}")
        if indices.ndim != 1:
            raise ValueError(f"the list of rows has {indices.ndim} dimensions; give one")
        count = self.shape[0]
        if indices.dtype.kind == "u":
            indices = numpy.minimum(indices.astype(numpy.uint64), numpy.uint64(count))
        indices = indices.astype(numpy.int64)
        wrong = (indices < -count) | (indices >= count)
        if wrong.any():
            place = int(wrong.argmax())
            raise IndexError(f"row {indices[place]} (number {place} of the list) of {count}")
        return numpy.where(indices < 0, indices + count, indices) * self.row_bytes + self.offset

    def gather(self, rows: ArrayLike, out: WriteableBuffer | None = None) -> NDArray[Any]:
        """Reads rows by one gather: an array of their number and the shape of one.

        `out` is memory for it, of which the array is a view.
        """
        offsets = self.offsets(rows)
        gathered = self.file.gather(offsets, self.row_bytes, out)
        return self._array(gathered, len(offsets))

    def _array(self, gathered: _nowait.Gathered, count: int) -> NDArray[Any]:
        shape = (count, *self.shape[1:])
        if count == 0 or self.row_bytes == 0:
            return numpy.empty(shape, self.dtype)
        return numpy.frombuffer(gathered.data, self.dtype).reshape(shape)

    def __getitem__(self, key: Any) -> NDArray[Any]:
        """One row, a slice of them, or a list of them; what follows in the key is applied to those."""
        key, rest = (key[0], key[1:]) if isinstance(key, tuple) else (key, ())
        if isinstance(key, slice):
            found = self.gather(numpy.arange(*key.indices(self.shape[0])))
            return found[(slice(None), *rest)] if rest else found
        if hasattr(key, "__index__") and not isinstance(key, bool) and numpy.ndim(key) == 0:
            one: NDArray[Any] = self.gather([key.__index__()])[0]
            return one[rest] if rest else one
        indices = numpy.asarray(key)
        if indices.dtype.kind == "b":
            if indices.shape != self.shape[:1]:
                raise IndexError(f"a mask of shape {indices.shape} for {self.shape[0]} rows")
            indices = numpy.flatnonzero(indices)
        found = self.gather(indices.reshape(-1)).reshape(*indices.shape, *self.shape[1:])
        return found[(slice(None),) * indices.ndim + rest] if rest else found

    def close(self) -> None:
        """Closes the file, if this opened it."""
        if self._owns:
            self.file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<nowait.Rows: {self.dtype} {self.shape} of {self.file.name!r}>"


def _end(name: str, offset: int, length: int, size: int) -> Exception:
    from nowait._errors import make

    text = f"{name} has {size} bytes; the array ends at {offset + length}; check dtype, shape and offset"
    return make("UnexpectedEof", None, text, name, None, offset, length)
