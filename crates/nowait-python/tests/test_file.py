"""Files, against what Python's own say."""

from __future__ import annotations

import io
import os
import pickle
import sys
import threading
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest

import nowait


def test_reads_at_positions(path: Path, contents: bytes) -> None:
    with nowait.open(path) as file:
        assert file.size() == len(contents)
        assert file.read_at(5, 10) == contents[5:15]
        assert file.read_at(len(contents) - 3, 10) == contents[-3:]
        assert file.read_at(len(contents) + 3, 10) == b""
        assert file.read_at(0, 0) == b""
        out = bytearray(8)
        assert file.readinto_at(100, out) == 8 and out == contents[100:108]
        assert file.readinto_at(len(contents) - 2, out) == 2
        assert (file.name, file.mode, file.closed, file.direct) == (str(path), "r", False, False)
        if sys.platform == "win32":
            with pytest.raises(nowait.UnsupportedError, match="handle"):
                file.fileno()
        else:
            assert os.fstat(file.fileno()).st_size == len(contents)
    assert file.closed
    with pytest.raises(ValueError, match="closed"):
        file.read_at(0, 1)
    file.close()


@pytest.mark.parametrize("mode", ["r", "r+", "w", "w+", "x", "x+", "a", "a+"])
def test_modes_are_those_of_open(tmp_path: Path, mode: str) -> None:
    ours, python = tmp_path / "ours", tmp_path / "python"
    for path in (ours, python):
        if "x" not in mode:
            path.write_bytes(b"before")
    with nowait.open(ours, mode) as file, python.open(mode + "b") as other:
        raw = file.raw()
        assert (raw.readable(), raw.writable(), raw.seekable()) == (other.readable(), other.writable(), True)
        assert raw.mode == other.raw.mode
        if other.writable():
            raw.write(b"new")
            other.write(b"new")
            other.flush()
        assert ours.read_bytes() == python.read_bytes()
    if "x" in mode:
        with pytest.raises(FileExistsError):
            nowait.open(ours, mode)


def test_writes_and_syncs(tmp_path: Path) -> None:
    path = tmp_path / "new"
    with nowait.open(path, "w+", permissions=0o600) as file:
        assert file.write_at(0, b"hello") == 5
        assert file.write_at(3, bytearray(b"LO"), durable=True) == 2
        assert file.append(memoryview(b" world")) == 6
        assert file.append(b"!", durable=True) == 1
        file.sync()
        file.sync(metadata=True)
        assert path.read_bytes() == b"helLO world!"
        file.truncate(3)
        assert file.size() == 3
        with nullcontext() if sys.platform == "linux" else suppress(nowait.UnsupportedError):
            file.advise("dontneed")
    assert sys.platform == "win32" or path.stat().st_mode & 0o777 == 0o600


def test_what_was_written_can_be_resized_again(tmp_path: Path) -> None:
    data = bytearray(b"12345")
    with nowait.open(tmp_path / "new", "w") as file:
        file.write_at(0, data)
        data.append(1)
        file.append(data)
        data.append(2)
        file.write_at(0, data, durable=True)
        data.append(3)


def test_bad_arguments(path: Path, tmp_path: Path) -> None:
    for mode in ("", "rw", "q", "rt", "+"):
        with pytest.raises(ValueError, match="mode"):
            nowait.open(path, mode)
    with nowait.open(path) as file:
        with pytest.raises(OverflowError):
            file.read_at(-1, 10)
        with pytest.raises(nowait.RangeError):
            file.read_at((1 << 63) - 1, 10)
        with pytest.raises(MemoryError):
            file.read_at(0, (1 << 64) - 1)
        with pytest.raises(PermissionError, match="not opened for writing"):
            file.write_at(0, b"x")
        with pytest.raises(BufferError):
            file.readinto_at(0, b"12")
        with pytest.raises(TypeError):
            file.readinto_at(0, "12")
        with pytest.raises(ValueError, match="advice"):
            file.advise("often")
    with pytest.raises(FileNotFoundError):
        nowait.open(tmp_path / "missing")
    with pytest.raises(IsADirectoryError):
        nowait.open(tmp_path)
    with pytest.raises(ValueError, match=r"null|zero"):
        nowait.open("a\0b")


def test_a_name_of_any_bytes(tmp_path: Path, contents: bytes) -> None:
    name = os.fsencode(tmp_path) + b"/odd \xff\n"
    with nowait.open(name, "w") as file:
        assert os.fsencode(file.name) == name
        assert file.raw().name == file.name
        assert Path(file.name).stat().st_size == 0
    with nowait.Log(name + b".log", create=True) as log:
        assert os.fsencode(log.name) == name + b".log"
    with pytest.raises(FileNotFoundError) as caught:
        nowait.open(name + b".missing")
    assert os.fsencode(caught.value.filename) == name + b".missing"


def test_a_file_that_is_closed_by_another_thread(path: Path) -> None:
    for _ in range(200):
        file, begun, seen = nowait.open(path), threading.Event(), []

        def gather(
            file: nowait.File = file, begun: threading.Event = begun, seen: list[object] = seen
        ) -> None:
            try:
                while True:
                    file.gather([0, 8192, 16384], 10)
                    begun.set()
            except Exception as error:
                seen.append(type(error))

        thread = threading.Thread(target=gather)
        thread.start()
        begun.wait()
        file.close()
        thread.join()
        assert seen == [nowait.ClosedError]


def test_exceptions_can_be_sent_to_other_processes(path: Path) -> None:
    with pytest.raises(nowait.EndOfFileError) as caught:
        nowait.gather(path, [0, 1 << 40], 1)
    error = pickle.loads(pickle.dumps(caught.value))
    assert type(error) is nowait.EndOfFileError
    assert (error.index, error.offset, error.filename, str(error)) == (
        1,
        1 << 40,
        str(path),
        str(caught.value),
    )


def test_a_raw_file_under_buffered_readers(path: Path, contents: bytes) -> None:
    with nowait.open(path) as file:
        reader = io.BufferedReader(file.raw())
        assert reader.read(10) == contents[:10]
        assert reader.seek(-5, os.SEEK_END) == len(contents) - 5
        assert reader.read() == contents[-5:]
        reader.seek(7)
        assert file.raw().readall() == contents
        reader.close()
        assert not file.closed
    text = io.TextIOWrapper(io.BufferedReader(nowait.open(__file__).raw()))
    assert text.readline() == Path(__file__).read_text().splitlines(keepends=True)[0]


@pytest.mark.parametrize("mode", ["r", "w", "a", "r+"])
def test_a_raw_file_refuses_what_io_fileio_refuses(path: Path, mode: str) -> None:
    calls = [
        lambda raw: raw.read(),
        lambda raw: raw.read(1),
        lambda raw: raw.read(None),
        lambda raw: raw.readinto(bytearray(1)),
        lambda raw: raw.readline(),
        lambda raw: raw.read(1.0),
        lambda raw: raw.seek(0.0),
        lambda raw: raw.seek(-1),
        lambda raw: raw.write(b"1"),
        lambda raw: raw.write("1"),
        lambda raw: raw.truncate(),
        lambda raw: raw.truncate(3),
        lambda raw: raw.truncate(-1),
        lambda raw: raw.truncate(1.0),
        lambda raw: raw.isatty(),
        lambda raw: raw.tell(),
    ]

    def outcomes(raw: io.RawIOBase) -> list[object]:
        found: list[object] = []
        for call in calls:
            try:
                found.append(call(raw))
            except (OSError, ValueError, TypeError):
                found.append("refused")
        return found

    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    with nowait.open(path, mode) as file, io.FileIO(other, mode) as expected:
        raw = file.raw()
        assert outcomes(raw) == outcomes(expected)
        assert path.read_bytes() == other.read_bytes()
        refused = {"r": ["write", "truncate"], "w": ["read", "readall"], "a": ["readall"], "r+": []}[mode]
        for name in refused:
            with pytest.raises(io.UnsupportedOperation):
                getattr(raw, name)(*[b"1"][: name == "write"])
        raw.close()
        for name in ("fileno", "isatty", "readable", "read", "readall", "tell", "truncate", "flush"):
            with pytest.raises(ValueError, match="closed"):
                getattr(raw, name)()
        assert not file.closed


def test_direct_reads(path: Path, contents: bytes) -> None:
    with nowait.open(path, direct=True) as file:
        assert file.read_at(4096, 5000) == contents[4096:9096]
        assert bytes(file.gather([77], 100)[0]) == contents[77:177]
