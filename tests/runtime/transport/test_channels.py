"""Channels that workers join, and what may wait for what on the GPU."""

from collections import Counter
from functools import cache
from graphlib import TopologicalSorter

import pytest
from hypothesis import given, settings

from recycle_compiler.ir.failure import failure_set
from recycle_compiler.ir.streams import Streams
from recycle_compiler.planner.compile import plan_failed
from recycle_runtime.plan.isa import RECEIVES, USES_NEIGHBOUR, Instruction, Opcode
from recycle_runtime.plan.worker_ids import Worker, numbered_worker
from recycle_runtime.transport.nccl import NcclChannel, channels_of
from tests.support.jobs import figure3, quick_plans

FAILED = [[], [(1, 2)], [(1, 2), (0, 0)], [(1, 2), (0, 0), (2, 2)]]
Lists = dict[Worker, tuple[Instruction, ...]]
COMPUTES = frozenset({Opcode.FORWARD, Opcode.BACKWARD, Opcode.BACKWARD_INPUT, Opcode.BACKWARD_WEIGHT})


def streams_of(program: Streams) -> Lists:
    return {(worker.pipeline, worker.stage): stream for worker, stream in program.items()}


def planned(failed: list[tuple[int, int]]) -> Lists:
    return _planned(tuple(failed))


@cache
def _planned(failed: tuple[tuple[int, int], ...]) -> Lists:
    return streams_of(plan_failed(figure3((4, 3, 2, 1)), failure_set(failed)))


def waits(streams: Lists, pipelines: int) -> TopologicalSorter[object]:
    """Waits if each worker had one queue for receives, one for sends and one for the rest."""
    graph: TopologicalSorter[object] = TopologicalSorter()
    for worker, stream in streams.items():
        counts: Counter[NcclChannel] = Counter()
        arrived: dict[int, object] = {}
        computed: object = None
        last: dict[str, object] = {}
        for position, instruction in enumerate(stream):
            if instruction.opcode in USES_NEIGHBOUR:
                receives = instruction.opcode in RECEIVES
                other = numbered_worker(instruction.neighbour, pipelines)
                channel = NcclChannel(other, worker) if receives else NcclChannel(worker, other)
                message = (channel, counts[channel])
                counts[channel] += 1
                queue = "in" if receives else "out"
                graph.add(message, *(node for node in (computed, last.get(queue)) if node is not None))
                last[queue] = message
                if receives:
                    arrived[instruction.inbox] = message
            elif instruction.opcode in COMPUTES:
                node = (worker, position)
                before: list[object] = [computed] if computed is not None else []
                if instruction.inbox in arrived and instruction.opcode != Opcode.BACKWARD_WEIGHT:
                    before.append(arrived.pop(instruction.inbox))
                graph.add(node, *before)
                computed = node
    return graph


@pytest.mark.parametrize("failed", FAILED)
def test_both_ends_know_of_a_channel(failed: list[tuple[int, int]]) -> None:
    streams = planned(failed)
    ends = Counter(channel for worker in streams for channel in channels_of(streams[worker], worker, 3))
    assert set(ends.values()) == {2}


def test_a_plan_without_failures_needs_its_neighbours_alone() -> None:
    streams = planned([])
    assert [len(channels_of(streams[0, stage], (0, stage), 3)) for stage in range(4)] == [2, 4, 4, 2]


@pytest.mark.parametrize("failed", FAILED)
def test_two_queues_for_all_channels_would_not_lock(failed: list[tuple[int, int]]) -> None:
    waits(planned(failed), 3).prepare()


@settings(max_examples=60)
@given(quick_plans())
def test_random_plans_would_not_lock(plan: Streams) -> None:
    waits(streams_of(plan), plan.job.pipelines).prepare()
