"""The library for LD_PRELOAD, and the ways in which it makes calls."""

from __future__ import annotations

import itertools
from pathlib import Path

from place import REPOSITORY, Place, Unavailable

ENGINES = ("uring", "aio", "pool", "strict")
CALLS = ("future", "wait")


def build(place: Place) -> Path:
    """Builds the library, and returns its path."""
    place.cargo("build", "--locked", "--release", "-p", "nowait-preload", cwd=REPOSITORY / "suites")
    return place.target / "release/libnowait_preload.so"


class Preload:
    """Environment of programs that run on the library, and the check that they did."""

    def __init__(self, place: Place) -> None:
        self.library = build(place)
        self.report = place.folder / "served"

    def env(self, engine: str = "auto", calls: str = "future") -> dict[str, str]:
        return {"LD_PRELOAD": str(self.library), "NOWAIT_PRELOAD_ENGINE": engine, "NOWAIT_PRELOAD_CALLS": calls,
                "NOWAIT_PRELOAD_REPORT": str(self.report)}

    def served(self) -> int:
        """Returns the number of calls that programs made through the library since the last question.

        Raises Unavailable if there were none: the program did not use it."""
        served = sum(map(sum, self.served_by_program().values()))
        if not served:
            raise Unavailable(f"no call went through {self.library}")
        return served

    def served_by_program(self) -> dict[str, tuple[int, int]]:
        """Returns the numbers of transfers and of syncs since the last question, of each program."""
        served: dict[str, tuple[int, int]] = {}
        for program, transfers, syncs in self.processes():
            before = served.get(program, (0, 0))
            served[program] = (before[0] + transfers, before[1] + syncs)
        return served

    def processes(self) -> list[tuple[str, int, int]]:
        """Returns the processes that ended since the last question: program, transfers and syncs served."""
        lines = self.report.read_text().splitlines() if self.report.exists() else []
        self.report.unlink(missing_ok=True)
        return [(program, int(transfers), int(syncs)) for transfers, syncs, program in
                (line.split(maxsplit=2) for line in lines)]


def ways() -> list[tuple[str, str]]:
    """Returns each engine with each kind of calls. A call that waits uses no engine's queue, so once is enough."""
    return [way for way in itertools.product(ENGINES, CALLS) if way[1] == "future" or way[0] == "uring"]
