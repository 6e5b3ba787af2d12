"""A worker that comes late ends where its peers are, whatever became of the steps in between."""

import copy
import math
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from recycle_runtime.execution.expert_counts import ExpertCounts
from recycle_runtime.execution.kept_buffers import BufferHistory
from recycle_runtime.execution.optimizer import StepOptions, Stepper, Totals, Verdict
from recycle_runtime.experts.mixture import MixtureOfExperts
from recycle_runtime.worker.joiner import CatchUp, Joiner

SIZES = (3, 5)


class Peer:
    """A stepper with parameters of its own; the norm of its gradients is the norm of the whole model."""

    def __init__(self, options: StepOptions, kind: str) -> None:
        torch.manual_seed(0)
        self.model = nn.ParameterList(nn.Parameter(torch.randn(size, dtype=torch.float64)) for size in SIZES)
        parameters = list(self.model.parameters())
        self.optimizer: torch.optim.Optimizer = (
            torch.optim.AdamW(parameters, lr=0.1)
            if kind == "adamw"
            else torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
        )
        self.stepper = Stepper(self.optimizer, parameters, options)

    def accumulate(self, seed: int, scale: float) -> None:
        generator = torch.Generator().manual_seed(seed)
        for parameter in self.model:
            assert parameter.grad is not None
            parameter.grad += scale * torch.randn(parameter.shape, dtype=torch.float64, generator=generator)

    def load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])

    def state(self) -> dict[str, Any]:
        return copy.deepcopy({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()})


def one_step(peer: Peer, late: Peer | None, seed: int, scale: float) -> None:
    """Both settle, sum and step; a step that could not stand is run again, as workers do."""
    while True:
        verdicts = {each.stepper.settle() for each in (peer, late) if each is not None}
        assert len(verdicts) == 1
        if verdicts == {Verdict.REDO}:
            for each in (peer, late):
                if each is not None:
                    each.stepper.discard()
            continue
        break
    peer.accumulate(seed, scale)
    peer.stepper.reduce(lambda _: None)
    if late is not None:
        sums = iter(peer.stepper.gradients.buffers)

        def from_peer(buffer: torch.Tensor) -> None:
            buffer.copy_(next(sums))

        late.stepper.reduce(from_peer)
    for each in (peer, late):
        if each is not None:
            each.stepper.step(lambda _: None)
            each.stepper.validate(lambda _: None)


@settings(max_examples=150, deadline=None)
@given(
    scales=st.lists(st.sampled_from([0.01, 0.1, 3.0, math.inf]), min_size=4, max_size=14),
    arrives=st.integers(0, 6),
    catches_up=st.integers(1, 6),
    staggered=st.booleans(),
    kind=st.sampled_from(["adamw", "sgd"]),
    clip=st.sampled_from([None, 1.0]),
)
def test_catches_up(
    scales: list[float], arrives: int, catches_up: int, staggered: bool, kind: str, clip: float | None
) -> None:
    options = StepOptions(clip_norm=clip, staggered=staggered, patience=2)
    peer, late = Peer(options, kind), None
    catching_up: CatchUp | None = None
    state: dict[str, Any] = {}
    newcomer = Peer(options, kind)
    for number, scale in enumerate(scales):
        if number == arrives:
            peer.stepper.settle()
            state = peer.state()
            late = newcomer
            with torch.no_grad():
                for parameter in late.model:
                    parameter.fill_(7)
            catching_up = CatchUp(late.stepper, peer.stepper.state_dict())
        if catching_up is not None and late is not None and number == arrives + catches_up:
            catching_up.catch_up(partial(late.load, state))
            catching_up = None
        one_step(peer, late, number, scale)
    if late is None:
        return
    if catching_up is not None:
        catching_up.catch_up(partial(late.load, state))
    for each in (peer, late):
        each.stepper.settle()
    assert late.stepper.progress == peer.stepper.progress
    for one, other in zip(peer.model, late.model, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


def test_the_last_step_can_be_taken_back() -> None:
    options = StepOptions(clip_norm=None, staggered=True, patience=0)
    peer, late = Peer(options, "adamw"), Peer(options, "adamw")
    one_step(peer, None, 0, 0.1)
    peer.stepper.settle()
    catching_up = CatchUp(late.stepper, peer.stepper.state_dict())
    state = peer.state()
    one_step(peer, late, 1, 0.1)
    one_step(peer, late, 2, 0.1)
    assert catching_up.steps == 2
    catching_up.catch_up(partial(late.load, state))
    for each in (peer, late):
        each.stepper.rollback()
    for one, other in zip(peer.model, late.model, strict=True):
        assert torch.equal(one, other)


def test_gives_up() -> None:
    late = Peer(StepOptions(), "sgd")
    before = late.stepper.optimizer
    catching_up = CatchUp(late.stepper, late.stepper.state_dict())
    assert late.stepper.optimizer is not before
    catching_up.give_up()
    assert late.stepper.optimizer is before
    assert late.stepper.settle(Totals(0.0, 0.0)) is Verdict.KEEP


def test_a_step_that_was_written_down_can_be_taken_back() -> None:
    """Peers that have balanced their experts in it go back to where it began, and so does a joiner."""
    module = MixtureOfExperts(2, lambda: nn.Linear(2, 2), experts=2, active=1, balancing_rate=0.1)
    counts = ExpertCounts(module)
    chunk: Any = SimpleNamespace(
        module=module,
        has_shards=True,
        stepper=MagicMock(),
        step_counts=[counts],
        buffers=BufferHistory(module),
        applied=7,
    )
    joiner = Joiner(chunk, {}, torch.device("cpu"))
    for popularity in ([3, 1], [4, 0]):

        def peers(table: torch.Tensor, popularity: list[int] = popularity) -> None:
            table.copy_(torch.tensor([popularity]))

        counts.start(peers)
        counts.finish()
    joiner._catch_up_buffers()  # pyright: ignore[reportPrivateUsage]
    assert module.get_buffer("balance_steps").tolist() == [-2, 2]
    assert chunk.buffers.go_back(6)
    assert module.get_buffer("balance_steps").tolist() == [-1, 1]
    counts.sum.catch_up()
    assert module.get_buffer("balance_steps").tolist() == [-1, 1], "nothing is made up for twice"
