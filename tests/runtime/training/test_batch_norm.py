"""Buffers that forward changes: a step that is run again starts from what they were."""

from pathlib import Path

import pytest
import torch

from recycle_runtime.data.microbatches import MicroBatches
from recycle_runtime.execution.chunk import build_module
from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.isa import Opcode
from recycle_runtime.program.loading import load_program
from tests.runtime.training.compare import STEPS, Failed, changed, plan_file
from tests.runtime.training.threads import train_in_threads
from tests.support.jobs import unit_job

BATCH_NORM = str(Path(__file__).resolve().parent / "programs" / "batch_norm.py")
STAGES, PIPELINES, MICROBATCHES = 2, 2, 3
State = dict[str, torch.Tensor]


@pytest.mark.parametrize(("failed", "clip"), [([], 1.2), ([(0, 1)], 0.05), ([(0, 1)], 1.2)])
def test_statistics_of_a_worker_are_those_of_what_it_ran(tmp_path: Path, failed: Failed, clip: float) -> None:
    """Whatever was undone and run again on the way."""
    program = changed(tmp_path, BATCH_NORM, f"CLIP_NORM = {clip}")
    plan = plan_file(tmp_path, unit_job(STAGES, PIPELINES, MICROBATCHES, (3, 2)), failed)
    _, workers = train_in_threads(plan, program, 0, STEPS)
    ran = {
        place: [
            instruction.pipeline * MICROBATCHES + instruction.microbatch
            for instruction in worker.session.interpreter.stream
            if instruction.opcode is Opcode.FORWARD
        ]
        for place, worker in workers.items()
    }
    expected = replay(program, ran)
    for place, worker in workers.items():
        state = worker.modules[place[1]].state_dict()
        assert state.keys() == expected[place].keys()
        for name, tensor in expected[place].items():
            torch.testing.assert_close(state[name], tensor, rtol=1e-10, atol=1e-10)


def replay(program_file: str, ran: dict[Worker, list[int]]) -> dict[Worker, State]:
    """Parameters as one process trains them, and the buffers that each worker's own forwards give it."""
    program = load_program(program_file)
    modules = [build_module(program, stage, STAGES, 0) for stage in range(STAGES)]
    initial = [{name: value.clone() for name, value in module.named_buffers()} for module in modules]
    buffers = {place: {name: value.clone() for name, value in initial[place[1]].items()} for place in ran}
    everything = [parameter for module in modules for parameter in module.parameters()]
    optimizer = program.optimizer(everything)
    data = MicroBatches(program, 0, PIPELINES * MICROBATCHES)
    for step in range(STEPS):
        values: dict[tuple[int, int], torch.Tensor] = {}
        for index in range(PIPELINES * MICROBATCHES):
            value, target = data.item(step, index)
            for stage, module in enumerate(modules):
                values[stage, index] = value
                value = module(value)
            (program.loss(value, target) / (PIPELINES * MICROBATCHES)).backward()
        for place, numbers in ran.items():
            module = modules[place[1]]
            module.load_state_dict(buffers[place], strict=False)
            with torch.no_grad():
                for index in numbers:
                    module(values[place[1], index])
            buffers[place] = {name: value.clone() for name, value in module.named_buffers()}
        assert program.clip_norm is not None
        torch.nn.utils.clip_grad_norm_(everything, program.clip_norm)
        optimizer.step()
        optimizer.zero_grad()
    return {place: {**modules[place[1]].state_dict(), **kept} for place, kept in buffers.items()}
