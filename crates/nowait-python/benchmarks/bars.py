"""What is to be reached, and whether it was: ratios of the same round, their median and their spread."""

from __future__ import annotations

from statistics import quantiles
from typing import Any, NamedTuple

from points import Rows


class Bar(NamedTuple):
    """A ratio: how many times as fast as another way, or how much of its processor time."""

    point: str
    way: str
    against: str
    limit: float
    figure: str = "seconds"

    @property
    def is_upper(self) -> bool:
        return self.figure == "processor_s"

    def judge(self, rows: Rows) -> dict[str, Any] | None:
        """Compares the rounds; `None` if one of the ways was not measured."""
        if self.way not in rows or self.against not in rows:
            return None
        ours, theirs = rows[self.way][self.figure], rows[self.against][self.figure]
        pairs = zip(ours, theirs, strict=True)
        ratios = [our / their if self.is_upper else their / our for our, their in pairs]
        return {**self._asdict(), **judge(ratios, self.limit, self.is_upper)}


def judge(figures: list[float], limit: float, is_upper: bool) -> dict[str, Any]:
    """Median and spread of the rounds, and what they say about a limit.

    "undecided": the median is on the wrong side of it, but a quarter of the rounds is not.
    """
    lower, middle, upper = quantiles(figures, n=4, method="inclusive")
    best = lower if is_upper else upper

    def meets(figure: float) -> bool:
        return figure <= limit if is_upper else figure >= limit

    return {
        "median": middle,
        "quartiles": [lower, upper],
        "least": min(figures),
        "most": max(figures),
        "verdict": "met" if meets(middle) else "undecided" if meets(best) else "not met",
    }


def told(judged: dict[str, Any]) -> str:
    """A judgement as a line of text."""
    is_upper = judged["figure"] == "processor_s"
    what = "takes {median:.2f} of the processor time of" if is_upper else "is {median:.2f} times"
    text = "{point}: {way} " + what + " {against} ({least:.2f} to {most:.2f}), bar {limit}: {verdict}"
    return text.format(**judged)


READS = [
    Bar("cold", "gather", "pread", 5.0),
    Bar("cold", "gather", "memmap-willneed", 1.0),
    Bar("cold", "gather", "memmap-willneed", 0.7, "processor_s"),
    Bar("cold", "gather-direct", "memmap-willneed", 1.0),
    Bar("cold", "gather-direct", "memmap-willneed", 0.7, "processor_s"),
    Bar("cold", "gather", "ayafileio", 1.0),
    Bar("cold", "gather", "ayafileio", 0.7, "processor_s"),
    Bar("cold", "gather-rows", "memmap", 10.0),
    Bar("cold", "nowait-fsspec", "fsspec", 8.0),
    Bar("rust", "gather", "rust", 0.95),
    Bar("refused", "gather-refused", "gather-ring", 0.7),
    Bar("refused", "gather-async-refused", "gather-async-ring", 0.7),
    Bar("hot", "gather", "preadv", 1.0),
    Bar("hot", "nowait-fsspec", "fsspec", 1.0),
]
# The longest gap of asyncio's heartbeat, beyond what it is to be.
HEARTBEAT_MAX_S = 0.003
# Of the job on Dask, against fsspec's own local file system.
DASK = [
    Bar("sample cold", "nowait", "local", 2.0),
    Bar("scan cold", "nowait", "local", 1.0),
    Bar("sample hot", "nowait", "local", 1.0),
    Bar("scan hot", "nowait", "local", 1.0),
]
