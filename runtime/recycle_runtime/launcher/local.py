"""All workers of a job on this machine: start it, listen to its news, put together what was asked for."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from recycle_runtime.checkpoint.manifest import ACCEPT, CheckpointError, shape_of
from recycle_runtime.checkpoint.shelf import beginning
from recycle_runtime.coordinator.adaptation import AdaptationOptions
from recycle_runtime.coordinator.peer_digests import CHECK_PEERS
from recycle_runtime.coordinator.state_machine import ENDLESS
from recycle_runtime.launcher.supervisor import Job, SupervisorError, supervised
from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.chrome_trace import Event
from recycle_runtime.plan.plan_choice import MissingPlanError, NoPlanError, choose_plan
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


class RunError(RuntimeError):
    """A run that did not end well: one or more lines say which worker and why."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What `recycle-run local` is asked for."""

    bundle: str
    program: str
    steps: int | None
    """None with a script, which says how many."""
    failed: tuple[Worker, ...] = ()
    seed: int = 0
    device: str = "cpu"
    graphs: str = "auto"
    """Whether a GPU replays work as CUDA graphs: auto, on or off."""
    undo: str = "device"
    """Whose memory holds what undoes a step: device or host."""
    trace: bool = False
    save: str | None = None
    """A folder for the parameters of every worker at the end."""
    faults: tuple[str, ...] = ()
    """Such as `kill=1:2@5`."""
    returns: tuple[str, ...] = ()
    """Such as `1:2@8`."""
    restarts_workers: bool = False
    """Whether failed workers are started again without being asked for."""
    heartbeat_timeout: float = 1.5
    """Seconds without a heartbeat after which a worker is killed."""
    instruction_timeout: float = 60.0
    """Seconds in one instruction, without waiting for another worker, after which it is killed too."""
    first_step_timeout: float = 1800.0
    """The same until a worker has made its first step."""
    node_timeout: float = 3.0
    """Seconds without a heartbeat of its agent after which a node has failed."""
    checkpoint: str | None = None
    """A folder for checkpoints; None: none are taken."""
    checkpoint_every: int = 100
    """Steps from one checkpoint to the next."""
    max_resumes: int = 0
    neighbour_copies: int = 0
    """Steps from one copy of every stage in memory to the next; 0: none are made."""
    accepts_changes: bool = False
    resume: bool = False
    """Go on from the newest checkpoint."""
    resume_with: str = "resume=True"
    """The way to resume this run, for the error at its end: a command, or a field of this class."""
    max_skipped: int = 20
    """Steps in a row that may be left out because a gradient is not finite."""
    debug: str | None = None
    """The worker that has the terminal, `P:S`."""
    tls: bool = False
    """Whether connections to the coordinator are encrypted."""
    relay: str = "auto"
    """Whether workers speak to it through their agent: auto, on or off."""
    stop_timeout: float = 60.0
    """Seconds that a last checkpoint may take when the run is asked to end."""
    adaptation: AdaptationOptions = field(default_factory=AdaptationOptions)
    script: tuple[str, ...] = ()
    """The user's script and its arguments, in place of a program."""
    check_peers: int = CHECK_PEERS
    """Steps from one comparison of peers to the next; 0: never."""
    state: str | None = None
    """A folder for what must outlive processes of the job; a temporary one if it is not named."""


class RunResult(NamedTuple):
    """What is known at the end."""

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
        job = Job(
            bundle=options.bundle,
            program=options.program,
            steps=options.steps,
            script=options.script,
            workers_per_node=bundle.pipelines * bundle.stages * bundle.tensor,
            state=Path(options.state or temporary),
            device=options.device,
            graphs=options.graphs,
            undo=options.undo,
            seed=options.seed,
            failed=",".join(f"{pipeline}:{stage}" for pipeline, stage in options.failed),
            save=options.save,
            record=options.trace,
            faults=options.faults,
            returns=options.returns,
            restarts_workers=options.restarts_workers,
            heartbeat_timeout=options.heartbeat_timeout,
            checkpoint=options.checkpoint,
            checkpoint_every=options.checkpoint_every,
            resume=options.resume,
            max_resumes=options.max_resumes,
            neighbour_copies=options.neighbour_copies,
            accepts_changes=options.accepts_changes,
            stop_timeout=options.stop_timeout,
            max_skipped=options.max_skipped,
            debug=options.debug,
            tls=options.tls,
            relay=options.relay,
            adaptation=options.adaptation,
            check_peers=options.check_peers,
            instruction_timeout=options.instruction_timeout,
            first_step_timeout=options.first_step_timeout,
            node_timeout=options.node_timeout,
        )
        try:
            with supervised(job, stop) as supervisor:
                for message in supervisor.news():
                    _take(message, result, options)
                    on_news(message)
        except SupervisorError as error:
            raise RunError(str(error)) from None
    return result


def check_failed(bundle: Bundle, failed: tuple[Worker, ...]) -> None:
    """NoPlanError unless the workers that are left can train; a plan may still have to be made."""
    try:
        choose_plan(bundle, failed)
    except MissingPlanError:
        for stage in range(bundle.stages):
            if all((pipeline, stage) in failed for pipeline in range(bundle.pipelines)):
                raise NoPlanError(f"no worker of stage {stage} is left: at least one has to be") from None


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
            raise (NoPlanError if no_plan else RunError)(error + more)
        case _:
            pass


def _how_to_go_on(newest: CheckpointPath | None, options: RunOptions) -> str:
    if options.checkpoint is None:
        return ""
    if newest is None:
        return "; no checkpoint is complete yet"
    path, step = newest
    return f"; {path} has the first {step} steps: resume from it with {options.resume_with}"
