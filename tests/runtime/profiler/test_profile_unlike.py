"""Measuring micro-batches of unlike shapes: how much their times differ, and that plans count with it."""

import json
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from recycle_compiler.frontend import load_job
from recycle_runtime.cli.main import main
from recycle_runtime.profiler import Options, meters, profile
from recycle_runtime.program.errors import ProgramError
from recycle_runtime.program.loading import load_program
from tests.runtime.profiler.test_profiler import JOB

LENGTHS = (8, 24, 8, 40)
WIDTH = 16
PROGRAM = f"""
import torch
from torch import nn

LENGTHS = {LENGTHS}
WIDTH = {WIDTH}


def layers():
    return [(f"layer{{number}}", nn.Linear(WIDTH, WIDTH)) for number in range(6)]


def loss(output, target):
    return nn.functional.mse_loss(output, target)


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=1e-3)


def batches(seed):
    for number in range(1000):
        if number == ENDS:
            raise ValueError("no more")
        length = LENGTHS[number % len(LENGTHS)]
        yield torch.randn(2, length, WIDTH), torch.zeros(2, length, WIDTH)
"""


def _added_product(_: Any, rows: Any, columns: Any, **others: Any) -> int:
    return 2 * rows[0] * rows[1] * columns[1]


IN_PLACE = {torch.ops.aten.addmm_: _added_product}
"""Of sums of gradients, which the counter does not know; it calls this with shapes."""


@pytest.fixture
def by_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """A nanosecond for every multiplication and addition of matrices, whatever the machine takes."""

    def time(self: meters.Stopwatch, work: Callable[[], Any]) -> tuple[Any, int]:
        with FlopCounterMode(display=False, custom_mapping=IN_PLACE) as counter:
            result = work()
        return result, counter.get_total_flops()

    monkeypatch.setattr(meters.Stopwatch, "time", time)


def written(folder: Path, ends: int = -1, lengths: tuple[int, ...] = LENGTHS) -> Path:
    path = folder / "unlike.py"
    path.write_text(
        PROGRAM.replace("ENDS", str(ends)).replace(f"LENGTHS = {LENGTHS}", f"LENGTHS = {lengths}")
    )
    return path


def work(tokens: float) -> float:
    """Of a matrix product of one layer."""
    return 2 * 2 * tokens * WIDTH * WIDTH


@pytest.mark.usefixtures("by_work")
def test_unlike_micro_batches_give_a_spread_that_plans_count_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "measured.json"
    words = ["profile", "--program", str(written(tmp_path)), "--repeat", "2", "-o", str(output)]
    assert main(words) == 0
    profiled = json.loads(output.read_text())
    spread = pstdev(LENGTHS) / fmean(LENGTHS)
    assert profiled["spread_ppm"] == pytest.approx(1e6 * spread, rel=1e-3)
    assert f"16 micro-batches have 3 shapes: their times differ by {spread:.1%}".replace("%", " %") in (
        capsys.readouterr().err
    )
    for row in profiled["layers"][1:]:
        for op in ("forward", "backward_input", "backward_weight"):
            assert row[op] == pytest.approx(work(fmean(LENGTHS)), rel=1e-3)
    # Halves of the largest cost as much as the whole here, whatever the others take.
    assert profiled["split_ppm"] <= 1
    (tmp_path / "x.job").write_text(JOB)
    assert load_job(tmp_path / "x.job").spec.spread_ppm == profiled["spread_ppm"]


@pytest.mark.usefixtures("by_work")
@pytest.mark.parametrize("stages", [None, 2])
def test_memory_and_messages_are_those_of_the_largest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stages: int | None
) -> None:
    unlike = profile(load_program(written(tmp_path)), Options(stages, repeat=1))
    largest = profile(load_program(written(tmp_path, lengths=(40,))), Options(stages, repeat=1))
    assert (largest.spread_ppm, largest.details["shapes"], unlike.details["shapes"]) == (None, 1, 3)
    for mixed, alone in zip(unlike.stages, largest.stages, strict=True):
        for name in ("saved_bytes", "kept_bytes", "boundary_bytes", "parameter_bytes", "resident_bytes"):
            assert getattr(mixed, name) == getattr(alone, name), name
        ratio = fmean(LENGTHS) / 40
        for name in ("forward", "backward_weight", "backward"):
            assert getattr(mixed, name).median == pytest.approx(getattr(alone, name).median * ratio, rel=1e-3)


@pytest.mark.usefixtures("by_work")
def test_as_many_as_are_asked_for_or_as_there_are(tmp_path: Path) -> None:
    program = load_program(written(tmp_path))
    assert profile(program, Options(1, repeat=1, microbatches=1)).spread_ppm is None
    few = profile(program, Options(1, repeat=1, microbatches=2))
    assert few.spread_ppm == pytest.approx(1e6 * pstdev((8, 24)) / 16, rel=1e-3)
    once = written(tmp_path)
    source = once.read_text().replace("def batches(", "def all_of(").replace("range(1000)", "range(4)")
    once.write_text(f"{source}\n\nONCE = all_of(0)\n\n\ndef batches(seed):\n    return ONCE\n")
    ended = profile(load_program(once), Options(1, repeat=1))
    assert (ended.details["microbatches"], ended.details["shapes"]) == (4, 3)
    assert ended.spread_ppm == profile(program, Options(1, repeat=1)).spread_ppm
    # An error of the program is no end of its data.
    for number in (0, 4):
        with pytest.raises(ProgramError, match="no more"):
            profile(load_program(written(tmp_path, ends=number)), Options(1, repeat=1))
