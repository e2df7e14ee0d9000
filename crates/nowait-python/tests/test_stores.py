"""The object store, and datasets of PyTorch."""

from __future__ import annotations

import asyncio
import pickle
import threading
from pathlib import Path

import numpy
import pytest

import nowait
from nowait.obspec import NowaitStore


class Tensor:
    """Memory without a buffer, as a tensor has it."""

    def __init__(self, array: numpy.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **keywords: object) -> object:
        return self.array.__dlpack__(**keywords)

    def __dlpack_device__(self) -> object:
        return self.array.__dlpack_device__()


def test_into_a_tensor(path: Path, contents: bytes) -> None:
    array = numpy.zeros((2, 8), dtype=numpy.uint8)
    rows = nowait.gather(path, [10, 50], 8, out=Tensor(array))
    assert array.tobytes() == contents[10:18] + contents[50:58] == bytes(rows.data)


def test_a_store(tmp_path: Path, contents: bytes) -> None:
    store = NowaitStore(tmp_path / "store", mkdir=True)
    put = store.put("a/b", contents)
    assert put["e_tag"] == store.head("a/b")["e_tag"]
    assert store.head("a/b")["size"] == len(contents)
    assert store.get("a/b").buffer() == contents and b"".join(store.get("a/b")) == contents
    assert store.get("a/b", options={"range": (5, 9)}).buffer() == contents[5:9]
    assert store.get("a/b", options={"range": {"suffix": 3}}).buffer() == contents[-3:]
    assert store.get("a/b", options={"range": {"offset": 1 << 20}}).range == (1 << 20, len(contents))
    assert (
        store.get_range("a/b", start=3, end=7) == store.get_range("a/b", start=3, length=4) == contents[3:7]
    )
    assert store.get_ranges("a/b", starts=[1, 0], ends=[4, 2]) == [contents[1:4], contents[:2]]
    store.put("c", memoryview(b"1"))
    store.copy("c", "d/e")
    store.rename("c", "f")
    assert [meta["path"] for part in store.list() for meta in part] == ["a/b", "d/e", "f"]
    assert [meta["path"] for part in store.list("a") for meta in part] == ["a/b"]
    assert [meta["path"] for part in store.list(offset="a/b") for meta in part] == ["d/e", "f"]
    store.delete(["d/e", "f"])
    with pytest.raises(FileNotFoundError):
        store.get("f")
    for wrong in ("", "/", "../x", "a/../../x", "a//b", "./a"):
        with pytest.raises(ValueError, match="no path"):
            store.get(wrong)
    with pytest.raises(nowait.EndOfFileError):
        store.get_range("a/b", start=len(contents), length=1)
    with pytest.raises(ValueError, match="ends or lengths"):
        store.get_range("a/b", start=0)
    with pytest.raises(FileExistsError):
        store.copy("a/b", "a/b", overwrite=False)

    async def main() -> None:
        await store.put_async("g", b"hello")
        assert (await store.get_async("g")).buffer() == b"hello"
        assert await store.get_range_async("g", start=1, length=2) == b"el"
        assert await store.get_ranges_async("g", starts=[0, 3], lengths=[1, 2]) == [b"h", b"lo"]

    asyncio.run(main())
    assert not [name for name in (tmp_path / "store").iterdir() if name.name.startswith(".")]


def test_a_list_while_objects_come_and_go(tmp_path: Path) -> None:
    store, has_ended = NowaitStore(tmp_path), threading.Event()
    store.put("stays", b"1")

    def work() -> None:
        while not has_ended.is_set():
            store.put("goes", b"2")
            store.delete("goes")

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(500):
            listed = {meta["path"] for part in store.list() for meta in part}
            assert {"stays"} <= listed <= {"stays", "goes"}
    finally:
        has_ended.set()
        thread.join()


@pytest.mark.parametrize("verb", ["rename", "copy"])
def test_one_of_many_gets_a_name_that_is_not_to_be_overwritten(tmp_path: Path, verb: str) -> None:
    store = NowaitStore(tmp_path)

    def work(number: int, start: threading.Barrier, won: list[int]) -> None:
        start.wait()
        try:
            getattr(store, verb)(f"from-{number}", "to", overwrite=False)
            won.append(number)
        except FileExistsError:
            pass

    for _ in range(50):
        start, won = threading.Barrier(4), list[int]()
        for number in range(4):
            store.put(f"from-{number}", b"%d" % number)
        threads = [threading.Thread(target=work, args=(number, start, won)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [b"%d" % number for number in won] == [store.get("to").buffer()]
        store.delete("to")
    assert not [name for name in tmp_path.iterdir() if name.name.startswith(".")]


def test_datasets(tmp_path: Path, seed: int) -> None:
    torch = pytest.importorskip("torch")
    from torch.utils.data import DataLoader

    import nowait.torch

    table = numpy.random.default_rng(seed).standard_normal((1000, 7)).astype(numpy.float32)
    numpy.save(tmp_path / "table.npy", table)
    rows = nowait.torch.RowDataset(tmp_path / "table.npy")
    assert len(rows) == 1000 and torch.equal(rows[5], torch.from_numpy(table[5]))
    for workers, method in ((0, None), (2, "fork"), (2, "spawn")):
        for collate in (None, nowait.torch.collate):
            loader = DataLoader(
                rows, 64, num_workers=workers, collate_fn=collate, multiprocessing_context=method
            )
            assert torch.equal(torch.cat(list(loader)), torch.from_numpy(table))
    batches = [list(range(start, start + 100)) for start in range(0, 1000, 100)]
    assert torch.equal(
        torch.cat(list(nowait.torch.prefetch(rows, batches, ahead=3))), torch.from_numpy(table)
    )
    assert torch.equal(pickle.loads(pickle.dumps(rows))[9], rows[9])
    out = torch.zeros(3, 7)
    nowait.open(tmp_path / "table.npy").gather_rows("f4", (1000, 7), [3, 2, 1], offset=128, out=out)
    assert torch.equal(out, torch.from_numpy(table[[3, 2, 1]]))
