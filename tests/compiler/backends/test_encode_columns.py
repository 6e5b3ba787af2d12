"""Streams survive the way to columns of bytes and back, cost little, and are checked on their way in."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recycle_compiler.backends.bundle import encode_columns
from recycle_compiler.ir.failure import Worker
from recycle_compiler.ir.streams import Streams
from recycle_runtime.plan.codec import LARGEST_NUMBER, Columns, StreamShape, decode_stream
from recycle_runtime.plan.isa import Instruction, Opcode
from tests.compiler.backends.instruction_lists import streams
from tests.compiler.backends.synthetic_programs import job, program, program_from

SHAPES = st.tuples(st.integers(1, 3), st.integers(1, 4), st.sampled_from([1, 3, 70, LARGEST_NUMBER]))
REROUTED = [(7, 1), (7, 2), (6, 2), (5, 2), (7, 3), (7, 0)]


def decoded(plan: Streams) -> list[tuple[Instruction, ...] | None]:
    layout, data = encode_columns(plan)
    columns = Columns(data, layout.widths, sum(layout.lengths))
    shape = StreamShape(plan.job.stages, plan.job.stages, plan.job.pipelines, plan.job.microbatches)
    bounds = plan.offsets.tolist()
    return [
        decode_stream(columns, first, last, (worker.pipeline, worker.stage), shape)
        for worker, first, last in zip(plan.workers, bounds, bounds[1:], strict=False)
    ]


@given(st.data())
def test_any_well_formed_stream_survives(data: st.DataObject) -> None:
    stages, pipelines, microbatches = data.draw(SHAPES)
    workers = [Worker(pipeline, stage) for stage in range(stages) for pipeline in range(pipelines)]
    some = {worker: data.draw(streams(stages, stages, pipelines, microbatches)) for worker in workers[:2]}
    plan = program_from(job(stages, pipelines, microbatches), some)
    assert decoded(plan) == [stream for _, stream in plan.items()]


@pytest.mark.parametrize("seed", [None, 1])
def test_planned_streams_survive(seed: int | None) -> None:
    plan = program(job(4, 8, 12), REROUTED, seed=seed)
    assert decoded(plan) == [stream for _, stream in plan.items()]


def test_numbers_take_the_bytes_that_their_column_needs() -> None:
    stream = [Instruction(Opcode.FORWARD, 0, 0, 254, 65_534, 3), Instruction(Opcode.FORWARD, 0, 1, 3, 2, 255)]
    layout, data = encode_columns(program_from(job(1, 2, 300), {Worker(0, 0): stream}))
    assert layout.widths == (1, 1, 1, 1, 2, 2, 1)
    assert len(data) == 2 * sum(layout.widths)


def test_workers_that_do_the_same_have_the_same_bytes() -> None:
    plan = program(job(4, 8, 12))
    layout, data = encode_columns(plan)
    rows = sum(layout.lengths)
    columns = Columns(data, layout.widths, rows)
    bounds = plan.offsets.tolist()
    stored = [columns.slices(first, last) for first, last in pairwise(bounds)]
    for stage in range(4):
        assert all(each == stored[8 * stage] for each in stored[8 * stage : 8 * stage + 8])


@pytest.mark.parametrize(
    ("instruction", "message"),
    [
        (Instruction(Opcode.FORWARD, 1, 0, 0, 0), "instruction 0, FORWARD, has chunk 1"),
        (Instruction(Opcode.REDUCE), "instruction 0, REDUCE, has chunk -1"),
        (Instruction(Opcode.VALIDATE, 0), "instruction 0, VALIDATE, has chunk 0"),
        (Instruction(Opcode.FORWARD, 0, 2, 0, 0), "instruction 0, FORWARD, has pipeline 2"),
        (Instruction(Opcode.FORWARD, 0, 0, 3, 0), "instruction 0, FORWARD, has microbatch 3"),
        (Instruction(Opcode.FORWARD, 0, 0, 0), "instruction 0, FORWARD, has buffer -1"),
        (Instruction(Opcode.FORWARD, 0, 0, 0, 1 << 20), "instruction 0, FORWARD, has buffer 1048576"),
        (Instruction(Opcode.FORWARD, 0, 0, 0, 0, -2), "instruction 0, FORWARD, has inbox -2"),
        (
            Instruction(Opcode.RECV_GRADIENT, 0, 0, 0, neighbour=0),
            "instruction 0, RECV_GRADIENT, has inbox -1",
        ),
        (Instruction(Opcode.SEND_GRADIENT, 0, 0, 0, 0), "instruction 0, SEND_GRADIENT, has neighbour -1"),
        (
            Instruction(Opcode.SEND_GRADIENT, 0, 0, 0, 0, neighbour=2),
            "instruction 0, SEND_GRADIENT, has neighbour 2",
        ),
        (Instruction(Opcode.BARRIER, neighbour=1), "instruction 0, BARRIER, has neighbour 1"),
    ],
)
def test_an_instruction_that_is_not_well_formed_is_refused(instruction: Instruction, message: str) -> None:
    plan = program_from(job(1, 2, 3), {Worker(0, 0): [instruction]})
    with pytest.raises(ValueError, match=f"^{message}$"):
        encode_columns(plan)


def test_an_unknown_opcode_is_refused() -> None:
    plan = program_from(job(1, 2, 3), {Worker(0, 0): [Instruction(Opcode.BARRIER)]})
    with pytest.raises(ValueError, match="unknown opcode"):
        encode_columns(replace(plan, opcode=plan.opcode + (max(Opcode) + 1 - Opcode.BARRIER)))
    assert np.array_equal(plan.opcode, [10])
