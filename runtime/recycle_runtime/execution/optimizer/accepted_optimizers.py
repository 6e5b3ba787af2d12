"""Which optimizers a worker can drive."""

import inspect
from collections.abc import Sequence

import torch

from recycle_runtime.execution.optimizer.group_options import groups_of
from recycle_runtime.program.errors import ProgramError


def check(optimizer: torch.optim.Optimizer, trainable: Sequence[torch.Tensor]) -> None:
    """Refuse one that runs the model by itself, or that trains what is not in this stage."""
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ProgramError(
            f"{type(optimizer).__name__} runs the model inside its step, which a pipeline cannot do",
            "use an optimizer whose step() needs no closure, such as AdamW",
        )
    known = set(trainable)
    held = [parameter for group in groups_of(optimizer) for parameter in group["params"]]
    foreign = sum(parameter.requires_grad and parameter not in known for parameter in held)
    if foreign:
        raise ProgramError(
            f"the optimizer holds {foreign} trainable tensors that are not parameters of this stage",
            "optimizer(parameters) must train what it is given",
        )


def idle_optimizer() -> torch.optim.Optimizer:
    """For a stage with nothing to train, which still takes part in every step."""
    return torch.optim.SGD([torch.zeros(0, requires_grad=True)], lr=0.0)
