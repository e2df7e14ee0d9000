"""Rows of packed arrays, read by gathers instead of the page faults of a memory map."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy

from nowait import _nowait
from nowait._files import File

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from _typeshed import WriteableBuffer
    from numpy.typing import ArrayLike, DTypeLike, NDArray

    from nowait._cache import CachedFile, PageCache
    from nowait._types import Integers, Path


# Size of the batches of rows that an iteration reads.
_SOME_BYTES = 1 << 20


class Rows:
    """An array in a file, whose rows are read on demand.

        rows = nowait.Rows.open("table.npy")
        some = rows[[5, 1_000_000, 7]]     # one gather

    `shape` is the shape of the array, in C order; `offset` is the position of its first byte. With
    `cache`, rows are read through the page cache, and copied; the file must not change.
    """

    def __init__(
        self,
        file: File | Path,
        dtype: DTypeLike,
        shape: SupportsIndex | tuple[SupportsIndex, ...],
        offset: int = 0,
        *,
        cache: PageCache | None = None,
    ) -> None:
        self._owns = not isinstance(file, _nowait.File)
        # With a cache, the kernel does not need to cache the same pages.
        self.file = file if isinstance(file, _nowait.File) else File(file, direct=cache is not None)
        self._cached: CachedFile | None = None if cache is None else cache.open(self.file)
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
    def open(cls, path: Path, *, cache: PageCache | None = None) -> Self:
        """Opens a `.npy` file."""
        file = File(path, direct=cache is not None)
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
            rows = cls(file, dtype, shape, raw.tell(), cache=cache)
        except BaseException:
            file.close()
            raise
        rows._owns = True
        return rows

    def __len__(self) -> int:
        return self.shape[0]

    def offsets(self, rows: ArrayLike) -> NDArray[numpy.int64]:
        """Returns the file offsets of rows; a negative index counts from the end."""
        indices = numpy.asarray(rows)
        if indices.size == 0 and indices.dtype.kind == "f":
            # numpy converts an empty list to an array of floats.
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
        """Reads rows by one gather. The result has one entry for each row, of the shape of a row.

        If `out` is given, the array is a view of that memory.
        """
        offsets = self.offsets(rows)
        gathered = self._read(offsets, self.row_bytes, out)
        return self._array(gathered, len(offsets))

    def _read(self, offsets: Integers, length: int, out: WriteableBuffer | None = None) -> _nowait.Gathered:
        if self._cached is None or self.file.closed:
            return self.file.gather(offsets, length, out)
        return self._cached.gather(offsets, length, out)

    def _array(self, gathered: _nowait.Gathered, count: int) -> NDArray[Any]:
        shape = (count, *self.shape[1:])
        if count == 0 or self.row_bytes == 0:
            return numpy.empty(shape, self.dtype)
        return numpy.frombuffer(gathered.data, self.dtype).reshape(shape)

    def __getitem__(self, key: Any) -> Any:
        """Indexes like numpy: reads the rows that the first index selects, and applies the other indices to
        them.

        Returns new memory, never a view. It refuses `None` and single booleans, which add dimensions in
        numpy.
        """
        first, *others = self._indices(key)
        # The first index, relative to the rows that were read.
        local: Any
        if isinstance(first, slice):
            rows, local = self._slice(first), slice(None)
        elif isinstance(first, int):
            rows, local = self.gather([first]), 0
        else:
            rows = self.gather(first.reshape(-1))
            if not others:
                return rows.reshape(*first.shape, *self.shape[1:])
            local = numpy.arange(first.size).reshape(first.shape)
        return rows[(local, *others)]

    def _indices(self, key: Any) -> list[Any]:
        """Returns one index for each dimension in the key; at least one, for the rows."""
        indices: list[Any] = []
        ellipsis: int | None = None
        for part in key if isinstance(key, tuple) else (key,):
            if part is Ellipsis:
                if ellipsis is not None:
                    raise IndexError("an index has one ellipsis at most")
                ellipsis = len(indices)
            elif isinstance(part, slice):
                indices.append(part)
            elif part is None or isinstance(part, (bool, numpy.bool_)):
                raise TypeError(f"{part!r} would add a dimension; apply it to the returned array")
            elif hasattr(part, "__index__") and numpy.ndim(part) == 0:
                indices.append(part.__index__())
            else:
                indices.extend(self._array_indices(numpy.asarray(part), len(indices)))
        if len(indices) > len(self.shape):
            raise IndexError(f"{len(indices)} indices for an array of {len(self.shape)} dimensions")
        if ellipsis is not None:
            indices[ellipsis:ellipsis] = [slice(None)] * (len(self.shape) - len(indices))
        return indices or [slice(None)]

    def _array_indices(self, array: NDArray[Any], dimension: int) -> list[NDArray[Any]]:
        """Returns an index array; for a mask, the indices where it is true."""
        if array.dtype.kind == "b":
            # After an ellipsis the dimension is unknown here, so numpy compares the lengths.
            expected = self.shape[dimension : dimension + array.ndim]
            if dimension == 0 and array.shape != expected:
                raise IndexError(f"a mask of shape {array.shape} for an array of shape {self.shape}")
            return list(array.nonzero())
        if array.size == 0:
            # numpy converts an empty list to an array of floats.
            array = array.astype(numpy.int64)
        if array.dtype.kind not in "iu":
            raise TypeError(f"rows are numbered by integers, not by {array.dtype}")
        return [array]

    def _slice(self, rows: slice) -> NDArray[Any]:
        """Reads a slice of the rows. Adjacent rows are one range."""
        start, stop, step = rows.indices(self.shape[0])
        if step != 1:
            return self.gather(numpy.arange(start, stop, step))
        count = max(stop - start, 0)
        gathered = self._read([self.offset + start * self.row_bytes], count * self.row_bytes)
        return self._array(gathered, count)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        """Reads the whole array, for `numpy.asarray`."""
        if copy is False:
            raise ValueError("the array is in a file: reading it makes a copy")
        found: NDArray[Any] = self[:]
        return found if dtype is None else found.astype(dtype, copy=False)

    def __iter__(self) -> Iterator[Any]:
        """Yields the rows. They are read in batches."""
        some = max(_SOME_BYTES // max(self.row_bytes, 1), 1)
        for start in range(0, len(self), some):
            yield from self[start : start + some]

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size of all elements in bytes."""
        return self.row_bytes * self.shape[0]

    def __reduce__(self) -> tuple[object, ...]:
        if not self._owns:
            raise TypeError("Rows of an open File cannot be pickled; make them of a path")
        if self._cached is not None:
            raise TypeError("Rows with a cache cannot be pickled: other processes cannot use the cache")
        return type(self), (self.file.name, self.dtype, self.shape, self.offset)

    def close(self) -> None:
        """Closes the file if this object opened it."""
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
