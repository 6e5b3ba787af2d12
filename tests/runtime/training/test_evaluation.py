"""Evaluation with forward-only streams equals plain forwards, under every number of failures."""

import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor

from recycle_compiler.backends.bundle import write_bundle
from recycle_compiler.ir.failure import failure_set
from recycle_compiler.ir.target import Target
from recycle_runtime.execution.evaluation import EvaluationData, forward_only
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.isa import Opcode
from recycle_runtime.worker.fixed_plan import FixedPlanWorker
from tests.runtime.training.threads import train_in_threads
from tests.support.jobs import figure3, quick_plan

LAYERED = str(Path(__file__).resolve().parents[1] / "recovery" / "programs" / "layered.py")
COUNT = 29
"""No multiple of the 18 micro-batches of a step."""


class Items:
    """Micro-batches of two shapes, by number."""

    count = COUNT

    def item(self, index: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(index)
        points = torch.randn(2 + index % 2, 4, dtype=torch.float64, generator=generator)
        return points, points.sin()

    def signature(self, index: int) -> str:
        return f"float64[{2 + index % 2},4]"


def evaluate_in_threads(workers: list[FixedPlanWorker], items: EvaluationData | None = None) -> float:
    data = items or Items()
    shares: list[float | None] = []

    def evaluate(worker: FixedPlanWorker) -> None:
        shares.append(worker.session.evaluate(data))

    threads = [threading.Thread(target=evaluate, args=(each,), daemon=True) for each in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert len(shares) == len(workers), "some workers hang"
    return sum(share for share in shares if share is not None) / data.count


@pytest.fixture(scope="module")
def running_example(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Plans for no failure up to three."""
    path, failed = tmp_path_factory.mktemp("example") / "quick.plan", [(1, 2), (0, 0), (2, 2)]
    job = figure3((4, 3, 2, 1))
    plans = [quick_plan(Target(job, failure_set(failed[:count]))) for count in range(4)]
    write_bundle(path, source="", plans=plans)
    return str(path)


@pytest.mark.parametrize("failures", [0, 3])
def test_equal_to_plain_forwards(running_example: str, failures: int) -> None:
    bundle = Bundle.read(running_example)
    _, workers = train_in_threads(running_example, LAYERED, failures, steps=2)
    modules = [next(each for at, each in workers.items() if at[1] == stage) for stage in range(bundle.stages)]
    found = evaluate_in_threads(list(workers.values()))
    # In the mode that they were in, which was not that of evaluation.
    assert all(
        module.training for each in modules for module in each.modules[each.options.worker[1]].modules()
    )
    losses: list[float] = []
    for index in range(COUNT):
        value, target = Items().item(index)
        with torch.no_grad():
            for each in modules:
                value = each.modules[each.options.worker[1]].eval()(value)
            losses.append(float(torch.nn.functional.mse_loss(value, target)))
    assert found == pytest.approx(sum(losses) / COUNT, rel=1e-12)
    assert evaluate_in_threads(list(workers.values())) == pytest.approx(found, rel=1e-12)


MORE_IN_TRAINING = """
_layers = layers

class Telling(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, value, told=None):
        value = self.inner(value)
        return (value, value.detach()) if self.training else value

def layers():
    made = _layers()
    return [(name, Telling(layer)) for name, layer in made[:-1]] + [("last", Last(made[-1][1]))]

class Last(Telling):
    def forward(self, value, told=None):
        return self.inner(value)
"""


def test_what_crosses_may_be_less_than_in_training(running_example: str, tmp_path: Path) -> None:
    # Threads of one process would share its random numbers.
    plain = Path(LAYERED).read_text().replace("0.1 if number == 3 else 0.0", "0.0")
    found: list[float] = []
    for number, text in enumerate((plain, plain + MORE_IN_TRAINING)):
        path = str(tmp_path / f"program_{number}.py")
        Path(path).write_text(text)
        _, workers = train_in_threads(running_example, path, 0, steps=2)
        found.append(evaluate_in_threads(list(workers.values())))
    assert found[1] == pytest.approx(found[0], rel=1e-12)


def test_what_is_left_of_a_stream(running_example: str) -> None:
    """Every worker keeps what concerns the first micro-batches, and each message keeps both of its ends."""
    bundle = Bundle.read(running_example)
    kinds = {Opcode.LOAD, Opcode.RECV_ACTIVATION, Opcode.FORWARD, Opcode.SEND_ACTIVATION}
    left = {worker: forward_only(bundle.stream(1, worker), 6, 7) for worker in bundle.workers(1)}
    assert {each.opcode for stream in left.values() for each in stream} == kinds
    forwards = [each for stream in left.values() for each in stream if each.opcode is Opcode.FORWARD]
    assert len(forwards) == 7 * bundle.stages
    sent = [each for stream in left.values() for each in stream if each.opcode is Opcode.SEND_ACTIVATION]
    received = [each for stream in left.values() for each in stream if each.opcode is Opcode.RECV_ACTIVATION]
    assert len(sent) == len(received) == 7 * (bundle.stages - 1)
