"""A chunk goes back to the step that all continue from, and keeps what other workers may still need."""

import torch

from recycle_runtime.execution.chunk import Chunk, build_chunks
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.program.loading import load_program
from recycle_runtime.protocol.messages.generations import HeldState, Sums
from tests.runtime.recovery.watched import BUFFERS_AND_DROPOUT

TOTAL = Sums(0.5, 0.0)


class Alone:
    """One worker's chunk, and sums that somebody else has made."""

    def __init__(self, bundle: str) -> None:
        program = load_program(BUFFERS_AND_DROPOUT)
        self.chunk: Chunk = build_chunks(program, Bundle.read(bundle), 0, 0, torch.device("cpu"))[0]
        self.made = 0

    def step(self, total: Sums) -> None:
        """One whole step; the verdict on it stays open."""
        chunk = self.chunk
        chunk.buffers.begin(self.made)
        chunk.module(torch.randn(5, 4, dtype=torch.float64)).square().mean().backward()
        chunk.stepper.settle()
        chunk.stepper.reduce(lambda _: None)
        chunk.stepper.step(lambda _: None)

        def add_up(tensor: torch.Tensor) -> None:
            tensor.copy_(torch.tensor(total, dtype=torch.float64))

        chunk.stepper.validate(add_up)
        self.made += 1

    def state(self) -> dict[str, torch.Tensor]:
        return {name: value.clone() for name, value in self.chunk.module.state_dict().items()}


def test_one_step_back_with_everything(square: str) -> None:
    worker = Alone(square)
    assert worker.chunk.report() == HeldState(0, True)
    worker.chunk.stand(0, None)
    assert worker.chunk.report() == HeldState(0, False)
    worker.step(TOTAL)
    before = worker.state()
    worker.step(TOTAL)
    report = worker.chunk.report()
    assert (report.applied, report.settled, report.settled_steps) == (2, TOTAL, 1)
    assert report.unsettled is not None
    worker.chunk.stand(1, None)
    assert worker.chunk.report() == HeldState(1, False, None, 1, None)
    torch.testing.assert_close(worker.state(), before, rtol=0, atol=0)


def test_who_went_back_still_knows_the_verdict(square: str) -> None:
    """The only one who knew it may have been this one, and those who lack it may not have heard it yet."""
    worker = Alone(square)
    worker.chunk.stand(0, None)
    worker.step(TOTAL)
    worker.step(TOTAL)
    worker.chunk.stand(1, TOTAL)
    assert worker.chunk.report() == HeldState(1, False, TOTAL, 1, None)
    worker.chunk.stand(1, TOTAL)
    assert worker.chunk.report() == HeldState(1, False, TOTAL, 1, None)


def test_a_verdict_from_others_is_kept_too(square: str) -> None:
    worker = Alone(square)
    worker.chunk.stand(0, None)
    worker.step(TOTAL)
    worker.chunk.stand(1, TOTAL)
    assert worker.chunk.report() == HeldState(1, False, TOTAL, 1, None)


def test_half_a_state_is_none(square: str) -> None:
    worker = Alone(square)
    worker.chunk.is_whole = False
    assert worker.chunk.report() == HeldState(None, False)
    assert not worker.chunk.is_part_of_run
