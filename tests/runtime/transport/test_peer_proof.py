"""Processes of a group prove the token to each other before they use it."""

from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from recycle_runtime.transport.gloo import GlooTransport
from recycle_runtime.transport.interface import Grid
from recycle_runtime.transport.peer_proof import prover
from recycle_runtime.transport.sparse_group import make_group, met_by
from tests.runtime.transport.workers import in_threads

LONG = timedelta(seconds=120)
OLD, NEW = "o" * 32, "n" * 32


def proved(tokens: list[str], generations: list[int] | None = None) -> list[str | None]:
    """The verdict of each process, each with its own token."""
    table, size = dist.HashStore(), len(tokens)
    found: list[str | None] = [None] * size

    def join(rank: int) -> None:
        group: Any = make_group(table, rank, size, LONG)
        prove = prover(tokens[rank], 1 if generations is None else generations[rank])
        try:
            prove(group, "first/all", rank, met_by(rank, size))
        except RuntimeError as error:
            found[rank] = str(error)
        # Nobody goes before all have read what was sent to them.
        group.barrier().wait()

    in_threads([lambda rank=rank: join(rank) for rank in range(size)])
    return found


def test_all_know_the_token() -> None:
    assert proved([NEW]) == [None]
    assert proved([NEW] * 4) == [None] * 4


def test_one_does_not() -> None:
    why = "what answers for rank {} of generation 1 first/all does not know the job's token"
    assert proved([NEW, NEW, OLD]) == [why.format(2), why.format(2), why.format(0)]


def test_one_is_of_another_generation() -> None:
    assert all("does not know" in (why or "") for why in proved([NEW, NEW], [1, 2]))


@pytest.mark.parametrize("others", [NEW, OLD])
def test_a_transport_is_made_by_those_who_know_it(others: str) -> None:
    grid, table = Grid([(0, 0), (0, 1), (1, 0), (1, 1)], 1, 2), dist.HashStore()
    outcome: list[str] = []

    def join(pipeline: int, stage: int) -> None:
        token = NEW if (pipeline, stage) != (1, 1) else others
        neighbours = [(pipeline, 1 - stage)]
        try:
            place = (table, "first", grid, (pipeline, stage), 0)
            made = GlooTransport(*place, timedelta(seconds=20), neighbours, prover(token, 3))
        except RuntimeError as error:
            outcome.append(str(error))
            return
        tensor = torch.ones(3)
        pending = made.start_sum(tensor)
        assert pending is not None
        pending.wait()
        outcome.append(f"{tensor[0].item():g}")
        made.barrier()
        made.close()

    in_threads([lambda at=at: join(*at) for at in grid.workers])
    if others == NEW:
        assert outcome == ["4"] * 4
    else:
        # Whoever finds fault goes, which others may see first.
        assert len(outcome) == 4 and "4" not in outcome
        assert any("does not know the job's token" in why for why in outcome)
