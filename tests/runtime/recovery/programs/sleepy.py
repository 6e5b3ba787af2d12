"""A program whose ops take as long as its job says: it sleeps, so that many workers fit on few cores."""

from pathlib import Path

from tests.runtime.training.compare import MLP

_SLEEPY = """
import time
from pathlib import Path

from recycle_runtime.execution.chunk import build_module
from recycle_runtime.program.loading import load_program

exec(compile(Path({path!r}).read_text(), {path!r}, "exec"))
del layers
_PROGRAM = load_program({path!r})


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value, seconds):
        ctx.seconds = seconds
        time.sleep(seconds)
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.seconds)
        return gradient, None


class Sleep(nn.Module):
    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds

    def forward(self, value):
        return _Sleep.apply(value, self.seconds)


def build_stage(stage, stages):
    module = build_module(_PROGRAM, stage, stages, 0)
    sleep = Sleep({slot!r} * {slots!r}[stage])
    module.register_forward_hook(lambda module, given, output: sleep(output))
    return module
"""


def sleepy_program(folder: Path, slots: list[int], slot: float = 0.01) -> str:
    """The program trains what `mlp.py` trains, parameter by parameter."""
    path = folder / "sleepy.py"
    path.write_text(_SLEEPY.format(path=MLP, slots=slots, slot=slot))
    return str(path)
