"""Processes that stand for several tensor-parallel ranks: who talks to whom, and steps by pieces."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recycle_runtime.execution.chunk import Chunk, build_chunks, build_module
from recycle_runtime.execution.local_tensors import local
from recycle_runtime.execution.rank_pieces import steps_views
from recycle_runtime.execution.steps import WorkerSteps
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.worker_ids import Worker
from recycle_runtime.program.loading import load_program
from recycle_runtime.state.layer_state import apply_states, states_of
from recycle_runtime.state.tree import put_together
from recycle_runtime.transport.interface import Grid
from recycle_runtime.transport.rank_mesh import belong_to_worker, standing_group
from tests.runtime.recovery.recut_plans import write_bundle
from tests.support.layers import layer_costs, layered_job

RANKS = 4
PROGRAM = """
import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

RANKS = (1, 2)
CLIP_NORM = 0.5

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8, dtype=torch.float64)
        self.up = nn.Linear(8, 16, dtype=torch.float64)
        self.down = nn.Linear(16, 8, dtype=torch.float64)
        self.fixed = nn.Parameter(torch.ones(8, dtype=torch.float64), requires_grad=False)
        self.unused = nn.Parameter(torch.ones(8, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, value):
        return value + self.down(torch.tanh(self.up(self.norm(value) * self.fixed)))

def layers():
    return [(f"blocks.{number}", Block()) for number in range(3)]

def parallelize(module, mesh):
    parallelize_module(module, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})

def loss(output, target):
    return output.square().mean()

def batches(seed):
    while True:
        yield torch.zeros(2, 8, dtype=torch.float64), 0

def optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=3e-2)
"""

divisors = st.sampled_from([1, 2, 3, 4, 6, 12])


@given(st.dictionaries(st.tuples(st.integers(0, 2), st.integers(0, 1)), divisors, min_size=2))
def test_every_process_hears_from_one_and_sums_each_rank_once(widths: dict[Worker, int]) -> None:
    tensor, workers = 12, sorted(widths)
    grid = Grid(workers, tensor, 3, fewer={each: width for each, width in widths.items() if width < tensor})
    assert grid.size == sum(widths.values())
    processes = {each: range(0, tensor, tensor // widths[each]) for each in workers}
    ranks = {(each, first): grid.rank(each, first) for each in workers for first in processes[each]}
    assert sorted(ranks.values()) == list(range(grid.size))
    for sender in workers:
        for receiver in workers:
            reached = Counter(
                (to, ranks[sender, first])
                for first in processes[sender]
                for to in grid.receivers(sender, first, receiver)
            )
            # As its receive is posted: from whoever stands for its own first rank.
            assert reached == Counter(
                (ranks[receiver, first], grid.rank(sender, first)) for first in processes[receiver]
            )
    groups = [(rank, group) for process, rank in ranks.items() for group in grid.sum_groups(*process)]
    assert len({group.place for _, group in groups}) == len({group.name for _, group in groups})
    for name in {group.name for _, group in groups}:
        members = [(rank, group.ranks) for rank, group in groups if group.name == name]
        assert sorted(rank for rank, _ in members) == sorted(members[0][1])
        assert all(ranks_of == members[0][1] for _, ranks_of in members)
        assert len(members) == len({rank for rank, _ in members})


class Nobody:
    """A transport of a worker that is alone."""

    broken_sums: frozenset[int] = frozenset()

    def start_peer_sum(self, chunk: int, tensor: torch.Tensor) -> None:
        del chunk, tensor

    def start_sum(self, tensor: torch.Tensor) -> None:
        del tensor


def test_steps_by_pieces_are_those_of_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One process for four ranks, with clipping, in the middle of which another takes over its states."""
    monkeypatch.setattr("recycle_runtime.transport.rank_mesh._Ranks.group", None)
    belong_to_worker(0, 1, torch.device("cpu"))
    (tmp_path / "program.py").write_text(PROGRAM)
    program = load_program(str(tmp_path / "program.py"))
    job = replace(layered_job(layer_costs((1000, 1000, 1000)), (1, 2), 1, 2), tensor=RANKS)
    bundle = Bundle.read(write_bundle(tmp_path / "ranks.plan", job, {}, [(0, 0)]))

    def built() -> Chunk:
        group = standing_group(0, 1)
        return build_chunks(program, bundle, 1, 5, torch.device("cpu"), ranks=RANKS, group=group)[1]

    chunk, plain = built(), build_module(program, 1, 2, 5, cut=bundle.cut)
    trained = [each for each in plain.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=3e-2)
    assert [each.why_all_ranks for each in chunk.of_ranks] == [""] * RANKS
    assert [tuple(each.module_state()["blocks.1.up.weight"].shape) for each in chunk.of_ranks] == [(4, 8)] * 4
    assert tuple(chunk.beside[0].module_state()["blocks.1.down.weight"].shape) == (8, 4)
    generator = torch.Generator().manual_seed(0)
    steps = 4
    for step in range(steps):
        if step == 2:
            before, chunk = chunk, built()
            for old, new in zip(before.of_ranks, chunk.of_ranks, strict=True):
                states = {each.name: put_together(each.tree, each.tensors) for each in states_of([old])}
                apply_states(new, states, "here")
        value = torch.randn(3, 8, dtype=torch.float64, generator=generator)
        plain(value).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(trained, 0.5)
        optimizer.step()
        optimizer.zero_grad()
        make_step(chunk, step, value)
    for (name, mine), (_, expected) in zip(
        chunk.module.state_dict().items(), plain.state_dict().items(), strict=True
    ):
        torch.testing.assert_close(local(mine), expected, rtol=1e-12, atol=1e-12, msg=name)
    assert {each.applied for each in chunk.of_ranks} == {steps}
    chunk.of_ranks[1].stand(steps - 1, None)
    assert chunk.of_ranks[1].applied == steps - 1, "each rank goes back by itself"


def make_step(chunk: Chunk, step: int, value: torch.Tensor) -> None:
    nobody: object = Nobody()
    steps = WorkerSteps({1: chunk}, nobody, {1: True}, sums=2)  # pyright: ignore[reportArgumentType]
    while True:
        chunk.buffers.begin(step)
        chunk.module(value).square().mean().backward()
        if steps.reduce(1):
            steps.step(1)
            steps.validate()
            steps.finish()
            return


def test_where_optimizer_state_is_in_shards_a_worker_has_all_of_its_ranks(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    job = replace(layered_job(layer_costs((1000, 1000, 1000)), (1, 2), 2, 2, owners=1), tensor=RANKS)
    bundle = Bundle.read(write_bundle(tmp_path / "ranks.plan", job, {}, [(0, 0)]))
    program = load_program(str(tmp_path / "program.py"))
    chunk = build_chunks(program, bundle, 1, 5, torch.device("cpu"))[1]
    assert chunk.why_all_ranks == "its optimizer state is in shards"


def test_fused_optimizers_do_not_step_parts_of_tensors() -> None:
    given = [torch.zeros(2, dtype=torch.float64)]
    assert steps_views(lambda parameters: torch.optim.AdamW(parameters), given)
    assert not steps_views(lambda parameters: torch.optim.AdamW(parameters, fused=True), given)
