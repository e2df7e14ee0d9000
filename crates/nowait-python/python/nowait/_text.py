"""Decodes text of a file in chunks, and finds the file position of each character."""

from __future__ import annotations

import codecs
import io
import locale
import os
import re
from collections import deque
from typing import NamedTuple

# Bits of a cookie: a position, characters to skip after it, and the decoder's state, which is zero
# for most encodings. If the other fields are zero, the cookie is the position, as in
# `io.TextIOWrapper`.
_POSITION_BITS = 64
_SKIP_BITS = 32

_ANY_LINE_END = re.compile(r"\r\n|\r|\n")


class Place(NamedTuple):
    """A position to decode from, the decoder's state there, and the number of characters to skip."""

    position: int
    state: int
    skip: int

    def cookie(self) -> int:
        """Returns the number that `tell` returns for this place."""
        return self.position | self.skip << _POSITION_BITS | self.state << (_POSITION_BITS + _SKIP_BITS)

    @staticmethod
    def of(cookie: int) -> Place:
        """Returns the place for a number that `tell` returned."""
        position = cookie & ((1 << _POSITION_BITS) - 1)
        skip = cookie >> _POSITION_BITS & ((1 << _SKIP_BITS) - 1)
        return Place(position, cookie >> (_POSITION_BITS + _SKIP_BITS), skip)


class _Chunk(NamedTuple):
    """Bytes decoded in one step, starting from a decoder state without pending bytes."""

    position: int
    state: int
    data: bytes
    characters: int


def text_codec(encoding: str | None, errors: str | None) -> tuple[str, str]:
    """Returns the encoding and error handler that `open` uses for these arguments; raises `LookupError`."""
    name = encoding or io.text_encoding(None)
    name = locale.getencoding() if name == "locale" else name
    if not getattr(codecs.lookup(name), "_is_text_encoding", True):
        raise LookupError(f"{name!r} is not a text encoding; open the file with mode 'b'")
    codecs.lookup_error(errors or "strict")
    return name, errors or "strict"


class Decoded:
    """Decoded text ahead of a cursor. This class does not read: the caller reads bytes and adds them.

    Text stays here until the caller takes it. So a failed or cancelled call leaves the cursor unchanged.
    """

    def __init__(self, encoding: str, errors: str, newline: str | None) -> None:
        decoder = codecs.getincrementaldecoder(encoding)(errors)
        self._newline = newline
        self._lines = None if newline else io.IncrementalNewlineDecoder(decoder, newline is None)
        self._decoder = self._lines or decoder
        # An encoding with a byte order mark expects the mark only at the start of the file.
        self._state = 0 if "".encode(encoding, errors) else self._decoder.getstate()[1]
        self.restart(0)

    @property
    def newlines(self) -> str | tuple[str, ...] | None:
        """Line ends read so far, if all kinds of line end are recognised."""
        found: str | tuple[str, ...] | None = self._lines.newlines if self._lines else None
        return found

    @property
    def position(self) -> int:
        """Position of the next bytes to read."""
        return self._position

    @property
    def available(self) -> int:
        """Number of available characters."""
        return max(len(self._text) - self._used, 0)

    def restart(self, position: int) -> None:
        """Drops all text, and restarts at a position with a new decoder."""
        self.go(Place(position, 0, 0))

    def go(self, place: Place) -> None:
        """Drops all text, and moves to a place that `place` returned."""
        if place.position == 0:
            self._decoder.reset()
        else:
            self._decoder.setstate((b"", place.state or self._state))
        self._move(place.position, place.skip)

    def _move(self, position: int, skip: int) -> None:
        self._position = position
        self._text = ""
        # Number of characters taken from the text. It exceeds the text's length if the next
        # characters must be skipped.
        self._used = skip
        # Chunks from which the text was decoded, and the number of characters of the first chunk
        # before the text.
        self._chunks: deque[_Chunk] = deque()
        self._before = 0

    def feed(self, data: bytes) -> None:
        """Adds the bytes at `position`, or no bytes at the end of the file. Adds nothing if decoding
        fails.
        """
        held, state = before = self._decoder.getstate()
        try:
            text = self._decoder.decode(data, not data)
        except BaseException:
            self._decoder.setstate(before)
            raise
        chunk = _Chunk(self._position - len(held), state, held + data, len(text))
        taken = min(self._used, len(self._text))
        self._before += taken
        self._used -= taken
        self._text = self._text[taken:] + text
        self._chunks.append(chunk)
        self._position += len(data)
        while self._chunks and self._before >= self._chunks[0].characters and len(self._chunks) > 1:
            self._before -= self._chunks.popleft().characters

    def take(self, characters: int) -> str:
        """Takes a number of characters, or fewer if fewer are available."""
        taken = self._text[self._used : self._used + characters]
        self._used += len(taken)
        if taken and self._used == len(self._text):
            self._move(self._position, 0)
        return taken

    def line_end(self, searched: int) -> int:
        """Returns the length of the next line; zero if the text does not contain its end.

        Number of characters that are known to contain no line end.
        """
        start = self._used + searched
        if self._newline == "":
            found = _ANY_LINE_END.search(self._text, start)
            return found.end() - self._used if found else 0
        ending = self._newline or "\n"
        at = self._text.find(ending, start)
        return at + len(ending) - self._used if at >= 0 else 0

    def place(self) -> Place:
        """Returns the place of the next character."""
        found = self._place()
        # At the start of the file, the decoder has its initial state, which need not be zero.
        return Place(0, 0, found.skip) if found.position == 0 else found

    def _place(self) -> Place:
        characters = self._before + self._used
        for chunk in self._chunks:
            if characters < chunk.characters:
                return self._place_in(chunk, characters)
            characters -= chunk.characters
        held, state = self._decoder.getstate()
        return Place(self._position - len(held), state, characters)

    def _place_in(self, chunk: _Chunk, characters: int) -> Place:
        """Decodes parts of a chunk again to find the byte position after a number of characters."""
        if characters == 0:
            return Place(chunk.position, chunk.state, 0)
        now = self._decoder.getstate()

        def decode(length: int) -> tuple[int, bytes, int]:
            self._decoder.setstate((b"", chunk.state))
            count = len(self._decoder.decode(chunk.data[:length]))
            return (count, *self._decoder.getstate())

        try:
            # The minimum number of bytes that decode to this number of characters.
            low, high = 0, len(chunk.data) + 1
            while low < high:
                length = (low + high) // 2
                if length <= len(chunk.data) and decode(length)[0] < characters:
                    low = length + 1
                else:
                    high = length
            length = low
            if length <= len(chunk.data):
                count, held, state = decode(length)
                if count == characters and not held:
                    return Place(chunk.position + length, state, 0)
            # The position is inside bytes that are decoded in one step, so the place is before
            # them.
            while length > 0:
                length -= 1
                count, held, state = decode(length)
                if held:
                    length -= len(held) - 1
                elif self._lines and state & 1 and count + 1 == characters:
                    # The decoder holds back a carriage return, in case a line feed follows.
                    return Place(chunk.position + length, state & ~1, 0)
                elif count <= characters:
                    return Place(chunk.position + length, state, characters - count)
            return Place(chunk.position, chunk.state, characters)
        finally:
            self._decoder.setstate(now)


class Encoded:
    """Encodes text that is written to a file."""

    def __init__(self, encoding: str, errors: str, newline: str | None, position: int) -> None:
        self._encoder = codecs.getincrementalencoder(encoding)(errors)
        # None means the system's line ending; "" leaves line endings unchanged.
        self._newline = os.linesep if newline is None else newline or "\n"
        self.restart(position)

    def restart(self, position: int) -> None:
        """Restarts at a position. Writes a byte order mark only at the start of the file."""
        if position:
            self._encoder.setstate(0)
        else:
            self._encoder.reset()

    def state(self) -> int | str:
        """Returns the encoder's state, for `go_back`."""
        return self._encoder.getstate()

    def go_back(self, state: int | str) -> None:
        """Restores the encoder to `state`."""
        self._encoder.setstate(state)

    def encode(self, text: str) -> bytes:
        """Returns the encoded text, as the continuation of earlier calls."""
        if self._newline != "\n":
            text = text.replace("\n", self._newline)
        return self._encoder.encode(text)
