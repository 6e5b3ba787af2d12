"""The tensors that undo a step may be in another memory, copied ahead of the step: nothing else changes."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recycle_runtime.execution.optimizer import (
    LayerOptimizer,
    LayerOptimizers,
    LayerUndo,
    Moving,
    StepOptions,
    Stepper,
    Verdict,
)
from tests.runtime.execution.optimizer.fakes import alone
from tests.runtime.execution.optimizer.grid import Stage
from tests.runtime.execution.optimizer.optimizers import OPTIMIZERS, plain, values_of

Event = tuple[str, float]
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("step"), st.sampled_from([1.0, 0.5, 60.0, math.nan])),
        st.tuples(st.just("rollback"), st.just(0.0)),
        st.tuples(st.just("change"), st.just(0.0)),
    ),
    max_size=10,
)


def trained(name: str, events: list[Event], *, on_host: bool) -> object:
    """The parameters after some steps, of which some are undone, and what the optimizers keep."""
    stages = [Stage(0), Stage(1)]
    layers: list[LayerOptimizer] = []
    for stage in stages:
        optimizer = OPTIMIZERS[name]([each for each in stage.parameters if each.requires_grad])
        moving = Moving(torch.nn.Module(), torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9))
        layers.append(LayerOptimizer(optimizer, moving, undo_on_host=on_host))
    parameters = [parameter for stage in stages for parameter in stage.parameters]
    options = StepOptions(clip_norm=20.0, patience=1)
    stepper = Stepper(LayerOptimizers(layers), parameters, options, undo=LayerUndo(layers))
    for number, (kind, size) in enumerate(events, 1):
        if kind == "rollback" and stepper.undo.is_possible and stepper.progress.steps:
            stepper.rollback()
        elif kind == "change":
            # Somebody writes to the weights after they were copied ahead.
            with torch.no_grad():
                parameters[0].mul_(0.5)
        elif kind == "step":
            for stage in stages:
                stage.backward(number, 0, size)
            if stepper.settle() is Verdict.REDO:
                for stage in stages:
                    stage.backward(number, 0, size)
            stepper.reduce(alone)
            stepper.step(alone)
            stepper.validate(alone)
    stepper.settle()
    return plain(parameters), [values_of(layer.optimizer) for layer in layers]


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler")
@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["adamw", "sgd-momentum", "odd"]), EVENTS)
def test_steps_and_undone_steps_are_the_same(name: str, events: list[Event]) -> None:
    assert trained(name, events, on_host=True) == trained(name, events, on_host=False)


def test_it_takes_twice_the_memory() -> None:
    bytes_held: list[int] = []
    for on_host in (False, True):
        parameter = torch.nn.Parameter(torch.ones(8))
        optimizer = torch.optim.AdamW([parameter], lr=0.1)
        layer = LayerOptimizer(optimizer, Moving(torch.nn.Module()), undo_on_host=on_host)
        undo = LayerUndo([layer])
        for _ in range(3):
            parameter.grad = torch.ones(8)
            undo.save()
            layer.step()
            undo.save_ahead()
        bytes_held.append(undo.bytes_held)
    # Weight and two averages, and the count of steps.
    assert bytes_held == [3 * 8 * 4 + 4, 2 * (3 * 8 * 4 + 4)]
