"""Optimizers whose work is not what it looks like on small numbers: shards change no parameter."""

from pathlib import Path

import pytest

from recycle_compiler.ir.layout import shared_out
from recycle_runtime.program.errors import ProgramError
from tests.runtime.training.compare import MLP, changed, check_in_threads, plan_file
from tests.runtime.training.threads import train_in_threads
from tests.support.jobs import unit_job

_OWN = """
class Own(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {})
        self.generator = torch.Generator().manual_seed(0)

    @torch.no_grad()
    def step(self, closure=None):
        there = [each for group in self.param_groups for each in group["params"] if each.grad is not None]
        self.norm = sum(float(each.grad.square().sum()) for each in there) ** 0.5
        for each in there:
            each.sub_(0.01 * self.direction(each.grad, self.state[each]))


def optimizer(parameters):
    return Mine(parameters)
"""

_BY_SIZE = """
def optimizer(parameters):
    large = [each for each in parameters if each.numel() > 60]
    small = [each for each in parameters if each.numel() <= 60]
    return torch.optim.AdamW([{"params": large}, {"params": small, "lr": 0.1}], lr=0.01)
"""

_LATE = """
class Mine(Own):
    def direction(self, gradient, state):
        state["steps"] = state.get("steps", 0) + 1
        if gradient.dim() < 2:
            return gradient
        seen = state.setdefault("seen", torch.eye(len(gradient), dtype=gradient.dtype))
        seen += gradient @ gradient.T
        return torch.linalg.solve(seen, gradient) if state["steps"] > 4 else gradient
"""

_FACTORED_IF_LARGE = """
class Mine(Own):
    def direction(self, gradient, state):
        if gradient.dim() < 2 or min(gradient.shape) < 8:
            return gradient.sign()
        rows = state.setdefault("rows", torch.zeros_like(gradient[:, :1]))
        columns = state.setdefault("columns", torch.zeros_like(gradient[:1]))
        rows += gradient.square().mean(1, keepdim=True)
        columns += gradient.square().mean(0, keepdim=True)
        return gradient / ((rows * columns / rows.mean()).sqrt() + 1e-8)
"""

_HISTORY = """
class Mine(Own):
    def direction(self, gradient, state):
        before = state.get("before", gradient[:0].new_zeros(0, *gradient.shape))
        state["before"] = torch.cat([before, gradient[None]])
        return state["before"].mean(0)
"""

_BY_NORM = """
class Mine(Own):
    def direction(self, gradient, state):
        return gradient / self.norm


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.float64)

    def forward(self, value):
        return value + torch.tanh(self.linear(value))


def layers():
    first = nn.Linear(FEATURES, WIDTH, bias=False, dtype=torch.float64)
    last = nn.Linear(WIDTH, 1, bias=False, dtype=torch.float64)
    return [("first", first), *((f"layer{index}", Layer()) for index in range(LAYERS)), ("last", last)]
"""

_OWN_NOISE = """
class Mine(Own):
    def direction(self, gradient, state):
        noise = torch.randn(gradient.shape, generator=self.generator, dtype=gradient.dtype)
        return gradient + 0.001 * noise
"""


def _check(folder: Path, change: str, owners: int = 2) -> None:
    job, nothing = unit_job(2, 3, 2), (0, 0)
    if owners:
        job = shared_out(job, owners, (3, 3), nothing, nothing, nothing)
    check_in_threads(folder, job, [], changed(folder, MLP, change))


@pytest.mark.parametrize(
    "change",
    [_BY_SIZE, _OWN + _LATE, _OWN + _FACTORED_IF_LARGE, _OWN + _HISTORY],
    ids=["groups by size", "preconditions late", "factored if large", "shapes change"],
)
def test_parameters_are_those_of_a_plain_loop(tmp_path: Path, change: str) -> None:
    _check(tmp_path, change)


def test_a_norm_over_layers_of_one_parameter_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match="all its parameters together"):
        _check(tmp_path, _OWN + _BY_NORM)


def test_noise_of_its_own_is_not_refused(tmp_path: Path) -> None:
    program = changed(tmp_path, MLP, _OWN + _OWN_NOISE)
    losses, _ = train_in_threads(plan_file(tmp_path, unit_job(2, 2, 2), []), program, 0, 2)
    assert len(losses) == 2


_LEAVES_OUT = """
def optimizer(named_parameters):
    return torch.optim.Adam([each for name, each in named_parameters if "layer1" not in name])
"""


def test_whole_state_in_a_job_with_shards_is_written_by_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = shared_out(unit_job(2, 3, 2), 2, (3, 3), (0, 0), (0, 0), (0, 0))
    program = changed(tmp_path, MLP, _LEAVES_OUT)
    _, workers = train_in_threads(plan_file(tmp_path, job, []), program, 0, 1)
    chunks = [chunk for worker in workers.values() for chunk in worker.chunks.values()]
    writers = [chunk.number for chunk in chunks if chunk.answers.for_layers]
    assert sorted(writers) == [0, 1]
    assert "every worker of chunk 0 has its whole optimizer state" in caplog.text
