"""Rows of arrays in files, against numpy's own indexing."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy
import pytest

import nowait


@pytest.fixture
def table(seed: int) -> numpy.ndarray:
    return numpy.random.default_rng(seed).standard_normal((1000, 3, 5)).astype(numpy.float32)


@pytest.fixture
def npy(tmp_path: Path, table: numpy.ndarray) -> Path:
    numpy.save(tmp_path / "table.npy", table)
    return tmp_path / "table.npy"


KEYS = [
    [5, 0, 999, -1, 5],
    numpy.array([7, 3], dtype=numpy.uint16),
    [],
    7,
    -1000,
    numpy.int64(4),
    slice(None),
    slice(10, 2, -3),
    slice(2000, None),
    numpy.arange(1000) % 7 == 0,
    numpy.array([[1, 2], [3, 4]]),
    ([1, 2, 3], 1),
    (slice(3), slice(None), 2),
    (5, 1, 2),
    ([1, 2], [1, 2]),
    ([[1], [2]], [0, 1]),
    ([1, 2, 3], slice(None), [0, 1, 4]),
    (5, slice(None), [0, 1]),
    (slice(4), [0, 2], 1),
    ...,
    (),
    (..., 2),
    (7, ...),
    (slice(5), ..., [0, 1]),
    numpy.arange(15).reshape(1, 3, 5).repeat(1000, 0) % 4 == 0,
    numpy.arange(3000).reshape(1000, 3) % 5 == 0,
    (numpy.arange(3000).reshape(1000, 3) % 5 == 0, 1),
    (slice(7), numpy.array([True, False, True])),
    slice(3, 3),
    slice(None, None, -1),
]


@pytest.mark.parametrize("key", KEYS, ids=repr)
def test_indexing_is_numpys(npy: Path, table: numpy.ndarray, key: object) -> None:
    with nowait.Rows.open(npy) as rows:
        assert (rows.shape, rows.dtype, len(rows)) == (table.shape, table.dtype, 1000)
        expected = table[key] if not (isinstance(key, list) and not key) else table[:0]
        found = rows[key]
        assert found.dtype == expected.dtype and found.shape == expected.shape
        numpy.testing.assert_array_equal(found, expected)


def test_rows_of_a_packed_array(tmp_path: Path, table: numpy.ndarray) -> None:
    path = tmp_path / "packed"
    path.write_bytes(b"header" + table.tobytes())
    with nowait.open(path) as file:
        found = file.gather_rows(numpy.float32, table.shape, [4, 2, 4], offset=6)
        numpy.testing.assert_array_equal(found, table[[4, 2, 4]])
        out = numpy.empty((3, 3, 5), numpy.float32)
        assert numpy.shares_memory(file.gather_rows("f4", (1000, 3, 5), [9, 8, 7], offset=6, out=out), out)
        numpy.testing.assert_array_equal(out, table[[9, 8, 7]])
        assert file.gather_rows("u1", 6, [0, 5]).tobytes() == b"hr"
        pairs = numpy.dtype([("a", "<i2"), ("b", "<f4")])
        numpy.testing.assert_array_equal(
            file.gather_rows(pairs, (10,), [3, 1], offset=6),
            numpy.frombuffer(table.tobytes()[:60], pairs)[[3, 1]],
        )


@pytest.mark.parametrize(
    ("key", "exception"),
    [
        ([0, 1000], IndexError),
        ([-1001], IndexError),
        (1000, IndexError),
        ([0.5], TypeError),
        (numpy.array([2**64 - 1], dtype=numpy.uint64), IndexError),
        (numpy.array([True]), IndexError),
        ("a", TypeError),
        (None, TypeError),
        (True, TypeError),
        ((..., ...), IndexError),
        ((0, 0, 0, 0), IndexError),
        (([0], [0], [0], [0]), IndexError),
        ((0, 3), IndexError),
        (numpy.ones((1000, 2), bool), IndexError),
    ],
)
def test_bad_rows(npy: Path, key: object, exception: type) -> None:
    with nowait.Rows.open(npy) as rows, pytest.raises(exception):
        rows[key]


def test_bad_arrays(tmp_path: Path, npy: Path, table: numpy.ndarray) -> None:
    with nowait.open(npy) as file:
        with pytest.raises(nowait.EndOfFileError, match="check dtype"):
            file.gather_rows("f4", (1001, 3, 5), [0], offset=128)
        with pytest.raises(TypeError, match="Python objects"):
            file.gather_rows(object, (1,), [0])
        with pytest.raises(ValueError, match="shape"):
            file.gather_rows("f4", (), [0])
        with pytest.raises(ValueError, match="shape"):
            file.gather_rows("f4", (-1,), [0])
        with pytest.raises(TypeError, match="flatnonzero"):
            file.gather_rows("f4", (5,), [True])
        with pytest.raises(ValueError, match="dimensions"):
            file.gather_rows("f4", (5,), [[1]])
    (tmp_path / "text").write_text("no array")
    with pytest.raises(ValueError, match=r"text is no \.npy file"):
        nowait.Rows.open(tmp_path / "text")
    numpy.save(tmp_path / "fortran.npy", numpy.asfortranarray(table))
    with pytest.raises(ValueError, match="Fortran"):
        nowait.Rows.open(tmp_path / "fortran.npy")
    (tmp_path / "text").write_text("text")
    with pytest.raises(ValueError):
        nowait.Rows.open(tmp_path / "text")


def test_it_is_an_array_like(npy: Path, table: numpy.ndarray) -> None:
    with nowait.Rows.open(npy) as rows:
        assert (rows.ndim, rows.size, rows.nbytes) == (table.ndim, table.size, table.nbytes)
        numpy.testing.assert_array_equal(numpy.asarray(rows), table)
        assert numpy.asarray(rows, dtype="f8").dtype == numpy.float64
        with pytest.raises(ValueError, match="copy"):
            numpy.asarray(rows, copy=False) if numpy.lib.NumpyVersion(
                numpy.__version__
            ) >= "2.0.0" else rows.__array__(copy=False)
        numpy.testing.assert_array_equal(numpy.stack(list(rows)), table)
        again = pickle.loads(pickle.dumps(rows))
        numpy.testing.assert_array_equal(again[[3, 1]], table[[3, 1]])
        again.close()
    with nowait.open(npy) as file, pytest.raises(TypeError, match="path"):
        pickle.dumps(nowait.Rows(file, "f4", (2, 3, 5), 128))
