"""The object store, and datasets of PyTorch."""

from __future__ import annotations

import asyncio
import copy
import io
import pickle
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import pytest
from conftest import Run, is_wine, make_link, no_file_longer_than

import nowait
import nowait.obspec
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
    if not numpy.from_dlpack(Tensor(array)).flags.writeable:
        pytest.skip(f"numpy {numpy.__version__} makes read-only arrays of tensors")
    rows = nowait.gather(path, [10, 50], 8, out=Tensor(array))
    assert array.tobytes() == contents[10:18] + contents[50:58] == bytes(rows.data)


def test_stores_of_one_directory_are_equal(tmp_path: Path) -> None:
    store, same = NowaitStore(tmp_path), NowaitStore(f"{tmp_path}/../{tmp_path.name}")
    assert store == same == pickle.loads(pickle.dumps(store)) and len({store, same}) == 1
    assert store != NowaitStore(tmp_path / "other", mkdir=True) and store != str(tmp_path)


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


def test_an_open_object_is_replaced(tmp_path: Path) -> None:
    """Symptom: on Windows, replacements of an open file failed."""
    store = NowaitStore(tmp_path)
    for name in ("object", "new", "copied"):
        store.put(name, b"old")
    with nowait.open(tmp_path / "object") as file:
        if is_wine():
            pytest.skip("Wine 8 replaces no open file")
        store.put("object", b"put")
        assert store.get("object").buffer() == b"put"
        store.rename("new", "object")
        store.copy("copied", "object")
        assert file.read_at(0, 3) == b"old"
    assert store.get("object").buffer() == b"old"


def test_nothing_that_was_asked_for_is_swallowed(tmp_path: Path) -> None:
    store = NowaitStore(tmp_path)
    tag = store.put("a", b"precious")["e_tag"]
    assert tag is not None
    now = store.head("a")["last_modified"]
    day = timedelta(days=1)

    def refused(error: type[Exception], name: str, make: Callable[[], Any] = lambda: b"", **how: Any) -> None:
        arguments = () if name == "get" else (make(),)
        with pytest.raises(error):
            getattr(store, name)("a", *arguments, **how)
        arguments = () if name == "get" else (make(),)
        with pytest.raises(error):
            asyncio.run(getattr(store, f"{name}_async")("a", *arguments, **how))
        assert store.get("a").buffer() == b"precious"

    refused(FileExistsError, "put", mode="create")
    refused(nowait.obspec.AlreadyExistsError, "put", mode="create")
    refused(NotImplementedError, "put", mode={"e_tag": tag})
    refused(ValueError, "put", mode="crate")
    refused(NotImplementedError, "put", attributes={"Content-Type": "text/plain"})
    refused(NotImplementedError, "put", tags={"key": "value"})
    refused(TypeError, "put", modee="create")
    refused(ValueError, "put", lambda: [b"new"], chunk_size=0)
    for form in ("text", 7, [1, 2], ["text"], None):
        refused(TypeError, "put", partial(copy.copy, form))
    refused(TypeError, "put", lambda: io.StringIO("text"))
    options: Any
    for options, error in [
        ({"if_match": "stale"}, nowait.obspec.PreconditionError),
        ({"if_none_match": tag}, nowait.obspec.NotModifiedError),
        ({"if_none_match": f"other, {tag}"}, nowait.obspec.NotModifiedError),
        ({"if_none_match": "*"}, nowait.obspec.NotModifiedError),
        ({"if_unmodified_since": now - day}, nowait.obspec.PreconditionError),
        ({"if_modified_since": now}, nowait.obspec.NotModifiedError),
        ({"version": "7"}, NotImplementedError),
        ({"rnage": (0, 1)}, TypeError),
        ({"range": (1, 1)}, ValueError),
        ({"range": (8, 9)}, ValueError),
        ({"range": (-1, 1)}, ValueError),
        ({"range": {"offset": 8}}, ValueError),
        ({"range": {"first": 8}}, ValueError),
    ]:
        refused(error, "get", options=options)
    granted: Any
    for granted in [
        {"if_match": f"other, {tag}"},
        {"if_match": "*", "if_unmodified_since": now - day},
        {"if_none_match": "stale", "if_modified_since": now},
        {"if_modified_since": now - day, "if_unmodified_since": now},
        {"if_match": None, "version": None, "range": None, "head": False},
        {"range": [0, 100]},
    ]:
        assert store.get("a", options=granted).buffer() == b"precious"
    head = store.get("a", options={"head": True})
    assert head.buffer() == b"" and head.meta == store.head("a")
    assert not [name for name in tmp_path.iterdir() if name.name.startswith(".")]


class Awaited:
    """An open file whose `read` is awaited."""

    def __init__(self, data: bytes) -> None:
        self.file = io.BytesIO(data)

    async def read(self, size: int) -> bytes:
        return self.file.read(size)


@pytest.mark.parametrize("is_awaited", [False, True])
def test_data_in_any_form(tmp_path: Path, contents: bytes, is_awaited: bool) -> None:
    store, half = NowaitStore(tmp_path), len(contents) // 2
    (tmp_path / "source").write_bytes(contents)

    async def pieces() -> AsyncIterator[bytes]:
        yield contents[:half]
        yield contents[half:]

    async def reader() -> Any:
        return await store.get_async("source")

    forms: list[Callable[[], Any]] = [
        lambda: contents,
        lambda: bytearray(contents),
        lambda: numpy.frombuffer(contents, numpy.uint8),
        lambda: tmp_path / "source",
        lambda: (tmp_path / "source").open("rb"),
        lambda: io.BytesIO(contents),
        lambda: [contents[:half], memoryview(contents)[half:]],
        lambda: iter([contents[:half], bytearray(contents[half:])]),
        lambda: store.get("source"),
    ]
    if is_awaited:
        forms += [pieces, lambda: Awaited(contents), lambda: asyncio.run(reader())]
    for number, form in enumerate(forms):
        put = {"chunk_size": 5000, "mode": "create"}
        if is_awaited:
            asyncio.run(store.put_async(f"{number}", form(), **put))
        else:
            store.put(f"{number}", form(), **put)
        assert (tmp_path / f"{number}").read_bytes() == contents

    def failing() -> Iterator[bytes]:
        yield b"some"
        raise KeyError("source")

    with pytest.raises(KeyError):
        if is_awaited:
            asyncio.run(store.put_async("0", failing()))
        else:
            store.put("0", failing())
    assert store.get("0").buffer() == contents
    assert not [name for name in tmp_path.iterdir() if name.name.startswith(".")]


@pytest.mark.parametrize("is_awaited", [False, True])
@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("verb", ["put", "copy", "rename"])
def test_directories_that_deletes_left_empty_give_way_to_an_object(
    run: Run, tmp_path: Path, verb: str, overwrite: bool, is_awaited: bool
) -> None:
    store = NowaitStore(tmp_path)

    def make() -> None:
        if verb == "put":
            arguments: tuple[Any, ...] = ("a/c", b"new")
            keywords: dict[str, Any] = {"mode": "overwrite" if overwrite else "create"}
        else:
            arguments, keywords = ("from", "a/c"), {"overwrite": overwrite}

        async def main() -> None:
            await getattr(store, f"{verb}_async")(*arguments, **keywords)

        if is_awaited:
            run(main)
        else:
            getattr(store, verb)(*arguments, **keywords)

    store.put("from", b"new")
    store.put("a/c/d/0", b"below")
    (tmp_path / "a/c/e/f").mkdir(parents=True)
    with pytest.raises(OSError, match=r"a[/\\]+c"):
        make()
    assert store.get("a/c/d/0").buffer() == b"below" and (tmp_path / "a/c/e/f").is_dir()
    assert store.get("from").buffer() == b"new"
    store.delete("a/c/d/0")
    make()
    assert store.get("a/c").buffer() == b"new"
    # A link is a name like any other: the directory that it leads to stays.
    (tmp_path / "empty").mkdir()
    store.delete("a/c")
    make_link(tmp_path / "a/c", "../empty")
    store.put("from", b"new")
    if overwrite and (verb != "copy" or sys.platform != "linux"):
        make()
        assert store.get("a/c").buffer() == b"new"
    else:
        # A copy names the directory.
        with pytest.raises(OSError, match=r"a[/\\]+c|empty"):
            make()
    assert (tmp_path / "empty").is_dir()
    assert not list(tmp_path.rglob(".nowait-*"))


def test_each_method_has_a_twin_to_be_awaited(run: Run, tmp_path: Path) -> None:
    store = NowaitStore(tmp_path)
    names = {name for name in dir(store) if not name.startswith("_") and callable(getattr(store, name))}
    assert {name for name in names if not name.endswith("_async") and f"{name}_async" not in names} == set()

    async def paths(prefix: str | None = None, **keywords: Any) -> list[list[str]]:
        return [[meta["path"] for meta in part] async for part in store.list_async(prefix, **keywords)]

    async def main() -> None:
        await store.put_async("a/b", b"hello")
        await store.copy_async("a/b", "c")
        await store.copy_async("c", "d/e/f", overwrite=False)
        await store.rename_async("c", "a/g")
        assert await paths() == [["a/b", "a/g", "d/e/f"]] and await paths("zz") == []
        assert await paths("a", chunk_size=1) == [["a/b"], ["a/g"]] and await paths(offset="a/g") == [
            ["d/e/f"]
        ]
        assert await store.head_async("a/g") == store.head("a/g")
        for call in (store.copy_async, store.rename_async):
            with pytest.raises(nowait.obspec.AlreadyExistsError):
                await call("a/b", "a/g", overwrite=False)
            with pytest.raises(nowait.obspec.NotFoundError):
                await call("missing", "a/h")
        found = await store.list_with_delimiter_async()
        assert found == {"common_prefixes": ["a", "d"], "objects": []}
        found = await store.list_with_delimiter_async("a")
        assert found["common_prefixes"] == [] and [meta["path"] for meta in found["objects"]] == [
            "a/b",
            "a/g",
        ]
        assert [piece async for piece in await store.get_async("a/g")] == [b"hello"]
        await store.delete_async(["a/b", "a/g", "d/e/f"])
        for call in (store.head_async, store.delete_async, store.get_async):
            with pytest.raises(nowait.obspec.NotFoundError):
                await call("a/b")

    run(main)
    assert not [name for name in tmp_path.iterdir() if name.name.startswith(".")]


def outcome(read: Callable[..., Any], *arguments: Any, **keywords: Any) -> object:
    try:
        result = read(*arguments, **keywords)
    except Exception as error:
        assert isinstance(error, OSError | ValueError) or "obstore" in type(error).__module__
        return "refused"
    return bytes(result if isinstance(result, bytes) or not hasattr(result, "meta") else b"".join(result))


def test_ranges_are_those_of_obstore(tmp_path: Path) -> None:
    obstore = pytest.importorskip("obstore.store")
    (tmp_path / "a").write_bytes(b"hello")
    ours, others = NowaitStore(tmp_path), obstore.LocalStore(tmp_path)
    for start, length in [(0, 5), (3, 10), (4, 1), (5, 1), (9, 1)]:
        expected = outcome(others.get_range, "a", start=start, length=length)
        assert outcome(ours.get_range, "a", start=start, length=length) == expected
    for asked in [(0, 5), (1, 1), (4, 9), (5, 9), {"offset": 2}, {"offset": 5}, {"suffix": 2}, {"suffix": 9}]:
        expected = outcome(others.get, "a", options={"range": asked})
        assert outcome(ours.get, "a", options={"range": asked}) == expected, asked
    assert list(ours.list("a")) == list(others.list("a")) == []


@pytest.mark.parametrize("is_awaited", [False, True])
def test_a_failed_put_names_its_object(tmp_path: Path, is_awaited: bool) -> None:
    """The temporary name means nothing to a caller."""
    store = NowaitStore(tmp_path)
    with no_file_longer_than(10_000), pytest.raises(nowait.Error) as failed:
        if is_awaited:
            asyncio.run(store.put_async("object", bytes(100_000)))
        else:
            store.put("object", bytes(100_000))
    target = str(tmp_path / "object")
    assert failed.value.filename == target
    assert target in str(failed.value) and ".nowait-" not in str(failed.value)
    assert list(tmp_path.iterdir()) == []


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
    # A transform gets one row, by every way of reading it.
    scaled = nowait.torch.RowDataset(tmp_path / "table.npy", transform=lambda row: row / row.max())
    expected = torch.from_numpy(table / table.max(axis=1, keepdims=True))
    assert torch.equal(scaled[3], expected[3])
    loaded = DataLoader(scaled, 64, collate_fn=nowait.torch.collate)
    assert torch.equal(torch.cat(list(loaded)), expected)
    assert torch.equal(torch.cat(list(nowait.torch.prefetch(scaled, [*batches, []]))), expected)
    out = torch.zeros(3, 7)
    nowait.open(tmp_path / "table.npy").gather_rows("f4", (1000, 7), [3, 2, 1], offset=128, out=out)
    assert torch.equal(out, torch.from_numpy(table[[3, 2, 1]]))
