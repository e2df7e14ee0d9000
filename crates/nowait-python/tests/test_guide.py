"""The examples of the guide, in its order, in one namespace."""

from __future__ import annotations

import re
import sys
from collections.abc import Sized
from importlib.util import find_spec
from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[3] / "docs" / "guide" / "python.md"


def examples_of(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)


SYSTEMS = {"Linux": ("linux",), "Linux or macOS": ("linux", "darwin")}


def is_there(name: str) -> bool:
    return sys.platform in SYSTEMS[name] if name in SYSTEMS else find_spec(name) is not None


def test_the_page_of_the_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (example,) = examples_of(Path(__file__).parents[1] / "README.md")
    names: dict[str, object] = {"__name__": "page"}
    exec(compile(example, "README.md", "exec"), names)
    assert names["array"].shape == (4000, 4096)


def test_the_page_of_the_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("table.dat").write_bytes(bytes(128 << 10))
    (example,) = examples_of(Path(__file__).parents[3] / "README.md")
    names: dict[str, object] = {"__name__": "page"}
    exec(compile(example, "README.md", "exec"), names)
    rows = names["rows"]
    assert isinstance(rows, Sized) and len(rows) == 16


def test_coming_from_other_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pytest.importorskip("fsspec")
    (example,) = examples_of(GUIDE.with_name("from-python.md"))
    exec(compile(example, "from-python.md", "exec"), {"__name__": "page"})


def test_the_guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    examples = examples_of(GUIDE)
    assert len(examples) >= 10
    names: dict[str, object] = {"__name__": "guide"}
    # A reader runs them again, in the same folder.
    for example in examples * 2:
        needs = re.match(r"# needs (.*)\n", example)
        missing = [name for name in (needs[1].split(", ") if needs else []) if not is_there(name)]
        if missing:
            print(f"skipped: an example needs {missing}")
            continue
        exec(compile(example, str(GUIDE), "exec"), names)
    contents = Path("table.dat").read_bytes()
    assert bytes(names["rows"][0]) == contents[int(names["offsets"][0]) :][:4096]
    assert names["some"].ravel().tolist() == [5, 900, 7]
    assert names["lines"] == ["one\n", "two\n"]
    assert (names["header"], names["footer"]) == (contents[:4], contents[-8:])
    assert names.get("found_of_dask", [contents[0], contents[4096]]) == [contents[0], contents[4096]]
    assert names.get("total", 1000) == 1000
    if sys.platform == "linux":
        assert Path("copy.dat").read_bytes() == Path("table.dat").read_bytes()
