"""Workers begin with a copy in memory, and one of them has fewer processes than ranks."""

import threading
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from recycle_runtime.checkpoint.checkpoint_folder import copy_name
from recycle_runtime.execution.chunk import Chunk, build_chunks
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.worker_ids import grid_text
from recycle_runtime.program.loading import Program, load_program
from recycle_runtime.protocol.messages.generations import Go
from recycle_runtime.protocol.node_memory import NodeMemory, open_memory
from recycle_runtime.protocol.surroundings import Machine, completed
from recycle_runtime.state.image import MemoryImage
from recycle_runtime.state.layer_state import written_copies
from recycle_runtime.worker.neighbour_copies import WorkerCopies
from recycle_runtime.worker.state_transfer import Pair
from tests.runtime.checkpoint.runs import plans, with_dropout
from tests.support.jobs import unit_job

RANKS, COPY, SECONDS = 2, copy_name(0, 0, 0), 60.0
GO = Go(
    *(1, 0, 0, 0, (0, 0), grid_text([(0, 0), (0, 1)]), None, None, (), None, (), COPY, 10, False, 0, 0, None),
    fewer=(((0, 1), 1),),
)
"""A generation that begins with the copy; the worker of stage 1 has one process."""


class Engine:
    """Processes that meet at a store."""

    def __init__(self) -> None:
        self.store = dist.HashStore()
        self.store.set_timeout(timedelta(seconds=SECONDS))

    async def meeting_place(self) -> "Engine":
        return self

    async def set(self, key: str, value: str) -> None:
        self.store.set(key, value)

    async def get(self, key: str) -> bytes:
        return self.store.get(key)

    async def pair(self, store: object, name: str, rank: int) -> Pair:
        assert store is self
        return Pair(self.store, name, rank, timedelta(seconds=SECONDS), "token")

    def connections(self) -> Any:
        return SimpleNamespace(break_off=None, opens_more=lambda: None, close=lambda: None)


def copies_of(engine: Engine, memory: NodeMemory, rank: int) -> WorkerCopies:
    equipment: Any = SimpleNamespace(
        options=SimpleNamespace(memory=memory, line=0, accepts_changes=False),
        tp_rank=rank,
        link=SimpleNamespace(asked=1, on_leave=None),
        engine=engine,
        active=SimpleNamespace(begin=lambda: None, end=lambda: None),
        surroundings=Machine(),
    )
    return WorkerCopies(equipment)


def chunk(program: Program, bundle: Bundle, stage: int, rank: int, ranks: int = 1) -> Chunk:
    return build_chunks(program, bundle, stage, 0, torch.device("cpu"), tp_rank=rank, ranks=ranks)[stage]


def test_one_process_takes_what_two_ranks_have_kept(tmp_path: Path) -> None:
    """All copies are on the node of stage 0, whose worker has both of its processes."""
    bundle = Bundle.read(plans(tmp_path / "job.plan", replace(unit_job(2, 1, 2), tensor=RANKS)))
    program, engine = load_program(with_dropout(tmp_path)), Engine()
    (tmp_path / "one").mkdir()
    (tmp_path / "other").mkdir()
    roomy, empty = open_memory(tmp_path / "one", 2 * RANKS), open_memory(tmp_path / "other", 1)
    kept = [chunk(program, bundle, stage, rank) for stage in (0, 1) for rank in range(RANKS)]
    for line, each in enumerate(kept):
        with torch.no_grad():
            for parameter in each.module.parameters():
                parameter.fill_(line)
        image = MemoryImage(roomy.file(line, "own", 0))
        image.finish(COPY, written_copies([each], image))
    found = [chunk(program, bundle, 0, rank) for rank in range(RANKS)]
    narrow = chunk(program, bundle, 1, 0, RANKS)
    processes = [
        *((copies_of(engine, roomy, rank), (found[rank],), GO) for rank in range(RANKS)),
        (copies_of(engine, empty, 0), narrow.of_ranks, replace(GO, role=(0, 1))),
    ]
    errors: list[BaseException] = []

    def begin(copies: WorkerCopies, chunks: tuple[Chunk, ...], order: Go) -> None:
        try:
            completed(copies.restore(chunks, order))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=begin, args=each, daemon=True) for each in processes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * SECONDS)
    assert not errors and not any(thread.is_alive() for thread in threads)
    for line, each in enumerate((*found, *narrow.of_ranks)):
        values = [value for layer in each.layers for value in layer.parameters]
        assert values and all(bool((value == line).all()) for value in values), line
