"""The precision that a program trains in: PRECISION = "bf16" or "bf16-weights".

bf16            weights stay as they are built; forwards and losses run under torch.autocast
bf16-weights    weights and activations are bf16; the optimizer steps float32 copies of the weights, from
                which these are made after every step
"""

from contextlib import AbstractContextManager, nullcontext
from enum import Enum
from pathlib import Path
from typing import Any

import torch

from recycle_runtime.program.errors import ProgramError


class Precision(Enum):
    """Precision of forwards, and of the weights that the optimizer steps."""

    AS_BUILT = ""
    BF16 = "bf16"
    BF16_WEIGHTS = "bf16-weights"

    @property
    def weights(self) -> torch.dtype | None:
        """Type that weights are converted to; None leaves them as they are built."""
        return torch.bfloat16 if self is Precision.BF16_WEIGHTS else None

    def computing(self, device: torch.device) -> AbstractContextManager[Any]:
        """Around every forward and every loss."""
        if self is Precision.BF16:
            return torch.autocast(device.type, torch.bfloat16)
        return nullcontext()

    def entering(self, value: torch.Tensor) -> torch.Tensor:
        """Input of the first layer: data in the precision of the weights, token ids as they are."""
        dtype = self.weights
        return value if dtype is None or not value.is_floating_point() else value.to(dtype)


def precision_of(path: Path, value: Any) -> Precision:
    """Precision that a program asks for; ProgramError for an unknown one."""
    if value is None:
        return Precision.AS_BUILT
    named = [each for each in Precision if each.value]
    for each in named:
        if value == each.value:
            return each
    known = " or ".join(f'"{each.value}"' for each in named)
    if isinstance(value, str) and value.lower() in ("fp16", "float16", "half", "16", "16-mixed"):
        raise ProgramError(
            f"{path}: PRECISION {value!r}: fp16 needs a loss scaler, which this runtime does not have",
            f"use {known}: bf16 has the range of float32 and needs no scaler",
        )
    raise ProgramError(
        f"{path}: PRECISION must be {known}, got {value!r}",
        "leave it out to train in the precision that the model is built in",
    )
