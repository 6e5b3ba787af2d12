"""One process of a two-stage pipeline, ours or torch's, training the same model in turns with others."""

# The types of torch are partial.
# pyright: reportPrivateImportUsage=false, reportUnknownMemberType=false

import itertools
import os
import runpy
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime  # pyright: ignore[reportPrivateUsage]

from bench.models import MICROBATCHES, STEPS_DRAWN
from bench.turns import PROCESSES, Setting, Turns
from recycle_runtime.execution.chunk import build_module
from recycle_runtime.program.loading import load_program
from recycle_runtime.worker.fixed_plan import FixedPlanWorker
from recycle_runtime.worker.options import WorkerOptions

_ALWAYS = 1 << 40

Cut = tuple[list[int], int]
"""The stages of a process, and how many there are in all."""


def ours(rank: int, turns: Turns, setting: Setting) -> None:
    """recycle_runtime, with the first plan of a bundle."""
    options = WorkerOptions(
        bundle=setting.plan,
        program=setting.program,
        plan=0,
        worker=(0, rank),
        tp_rank=0,
        steps=_ALWAYS,
        seed=0,
        device="cpu",
        trace=False,
        timeout=300.0,
    )
    worker = FixedPlanWorker(options, _store(setting))
    worker.train(lambda report: turns.after_step(report.loss))


def torch_1f1b(rank: int, turns: Turns, setting: Setting) -> None:
    _train(rank, turns, setting, ([rank], PROCESSES), _one_forward_one_backward)


def torch_interleaved_zero_bubble(rank: int, turns: Turns, setting: Setting) -> None:
    _train(rank, turns, setting, ([rank], PROCESSES), _interleaved_zero_bubble)


def torch_zbv(rank: int, turns: Turns, setting: Setting) -> None:
    """Needs two stages on each process: the first has the first and the last."""
    last = 2 * PROCESSES - 1
    _train(rank, turns, setting, ([rank, last - rank], last + 1), _zbv)


def torch_csv(rank: int, turns: Turns, setting: Setting) -> None:
    def schedule(stages: list[PipelineStage], loss: Loss) -> Any:
        made: Any = _PipelineScheduleRuntime(stages, MICROBATCHES, loss_fn=loss)
        made._load_csv(setting.plan)
        return made

    _train(rank, turns, setting, ([rank], PROCESSES), schedule)


Loss = Callable[[Any, Any], torch.Tensor]
MakeSchedule = Callable[[list[PipelineStage], Loss], Any]


def _one_forward_one_backward(stages: list[PipelineStage], loss: Loss) -> Any:
    return Schedule1F1B(stages[0], MICROBATCHES, loss_fn=loss)


def _interleaved_zero_bubble(stages: list[PipelineStage], loss: Loss) -> Any:
    return ScheduleInterleavedZeroBubble(list(stages), MICROBATCHES, loss_fn=loss)


def _zbv(stages: list[PipelineStage], loss: Loss) -> Any:
    return ScheduleZBVZeroBubble(list(stages), MICROBATCHES, loss_fn=loss)


def _train(rank: int, turns: Turns, setting: Setting, cut: Cut, make_schedule: MakeSchedule) -> None:
    """A training loop as its users write it: schedule, clip by the norm of the whole model, step."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=_store(setting), rank=rank, world_size=PROCESSES)
    program = runpy.run_path(setting.program)
    numbers, count = cut
    model = load_program(setting.program)
    modules: list[torch.nn.Module] = [build_module(model, number, count, 0) for number in numbers]
    if program.get("WRAPPED"):
        modules = [cast(torch.nn.Module, torch.compile(module)) for module in modules]
    stages = [
        PipelineStage(module, number, count, torch.device("cpu"))
        for module, number in zip(modules, numbers, strict=True)
    ]
    schedule = make_schedule(stages, program["loss"])
    parameters = [parameter for module in modules for parameter in module.parameters()]
    optimizer: torch.optim.Optimizer = program["optimizer"](parameters)
    has_first, has_last = 0 in numbers, count - 1 in numbers
    for inputs, targets in _whole_batches(program["batches"](0)):
        losses: list[torch.Tensor] = []
        arguments = (inputs,) if has_first else ()
        rest: dict[str, Any] = {"target": targets, "losses": losses} if has_last else {}
        schedule.step(*arguments, return_outputs=False, **rest)
        _clip(parameters, program["CLIP_NORM"])
        optimizer.step()
        optimizer.zero_grad()
        turns.after_step(float(torch.stack(losses).detach().mean()) if has_last else None)


def _clip(parameters: Sequence[torch.Tensor], limit: float) -> None:
    api: Any = torch.nn.utils
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    squares: torch.Tensor = api.get_total_norm(gradients) ** 2
    dist.all_reduce(squares)
    api.clip_grads_with_norm_(parameters, limit, squares.sqrt())


def _whole_batches(batches: Iterator[tuple[Any, Any]]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The micro-batches of each step in one tensor, made before the clock starts."""
    drawn = [list(itertools.islice(batches, MICROBATCHES)) for _ in range(STEPS_DRAWN)]
    whole = [(torch.cat([one for one, _ in step]), torch.cat([one for _, one in step])) for step in drawn]
    return itertools.cycle(whole)


def _store(setting: Setting) -> dist.Store:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    return dist.TCPStore("127.0.0.1", setting.port, is_master=False)
