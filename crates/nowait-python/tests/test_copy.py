"""Copies, maps and probes."""

from __future__ import annotations

import asyncio
import filecmp
import os
import pickle
import threading
from contextlib import suppress
from pathlib import Path

import numpy
import pytest

import nowait
import nowait.aio


@pytest.fixture
def tree(tmp_path: Path, contents: bytes) -> Path:
    tree = tmp_path / "tree"
    (tree / "below").mkdir(parents=True)
    (tree / "one").write_bytes(contents)
    (tree / "below" / "two").write_bytes(contents[:5])
    (tree / "link").symlink_to("one")
    (tree / "one").chmod(0o640)
    return tree


def test_a_tree(tree: Path, tmp_path: Path) -> None:
    told: list[nowait.CopyProgress] = []
    report = nowait.copy(tree, tmp_path / "copy", told.append, sync="all")
    assert (report.files, report.directories, report.nodes) == (2, 2, 1)
    assert told[-1]["files"] == 2 and told[-1]["bytes"] == report.bytes and told[-1]["is_walked"]
    same = filecmp.dircmp(tree, tmp_path / "copy")
    assert not same.left_only and not same.right_only and not same.diff_files
    assert (tmp_path / "copy" / "one").stat().st_mode == (tree / "one").stat().st_mode
    assert (tmp_path / "copy" / "link").readlink() == Path("one")


def test_patterns_and_updates(tree: Path, tmp_path: Path) -> None:
    report = nowait.copy(str(tree), tmp_path / "copy", exclude=["two", "link"], verify=True)
    assert report.files == 1 and report.verified == 1
    again = nowait.copy([tree / "one"], tmp_path / "copy", update="none")
    assert (again.files, again.skipped) == (0, 1)
    assert nowait.copy(tree, tmp_path / "planned", dry_run=True).failures == []
    assert not (tmp_path / "planned").exists()


def test_failures(tree: Path, tmp_path: Path) -> None:
    with pytest.raises(nowait.Error):
        nowait.copy(tmp_path / "missing", tmp_path / "copy")
    with pytest.raises(ValueError, match="sync"):
        nowait.copy(tree, tmp_path / "copy", sync="often")  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError) as one:
        nowait.copy([tree / "one", tmp_path / "missing"], tmp_path)
    assert isinstance(one.value, nowait.Error) and one.value.report.files == 1
    with pytest.raises(nowait.CopyError, match="1 more") as caught:
        nowait.copy([tree / "one", tmp_path / "missing", tmp_path / "too"], tmp_path)
    assert caught.value.report.files == 1 and len(caught.value.report.failures) == 2
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is nowait.CopyError and str(again) == str(caught.value)
    assert [str(failure) for failure in again.report.failures] == [
        str(f) for f in caught.value.report.failures
    ]
    assert (tmp_path / "one").exists()


def test_an_exception_in_the_callback_ends_the_copy(tree: Path, tmp_path: Path) -> None:
    class Enough(Exception):
        pass

    def stop(progress: nowait.CopyProgress) -> None:
        raise Enough

    with pytest.raises(Enough):
        nowait.copy(tree, tmp_path / "copy", stop, bytes_per_second_max=1000)
    assert not (tmp_path / "copy" / "one").exists()


def test_a_copy_is_awaited(tree: Path, tmp_path: Path) -> None:
    told: list[nowait.CopyProgress] = []
    here = threading.get_ident()

    def tell(progress: nowait.CopyProgress) -> None:
        assert threading.get_ident() == here
        told.append(progress)

    async def main() -> None:
        report = await nowait.aio.copy(tree, tmp_path / "copy", tell, sync="file")
        assert (report.files, report.directories, report.nodes) == (2, 2, 1)
        assert told[-1]["files"] == 2 and told[-1]["bytes"] == report.bytes
        quiet = await nowait.aio.copy(str(tree / "one"), os.fsencode(tmp_path / "two"))
        assert quiet.files == 1 and (tmp_path / "two").read_bytes() == (tree / "one").read_bytes()
        with pytest.raises(FileNotFoundError) as one:
            await nowait.aio.copy([tree / "one", tmp_path / "missing"], tmp_path)
        assert isinstance(one.value, nowait.Error) and one.value.report.files == 1
        with pytest.raises(nowait.Error, match="directory"):
            await nowait.aio.copy([tree / "one", tree], tmp_path / "nowhere")
        with pytest.raises(TypeError, match="often"):
            await nowait.aio.copy(tree, tmp_path / "copy", often=True)  # type: ignore[call-arg]

    asyncio.run(main())
    same = filecmp.dircmp(tree, tmp_path / "copy")
    assert not same.left_only and not same.right_only and not same.diff_files


def test_a_copy_that_is_awaited_lets_others_run_and_is_given_up(tree: Path, tmp_path: Path) -> None:
    class Enough(Exception):
        pass

    def stop(progress: nowait.CopyProgress) -> None:
        raise Enough

    async def main() -> None:
        with pytest.raises(Enough):
            await nowait.aio.copy(tree / "one", tmp_path / "copy", stop, bytes_per_second_max=1000)
        # It has ended.
        assert sorted(path.name for path in tmp_path.iterdir()) == ["tree"]
        task = asyncio.create_task(
            nowait.aio.copy(tree / "one", tmp_path / "copy", bytes_per_second_max=1000)
        )
        for _ in range(10):
            await asyncio.sleep(0.001)
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # Its thread ends by itself: at this rate the copy would take a quarter of an hour.
        while is_copying():
            await asyncio.sleep(0.01)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["tree"]

    def is_copying() -> bool:
        for thread in Path("/proc/self/task").iterdir():
            with suppress(OSError):
                if (thread / "comm").read_text().strip() in ("nowait-watch", "nowait-copy"):
                    return True
        return False

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_map_is_populated(cold: Path, contents: bytes) -> None:
    told: list[tuple[int, int]] = []
    file_map = nowait.Map(cold)
    assert len(file_map) == len(contents)
    populated = file_map.populate(first=[(4096, 8192)], progress=lambda *now: told.append(now))
    assert populated.stopped is None and populated.bytes == len(contents)
    assert told[-1] == (len(contents), len(contents))
    assert (
        bytes(file_map.data) == contents
        and file_map[7] == contents[7]
        and bytes(file_map[:9]) == contents[:9]
    )
    array = numpy.frombuffer(file_map, numpy.uint8)
    assert not array.flags.writeable
    del file_map
    assert array[100] == contents[100]
    assert asyncio.run(nowait.Map(cold, 4096, 100).populate_async()).bytes == 100


def test_ranges_of_a_map(cold: Path, contents: bytes) -> None:
    file_map = nowait.Map(cold, 5, 1 << 19)
    file_map.gather([(0, 10), (300_000, 5000)])
    assert bytes(file_map[300_000:300_010]) == contents[300_005:300_015]
    with pytest.raises(nowait.RangeError) as caught:
        file_map.gather([(0, 10), (1 << 19, 1)])
    assert caught.value.index == 1
    with pytest.raises(nowait.EndOfFileError):
        nowait.Map(cold, 0, len(contents) + 1)
    with pytest.raises(IsADirectoryError):
        nowait.Map(cold.parent)


def test_a_probe(tmp_path: Path) -> None:
    found = nowait.probe(tmp_path)
    assert found["path"] == os.fspath(tmp_path) and found["subject"] == "directory"
    assert isinstance(found["io_uring"]["available"], bool)
    assert found["file_system"]
    assert found["scratch"]
    with pytest.raises(FileNotFoundError):
        nowait.probe(tmp_path / "missing")
