"""Rows of arrays in files, against numpy's own indexing."""

from __future__ import annotations

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
