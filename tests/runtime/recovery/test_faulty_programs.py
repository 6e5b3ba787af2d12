"""Programs with mistakes: what is said about them, and how the run ends."""

import json
import math
import re
from pathlib import Path

import pytest

from recycle_runtime.cli.main import main
from recycle_runtime.coordinator.events import Said
from recycle_runtime.options.run import AdaptationOptions
from recycle_runtime.protocol.messages.members import Member
from recycle_runtime.protocol.messages.steps import Parameters, Settled
from tests.runtime.coordinator.fake_job import FakeJob
from tests.runtime.recovery.watched import TINY
from tests.runtime.training.compare import changed

RAISES = """
class Adds(nn.Module):
    def forward(self, value):
        return value + wrong(value)


def wrong(value):
    return torch.zeros(7, dtype=torch.float64)[:5]  # as long as nothing else


def build_stage(stage, stages):
    return Adds() if stage == 1 else nn.Linear(WIDTH, WIDTH, dtype=torch.float64)
"""
NOT_A_NUMBER = """
_batches, _loss = batches, loss


def batches(seed):
    for number, (points, target) in enumerate(_batches(seed)):
        yield points, (target if number % 4 != {number} or number >= {until} else target * float("nan"))
"""


def trained(program: str, bundle: str, folder: Path, *options: str) -> int:
    metrics = str(folder / "run.jsonl")
    command = ["local", bundle, "--program", program, "--steps", "6", "--plan-ahead", "off"]
    return main([*command, "--metrics", metrics, *options])


def test_an_error_in_forward(tmp_path: Path, square: str, capfd: pytest.CaptureFixture[str]) -> None:
    """The user's own frames, once, with worker, step and micro-batch."""
    program = changed(tmp_path, TINY, RAISES)
    assert trained(program, square, tmp_path) == 1
    said = capfd.readouterr().err
    lines = Path(program).read_text().splitlines()
    inner = lines.index("        return value + wrong(value)") + 1
    assert re.search(
        r"error: worker [01]:1, step 0, forward of micro-batch \d of pipeline [01]: RuntimeError: "
        r"The size of tensor a \(4\) must match the size of tensor b \(5\).*\n"
        rf'  File "{program}", line {inner}, in forward\n'
        r"    return value \+ wrong\(value\)\n",
        said,
    ), said
    assert said.count("in forward") == said.count("RuntimeError") == 1
    assert "recycle_runtime" not in said and "/torch/" not in said


def test_some_steps_are_not_finite(tmp_path: Path, square: str, capfd: pytest.CaptureFixture[str]) -> None:
    program = changed(tmp_path, TINY, NOT_A_NUMBER.format(number=2, until=8))
    assert trained(program, square, tmp_path) == 0
    said = capfd.readouterr().err
    assert said.splitlines()[:3] == [
        "-- 4 workers start: they read the program and build their layers",
        "-- all 4 workers are ready: they meet",
        "-- training begins; the first step may take longer",
    ]
    for step in (0, 1):
        where = r"the loss of micro-batch 2 on stage 1 \(worker [01]:1\)"
        assert re.search(rf"step {step} was skipped: {where} is the first that is not finite", said), said
    rows = [json.loads(line, parse_constant=pytest.fail) for line in (tmp_path / "run.jsonl").open()]
    assert [row["step"] for row in rows] == list(range(6))
    assert [row["skipped"] for row in rows] == [True, True, False, False, False, False]
    assert [row["loss"] is None for row in rows] == [True, True, False, False, False, False]
    assert all(row["learning_rate"] == 3e-3 and row["samples_per_second"] > 0 for row in rows)
    assert all(row["gradient_norm"] > 0 for row in rows[2:])


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["4", "20"])
def test_no_step_is_finite(
    tmp_path: Path, square: str, capfd: pytest.CaptureFixture[str], limit: str
) -> None:
    program = changed(tmp_path, TINY, NOT_A_NUMBER.format(number=1, until=1000))
    assert trained(program, square, tmp_path, "--max-skipped", limit) == 1
    last = capfd.readouterr().err.splitlines()[-1]
    how = (
        "the last 4 steps were skipped" if limit == "4" else "every step was skipped, so nothing was trained"
    )
    assert last.startswith(f"recycle-run: error: {how}; step ")
    assert "the loss of micro-batch 1 on stage 1" in last


def test_what_is_known_to_be_wrong_ends_a_job() -> None:
    """Of a model that nothing would be trained of, and of too many steps that are not finite."""
    job = FakeJob(30, AdaptationOptions(replan=None))
    for stage in range(3):
        job.happen(Said(Member((0, stage), 0), Parameters(0, 1, ("a",), ())))
    assert job.result is not None and str(job.result[0]).startswith("the optimizer has no parameter")
    job = FakeJob(30, AdaptationOptions(replan=None), max_skipped=2)
    for step in range(2):
        assert job.result is None
        job.step()
        for member in list(job.members):
            job.happen(Said(member, Settled(step, math.nan, True)))
    assert job.result is not None and str(job.result[0]).startswith("the last 2 steps were skipped; ")


COPIES = """
class Ends(nn.Module):
    def __init__(self, is_first):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH, dtype=torch.float64)
        table = torch.linspace(0, 1, 9 * WIDTH, dtype=torch.float64).view(9, WIDTH)
        if is_first:
            self.wte = nn.Embedding.from_pretrained(table, freeze=False)
        else:
            self.head = nn.Linear(WIDTH, 9, bias=False, dtype=torch.float64)
            self.head.weight.data.copy_(table)

    def forward(self, value):
        return self.linear(value)


def build_stage(stage, stages):
    return Ends(stage == 0)
"""


@pytest.mark.slow
def test_two_copies_of_one_parameter(tmp_path: Path, square: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert trained(changed(tmp_path, TINY, COPIES), square, tmp_path) == 1
    said = capfd.readouterr().err
    assert "wte.weight and head.weight begin with the same numbers, and would be trained apart" in said


DETACHED = """
_build_stage = build_stage


class Detaches(nn.Module):
    def forward(self, value):
        return value.detach()


def build_stage(stage, stages):
    return nn.Sequential(Detaches(), _build_stage(stage, stages))
"""


@pytest.mark.slow
def test_a_stage_that_gives_no_gradient_back(
    tmp_path: Path, square: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Torch trains what comes after it; that is said once."""
    assert trained(changed(tmp_path, TINY, DETACHED), square, tmp_path) == 0
    said = capfd.readouterr().err
    assert said.count("stage 1 gave no gradient back in step 0, so stage 0 is not trained") == 1
    assert said.count("warning") == 1
