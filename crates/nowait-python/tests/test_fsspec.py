"""The file system, against fsspec's own."""

from __future__ import annotations

import io
import pickle
import random
from pathlib import Path

import numpy
import pytest
from conftest import make_link

fsspec = pytest.importorskip("fsspec")
from fsspec.implementations.local import LocalFileSystem  # noqa: E402

from nowait.fsspec import NowaitFileSystem  # noqa: E402


@pytest.fixture
def fs() -> NowaitFileSystem:
    return NowaitFileSystem()


def test_it_is_found_by_its_protocol(path: Path, contents: bytes) -> None:
    found = fsspec.filesystem("nowait")
    assert isinstance(found, NowaitFileSystem)
    assert isinstance(pickle.loads(pickle.dumps(found)), NowaitFileSystem)
    assert isinstance(fsspec.AbstractFileSystem.from_json(found.to_json()), NowaitFileSystem)
    with fsspec.open(f"nowait://{path}", "rb") as file:
        assert file.read() == contents
    # Names of fsspec contain slashes, also on Windows.
    name = path.as_posix()
    assert found.unstrip_protocol(str(path)) == f"nowait://{name}"
    assert [info["name"] for info in found.ls(f"nowait://{path.parent}", detail=True)] == [name]
    assert found.cat(f"nowait://{path}") == contents


@pytest.mark.parametrize(
    ("start", "end"),
    [
        (None, None),
        (0, 5),
        (5, None),
        (None, 7),
        (-5, None),
        (-9, -2),
        (3, -3),
        (0, 0),
        (1 << 20, 1 << 30),
        (-1 << 40, 4),
    ],
)
def test_cat_file_is_fsspecs(fs: NowaitFileSystem, path: Path, start: int | None, end: int | None) -> None:
    expected = LocalFileSystem().cat_file(str(path), start, end)
    assert fs.cat_file(str(path), start, end) == expected
    assert fs.cat_ranges([f"nowait://{path}"], [start], [end]) == [expected]
    assert fs.cat_ranges([str(path)] * 2, start, end) == [expected] * 2


def test_bounds_of_numpy_and_paths_of_file(fs: NowaitFileSystem, path: Path, contents: bytes) -> None:
    expected = [contents[5:9]] * 2
    assert fs.cat_ranges([str(path)] * 2, numpy.int64(5), numpy.int64(9)) == expected
    assert fs.cat_ranges([str(path)] * 2, numpy.array([5, 5], "u8"), numpy.array([9, 9], "u8")) == expected
    assert fs.cat_file(str(path), numpy.int64(5), numpy.int64(9)) == expected[0]
    assert fs.cat_ranges([], [], []) == fs.cat_ranges([], numpy.array([], "i8"), numpy.array([], "i8")) == []
    assert (
        fs.cat_ranges([f"file://{path}"], [5], [9])
        == fs.cat_ranges([f"local://{path}"], [5], [9])
        == expected[:1]
    )


def test_pipe_file_makes_directories(fs: NowaitFileSystem, tmp_path: Path) -> None:
    fs.pipe_file(f"nowait://{tmp_path}/new/deeper/file", b"text")
    assert (tmp_path / "new/deeper/file").read_bytes() == b"text"
    with pytest.raises(FileNotFoundError):
        fs.open(f"{tmp_path}/none/file", "wb")


def test_ranges_of_several_files(fs: NowaitFileSystem, cold: Path, contents: bytes, seed: int) -> None:
    other = cold.with_name("other")
    other.write_bytes(contents[::-1])
    numbers = random.Random(seed)
    paths = [numbers.choice([str(cold), f"nowait://{other}"]) for _ in range(500)]
    starts = [numbers.randrange(len(contents)) for _ in paths]
    ends = [start + numbers.randrange(10000) for start in starts]
    local = LocalFileSystem()
    expected = local.cat_ranges([path.removeprefix("nowait://") for path in paths], starts, ends)
    assert fs.cat_ranges(paths, starts, ends) == expected
    assert fs.cat_ranges(paths, starts, ends, max_gap=100) == expected


def test_an_end_far_beyond_the_file_takes_no_memory(
    fs: NowaitFileSystem, path: Path, contents: bytes, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"other")
    paths = [str(path), str(other), str(other), str(path)]
    found = fs.cat_ranges(paths, [1 << 20, 0, 1 << 62, 0], [1 << 60, 5, (1 << 63) - 1, 4])
    assert found == [contents[1 << 20 :], b"other", b"", contents[:4]]
    assert fs.cat_file(path, 0, (1 << 63) - 1) == contents


def test_all_of_a_file_without_a_size(fs: NowaitFileSystem) -> None:
    assert fs.cat_file("/proc/self/status").startswith(b"Name:")
    assert fs.cat_file("/proc/self/status", 0, 5) == b"Name:"


def test_ranges_of_a_file_without_a_size(fs: NowaitFileSystem, path: Path) -> None:
    name, empty = "/proc/sys/kernel/ostype", path.with_name("empty")
    empty.touch()
    kind = Path(name).read_bytes()
    assert len(kind) > 4
    for start, end in [(0, 5), (1, None), (None, 4), (-3, None), (2, 1 << 60), (1 << 40, 1 << 41), (-2, -1)]:
        assert fs.cat_file(name, start, end) == kind[start:end]
        assert fs.cat_ranges([name], [start], [end]) == [kind[start:end]]
        found = fs.cat_ranges([name, str(path), str(empty)], [start, 0, start], [end, 3, end])
        assert found == [kind[start:end], path.read_bytes()[:3], b""]


def test_ranges_of_a_device_are_refused(fs: NowaitFileSystem) -> None:
    with pytest.raises(OSError, match="/dev/zero"):
        fs.cat_file("/dev/zero", 0, 5)
    assert isinstance(fs.cat_ranges(["/dev/zero"], [0], [5])[0], OSError)


def test_errors(fs: NowaitFileSystem, path: Path) -> None:
    missing = str(path.with_name("missing"))
    found = fs.cat_ranges([str(path), missing, str(path)], [0, 0, 5], [3, 3, 9])
    assert [type(one) for one in (found[0], found[2])] == [bytes, bytes]
    assert isinstance(found[1], FileNotFoundError)
    assert isinstance(fs.cat_ranges([str(path.parent)], 0, 1)[0], IsADirectoryError)
    with pytest.raises(FileNotFoundError):
        fs.cat_ranges([str(path), missing], 0, 1, on_error="raise")
    with pytest.raises(FileNotFoundError):
        fs.cat_file(missing)
    with pytest.raises(ValueError, match="starts"):
        fs.cat_ranges([str(path)], [0, 1], [1, 2])
    with pytest.raises(TypeError):
        fs.cat_ranges(str(path), 0, 1)


def test_copies(fs: NowaitFileSystem, path: Path, contents: bytes, tmp_path: Path) -> None:
    fs.get_file(str(path), str(tmp_path / "one"))
    fs.put(str(path), f"nowait://{tmp_path}/three")
    into = io.BytesIO()
    fs.get_file(str(path), into)
    for found in (tmp_path / "one", tmp_path / "three"):
        assert found.read_bytes() == contents
    assert into.getvalue() == contents
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "file").write_bytes(b"1")
    fs.get(f"nowait://{tmp_path}/tree", str(tmp_path / "taken"), recursive=True)
    assert (tmp_path / "taken" / "file").read_bytes() == b"1"
    with pytest.raises(FileNotFoundError):
        fs.get_file(str(tmp_path / "missing"), str(tmp_path / "x"))
    make_link(tmp_path / "link", path.name)
    fs.get_file(f"nowait://{tmp_path}/link", str(tmp_path / "two"))
    two = tmp_path / "two"
    assert not two.is_symlink() and two.read_bytes() == contents


def test_pandas_and_arrow(path: Path) -> None:
    pandas, arrow_fs = pytest.importorskip("pandas"), pytest.importorskip("pyarrow.fs")
    dataset = pytest.importorskip("pyarrow.dataset")
    frame = pandas.DataFrame({"a": range(1000), "b": [str(n) for n in range(1000)]})
    where = f"nowait://{path.parent}/table.parquet"
    frame.to_parquet(where, row_group_size=100)
    pandas.testing.assert_frame_equal(pandas.read_parquet(where), frame)
    pandas.testing.assert_frame_equal(pandas.read_parquet(where, columns=["b"]), frame[["b"]])
    system = arrow_fs.PyFileSystem(arrow_fs.FSSpecHandler(NowaitFileSystem()))
    read = dataset.dataset(f"{path.parent}/table.parquet", filesystem=system, format="parquet")
    assert read.to_table(filter=dataset.field("a") > 990).num_rows == 9


def test_arrow_reads_by_itself(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through Python it would read one piece after the other."""
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pandas.DataFrame({"a": range(1000)})
    frame.to_parquet(path.parent / "table.parquet")

    def opened(*_: object, **__: object) -> None:
        raise AssertionError("it was opened through Python")

    monkeypatch.setattr(NowaitFileSystem, "_open", opened)
    read = pandas.read_parquet(f"nowait://{path.parent}/table.parquet", columns=["a"])
    pandas.testing.assert_frame_equal(read, frame)


def test_zarr(path: Path, seed: int) -> None:
    """Chunks of an array, by the URL and by the class."""
    zarr = pytest.importorskip("zarr")
    expected = numpy.random.default_rng(seed).standard_normal((1000, 30)).astype("f4")
    where = f"nowait://{path.parent}/array.zarr"
    # As with fsspec's own: by itself it makes no directories.
    zarr.create_array(where, data=expected, chunks=(64, 30))
    found = zarr.open_array(where, mode="r")
    assert numpy.array_equal(found[:], expected) and numpy.array_equal(
        found[[5, 999, 70]], expected[[5, 999, 70]]
    )
    assert numpy.array_equal(zarr.open_array(path.parent / "array.zarr", mode="r")[:], expected)
