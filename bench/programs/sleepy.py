"""The example's MLP, whose ops sleep for a while, so that many workers fit on few cores."""

import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from recycle_runtime.execution.chunk import build_module
from recycle_runtime.program.loading import load_program

_PATH = Path(__file__).resolve().parents[2] / "examples" / "programs" / "mlp.py"
exec(compile(_PATH.read_bytes(), str(_PATH), "exec"))
del globals()["layers"]
_PROGRAM = load_program(_PATH)
SECONDS = 0.02


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        time.sleep(SECONDS)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        time.sleep(SECONDS)
        return gradients[0]


class Sleep(nn.Module):
    """Passes everything on, late."""

    def forward(self, value: torch.Tensor) -> Any:
        sleep: Any = _Sleep
        return sleep.apply(value)


def build_stage(stage: int, stages: int) -> nn.Module:
    """A stage of the MLP that sleeps behind its last layer."""
    module = build_module(_PROGRAM, stage, stages, 0)
    sleep = Sleep()
    module.register_forward_hook(lambda module, given, output: sleep(output))
    return module
