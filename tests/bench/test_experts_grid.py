"""The benchmark of experts on six workers: its plans, and its tables; nothing is timed here."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench import experts_grid
from bench.experts_grid import FAILED, LEFT_OUT, STAGES, WORKERS, compile_plans, report
from recycle_compiler.frontend.profile_file import FORMAT, VERSION
from recycle_runtime.plan.bundle import Bundle


def written(folder: Path, name: str, value: Any) -> None:
    (folder / f"{name}.json").write_text(json.dumps(value))


def test_plans_for_each_placement_and_what_they_predict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experts_grid, "PLACED", {"every 10": 10})
    compile_plans(tmp_path)
    assert json.loads((tmp_path / "predicted.json").read_text()) == []
    times = {"forward": 8, "backward_input": 8, "backward_weight": 4, "exchange": 2, "optimizer": 1}
    stage = {name: milliseconds * 1_000_000 for name, milliseconds in times.items()}
    profile = {"format": FORMAT, "version": VERSION, "stages": [stage | {"activation_bytes": 1000}] * STAGES}
    written(tmp_path, "profile", profile)
    compile_plans(tmp_path)
    bundle = Bundle.read(str(tmp_path / "every-10.plan"))
    assert (bundle.slots, bundle.placed_every, len(bundle.workers(0))) == (experts_grid.SLOTS, 10, WORKERS)
    predicted = json.loads((tmp_path / "predicted.json").read_text())
    assert [len(plan.failed) for plan in bundle.plans] == list(range(1 + len(FAILED)))
    assert predicted == pytest.approx([plan.period / 1e6 for plan in bundle.plans])
    assert predicted == sorted(predicted)


def one_worker(milliseconds: float) -> dict[str, Any]:
    """As a worker reports a run of two steps, and one that was taken apart."""
    return {
        "ms": [milliseconds, milliseconds + 2],
        "taken apart ms": [120.0],
        "popularity ms": [0.5],
        "placing ms": [0.25],
        "losses": [None, None, 2.5],
        "choices": 100,
        "dropped": 10,
        "rows": 1 << 20,
        "weights": 1 << 21,
        "expert bytes": 3 << 20,
        "peak": 1 << 30,
    }


def test_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path, "run", {"static": [one_worker(100.0), one_worker(98.0)]})
    written(tmp_path, "predicted", [100.0, 120.0, 150.0])
    rows: list[tuple[Any, ...]] = []
    end = 0.0
    for failed, seconds in enumerate((0.1, 0.125, 0.15)):
        for _ in range(LEFT_OUT + 4):
            end += seconds
            rows.append((end, WORKERS - failed, 1200, 2.5, 40, 10 * failed))
    written(tmp_path, "kills", {"rows": rows, "pauses": [(20, 0.01, 0.1, 0.2, 0.31, 0.05)]})
    report(tmp_path)
    said = capsys.readouterr().out
    # Of the slowest worker; bytes and drops of both.
    assert "| static | 101.0 | 100.0-102.0 | 0.50 | 0.25 | 0.74 % | 10.0 % | 2.0 | 4.0 | 5.000 |" in said
    assert "| 20 | 0.010 | 0.100 | 0.200 | 0.310 | 0.050 |" in said
    assert "| 0 | 12000 | 1.000 | 1.000 | 100.0 | 100.0 | 1.000 | 0.0 % |" in said
    assert "| 1 | 9600 | 0.800 | 0.833 | 125.0 | 120.0 | 1.042 | 25.0 % |" in said
    assert "| 2 | 8000 | 0.667 | 0.667 | 150.0 | 150.0 | 1.000 | 50.0 % |" in said
    written(tmp_path, "predicted", [])
    report(tmp_path)
    assert "| 1 | 9600 | 0.800 | 0.833 | 125.0 |  |  | 25.0 % |" in capsys.readouterr().out
