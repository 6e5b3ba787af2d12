"""Schedules for torch.distributed.pipelining; bench/beside_torch.py runs one there and compares losses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recycle_compiler.backends.torch_csv import TorchCsvError, torch_csv
from recycle_compiler.ir.failure import Worker
from recycle_runtime.plan.isa import Instruction, Opcode
from tests.compiler.backends.synthetic_programs import job, program, program_from

Rows = list[list[str]]


def rows_of(text: str) -> Rows:
    return [line.split(",") for line in text.splitlines()]


def test_two_stages() -> None:
    made = torch_csv(program(job(2, 1, 3), split=False))
    assert made == "0F0,0F1,0B0,0F2,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n"


def test_reductions_and_steps_are_left_out() -> None:
    for row in rows_of(torch_csv(program(job(3, 1, 4)))):
        assert {action[1] for action in row} == {"F", "I", "W"}
        assert len(row) == 12


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 5), st.booleans())
def test_every_op_of_the_pipeline_is_there_once(
    stages: int, pipelines: int, microbatches: int, split: bool
) -> None:
    plan = program(job(stages, pipelines, microbatches), split=split)
    letters = "FIW" if split else "FB"
    for stage, row in enumerate(rows_of(torch_csv(plan))):
        expected = [f"{stage}{letter}{number}" for letter in letters for number in range(microbatches)]
        assert sorted(row) == sorted(expected)


def test_micro_batches_are_numbered_by_the_last_stage() -> None:
    def stream(chunk: int, *ops: tuple[Opcode, int]) -> list[Instruction]:
        return [Instruction(opcode, chunk, 0, microbatch, 0) for opcode, microbatch in ops]

    forward, backward = Opcode.FORWARD, Opcode.BACKWARD
    plan = program_from(
        job(2, 1, 3),
        {
            Worker(0, 0): stream(
                0, (forward, 0), (forward, 1), (forward, 2), (backward, 2), (backward, 0), (backward, 1)
            ),
            Worker(0, 1): stream(
                1, (forward, 2), (backward, 2), (forward, 0), (forward, 1), (backward, 0), (backward, 1)
            ),
        },
    )
    assert torch_csv(plan) == "0F1,0F2,0F0,0B0,0B1,0B2\n1F0,1B0,1F1,1F2,1B1,1B2\n"


def test_plans_for_failed_workers_are_refused() -> None:
    with pytest.raises(TorchCsvError, match=r"failed workers \(1:0\)"):
        torch_csv(program(job(2, 2, 2), [(1, 0)]))


def test_work_of_another_pipeline_is_refused() -> None:
    spec = job(1, 2, 1)
    moved = [Instruction(Opcode.FORWARD, 0, 0, 0, 0), Instruction(Opcode.FORWARD, 0, 1, 0, 0)]
    plan = program_from(spec, {Worker(0, 0): moved, Worker(1, 0): []})
    with pytest.raises(TorchCsvError, match=r"worker 0:0 runs micro-batch 0 of pipeline 1"):
        torch_csv(plan)
