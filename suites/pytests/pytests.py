"""Runs the tests of Python packages with `served.py`, which counts the calls of nowait in each test."""

from __future__ import annotations

import json
import tarfile
import xml.etree.ElementTree
from pathlib import Path

from place import Place, Unavailable

HERE = Path(__file__).resolve().parent


def source(place: Place, python: Path, name: str, version: str) -> Path:
    """Returns a copy of a package's source distribution, in the folder, where it may be changed."""
    kept = place.cache / f"sdist-{name}-{version}"
    with place.fetching(kept) as part:
        if not kept.exists():
            place.pip(python, "download", "--no-deps", f"--no-binary={name}", f"--dest={part}", f"{name}=={version}")
            part.rename(kept)
    with tarfile.open(next(kept.glob("*.tar.gz"))) as files:
        files.extractall(place.folder, filter="data")
    return place.folder / f"{name}-{version}"


def environment(adapter: Path | None) -> dict[str, str]:
    """Returns variables with which Python finds `served` and a suite's adapter, and writes nothing beside them."""
    folders = [HERE] if adapter is None else [HERE, adapter.parent]
    return {"PYTHONPATH": ":".join(map(str, folders)), "PYTHONDONTWRITEBYTECODE": "1"}


def pytest(place: Place, python: Path, adapter: Path | None, *arguments: str | Path, cwd: Path,
           timeout: float = 600) -> dict[str, bool]:
    """Runs pytest, with the adapter, if any, as its plugin. Returns the tests: name, and whether it passed.

    Leaves out tests that were skipped, and those that passed without a call of nowait."""
    report = place.folder / "report.xml"
    report.unlink(missing_ok=True)
    plugins = ["served", "no:cacheprovider"] + ([] if adapter is None else [adapter.stem])
    place.run(python, "-m", "pytest", "-q", *(f"-p{plugin}" for plugin in plugins),
              f"--basetemp={place.folder / 'tests'}", f"--junitxml={report}", "-ojunit_family=xunit1", *arguments,
              cwd=cwd, env=environment(adapter), check=False, timeout=timeout)
    if not report.exists():
        raise Unavailable(f"pytest wrote no report; see {place.log_path}")
    found: dict[str, bool] = {}
    for case in xml.etree.ElementTree.parse(report).iter("testcase"):
        results = {child.tag for child in case}
        calls = sum(int(each.get("value", 0)) for each in case.iter("property") if each.get("name") == "calls")
        failed = bool(results & {"failure", "error"})
        if failed or (calls > 0 and "skipped" not in results):
            name = "::".join(filter(None, [case.get("classname"), case.get("name")]))
            # A test may fail, and its fixtures, too.
            found[name] = not failed and found.get(name, True)
    return found


def unittests(place: Place, python: Path, script: Path, *, timeout: float = 600) -> dict[str, bool]:
    """Runs a script that writes the tests into the file that is its argument. Returns them like `pytest`."""
    report = place.folder / "report.json"
    place.run(python, script, report, env=environment(script), check=False, timeout=timeout)
    if not report.exists():
        raise Unavailable(f"{script.name} wrote no report; see {place.log_path}")
    found: dict[str, bool] = json.loads(report.read_text())
    return found
