"""Running statistics are those of one process; a step that is run again starts from what they were."""

from pathlib import Path

import pytest
import torch

from recycle_compiler.planner.compile import plan_slow
from recycle_compiler.scheduling.slow_workers import slow_workers
from recycle_runtime.data.microbatches import MicroBatches
from recycle_runtime.execution.chunk import build_module
from recycle_runtime.execution.interpreter import StreamError
from recycle_runtime.execution.optimizer import gradient_part
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.isa import Opcode
from recycle_runtime.program.loading import load_program
from tests.runtime.training.compare import STEPS, Failed, changed, file_of, plan_file
from tests.runtime.training.threads import train_in_threads
from tests.support.jobs import unit_job

BATCH_NORM = str(Path(__file__).resolve().parent / "programs" / "batch_norm.py")
STAGES, PIPELINES, MICROBATCHES = 2, 2, 3
State = dict[str, torch.Tensor]
NORM = "nn.BatchNorm1d(WIDTH, {}dtype=torch.float64)"
SHARED = "(lambda shared: nn.Sequential(shared, nn.Tanh(), shared))({})"


@pytest.mark.parametrize(
    ("failed", "clip", "norm"),
    [
        ([], 1.2, NORM.format("")),
        ([(0, 1)], 0.05, NORM.format("")),
        ([(0, 1)], 1.2, NORM.format("momentum=0.3, ")),
        ([(0, 1)], 1.2, NORM.format("momentum=None, ")),
        ([(1, 0)], 1.2, SHARED.format(NORM.format(""))),
        ([], 1.2, NORM.format("track_running_stats=False, ")),
    ],
    ids=["fault-free", "failed, clipped", "momentum", "cumulative", "called twice", "untracked"],
)
def test_statistics_are_those_of_one_process(tmp_path: Path, failed: Failed, clip: float, norm: str) -> None:
    """On every worker, whatever was undone and run again on the way."""
    program = changed(tmp_path, BATCH_NORM, f"CLIP_NORM = {clip}\nnorm = lambda: {norm}")
    plan = plan_file(tmp_path, unit_job(STAGES, PIPELINES, MICROBATCHES, (3, 2)), failed)
    _check(plan, program)


def _check(plan: str, program: str) -> None:
    _, workers = train_in_threads(plan, program, 0, STEPS)
    expected = plain(program)
    for place, worker in workers.items():
        state = worker.modules[place[1]].state_dict()
        assert state.keys() == expected[place[1]].keys()
        for name, tensor in expected[place[1]].items():
            torch.testing.assert_close(state[name], tensor, rtol=1e-10, atol=1e-10)


def test_a_peer_without_micro_batches_sums_in_the_same_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins no sum of gradients before REDUCE, where others begin most of theirs."""
    monkeypatch.setattr(gradient_part, "BUCKET_BYTES", 1)
    program = changed(tmp_path, BATCH_NORM, "CLIP_NORM = 1.2")
    slow = slow_workers([((1, 1), 20.0)])
    plan = plan_slow(unit_job(STAGES, 3, PIPELINES * MICROBATCHES // 3), (), slow).streams
    path = file_of(tmp_path, plan)
    assert all(each.opcode is not Opcode.FORWARD for each in Bundle.read(path).stream(0, (1, 1)))
    _check(path, program)


SOMETIMES = """
class Sometimes(nn.BatchNorm1d):
    turn = 0
    def forward(self, x):
        self.turn = 1 - self.turn
        return super().forward(x) if self.turn else x

def norm():
    return Sometimes(WIDTH, dtype=torch.float64)
"""


@pytest.mark.parametrize(
    ("norm", "words"),
    [
        (f"norm = lambda: {SHARED.format(NORM.format('momentum=None, '))}", "momentum=None"),
        (SOMETIMES, "called 1 times for one micro-batch and 0 times for another"),
    ],
    ids=["cumulative, called twice", "not always called"],
)
def test_norms_that_one_process_alone_could_follow_are_refused(tmp_path: Path, norm: str, words: str) -> None:
    program = changed(tmp_path, BATCH_NORM, f"CLIP_NORM = 1.0\n{norm}")
    plan = plan_file(tmp_path, unit_job(1, 1, MICROBATCHES, (3,)), [])
    with pytest.raises(StreamError, match=words):
        train_in_threads(plan, program, 0, 1)


def plain(program_file: str) -> list[State]:
    """Each stage as a loop over all micro-batches trains it in one process."""
    program = load_program(program_file)
    modules = [build_module(program, stage, STAGES, 0) for stage in range(STAGES)]
    everything = [parameter for module in modules for parameter in module.parameters()]
    optimizer = program.optimizer(everything)
    data = MicroBatches(program, 0, PIPELINES * MICROBATCHES)
    for step in range(STEPS):
        for index in range(PIPELINES * MICROBATCHES):
            value, target = data.item(step, index)
            for module in modules:
                value = module(value)
            (program.loss(value, target) / (PIPELINES * MICROBATCHES)).backward()
        assert program.clip_norm is not None
        torch.nn.utils.clip_grad_norm_(everything, program.clip_norm)
        optimizer.step()
        optimizer.zero_grad()
    return [module.state_dict() for module in modules]
