"""Whatever the gradients do, stepping early ends where waiting ends, and where one process ends."""

import gc
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recycle_runtime.execution.optimizer import (
    LayerOptimizer,
    LayerOptimizers,
    LayerUndo,
    Moving,
    Progress,
    StepOptions,
    Stepper,
    StepPhase,
    Verdict,
)
from tests.runtime.execution.optimizer.fakes import alone
from tests.runtime.execution.optimizer.grid import Grid, Sizes, Stage
from tests.runtime.execution.optimizer.optimizers import OPTIMIZERS, plain, values_of

pytestmark = pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler")

CLIP = 20.0
TROUBLE: Sizes = {
    (0, 0): 60.0,
    (2, 1): 50.0,
    (3, 0): math.nan,
    (4, 2): math.inf,
    (6, 2): 30.0,
    (7, 1): math.nan,
}


def halve(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)


def close(one: list[Stage], other: list[Stage]) -> bool:
    pairs = zip(one, other, strict=True)
    return all(
        torch.allclose(mine, theirs, rtol=1e-12, atol=1e-12)
        for a, b in pairs
        for mine, theirs in zip(a.parameters, b.parameters, strict=True)
    )


@pytest.mark.parametrize(
    ("name", "clip_norm", "patience"),
    [(name, CLIP, 1) for name in OPTIMIZERS]
    + [(name, *options) for name in ("adamw", "sgd-momentum", "odd") for options in ((CLIP, 0), (None, 2))],
)
def test_grid(name: str, clip_norm: float | None, patience: int) -> None:
    grid, make = Grid(stages=3, peers=2, microbatches=5, steps=8, sizes=TROUBLE), OPTIMIZERS[name]
    staggered, early = grid.train(make, StepOptions(clip_norm=clip_norm, patience=patience), halve)
    waiting, late = grid.train(make, StepOptions(clip_norm=clip_norm, staggered=False), halve)
    for number in range(grid.stages):
        for peer in range(grid.peers):
            mine, theirs = early[number][peer], late[number][peer]
            assert plain(staggered[number][peer].parameters) == plain(waiting[number][0].parameters)
            assert values_of(mine.optimizer) == values_of(theirs.optimizer)
            assert mine.progress.skipped == theirs.progress.skipped
            assert mine.progress.redone > 0 == theirs.progress.redone
    alone_stages, optimizers, skipped = grid.train_alone(make, clip_norm, halve)
    assert close([peers[0] for peers in staggered], alone_stages)
    assert early[0][0].progress.skipped == skipped
    if clip_norm is None:
        for peers, optimizer in zip(early, optimizers, strict=True):
            assert values_of(peers[0].optimizer) == values_of(optimizer)


sizes = st.dictionaries(
    st.tuples(st.integers(0, 5), st.integers(0, 1)),
    st.sampled_from([0.0, 1e-3, 10.0, 100.0, math.inf, math.nan]),
    max_size=8,
)


@given(
    st.sampled_from(sorted(OPTIMIZERS)),
    st.sampled_from([None, 1e-6, 5.0, CLIP]),
    st.integers(0, 3),
    st.integers(1, 3),
    sizes,
)
@settings(max_examples=25)
def test_any_grid(name: str, clip_norm: float | None, patience: int, peers: int, trouble: Sizes) -> None:
    grid, make = Grid(stages=2, peers=peers, microbatches=3, steps=6, sizes=trouble), OPTIMIZERS[name]
    staggered, early = grid.train(make, StepOptions(clip_norm=clip_norm, patience=patience), halve)
    waiting, late = grid.train(make, StepOptions(clip_norm=clip_norm, staggered=False), halve)
    for peers_early, peers_late in zip(early, late, strict=True):
        for mine, theirs in zip(peers_early, peers_late, strict=True):
            assert values_of(mine.optimizer) == values_of(theirs.optimizer)
    assert close([row[0] for row in staggered], [row[0] for row in waiting])
    assert close([row[0] for row in staggered], grid.train_alone(make, clip_norm, halve)[0])


def broken(_: torch.Tensor) -> None:
    raise ConnectionError


accidents = st.lists(
    st.sampled_from(
        [
            "none",
            "failed-reduce",
            "failed-sum",
            "failed-validate",
            "failed-work",
            "rollback",
            "rollback-late",
            "told",
        ]
    ),
    min_size=8,
    max_size=8,
)


@given(
    st.sampled_from(sorted(OPTIMIZERS)), st.sampled_from([None, CLIP]), st.integers(0, 2), accidents, sizes
)
@settings(max_examples=40)
def test_accidents_leave_no_trace(
    name: str, clip_norm: float | None, patience: int, happened: list[str], trouble: Sizes
) -> None:
    """One worker that loses its groups, its work and whole steps, and runs them again."""
    options = StepOptions(clip_norm=clip_norm, patience=patience)
    runs = [train_with_accidents(name, options, events, trouble) for events in ([], happened)]
    assert values_of(runs[0][0]) == values_of(runs[1][0])
    assert runs[0][1:] == runs[1][1:]


def train_with_accidents(
    name: str, options: StepOptions, happened: list[str], trouble: Sizes
) -> tuple[torch.optim.Optimizer, dict[str, Any], Progress]:
    stage, waiting = Stage(0), list(happened)
    optimizer = OPTIMIZERS[name]([p for p in stage.parameters if p.requires_grad])
    layer = LayerOptimizer(optimizer, Moving(torch.nn.Module(), halve(optimizer)))
    stepper = Stepper(LayerOptimizers([layer]), stage.parameters, options, undo=LayerUndo([layer]))
    while stepper.progress.steps < 6:
        event = waiting.pop(0) if waiting else "none"
        step = stepper.progress.steps
        stage.backward(step, 0, trouble.get((step, 0), 1.0))
        if event == "rollback-late" and stepper.undo.is_possible:
            stepper.rollback()
            continue
        if event == "failed-work":
            stepper.discard()
            continue
        if stepper.settle() is Verdict.REDO:
            continue
        if event == "rollback" and stepper.undo.is_possible:
            stepper.rollback()
            continue
        if event == "failed-reduce":
            with pytest.raises(ConnectionError):
                stepper.reduce(broken)
            stepper.discard()
            continue
        stepper.reduce(alone)
        if event == "failed-sum" and not stepper.is_optimistic:
            with pytest.raises(ConnectionError):
                stepper.step(broken)
        stepper.step(alone)
        if event == "failed-validate" and stepper.phase is StepPhase.STEPPED:
            stepper.validate(lambda _: FailedSum())
            with pytest.raises(ConnectionError):
                stepper.settle()
        stepper.validate(alone)
        if event == "told" and stepper.record is not None:
            known = stepper.norm.wait() if stepper.phase is StepPhase.UNSETTLED else None
            stepper.settle(known)
    stepper.settle()
    return optimizer, layer.moving.state_dict(), stepper.progress


class FailedSum:
    """A sum that never arrives."""

    def wait(self) -> None:
        raise ConnectionError


def test_parameters_are_bitwise_those_of_one_process_when_nothing_is_clipped() -> None:
    grid = Grid(stages=2, peers=3, microbatches=3, steps=4, sizes={(1, 0): math.nan})
    for name, make in OPTIMIZERS.items():
        stages, _ = grid.train(make, StepOptions(clip_norm=1e9))
        reference, _, _ = grid.train_alone(make, 1e9)
        for peers, expected in zip(stages, reference, strict=True):
            assert [plain(peer.parameters) for peer in peers] == [plain(expected.parameters)] * 3, name


@pytest.mark.parametrize("name", ["adamw", "sgd-nesterov", "odd"])
def test_memory_does_not_grow(name: str) -> None:
    stage = Stage(0)
    optimizer = OPTIMIZERS[name]([p for p in stage.parameters if p.requires_grad])
    stepper = Stepper(optimizer, stage.parameters, StepOptions(clip_norm=CLIP, patience=1))
    seen: list[tuple[int, int, int, int]] = []
    for round_ in range(6):
        for size in (1.0, 50.0, math.nan, 1.0, 1.0, 1.0):
            stage.backward(0, 0, size)
            if stepper.settle() is Verdict.REDO:
                stage.backward(0, 0, size)
            stepper.reduce(alone)
            stepper.step(alone)
            stepper.validate(alone)
        stepper.settle()
        if round_ > 1:
            seen.append((stepper.gradients.bytes_held, stepper.undo.bytes_held, *live_tensors()))
    assert len(set(seen)) == 1, seen


def live_tensors() -> tuple[int, int]:
    """Number of live tensors, and the bytes behind them."""
    gc.collect()
    tensors = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor)]
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return len(tensors), sum(storages.values())
