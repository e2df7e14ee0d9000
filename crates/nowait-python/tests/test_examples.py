"""The examples, and the benchmark's command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import nowait

ROOT = Path(__file__).parents[3]
EXAMPLES = Path(__file__).parents[1] / "examples"


def run(*command: str | Path) -> str:
    ended = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_a_cluster_of_dask(tmp_path: Path) -> None:
    for module in ("distributed", "pandas", "pyarrow"):
        pytest.importorskip(module)
    small = ["--dir", tmp_path, "--files", "2", "--rows", "256", "--count", "50", "--rounds", "1"]
    told = run(EXAMPLES / "dask_cluster.py", *map(str, small), "--json", str(tmp_path / "told.json"))
    assert told.count("times") == 4
    results = json.loads((tmp_path / "told.json").read_text())
    assert {(result["protocol"], result["cold"]) for result in results} == {
        (protocol, cold) for protocol in ("nowait", "file") for cold in (True, False)
    }


def test_the_benchmark(tmp_path: Path) -> None:
    command = ["--dir", tmp_path, "--size", str(8 << 20), "--cold", "200", "--hot", "500", "--rounds", "2"]
    told = run(
        EXAMPLES.parent / "benchmarks" / "reads.py", *map(str, command), "--json", str(tmp_path / "told.json")
    )
    assert "heartbeat" in told
    report = json.loads((tmp_path / "told.json").read_text())
    assert {"gather", "pread"} <= set(report["cold"]) and len(report["cold"]["gather"]["seconds"]) == 2
    assert not list(tmp_path.glob("*.dat"))


def built() -> Path:
    for profile in ("release", "debug"):
        command = ROOT / "target" / profile / "nowait"
        if command.exists():
            return command
    pytest.skip("the command nowait is not built: cargo build -p nowait-cli")


def test_rows_of_the_command(tmp_path: Path) -> None:
    command = str(built())
    options = ["--ways", "pread,nowait", "--seed", "1"]
    rows = nowait.bench(
        "cached", directory=tmp_path, quick=True, size=1 << 20, rounds=2, arguments=options, command=command
    )
    assert {row["way"] for row in rows} == {"pread", "nowait"} and all(row["ops_per_s"] > 0 for row in rows)
    with pytest.raises(nowait.Error, match="bench ended"):
        nowait.bench("no such table", command=command)


def test_without_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(FileNotFoundError, match="cargo install"):
        nowait.bench()


def test_the_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its plot, of rows that a run of the command has written."""
    pytest.importorskip("matplotlib").use("Agg")
    recorded = sorted((ROOT / "docs" / "measurements").glob("*-reads/reads.json"))[-1]
    monkeypatch.setattr(nowait, "bench", lambda *_, **__: json.loads(recorded.read_text())["rows"])
    cells = json.loads((EXAMPLES / "bench.ipynb").read_text())["cells"]
    names: dict[str, object] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    assert len(names["axes"].lines) >= 3  # type: ignore[attr-defined]


def test_rows() -> None:
    assert run(EXAMPLES / "rows.py").count("2000 rows") == 2
