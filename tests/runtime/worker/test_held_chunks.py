"""Several chunks of a process as one: what it reports, where it goes back to."""

from pathlib import Path

import pytest
import torch

from recycle_compiler.ir.job import Techniques
from recycle_runtime.execution.chunk import build_chunks
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.program.loading import load_program
from recycle_runtime.protocol.messages.generations import HeldState, Sums
from recycle_runtime.worker.held_chunks import HeldChunks
from tests.runtime.recovery.watched import TINY
from tests.runtime.training.compare import plan_file
from tests.support.chunks import chunked_job


@pytest.fixture
def held(tmp_path: Path) -> HeldChunks:
    """Chunks 0 and 3 of a job with staggered steps, at step 0."""
    job = chunked_job((0, 1, 1, 0), 1, 2, techniques=Techniques(adaptive=True, decouple=True, stagger=True))
    bundle = Bundle.read(plan_file(tmp_path, job, []))
    chunks = HeldChunks(build_chunks(load_program(TINY), bundle, 0, 0, torch.device("cpu")))
    assert list(chunks) == [0, 3]
    chunks.stand(0, None)
    return chunks


def step(held: HeldChunks, number: int) -> float:
    """Of one chunk, with gradients of 1; their sum of squares."""
    stepper = held[number].stepper
    for parameter in stepper.gradients.parameters:
        assert parameter.grad is not None
        parameter.grad += 1.0
    stepper.reduce(lambda _: None)
    stepper.step(lambda _: None)
    return float(sum(parameter.numel() for parameter in stepper.gradients.parameters))


def test_one_chunk_ahead_does_not_count(held: HeldChunks) -> None:
    before = {name: tensor.clone() for name, tensor in held.state_dict().items()}
    step(held, 3)
    assert held.report() == HeldState(0, is_fresh=False)
    held.stand(0, None)
    assert held[3].applied == 0
    for name, tensor in held.state_dict().items():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0)


def test_sums_are_those_of_all(held: HeldChunks) -> None:
    squares = step(held, 3) + step(held, 0)
    assert held.report() == HeldState(1, is_fresh=False, unsettled=Sums(squares, 0.0))
    held.stand(1, Sums(squares, 0.0))
    assert held.report() == HeldState(1, is_fresh=False, settled=Sums(squares, 0.0), settled_steps=1)


def test_half_a_state_is_none(held: HeldChunks) -> None:
    held.expect_state()
    held[0].is_whole = True
    assert held.report() == HeldState(None, is_fresh=False) and not held.is_part_of_run


def test_names_of_whole_stages_begin_with_their_number(held: HeldChunks) -> None:
    assert set(held.state_dict()) == {"0.0.weight", "0.0.bias", "3.0.weight", "3.0.bias"}
