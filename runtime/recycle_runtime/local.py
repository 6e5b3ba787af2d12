"""All workers of a job on this machine: start it, listen to its news, put together what was asked for."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from recycle_runtime.assembly import Worker
from recycle_runtime.bundle import Bundle
from recycle_runtime.control.wire import Message
from recycle_runtime.plan_choice import MissingPlanError, NoPlanError, choose_plan
from recycle_runtime.supervisor import Job, SupervisorError, supervised
from recycle_runtime.trace_event import Event


class RunError(RuntimeError):
    """A run that did not end well: one or more lines say which worker and why."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What `recycle-run local` is asked for."""

    bundle: str
    program: str
    steps: int
    failed: tuple[Worker, ...] = ()
    seed: int = 0
    device: str = "cpu"
    trace: bool = False
    save: str | None = None
    """A folder for the parameters of every worker at the end."""
    faults: tuple[str, ...] = ()
    """Such as `kill=1:2@5`."""
    returns: tuple[str, ...] = ()
    """Such as `1:2@8`."""
    silent: float = 1.5
    """Seconds without a sign of life after which a worker is killed."""
    state: str | None = None
    """A folder for what must outlive processes of the job; a temporary one if it is not named."""


class Step(NamedTuple):
    """A step of the whole run."""

    step: int
    loss: float
    seconds: float
    live: int
    plan: str
    """Losses on each stage, as its plan has them."""


class RunResult(NamedTuple):
    """What is known at the end."""

    steps: list[Step]
    events: dict[Worker, list[Event]]
    """By the worker's place; empty unless a trace was asked for."""
    recoveries: list[dict[str, Any]]
    """One for every change of the group, the first being the start."""


def run_local(options: RunOptions, on_news: Callable[[Message], None] = lambda _: None) -> RunResult:
    """Train; RunError when that ends early, NoPlanError when it cannot begin."""
    bundle = Bundle.read(options.bundle)
    check_failed(bundle, options.failed)
    result = RunResult([], {}, [])
    with TemporaryDirectory(prefix="recycle-") as temporary:
        job = Job(
            bundle=options.bundle,
            program=options.program,
            steps=options.steps,
            slots=bundle.pipelines * bundle.stages * bundle.tensor,
            state=Path(options.state or temporary),
            device=options.device,
            seed=options.seed,
            failed=",".join(f"{pipeline}:{stage}" for pipeline, stage in options.failed),
            save=options.save,
            record=options.trace,
            faults=options.faults,
            returns=options.returns,
            silent=options.silent,
        )
        try:
            with supervised(job) as supervisor:
                for message in supervisor.news():
                    _take(message, result)
                    on_news(message)
        except SupervisorError as error:
            raise RunError(str(error)) from None
    return result


def check_failed(bundle: Bundle, failed: tuple[Worker, ...]) -> None:
    """NoPlanError unless the workers that are left can train; a plan may still have to be made."""
    lost = set(failed)
    try:
        choose_plan(bundle, failed)
    except MissingPlanError:
        for stage in range(bundle.stages):
            if all((pipeline, stage) in lost for pipeline in range(bundle.pipelines)):
                raise NoPlanError(f"every worker of stage {stage} is lost") from None


def _take(message: Message, result: RunResult) -> None:
    kind = message["type"]
    if kind == "row":
        result.steps.append(Step(**{name: message[name] for name in Step._fields}))
    elif kind == "recovery":
        result.recoveries.append(message)
    elif kind == "trace":
        pipeline, stage = message["place"]
        result.events[pipeline, stage] = [Event(*row) for row in message["events"]]
    elif kind == "ended" and message["error"] is not None:
        raise (NoPlanError if message["no_plan"] else RunError)(message["error"])
