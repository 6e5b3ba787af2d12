"""Runs over processes that move workers and change plans: their parameters stay the same."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from recycle_compiler.backends.bundle import write_bundle
from recycle_compiler.frontend.load import parse_job_text
from recycle_compiler.planner.compile import compile_job
from recycle_runtime.launcher.local import RunOptions, run_local
from recycle_runtime.options.run import AdaptationOptions
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.protocol.messages.observers import JobEvent, ToObserver
from recycle_runtime.protocol.messages.steps import StepRow
from tests.runtime.recovery.programs.sleepy import sleepy_program
from tests.runtime.training.alone import train_alone
from tests.runtime.training.compare import MLP, check

_JOB = """\
job heavy {{
  parallel {{ pipeline = {stages}  data = 3 }}
  batch    {{ microbatches = {microbatches} }}
  profile  {{ forward = {slots}  backward_input = {slots}  backward_weight = {slots}  optimizer = 1 }}
  tolerate {{ failures = 1 }}
}}
"""
RUNNING_EXAMPLE = [1, 2, 2, 2]
SMALL = [1, 2]
ALMOST_EVEN = [100, 101]
_OWN_ACCORD = ("move ", "op times ", "1:0 takes ")


class Enough(Exception):  # noqa: N818
    """Ends a run that has shown what it should."""


class News:
    """Events and steps that a run tells of its own accord; it is ended when that is enough."""

    def __init__(self, is_enough: Callable[["News"], bool] = lambda _: False) -> None:
        self.events: list[str] = []
        self.losses: list[float] = []
        self.plans: list[str] = []
        self._is_enough = is_enough

    def __call__(self, message: ToObserver) -> None:
        if isinstance(message, JobEvent) and message.text.startswith(_OWN_ACCORD):
            self.events.append(message.text)
        elif isinstance(message, StepRow):
            self.losses.append(message.loss_or_nan)
            self.plans.append(message.plan)
        if self._is_enough(self):
            raise Enough


def bundle(folder: Path, slots: list[int], microbatches: int) -> str:
    """With a plan for one loss on stage 0, where it costs nothing."""
    text = _JOB.format(stages=len(slots), microbatches=microbatches, slots=slots)
    path = folder / "heavy.plan"
    write_bundle(path, source=text, plans=compile_job(parse_job_text(text, "heavy.job"), failures=1))
    assert [stage for _, stage in Bundle.read(path).plans[1].failed] == [0]
    return str(path)


def saved_places(folder: Path) -> set[tuple[int, int]]:
    words = [path.name.split("-") for path in folder.glob("worker-*-0.pt")]
    return {(int(pipeline), int(stage)) for _, pipeline, stage, _ in words}


def run_and_check(folder: Path, options: RunOptions, stages: int, microbatches: int) -> list[str]:
    """Train; losses and parameters are those of one process. The events."""
    assert options.steps is not None
    news = News()
    result = run_local(options, news)
    assert [step.step for step in result.steps] == list(range(options.steps))
    alone = train_alone(MLP, stages, 3 * microbatches, options.steps)
    losses = [step.loss_or_nan for step in result.steps]
    for pipeline, stage in saved_places(folder):
        path = folder / f"worker-{pipeline}-{stage}-0.pt"
        check(alone, losses, torch.load(path, weights_only=True)["model"], stage)
    return news.events


@pytest.mark.slow
def test_the_running_example_moves_a_worker_to_the_stage_that_needs_it(tmp_path: Path) -> None:
    options = RunOptions(
        bundle(tmp_path, RUNNING_EXAMPLE, 6),
        sleepy_program(tmp_path, RUNNING_EXAMPLE, slot=0.006),
        steps=26,
        save=str(tmp_path),
        faults=("kill=1:2@3",),
        adaptation=AdaptationOptions(replan=None),
    )
    (event,) = run_and_check(tmp_path, options, 4, 6)
    assert event.startswith("move 0:0 to 1:2 saves 30.9 % of ") and event.endswith(": moved")
    grid = {(pipeline, stage) for pipeline in range(3) for stage in range(4)}
    assert saved_places(tmp_path) == grid - {(0, 0)}


@pytest.mark.slow
@pytest.mark.parametrize(("mtbf", "end"), [(0.001, " expected: not moved"), (3600.0, " expected: moved")])
def test_a_small_gain_pays_only_if_changes_are_rare(mtbf: float, end: str, tmp_path: Path) -> None:
    news = News(lambda news: bool(news.events))
    options = RunOptions(
        bundle(tmp_path, ALMOST_EVEN, 4),
        MLP,
        steps=100_000,
        faults=("kill=1:1@3",),
        adaptation=AdaptationOptions(mtbf=mtbf, replan=None),
    )
    with pytest.raises(Enough):
        run_local(options, news)
    assert news.events[0].startswith("move 0:0 to 1:1 saves ") and news.events[0].endswith(end)


@pytest.mark.parametrize(
    ("fault", "gone"),
    [
        ("kill=0:0@4.take", {(0, 0), (1, 1)}),
        pytest.param("kill=0:1@4.give", {(0, 1)}, marks=pytest.mark.slow),
    ],
    ids=["mover", "donor"],
)
def test_a_death_in_the_middle_of_a_move_loses_nothing(
    fault: str, gone: set[tuple[int, int]], tmp_path: Path
) -> None:
    options = RunOptions(
        bundle(tmp_path, SMALL, 4),
        sleepy_program(tmp_path, SMALL, slot=0.006),
        steps=24,
        save=str(tmp_path),
        faults=("kill=1:1@3", fault),
        adaptation=AdaptationOptions(replan=None),
    )
    events = run_and_check(tmp_path, options, 2, 4)
    assert events[0].startswith("move 0:0 to 1:1 saves ") and events[0].endswith(": moved")
    assert not gone & saved_places(tmp_path)
    assert len(saved_places(tmp_path)) == 4


@pytest.mark.slow
def test_a_worker_that_becomes_slow_has_less_to_do(tmp_path: Path) -> None:
    def is_enough(news: News) -> bool:
        taken = [event for event in news.events if event.endswith("taken, with a lighter load")]
        return bool(taken) and len(news.losses) > 40

    news = News(is_enough)
    options = RunOptions(
        bundle(tmp_path, SMALL, 4),
        sleepy_program(tmp_path, SMALL),
        steps=1000,
        faults=("slow=1:0@3",),
        adaptation=AdaptationOptions(replan_every=5),
    )
    with pytest.raises(Enough):
        run_local(options, news)
    taken = next(event for event in news.events if event.endswith("taken, with a lighter load"))
    assert taken.startswith("1:0 takes ") and "a plan in which 1:0 has less to do saves " in taken
    alone = train_alone(MLP, 2, 12, len(news.losses))
    assert news.losses == pytest.approx(alone.losses, rel=1e-10)
