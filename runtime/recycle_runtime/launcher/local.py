"""All workers of a job on this machine: start it, listen to its news, put together what was asked for."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from recycle_runtime.checkpoint.checkpoint_folder import beginning
from recycle_runtime.checkpoint.manifest import shape_of
from recycle_runtime.coordinator.state_machine import ENDLESS
from recycle_runtime.launcher.supervisor import SupervisorError, supervised
from recycle_runtime.options.run import RunOptions
from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.chrome_trace import Event
from recycle_runtime.plan.plan_choice import MissingPlanError, NoFittingPlanError, choose_plan
from recycle_runtime.protocol.messages.checkpoints import CheckpointPath
from recycle_runtime.protocol.messages.observers import (
    Generation,
    Hello,
    JobEnded,
    Recovered,
    ToObserver,
    WorkerTrace,
)
from recycle_runtime.protocol.messages.steps import StepRow
from recycle_runtime.state.names import ACCEPT, CheckpointError


class RunError(RuntimeError):
    """A run that did not end well: one or more lines say which worker and why."""


class RunResult(NamedTuple):
    """Result at the end."""

    steps: list[StepRow]
    events: dict[Worker, list[Event]]
    """By the worker's place; empty unless a trace was asked for."""
    recoveries: list[Recovered]
    """One for every change of the group, the first being the start."""
    begins: list[int]
    """The step that the run begins with, once that is known."""
    totals: list[int]
    """The steps of the whole run, once that is known: fewer than were asked for if it was stopped early."""
    generations: list[Generation]
    """As they were ordered."""


def run_local(
    options: RunOptions,
    on_news: Callable[[ToObserver], None] = lambda _: None,
    stop: Callable[[], str | None] = lambda: None,
) -> RunResult:
    """Train; RunError when that ends early, NoPlanError when it cannot begin.

    `stop` is asked again and again: whether the job should end now, in order, and in a word why.
    """
    bundle = Bundle.read(options.bundle)
    check_failed(bundle, options.failed)
    check_beginning(bundle, options)
    result = RunResult([], {}, [], [], [], [])
    with TemporaryDirectory(prefix="recycle-") as temporary:
        workers = bundle.present * bundle.tensor
        told = replace(options, state=options.state or temporary, workers_per_node=workers)
        try:
            with supervised(told, stop) as supervisor:
                for message in supervisor.news():
                    _take(message, result, options)
                    on_news(message)
        except SupervisorError as error:
            raise RunError(str(error)) from None
    return result


def check_failed(bundle: Bundle, failed: tuple[Worker, ...]) -> None:
    """NoPlanError unless the workers that are left can train; a plan may still have to be made."""
    failed = tuple({*failed, *bundle.vacant})
    try:
        choose_plan(bundle, failed)
    except MissingPlanError:
        for stage in range(bundle.stages):
            if all((pipeline, stage) in failed for pipeline in range(bundle.pipelines)):
                raise NoFittingPlanError(
                    f"no worker of stage {stage} is left: at least one has to be"
                ) from None


def check_beginning(bundle: Bundle, options: RunOptions) -> None:
    """RunError unless the run can begin where it should, and keep its checkpoints where it should."""
    if options.checkpoint is None:
        return
    shape = shape_of(bundle)
    try:
        steps = ENDLESS if options.steps is None else options.steps
        begins = beginning(
            options.checkpoint, shape, steps, resume=options.resume, accepts_changes=options.accepts_changes
        )
        is_other_seed = not options.script and begins.seed not in (None, options.seed)
        if is_other_seed and not options.accepts_changes:
            raise CheckpointError(
                f"{Path(options.checkpoint) / str(begins.checkpoint)}: made with --seed {begins.seed}, "
                f"and this run has --seed {options.seed}: {ACCEPT}"
            )
    except CheckpointError as error:
        raise RunError(str(error)) from None
    Path(options.checkpoint).mkdir(parents=True, exist_ok=True)


def _take(message: ToObserver, result: RunResult, options: RunOptions) -> None:
    match message:
        case Hello(_, first):
            if not result.begins:
                result.begins.append(first)
        case StepRow():
            while result.steps and result.steps[-1].step >= message.step:
                # The job has gone back to a checkpoint; what is made again counts.
                result.steps.pop()
            result.steps.append(message)
        case Recovered():
            result.recoveries.append(message)
        case Generation():
            result.generations.append(message)
        case WorkerTrace(worker, events):
            result.events[worker] = list(events)
        case JobEnded(None, _, _, steps):
            result.totals.append(steps)
        case JobEnded(error, no_plan, newest) if error is not None:
            # An error that says itself how to resume needs no second way, which would end in the same error.
            more = "" if "--accept-changes" in error else _how_to_go_on(newest, options)
            raise (NoFittingPlanError if no_plan else RunError)(error + more)
        case _:
            pass


def _how_to_go_on(newest: CheckpointPath | None, options: RunOptions) -> str:
    if options.checkpoint is None:
        return ""
    if newest is None:
        return "; no checkpoint is complete yet"
    path, step = newest
    return f"; {path} has the first {step} steps: resume from it with {options.resume_with}"
