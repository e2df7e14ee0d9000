"""The examples, and the benchmark's command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import nowait

ROOT = Path(__file__).parents[3]
EXAMPLES = Path(__file__).parents[1] / "examples"
BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def run(*command: str | Path) -> str:
    ended = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.fixture
def distributed() -> None:
    for module in ("distributed", "pandas", "pyarrow"):
        pytest.importorskip(module)


@pytest.mark.usefixtures("distributed")
def test_a_cluster_of_dask(tmp_path: Path) -> None:
    small = ["--dir", tmp_path, "--parts", "2", "--rows", "256", "--count", "50"]
    told = run(EXAMPLES / "dask_cluster.py", *map(str, small))
    assert told.count("nowait:") == 2 and told.count("local:") == 2
    assert not list(tmp_path.iterdir())


def test_ray(tmp_path: Path) -> None:
    for module in ("ray", "pandas", "pyarrow"):
        pytest.importorskip(module)
    small = ["--dir", tmp_path, "--parts", "2", "--rows", "256", "--count", "50"]
    told = run(EXAMPLES / "ray_data.py", *map(str, small))
    assert told.count("nowait:") == 2 and told.count("file:") == 2


def judged(report: dict[str, Any], point: str, way: str, figure: str = "seconds") -> dict[str, Any]:
    """The judgement of a bar, which is that of the rounds."""
    found = [
        bar for bar in report["bars"] if (bar["point"], bar["way"], bar["figure"]) == (point, way, figure)
    ]
    assert found, f"no bar of {point}: {way}"
    assert found[0]["least"] <= found[0]["median"] <= found[0]["most"]
    assert found[0]["verdict"] in ("met", "undecided", "not met")
    return found[0]


def test_the_benchmark_of_reads(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    small = ["--dir", tmp_path, "--size", str(8 << 20), "--cold", "200", "--hot", "500", "--rounds", "2"]
    told = run(BENCHMARKS / "reads.py", *map(str, small), "--json", str(tmp_path / "told.json"))
    report = json.loads((tmp_path / "told.json").read_text())
    for name, row in report["cold"].items():
        assert len(row["seconds"]) == 2 and all(seconds > 0 for seconds in row["seconds"]), name
    for point, way in [
        ("cold", "gather"),
        ("cold", "gather-rows"),
        ("cold", "nowait-fsspec"),
        ("hot", "gather"),
    ]:
        bar = judged(report, point, way)
        ours, theirs = (report[point][bar[name]]["seconds"] for name in ("way", "against"))
        ratios = [their / our for our, their in zip(ours, theirs, strict=True)]
        assert bar["median"] == pytest.approx(sum(ratios) / 2)
    judged(report, "cold", "gather", "processor_s")
    judged(report, "refused", "gather-async-refused")
    judged(report, "heartbeat", "gather", "longest_gap_s")
    assert set(report["heartbeat"]) > {"idle", "gather", "each"} and "heartbeat" in told
    assert not list(tmp_path.glob("*.dat"))


@pytest.mark.usefixtures("distributed")
def test_the_benchmark_of_dask(tmp_path: Path) -> None:
    small = ["--dir", tmp_path, "--parts", "2", "--rows", "256", "--count", "50", "--rounds", "2"]
    run(BENCHMARKS / "dask_job.py", *map(str, small), "--json", str(tmp_path / "told.json"))
    report = json.loads((tmp_path / "told.json").read_text())
    for point in ("sample cold", "sample hot", "scan cold", "scan hot"):
        judged(report, point, "nowait")
        assert {name: len(row["seconds"]) for name, row in report[point].items()} == {
            "nowait": 2,
            "local": 2,
            "file": 2,
        }


def built() -> Path:
    """The command with `nowait bench`, which is a feature of it: `make test` builds it without."""
    for profile in ("release", "debug"):
        command = ROOT / "target" / profile / "nowait"
        asked = [command, "bench", "--help"]
        if command.exists() and subprocess.run(asked, capture_output=True).returncode == 0:
            return command
    pytest.skip("the command nowait with its feature bench is not built: cargo build -p nowait-cli")


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
