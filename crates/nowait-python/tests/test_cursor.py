"""Files with a cursor, awaited, against Python's own."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path
from typing import Any

import pytest

import nowait
import nowait.aio

Steps = list[tuple[str, tuple[Any, ...]]]


def by_python(path: Path, mode: str, keywords: dict[str, Any], steps: Steps) -> list[Any]:
    results = []
    with path.open(mode, **keywords) as file:
        for name, arguments in steps:
            try:
                results.append(list(file) if name == "lines" else getattr(file, name)(*arguments))
            except (OSError, ValueError):
                results.append("refused")
    return [*results, path.read_bytes()]


async def by_nowait(path: Path, mode: str, keywords: dict[str, Any], steps: Steps) -> list[Any]:
    results = []
    async with nowait.aio.open(path, mode, **keywords) as file:
        for name, arguments in steps:
            try:
                if name == "lines":
                    results.append([line async for line in file])
                else:
                    results.append(await getattr(file, name)(*arguments))
            except (OSError, ValueError):
                results.append("refused")
    return [*results, path.read_bytes()]


def binary(random: random.Random, mode: str) -> tuple[bytes, Steps]:
    contents = bytes(random.choice(b"ab\n\r\0") for _ in range(random.randrange(300)))
    steps: Steps = [
        ("read", ()),
        ("read", (random.randrange(1, 10),)),
        ("readline", ()),
        ("readline", (random.randrange(5),)),
        ("lines", ()),
        ("write", (b"xy\nz",)),
        ("seek", (random.randrange(40),)),
        ("seek", (-random.randrange(5), 1)),
        ("seek", (-random.randrange(30), 2)),
        ("tell", ()),
        ("truncate", ()),
        ("truncate", (random.randrange(50),)),
    ]
    if "a" in mode:
        # What Python buffers to append, it counts from where it was, and not from the end.
        steps = [step for step in steps if step[0] not in ("seek", "truncate") or step == ("truncate", ())]
    return contents, random.sample(steps, random.randrange(1, 7))


def text(random: random.Random) -> tuple[bytes, Steps]:
    kinds = ["a", "é", "€", "😀", "\n", "\r\n", "\r", "\x0c", "\u2028"]
    contents = "".join(random.choice(kinds) for _ in range(random.randrange(200)))
    steps: Steps = [
        ("read", (random.randrange(1, 10),)),
        ("read", (random.randrange(1, 10),)),
        ("readline", ()),
        ("lines", ()),
    ]
    if random.random() < 0.2:
        steps = [("write", ("xé\ny",))]
    return contents.encode(), random.sample(steps, random.randrange(1, len(steps) + 1))


@pytest.mark.parametrize("mode", ["r", "r+", "w+", "a", "a+"])
@pytest.mark.parametrize("keywords", [None, {}, {"newline": ""}, {"newline": "\n"}])
def test_it_does_what_python_does(
    tmp_path: Path, mode: str, keywords: dict[str, str] | None, seed: int
) -> None:
    dice = random.Random(seed)
    ours, pythons = tmp_path / "ours", tmp_path / "pythons"
    for _ in range(150):
        contents, steps = binary(dice, mode) if keywords is None else text(dice)
        ours.write_bytes(contents)
        pythons.write_bytes(contents)
        how: dict[str, Any] = {} if keywords is None else {"encoding": "utf-8", **keywords}
        whole_mode = f"{mode}b" if keywords is None else mode
        expected = by_python(pythons, whole_mode, how, steps)
        assert asyncio.run(by_nowait(ours, whole_mode, how, steps)) == expected, (contents, steps)


def test_what_was_read_ahead_is_not_given_after_close(path: Path) -> None:
    async def main() -> None:
        file = await nowait.aio.open(path, "rb")
        await file.readline()
        await file.close()
        for name, arguments in [
            ("read", (1,)),
            ("read", ()),
            ("readline", ()),
            ("tell", ()),
            ("seek", (0,)),
            ("flush", ()),
        ]:
            with pytest.raises(nowait.ClosedError):
                await getattr(file, name)(*arguments)

    asyncio.run(main())


def test_a_long_line_is_not_copied_again_and_again(tmp_path: Path) -> None:
    path = tmp_path / "line"

    async def seconds(size: int) -> float:
        path.write_bytes(b"x" * size)
        began = time.process_time()
        async with nowait.aio.open(path, "rb") as file:
            assert len(await file.readline()) == size
        return time.process_time() - began

    async def main() -> None:
        # With 64 KiB more at a time it was 200 times as long; eight times is what the bytes are.
        short = min([await seconds(4 << 20) for _ in range(3)])
        assert await seconds(64 << 20) < 80 * max(short, 0.003)

    asyncio.run(main())


@pytest.mark.parametrize("is_awaited", [False, True])
def test_all_of_a_file_is_not_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_awaited: bool
) -> None:
    path = tmp_path / "large"
    path.write_bytes(b"x" * (1 << 20))
    lengths = []

    async def main() -> bytes | str:
        start_read = nowait._nowait.start_read

        def start(completions: Any, number: int, file: Any, offset: int, length: int) -> Any:
            lengths.append(length)
            return start_read(completions, number, file, offset, length)

        monkeypatch.setattr(nowait._nowait, "start_read", start)
        async with nowait.aio.open(path, "rb") as file:
            return await file.read()

    class File(nowait.File):
        def read_at(self, offset: int, length: int) -> bytes:
            lengths.append(length)
            return super().read_at(offset, length)

    data = asyncio.run(main()) if is_awaited else File(path).raw().readall()
    assert len(data) == 1 << 20
    # Of a read that is as long as the file, the bytes are the result; of a longer one they are copied.
    assert lengths[0] == 1 << 20
