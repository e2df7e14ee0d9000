"""zarr's suites of stores on `nowait://` (`FsspecStore`) and on `nowait.obspec.NowaitStore` (`ObjectStore`).

`ObjectStore` calls the functions of the module obstore, and accepts only stores of such a module. Here the
module's functions call the methods of obspec with the same names, which obstore's stores have, too."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.stateful
import obstore
import obstore.exceptions
import pytest
from nowait.fsspec import NowaitFileSystem
from nowait.obspec import AlreadyExistsError, NowaitStore
from zarr.core.buffer import Buffer, cpu
from zarr.storage import FsspecStore, ObjectStore
from zarr.testing.stateful import ZarrHierarchyStateMachine
from zarr.testing.store import StoreTests


def by_method(name: str) -> Callable[..., Any]:
    def call(store: NowaitStore, *arguments: Any, **keywords: Any) -> Any:
        return getattr(store, name)(*arguments, **keywords)

    return call


class Result:
    """What obstore's `get_async` returns has `bytes_async` for obspec's `buffer_async`."""

    def __init__(self, result: Any) -> None:
        self.bytes_async = result.buffer_async


async def get_async(store: NowaitStore, path: str, **keywords: Any) -> Result:
    return Result(await store.get_async(path, **keywords))


class Listing:
    """What obstore's `list` returns can be collected, too."""

    def __init__(self, store: NowaitStore, prefix: str | None = None) -> None:
        self._chunks = store.list_async(prefix)

    def __aiter__(self) -> Any:
        return self._chunks

    async def collect_async(self) -> list[Any]:
        return [meta async for chunk in self._chunks for meta in chunk]


for name in ("head_async", "get_range_async", "get_ranges_async", "put_async", "delete_async",
             "list_with_delimiter_async"):
    setattr(obstore, name, by_method(name))
obstore.get_async = get_async
obstore.list = Listing
obstore.exceptions.AlreadyExistsError = AlreadyExistsError


class Store(NowaitStore):
    """A store of a module whose name `ObjectStore` accepts."""

    __module__ = "obstore_of_nowait"


sys.modules[Store.__module__] = sys.modules[__name__]


class OnFiles(StoreTests):
    """The suite puts and gets objects past the store, too: here by Python's own files."""

    buffer_cls = cpu.Buffer

    def directory(self, store: Any) -> Path:
        raise NotImplementedError

    async def get(self, store: Any, key: str) -> Buffer:
        return self.buffer_cls.from_bytes((self.directory(store) / key).read_bytes())

    async def set(self, store: Any, key: str, value: Buffer) -> None:
        path = self.directory(store) / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(value.to_bytes())

    def test_store_supports_writes(self, store: Any) -> None:
        assert store.supports_writes

    def test_store_supports_listing(self, store: Any) -> None:
        assert store.supports_listing


class TestFsspecStore(OnFiles):
    store_cls = FsspecStore

    @pytest.fixture
    def store_kwargs(self, tmp_path: Path) -> dict[str, Any]:
        url = f"nowait://{tmp_path}"
        made = FsspecStore.from_url(url, storage_options={"auto_mkdir": True})
        return {"fs": made.fs, "path": made.path}

    @pytest.fixture
    async def store(self, store_kwargs: dict[str, Any]) -> FsspecStore:
        return self.store_cls(**store_kwargs)

    def directory(self, store: FsspecStore) -> Path:
        assert isinstance(store.fs.sync_fs, NowaitFileSystem)
        return Path(store.path)

    def test_store_repr(self, store: FsspecStore) -> None:
        assert "FsspecStore" in repr(store)


class TestObjectStore(OnFiles):
    store_cls = ObjectStore

    @pytest.fixture
    def store_kwargs(self, tmp_path: Path) -> dict[str, Any]:
        return {"store": Store(tmp_path), "read_only": False}

    @pytest.fixture
    async def store(self, store_kwargs: dict[str, Any]) -> ObjectStore:
        return self.store_cls(**store_kwargs)

    def directory(self, store: ObjectStore) -> Path:
        assert isinstance(store.store, NowaitStore)
        return store.store.root

    def test_store_repr(self, store: ObjectStore) -> None:
        assert "ObjectStore" in repr(store)


class Hierarchy(ZarrHierarchyStateMachine):
    """zarr does not compare `list_dir` for its own `LocalStore`: directories outlive what was in them. Nor is it
    compared here."""

    check_list_dir = None


@pytest.mark.parametrize("kind", ["FsspecStore", "ObjectStore"])
def test_hierarchy(tmp_path: Path, kind: str) -> None:
    if kind == "FsspecStore":
        store = FsspecStore.from_url(f"nowait://{tmp_path}", storage_options={"auto_mkdir": True})
    else:
        store = ObjectStore(Store(tmp_path))
    settings = hypothesis.settings(max_examples=15, stateful_step_count=25, deadline=None, database=None,
                                   suppress_health_check=list(hypothesis.HealthCheck))
    hypothesis.stateful.run_state_machine_as_test(lambda: Hierarchy(store), settings=settings)
