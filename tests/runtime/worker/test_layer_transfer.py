"""Layers that travel end where those of the donor are, whatever became of the steps in between."""

import math
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist

from recycle_runtime.execution.chunk import Chunk, build_chunks
from recycle_runtime.execution.layer import Layer
from recycle_runtime.execution.optimizer import Verdict
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.program.loading import load_program
from recycle_runtime.protocol.messages.generations import LayerShards
from recycle_runtime.protocol.messages.layer_moves import LayersToMove
from recycle_runtime.protocol.surroundings import Machine, completed
from recycle_runtime.state.ownership import Ownership
from recycle_runtime.transport.interface import PeerSum
from recycle_runtime.worker.held_chunks import HeldChunks
from recycle_runtime.worker.layer_transfer import LayerDonor, LayerJoiner
from recycle_runtime.worker.state_transfer import Pair, StatePair
from tests.runtime.recovery.recut_plans import LAYERED, three_by_two, write_bundle

CPU = torch.device("cpu")
TIMEOUT = timedelta(seconds=60)
TAKEN = LayersToMove((0, 0), 1, 3)
WITH_SHARDS = TAKEN._replace(
    shards=(LayerShards(0, 3, (1,)), LayerShards(1, 3, (0, 2)), LayerShards(2, 3, (0, 1, 2)))
)
"""Layer 0 is with the joiner already."""


class Ends(NamedTuple):
    """Both ends of a transfer, in one process."""

    chunk: Chunk
    donor: LayerDonor
    joiner: LayerJoiner
    told: list[int | None]


@pytest.fixture(scope="module", params=[False, True], ids=["staggered", "barrier"])
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    path = tmp_path_factory.mktemp("layers") / "own.plan"
    return Bundle.read(write_bundle(path, three_by_two(barrier=request.param), {}, [(0, 0)]))


@pytest.fixture
def connect(tmp_path: Path, bundle: Bundle) -> Callable[[float | None], Ends]:
    def connected(clip: float | None) -> Ends:
        program = tmp_path / "program.py"
        program.write_text(Path(LAYERED).read_text() + f"\n\nCLIP_NORM = {clip}\n")
        chunk = build_chunks(load_program(str(program)), bundle, 0, 0, CPU)[0]
        store = dist.HashStore()
        told: list[int | None] = []

        async def meet(name: str, rank: int) -> StatePair:
            return Pair(store, name, rank, TIMEOUT, "token")

        joiner = LayerJoiner(chunk.setting, [TAKEN], Machine())
        joiner.begin(meet, lambda _: "here", lambda: None, lambda: told.append(joiner.applied))
        donor = LayerDonor(HeldChunks({0: chunk}), TAKEN, Machine(), meet, "here", lambda: None)
        chunk.on_settled = donor.settled
        return Ends(chunk, donor, joiner, told)

    return connected


def one_step(chunk: Chunk, seed: int, scale: float) -> None:
    """As workers do: settle the last one, sum, step; a step that could not stand is made again."""
    settle(chunk)
    _put_gradients(chunk, seed, scale)
    chunk.stepper.reduce(lambda _: None, start_sums=_alone if chunk.has_shards else None)
    chunk.stepper.step(lambda _: None)
    chunk.stepper.validate(lambda _: None)


def _alone(sums: Sequence[PeerSum], *, goes_on: bool = False, after: Any = None) -> None:
    """Nobody else holds the chunk."""


def _put_gradients(chunk: Chunk, seed: int, scale: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in chunk.stepper.gradients.parameters:
        assert parameter.grad is not None
        parameter.grad += scale * torch.randn(parameter.shape, dtype=parameter.dtype, generator=generator)


def settle(chunk: Chunk) -> None:
    if chunk.stepper.settle() is Verdict.REDO:
        chunk.stepper.discard()
    chunk.settled()


def assert_equal(chunk: Chunk, joiner: LayerJoiner) -> None:
    given = {layer.number: layer for layer in chunk.layers}
    assert [layer.number for layer in joiner.layers] == [1, 2]
    for layer in joiner.layers:
        _assert_layers_equal(layer, given[layer.number])
    assert joiner.stepper_state == chunk.stepper.state_dict()


def _assert_layers_equal(one: Layer, other: Layer) -> None:
    for mine, theirs in zip(one.parameters, other.parameters, strict=True):
        assert torch.equal(mine, theirs)
    assert one.optimizer is not None and other.optimizer is not None
    for mine, theirs in zip(one.parameters, other.parameters, strict=True):
        kept = one.optimizer.state.get(mine, {}), other.optimizer.state.get(theirs, {})
        assert kept[0].keys() == kept[1].keys()
        assert all(torch.equal(kept[0][key], kept[1][key]) for key in kept[0])


@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.parametrize(
    "scales",
    [
        pytest.param([0.1] * 6, id="calm"),
        pytest.param([0.1, 3.0, 0.1, 3.0, 3.0, 0.01], id="clipped"),
        pytest.param([0.1, math.inf, 0.1, math.inf, 0.1], id="left-out"),
        pytest.param([0.1, math.inf, 3.0, 0.1], id="both"),
    ],
)
def test_the_same_numbers(
    connect: Callable[[float | None], Ends], scales: list[float], clip: float | None
) -> None:
    ends = connect(clip)
    for number, scale in enumerate(scales):
        one_step(ends.chunk, number, scale)
    settle(ends.chunk)
    assert completed(ends.joiner.wait(len(scales), lambda: True)), ends.joiner.error
    assert_equal(ends.chunk, ends.joiner)
    assert ends.joiner.copied().size > 0
    ends.donor.stop()


def test_a_state_after_some_steps(connect: Callable[[float | None], Ends]) -> None:
    """The optimizer's entries travel too; what settles twice is sent once."""
    ends = connect(None)
    ends.chunk.on_settled = None
    for number in range(3):
        one_step(ends.chunk, number, 0.1)
    ends.chunk.on_settled = ends.donor.settled
    for number in range(3, 6):
        one_step(ends.chunk, number, 0.1)
        settle(ends.chunk)
    assert completed(ends.joiner.wait(6, lambda: True)), ends.joiner.error
    assert_equal(ends.chunk, ends.joiner)
    assert ends.told == sorted(set(ends.told), key=lambda applied: applied or 0)
    ends.donor.stop()


def test_a_donor_that_stops(connect: Callable[[float | None], Ends]) -> None:
    ends = connect(None)
    one_step(ends.chunk, 0, 0.1)
    ends.donor.stop()
    one_step(ends.chunk, 1, 0.1)
    settle(ends.chunk)
    assert not completed(ends.joiner.wait(2, lambda: True))
    assert ends.joiner.error == "the donor sends no more"


def test_one_who_does_not_wait_any_more(connect: Callable[[float | None], Ends]) -> None:
    ends = connect(None)
    assert not completed(ends.joiner.wait(1, lambda: False))
    ends.donor.stop()


def test_a_step_that_is_taken_back_ends_it(connect: Callable[[float | None], Ends]) -> None:
    """A layer that was sent cannot be taken back."""
    ends = connect(None)
    if not ends.chunk.stepper.options.staggered:
        pytest.skip("steps that wait for the norm are not taken back")
    one_step(ends.chunk, 0, 0.1)
    settle(ends.chunk)
    ends.chunk.stepper.rollback()
    ends.chunk.settled()
    assert not completed(ends.joiner.wait(2, lambda: True))


@pytest.mark.parametrize("scales", [[0.1] * 4, [0.1, math.inf, 3.0, 0.1]], ids=["calm", "clipped"])
@pytest.mark.parametrize("is_barrier", [False, True], ids=["staggered", "barrier"])
@pytest.mark.parametrize("precision", ["", "bf16-weights"])
def test_shards_travel_to_their_owners(
    tmp_path: Path, scales: list[float], is_barrier: bool, precision: str
) -> None:
    """Beside layers that travel too, or alone: the joiner goes on with them as their owner has."""
    job = three_by_two(barrier=is_barrier, owners=2)
    bundle = Bundle.read(write_bundle(tmp_path / "own.plan", job, {}, [(0, 0)]))
    program, text = tmp_path / "program.py", Path(LAYERED).read_text() + "\n\nCLIP_NORM = 1.0\n"
    program.write_text(text + (f'PRECISION = "{precision}"\n' if precision else ""))
    chunk, other = (build_chunks(load_program(str(program)), bundle, 0, 0, CPU)[0] for _ in range(2))
    Ownership(chunk, 2, 0, 1, _alone).agree()
    for layer in other.layers:
        layer.own_nothing()
    one_step(chunk, 100, 0.1)
    settle(chunk)
    store = dist.HashStore()
    in_use = other.layers[0].parameters
    before = [(parameter.clone(), parameter._version) for parameter in in_use]  # pyright: ignore[reportPrivateUsage]

    async def meet(name: str, rank: int) -> StatePair:
        return Pair(store, name, rank, TIMEOUT, "token")

    joiner = LayerJoiner(chunk.setting, [WITH_SHARDS], Machine(), None, other.layers)
    joiner.begin(meet, lambda _: "here", lambda: None, lambda: None)
    donor = LayerDonor(HeldChunks({0: chunk}), WITH_SHARDS, Machine(), meet, "here", lambda: None)
    chunk.on_settled = donor.settled
    for number, scale in enumerate(scales):
        one_step(chunk, number, scale)
    settle(chunk)
    assert completed(joiner.wait(len(scales) + 1, lambda: True)), joiner.error
    for (value, version), parameter in zip(before, in_use, strict=True):
        # Not even in autograd's eyes: it may be in the middle of a backward.
        assert torch.equal(value, parameter)
        assert version == parameter._version  # pyright: ignore[reportPrivateUsage]
    taken = [other.layers[0], *joiner.layers]
    joiner.give_shards(taken)
    for layer, mine, each in zip(taken, chunk.layers, WITH_SHARDS.shards, strict=True):
        assert layer.held == set(each.held)
        for shard in each.held:
            found, kept = (one.shard_state(shard, with_weights=True) for one in (layer, mine))
            torch.testing.assert_close(found, kept, rtol=0, atol=0)
            assert all(map(torch.equal, layer.owned[shard].rows, mine.owned[shard].rows))
    assert joiner.stepper_state == chunk.stepper.state_dict()
    chunk.layers[1].disown(2)
    one_step(chunk, 50, 0.1)
    settle(chunk)
    assert not completed(joiner.wait(len(scales) + 2, lambda: True))
    assert joiner.error == "the donor sends no more"
