"""Runs on processes that are stopped and go on, and the plain loop that they must equal."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from recycle_compiler.backends.bundle import write_bundle
from recycle_compiler.ir.failure import failure_set
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.planner.compile import plan_failed
from recycle_runtime.data.microbatches import MicroBatches
from recycle_runtime.execution.chunk import build_module
from recycle_runtime.execution.forward_random import forward_seed
from recycle_runtime.launcher.local import RunOptions, RunResult, run_local
from recycle_runtime.program.loading import load_program
from recycle_runtime.protocol.messages.observers import JobEvent, ToObserver
from tests.runtime.training.alone import draw_as
from tests.runtime.training.compare import MLP, Failed, changed
from tests.support.jobs import unit_job

DROPOUT = """
Layer.forward = lambda self, value: value + nn.functional.dropout(torch.tanh(self.linear(value)), 0.2)
CLIP_NORM = 4.0
"""
"""Random numbers in every forward, and a norm that some steps exceed."""

State = dict[str, torch.Tensor]

JOB = unit_job(2, 2, 2)
FEWER = unit_job(2, 1, 3)
FAILED: Failed = [(0, 1)]


def with_dropout(folder: Path, more: str = "") -> str:
    return changed(folder, MLP, DROPOUT + more)


def plans(path: Path, job: JobSpec, *failed: Failed) -> str:
    """A bundle for no failures, and for these."""
    planned = [plan_failed(job, failure_set(workers)) for workers in ([], *failed)]
    write_bundle(path, source="", plans=planned)
    return str(path)


def run(bundle: str, program: str, steps: int, **options: Any) -> tuple[RunResult, list[str]]:
    """A run, and the events it told of."""
    events: list[str] = []

    def take(message: ToObserver) -> None:
        if isinstance(message, JobEvent):
            events.append(message.text)

    return run_local(RunOptions(bundle, program, steps, **options), take), events


def losses(result: RunResult) -> dict[int, float]:
    return {step.step: step.loss_or_nan for step in result.steps}


def saved(folder: Path) -> dict[str, State]:
    """Parameters as every worker has written them in the end."""
    return {
        path.name: torch.load(path, weights_only=True)["model"] for path in sorted(folder.glob("worker-*.pt"))
    }


def train_in_turns(
    program_file: str, stages: int, turns: Sequence[tuple[int, int]]
) -> tuple[list[float], list[State]]:
    """A plain loop on one process: for each turn so many steps of so many micro-batches."""
    program = load_program(program_file)
    modules = [build_module(program, stage, stages, 0) for stage in range(stages)]
    optimizers = [program.optimizer(list(module.parameters())) for module in modules]
    everything = [parameter for module in modules for parameter in module.parameters()]
    items = MicroBatches(program, 0, 1)
    found: list[float] = []
    item = 0
    for steps, per_step in turns:
        for _ in range(steps):
            total = 0.0
            for index in range(per_step):
                value, target = items.item(item, 0)
                item += 1
                for stage, module in enumerate(modules):
                    seed_of = partial(forward_seed, 0, len(found), index)
                    draw_as(module, stage, seed_of, program.is_layered)
                    value = module(value)
                loss = program.loss(value, target) / per_step
                loss.backward()
                total += float(loss.detach())
            found.append(total)
            if program.clip_norm is not None:
                torch.nn.utils.clip_grad_norm_(everything, program.clip_norm)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
    return found, [module.state_dict() for module in modules]
