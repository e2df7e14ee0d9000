"""The command `nowait`, behind a program of a suite that copies files, and the check that the program calls it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from place import REPOSITORY, Place, Unavailable


class Copying:
    """Builds the command, and installs `adapter`: a script that maps another program's options to it.

    The adapter gets the command's path in NOWAIT, and appends a line for each call to the file in COPY_CALLS:
    the exit code and the arguments, or "no counterpart" and an option."""

    def __init__(self, place: Place, adapter: Path) -> None:
        # Tests run it as other users, too.
        place.folder.chmod(0o755)
        # The repository's own target directory has most of it, if its tests ran.
        target = REPOSITORY / "target"
        place.cargo("build", "--locked", "-p", "nowait-cli", "--no-default-features", cwd=REPOSITORY,
                    env={"CARGO_TARGET_DIR": str(target)})
        self.command = Path(shutil.copy(target / "debug/nowait", place.folder / "nowait"))
        self.adapter = place.folder / "adapter" / adapter.name
        self.adapter.parent.mkdir()
        shutil.copy(adapter, self.adapter)
        for path in (self.adapter.parent, self.adapter, self.command):
            path.chmod(0o755)
        self.calls = place.folder / "calls"

    def env(self) -> dict[str, str]:
        """Returns the adapter's environment, with an empty list of calls."""
        self.calls.write_text("")
        self.calls.chmod(0o666)
        return {"NOWAIT": str(self.command), "COPY_CALLS": str(self.calls)}

    def fault(self) -> str | None:
        """Returns why the calls since `env` prove nothing: there was none, one crashed, or lacked an option."""
        calls = self.calls.read_text().splitlines()
        odd = [line for line in calls if not re.match(r"[0123] ", line)]
        if not calls:
            return "it does not call the command"
        return odd[0] if odd else None


def without(script: Path, pattern: str, replacement: str) -> None:
    """Replaces what a regular expression matches in a foreign script."""
    text, count = re.subn(pattern, replacement, script.read_text(), flags=re.MULTILINE)
    if count == 0:
        raise Unavailable(f"{script.name} has changed: it lacks {pattern}")
    script.write_text(text)
