"""Numbers of a step that were not finite, found when somebody asks."""

import math

import torch

from recycle_runtime.execution.finiteness import Finiteness
from recycle_runtime.protocol.messages.steps import NotFinite


def test_what_is_not_finite_is_found_in_its_order_and_for_two_steps() -> None:
    finiteness = Finiteness()
    for step in range(3):
        finiteness.begin(step)
        bad = torch.tensor([1.0, math.inf if step else 0.0])
        finiteness.note("data", 0, [bad, torch.tensor([1])], stays=True)
        finiteness.note("forward", 0, [torch.full((2,), math.nan)])
        finiteness.note("forward", 1, [torch.ones(2, requires_grad=True)])
    assert finiteness.found(0) == ()
    assert finiteness.found(1) == finiteness.found(2) == (NotFinite("data", 0), NotFinite("forward", 0))
    finiteness.begin(2)
    assert finiteness.found(2) == ()
