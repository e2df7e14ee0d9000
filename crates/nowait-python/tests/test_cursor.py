"""Files with a cursor, awaited, against Python's own."""

from __future__ import annotations

import asyncio
import errno
import io
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Run, evict, no_file_longer_than

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
        # Of no bytes Python reads a line also where nothing may be read.
        ("readline", (random.randrange(0 if mode in ("r", "r+", "w+", "a+") else 1, 5),)),
        ("readlines", (random.randrange(50),)),
        ("lines", ()),
        ("write", (b"xy\nz",)),
        ("seek", (random.randrange(40),)),
        ("seek", (-random.randrange(5), 1)),
        ("seek", (-random.randrange(30), 2)),
        ("tell", ()),
        ("truncate", ()),
        ("truncate", (random.randrange(50),)),
        ("truncate", (-1,)),
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


@pytest.mark.parametrize("mode", ["r+", "rb+"])
def test_a_negative_size_is_refused_as_python_does(path: Path, contents: bytes, mode: str) -> None:
    async def main() -> None:
        async with nowait.aio.open(path, mode) as file:
            with pytest.raises(OSError, match="-1 bytes") as caught:
                await file.truncate(-1)
            assert caught.value.errno == errno.EINVAL and caught.value.filename == str(path)
            with pytest.raises(TypeError):
                await file.truncate(1.0)

    asyncio.run(main())
    assert path.read_bytes() == contents


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


@pytest.mark.parametrize("mode", ["rb", "r"])
def test_a_long_line_is_not_copied_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """Each read for it is as long as what there is of it."""
    path = tmp_path / "line"
    path.write_bytes(b"x" * (16 << 20))
    reads = 0

    async def main() -> None:
        start_read = nowait._nowait.start_read

        def start(*arguments: Any) -> Any:
            nonlocal reads
            reads += 1
            return start_read(*arguments)

        monkeypatch.setattr(nowait._nowait, "start_read", start)
        async with nowait.aio.open(path, mode) as file:
            assert len(await file.readline()) == 16 << 20

    asyncio.run(main())
    # With 64 KiB at a time they were 257.
    assert reads < 20


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


# Text in which each encoding has what it makes of one character, of a line end, and of a change of state.
LETTERS = {
    "utf-8": "aé€😀",
    "utf-8-sig": "aé€😀\ufeff",
    "utf-16": "aé€😀",
    "utf-16-be": "aé€😀",
    "utf-32": "aé😀",
    "utf-7": "a+é€😀-",
    "latin-1": "aé",
    "iso2022_jp": "a漢字~",
    "iso2022_kr": "a한글",
    "hz": "a汉字",
    "gb18030": "a中é😀",
    "shift_jis": "aソ表ｱ",
    "euc_jp": "a日本",
}
NEWLINES = (None, "", "\n", "\r", "\r\n")


def line_length(text: str, newline: str | None) -> int:
    """Length of the first line of a text in which `newline` has been translated, if it is to be."""
    kinds = {None: ["\n"], "": ["\r\n", "\n", "\r"]}.get(newline, [newline])
    ends = [(text.index(end), -len(end)) for end in kinds if end in text]
    return min(ends)[0] - min(ends)[1] if ends else len(text)


@pytest.mark.parametrize("encoding", LETTERS)
def test_text_in_pieces_is_the_text_of_the_whole_file(
    tmp_path: Path, encoding: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against `io.TextIOWrapper`'s text, and an index of a character in it for each cookie."""
    dice, path = random.Random(seed), tmp_path / "text"

    async def walk(text: str, newline: str | None) -> None:
        at, cookies = 0, {0: 0}
        async with nowait.aio.open(path, encoding=encoding, newline=newline) as file:
            for _ in range(dice.randrange(1, 25)):
                step = dice.choice(["read", "read", "line", "line part", "tell", "tell", "seek", "rest"])
                if step in ("read", "line part"):
                    size = dice.randrange(0, 12)
                    end = size if step == "read" else min(size, line_length(text[at:], newline))
                    read = file.read(size) if step == "read" else file.readline(size)
                    assert await read == text[at : at + end], (step, size, at)
                    at = min(at + end, len(text))
                elif step == "line":
                    end = at + line_length(text[at:], newline)
                    assert await file.readline() == text[at:end], at
                    at = end
                elif step == "tell":
                    cookie = await file.tell()
                    assert cookies.setdefault(cookie, at) == at
                elif step == "seek":
                    cookie, at = dice.choice(list(cookies.items()))
                    assert await file.seek(cookie) == cookie
                else:
                    assert await file.read() == text[at:]
                    at = len(text)

    for _ in range(60):
        letters = LETTERS[encoding] * 2 + "\n\r"
        written = "".join(dice.choice([*letters, "\r\n"]) for _ in range(dice.randrange(120)))
        newline = dice.choice(NEWLINES)
        with path.open("w", encoding=encoding, newline="") as python:
            python.write(written)
        with path.open(encoding=encoding, newline=newline) as python:
            text = python.read()
        monkeypatch.setattr("nowait._cursor._FIRST_CHUNK", dice.choice([1, 2, 3, 7, 30, 8192]))
        monkeypatch.setattr("nowait._cursor._AHEAD", dice.choice([1, 5, 64, 8192]))
        try:
            asyncio.run(walk(text, newline))
        except BaseException:
            print(repr(path.read_bytes()), repr(newline))
            raise


@pytest.mark.parametrize("encoding", LETTERS)
def test_text_is_written_as_python_writes_it(tmp_path: Path, encoding: str, seed: int) -> None:
    dice = random.Random(seed)
    ours, pythons = tmp_path / "ours", tmp_path / "pythons"
    for _ in range(60):
        mode, newline = dice.choice(["w", "w+", "a", "r+"]), dice.choice(NEWLINES)
        before = "".join(dice.choice(LETTERS[encoding]) for _ in range(dice.randrange(5)))
        pieces = [
            "".join(dice.choice(LETTERS[encoding] + "\n\r") for _ in range(dice.randrange(6)))
            for _ in range(dice.randrange(5))
        ]
        steps: Steps = [("write", (piece,)) for piece in pieces]
        if mode != "a":
            steps.insert(dice.randrange(len(steps) + 1), ("seek", (0, dice.choice([0, 2]))))
        for path in (ours, pythons):
            path.write_text(before, encoding)
        how: dict[str, Any] = {"encoding": encoding, "newline": newline}
        expected = by_python(pythons, mode, how, steps)
        assert asyncio.run(by_nowait(ours, mode, how, steps)) == expected, (mode, newline, before, steps)


def test_line_ends_and_encoding_are_known(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"a\r\nb\nc\r")

    async def main() -> None:
        async with nowait.aio.open(path, encoding="latin-1", errors="replace") as file:
            assert file.newlines is None
            assert await file.read() == "a\nb\nc\n"
            assert set(file.newlines or ()) == {"\r", "\n", "\r\n"}
            assert (file.encoding, file.errors) == ("latin-1", "replace")
            assert await file.readable() and await file.seekable() and not await file.writable()
            with pytest.raises(io.UnsupportedOperation):
                await file.write("x")
            with pytest.raises(io.UnsupportedOperation):
                await file.seek(-1, os.SEEK_END)
        async with nowait.aio.open(path, "ab") as binary:
            assert not binary.readable() and await binary.writable() and not await binary.isatty()
            with pytest.raises(io.UnsupportedOperation):
                await binary.read(size=1)

    asyncio.run(main())
    for keywords, error in [
        ({"encoding": "nonsense"}, LookupError),
        ({"encoding": "rot13"}, LookupError),
        ({"errors": "nonsense"}, LookupError),
        ({"newline": "\n\n"}, ValueError),
        ({"mode": "rw"}, ValueError),
        ({"mode": "rbt"}, ValueError),
        ({"mode": "b"}, ValueError),
        ({"mode": "rb", "encoding": "utf-8"}, ValueError),
        ({"buffering": 0}, TypeError),
    ]:
        with pytest.raises(error):
            nowait.aio.open(path, **keywords)


def test_bytes_ahead(path: Path, contents: bytes) -> None:
    async def main() -> None:
        async with nowait.aio.open(path, "br") as file:
            assert (await file.peek())[:10] == contents[:10] and await file.tell() == 0
            assert await file.read1(5) == contents[:5] and await file.tell() == 5
            data = await file.read1()
            assert data and contents[5:].startswith(data) and await file.tell() == 5 + len(data)
            out = bytearray(9)
            assert await file.readinto(out) == 9 and out == contents[5 + len(data) :][:9]
            assert await file.seek(offset=-3, whence=os.SEEK_END) == len(contents) - 3
            assert await file.read1() == contents[-3:] and await file.read1() == b"" == await file.peek()

    asyncio.run(main())


def test_text_that_cannot_be_decoded_leaves_the_cursor(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"good\n" + b"x" * 9000 + b"\n\xff\n")

    async def main() -> None:
        async with nowait.aio.open(path, encoding="utf-8") as file:
            assert await file.readline() == "good\n"
            place = await file.tell()
            for _ in range(2):
                with pytest.raises(UnicodeDecodeError):
                    await file.read()
                assert await file.tell() == place
            assert await file.read(9) == "x" * 9
        async with nowait.aio.open(path, "w+", encoding="iso2022_jp") as file:
            await file.write("日")
            place = await file.tell()
            with pytest.raises(UnicodeEncodeError):
                await file.write("本😀")
            assert await file.tell() == place
            await file.write("本")
            await file.seek(0)
            assert await file.read() == "日本"

    asyncio.run(main())


async def together(*calls: Any) -> list[Any]:
    """Awaits calls by a task each, which begin in order, on asyncio and trio."""
    results: list[Any] = [None] * len(calls)

    async def one(index: int) -> None:
        results[index] = await calls[index]

    if asyncio._get_running_loop() is not None:
        await asyncio.gather(*(one(index) for index in range(len(calls))))
    else:
        import trio

        # A nursery does not begin its tasks in order.
        async with trio.open_nursery() as nursery:
            for index in range(len(calls)):
                await nursery.start(begin, one, index)
    return results


async def begin(one: Any, index: int, task_status: Any) -> None:
    task_status.started()
    await one(index)


@pytest.mark.parametrize("size", [100, 70_000, 1 << 20])
def test_tasks_that_share_a_file_overwrite_nothing(run: Run, tmp_path: Path, size: int) -> None:
    count = min(300, (16 << 20) // size)
    pieces = [bytes([65 + index % 26]) * (size - index % 7) for index in range(count)]

    async def write(mode: str) -> None:
        async with nowait.aio.open(tmp_path / "file", mode) as file:
            data = pieces if "b" in mode else [piece.decode() for piece in pieces]
            await together(*(file.write(piece) for piece in data))
            assert await file.tell() == sum(map(len, pieces))

    async def read() -> list[bytes]:
        evict(tmp_path / "file")
        async with nowait.aio.open(tmp_path / "file", "rb") as file:
            return await together(*(file.read(len(piece)) for piece in pieces))

    for mode in ("wb", "w", "xb", "ab"):
        (tmp_path / "file").unlink(missing_ok=True)
        run(lambda mode=mode: write(mode))
        assert (tmp_path / "file").read_bytes() == b"".join(pieces)
        assert run(read) == pieces


def test_calls_are_made_in_their_order(tmp_path: Path) -> None:
    path = tmp_path / "file"

    async def main() -> None:
        async with nowait.aio.open(path, "w+", encoding="utf-8") as file:
            writes = [file.write(f"{number}\n") for number in range(500)]
            await asyncio.gather(*writes, file.seek(0))
            lines = await asyncio.gather(*(file.readline() for _ in range(500)))
            assert lines == [f"{number}\n" for number in range(500)]
            # Closed after what was begun before.
            last = asyncio.create_task(file.write("last"))
            await asyncio.sleep(0)
        await last
        assert path.read_text().endswith("499\nlast")

    asyncio.run(main())


def test_cancelled_calls_leave_the_cursor_at_a_known_place(tmp_path: Path, seed: int) -> None:
    """A write is made, or was never begun; a read takes nothing."""
    dice, path = random.Random(seed), tmp_path / "file"

    async def main() -> None:
        for mode in ("w+b", "a+b"):
            path.unlink(missing_ok=True)
            async with nowait.aio.open(path, mode) as file:
                tasks = []
                for number in range(60):
                    size = dice.choice([10, 5000, 3 << 20])
                    tasks.append(asyncio.create_task(file.write(b"%03d" % number + bytes(size))))
                    for _ in range(dice.randrange(3)):
                        await asyncio.sleep(0)
                    if dice.random() < 0.5:
                        dice.choice(tasks).cancel()
                results = await asyncio.gather(*tasks, return_exceptions=True)
                end = await file.tell()
                await file.seek(0)
                data = await file.read()
                assert len(data) == end == path.stat().st_size
                written = [int(number) for number in re.findall(rb"[0-9]{3}", data)]
                done = [number for number, result in enumerate(results) if isinstance(result, int)]
                assert set(done) <= set(written) and written == sorted(set(written))

    asyncio.run(main())


def test_a_cancelled_read_takes_nothing(path: Path, contents: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with nowait.aio.open(path, "rb") as file:
            assert await file.read(7) == contents[:7]
            with monkeypatch.context() as patch:
                # One that never ends.
                patch.setattr(nowait._nowait, "start_read", lambda *_: None)
                for call in (file.read, file.readline, file.readlines, file.peek, file.read1):
                    task = asyncio.create_task(call())
                    await asyncio.sleep(0)
                    waiting = asyncio.create_task(file.read(1))
                    await asyncio.sleep(0)
                    waiting.cancel()
                    task.cancel()
                    await asyncio.gather(task, waiting, return_exceptions=True)
            assert await file.tell() == 7 and await file.read(5) == contents[7:12]

    asyncio.run(main())


def test_a_failed_write_leaves_the_cursor() -> None:
    async def main() -> None:
        async with nowait.aio.open("/dev/full", "wb") as file:
            for _ in range(2):
                with pytest.raises(OSError):
                    await file.write(b"x" * 5000)
                assert await file.tell() == 0

    asyncio.run(main())


@pytest.mark.parametrize("mode", ["r+b", "r+"])
def test_a_failed_write_is_read_back(tmp_path: Path, mode: str) -> None:
    """A part of it was written, over what was read ahead."""
    path = tmp_path / "file"
    path.write_bytes(b"aaaa\nbbbb\ncccc\n")

    async def main() -> None:
        async with nowait.aio.open(path, mode) as file:
            assert len(await file.readline()) == 5
            with no_file_longer_than(10), pytest.raises(OSError):
                await file.write("x" * 20 if mode == "r+" else b"x" * 20)
            assert await file.tell() == 5
            assert await file.read(6) in ("xxxxxc", b"xxxxxc")

    asyncio.run(main())


def test_the_mode_gives_the_type(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    program = """
from typing import assert_type
import nowait.aio

async def main(mode: str) -> None:
    async with nowait.aio.open("x") as text:
        assert_type(await text.readline(), str)
        assert_type([line async for line in text], list[str])
        await text.write(b"")  # type: ignore[arg-type]
    binary = await nowait.aio.open("x", "r+b")
    assert_type(await binary.read(size=1), bytes)
    await binary.write("")  # type: ignore[arg-type]
    async with nowait.aio.open("x", mode) as either:
        await either.write("")
"""
    (tmp_path / "program.py").write_text(program)
    check = [sys.executable, "-m", "mypy", "--strict", "program.py"]
    checked = subprocess.run(check, cwd=tmp_path, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout
