"""Streams survive the way to bytes and back, cost little, and are the same bytes however they are encoded."""

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recycle_compiler.backends.stream_encoder import encode_program, frame_of
from recycle_compiler.ir.failure import Worker
from recycle_compiler.ir.streams import Program
from recycle_compiler.stream_machines import COMPILE_FROM, LOADED_FROM, compiled_machine, machine_for
from recycle_runtime.plan.codec import PLAIN, decode_fields, decode_stream
from recycle_runtime.plan.isa import Instruction, Opcode
from recycle_runtime.plan.range_coder import LARGEST_NUMBER
from tests.compiler.backends.instruction_lists import streams
from tests.compiler.backends.synthetic_programs import compute_ops, job, program, program_from

SHAPES = st.tuples(st.integers(1, 3), st.integers(1, 4), st.sampled_from([1, 3, 70, LARGEST_NUMBER]))


def decoded(plan: Program, encoded: list[bytes]) -> list[tuple[Instruction, ...] | None]:
    lengths = np.diff(plan.offsets).tolist()
    frames = [frame_of(plan.job, worker) for worker in plan.workers]
    return [decode_stream(*arguments) for arguments in zip(encoded, lengths, frames, strict=True)]


def random_program(data: st.DataObject) -> Program:
    stages, pipelines, microbatches = data.draw(SHAPES)
    workers = [Worker(pipeline, stage) for stage in range(stages) for pipeline in range(pipelines)]
    some = {worker: data.draw(streams(pipelines, microbatches)) for worker in workers[:2]}
    return program_from(job(stages, pipelines, microbatches), some)


@given(st.data())
def test_any_well_formed_stream_survives(data: st.DataObject) -> None:
    plan = random_program(data)
    assert decoded(plan, encode_program(plan, PLAIN)) == [stream for _, stream in plan.streams()]


REROUTED = [(7, 1), (7, 2), (6, 2), (5, 2), (7, 3), (7, 0)]


@pytest.mark.parametrize("seed", [None, 1])
def test_planned_streams_survive(seed: int | None) -> None:
    plan = program(job(4, 8, 12), REROUTED, seed=seed)
    assert decoded(plan, encode_program(plan, PLAIN)) == [stream for _, stream in plan.streams()]


def odd_stream(dice: random.Random, length: int) -> list[Instruction]:
    """Fields at random: what no planner would ever write."""
    few = [Opcode.LOAD, Opcode.FORWARD, Opcode.BACKWARD, Opcode.BACKWARD_WEIGHT]
    return [
        Instruction(dice.choice(few), dice.randrange(5), dice.randrange(9), dice.randrange(700))
        for _ in range(length)
    ]


def test_compiled_and_plain_give_the_same_bytes_and_read_each_other() -> None:
    dice = random.Random(5)
    spec = job(3, 5, 9)
    odd = {Worker(pipeline, 0): odd_stream(dice, 40 * pipeline) for pipeline in range(5)}
    plans = [
        program(job(4, 8, 12), REROUTED, seed=2),
        program(job(2, 3, 20), split=False),
        program_from(spec, odd),
    ]
    for plan in plans:
        plain = encode_program(plan, PLAIN)
        assert encode_program(plan, compiled_machine()) == plain
        for index, data in enumerate(plain):
            frame = frame_of(plan.job, plan.workers[index])
            count = int(plan.offsets[index + 1] - plan.offsets[index])
            fields = decode_fields(data, count, frame, compiled_machine())
            assert fields.tolist() == decode_fields(data, count, frame, PLAIN)
            assert decode_fields(data, count + 300, frame, compiled_machine()) is None


def test_small_bundles_do_not_load_the_compiled_functions() -> None:
    assert machine_for(LOADED_FROM - 1) is PLAIN
    assert machine_for(COMPILE_FROM) is not PLAIN


def bytes_per_op(plan: Program) -> float:
    return sum(map(len, encode_program(plan, PLAIN))) / compute_ops([plan])


def test_fault_free_streams_cost_a_quarter_of_a_byte_per_op() -> None:
    assert bytes_per_op(program(job(8, 2, 64), split=False)) <= 0.25
    assert bytes_per_op(program(job(8, 2, 64))) <= 0.25


def test_re_routed_streams_cost_less_than_half_a_byte_per_op() -> None:
    plan = program(job(4, 8, 64), REROUTED, seed=3)
    assert bytes_per_op(plan) <= 0.5
    # The worst worker of all, whose micro-batches come from anywhere.
    worst = max(
        len(data)
        / sum(
            1 for i in stream if i.opcode in (Opcode.FORWARD, Opcode.BACKWARD_INPUT, Opcode.BACKWARD_WEIGHT)
        )
        for data, (_, stream) in zip(encode_program(plan, PLAIN), plan.streams(), strict=True)
    )
    assert worst <= 1.0


def test_equal_workers_of_different_pipelines_are_equal_bytes() -> None:
    plan = program(job(4, 5, 8))
    encoded = encode_program(plan, PLAIN)
    assert [len(set(encoded[5 * stage : 5 * stage + 5])) for stage in range(4)] == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("instruction", "message"),
    [
        (Instruction(Opcode.FORWARD, 2, 0, 0), "instruction 0, FORWARD, has pipeline 2"),
        (Instruction(Opcode.FORWARD, 0, 3, 0), "instruction 0, FORWARD, has microbatch 3"),
        (Instruction(Opcode.FORWARD, 0, 0), "instruction 0, FORWARD, has buffer -1"),
        (Instruction(Opcode.FORWARD, 0, 0, 1 << 20), "instruction 0, FORWARD, has buffer 1048576"),
        (Instruction(Opcode.FORWARD, 0, 0, 0, -2), "instruction 0, FORWARD, has inbox -2"),
        (Instruction(Opcode.RECV_GRADIENT, 0, 0, peer=0), "instruction 0, RECV_GRADIENT, has inbox -1"),
        (Instruction(Opcode.SEND_GRADIENT, 0, 0, 0), "instruction 0, SEND_GRADIENT, has peer -1"),
        (Instruction(Opcode.BARRIER, peer=1), "instruction 0, BARRIER, has peer 1"),
    ],
)
def test_an_instruction_with_a_wrong_field_is_refused(instruction: Instruction, message: str) -> None:
    plan = program_from(job(1, 2, 3), {Worker(0, 0): [instruction]})
    with pytest.raises(ValueError, match=f"^{message}$"):
        encode_program(plan, PLAIN)


def test_an_unknown_opcode_is_refused() -> None:
    plan = program_from(job(1, 2, 3), {Worker(0, 0): [Instruction(Opcode.BARRIER)]})
    with pytest.raises(ValueError, match="unknown opcode"):
        encode_program(replace(plan, opcode=plan.opcode + 4), PLAIN)
