"""Jobs in simulated worlds: nothing goes wrong that should not, and the same seed is the same story."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from recycle_runtime.coordinator import regrouping, state_machine
from recycle_runtime.coordinator.journal import Journal
from recycle_runtime.coordinator.membership import Roster
from recycle_runtime.coordinator.metrics import StepRows
from recycle_runtime.coordinator.service import Service
from recycle_runtime.execution.chunk import Chunk
from recycle_runtime.protocol.messages import Report, StepDone
from recycle_runtime.testing.world.faults import CutLine, KillAgent, KillWorker, LoseNode
from recycle_runtime.testing.world.scenarios import WorldJob, scenario
from recycle_runtime.testing.world.shrinking import shrunk, told
from recycle_runtime.testing.world.world import TOKEN, World
from recycle_runtime.worker.process import WorkerProcess
from tests.runtime.world.jobs import world_jobs

FIXED = 120
"""Seeds that every run of the tests tries; `make soak` tries new ones."""
PART = 20


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> list[WorldJob]:
    return world_jobs(tmp_path_factory.mktemp("world"))


@pytest.mark.parametrize("first", range(0, FIXED, PART))
def test_nothing_goes_wrong(jobs: list[WorldJob], first: int) -> None:
    for seed in range(first, first + PART):
        outcome = World(scenario(seed, jobs)).run()
        assert not outcome.wrong, "\n".join((f"seed {seed}", *outcome.story))


@pytest.mark.parametrize("seed", [33, 193, 1103])
def test_what_was_found_once(jobs: list[WorldJob], seed: int) -> None:
    """In turn: a coordinator killed after the end, an end that was told before it was written down, a
    coordinator that comes back while the last workers of a stage do not reach it."""
    outcome = World(scenario(seed, jobs)).run()
    assert not outcome.wrong, "\n".join((f"seed {seed}", *outcome.story))


def test_the_same_seed_is_the_same_story(jobs: list[WorldJob], tmp_path: Path) -> None:
    seeds = (3, 5)
    here = [World(scenario(seed, jobs)).run().digest for seed in seeds]
    assert here == [World(scenario(seed, jobs)).run().digest for seed in seeds]
    code = (
        "import sys; from pathlib import Path; from tests.runtime.world.jobs import world_jobs;"
        "from recycle_runtime.testing.world.scenarios import scenario;"
        "from recycle_runtime.testing.world.world import World;"
        f"jobs = world_jobs(Path({str(tmp_path)!r}));"
        f"print([World(scenario(seed, jobs)).run().digest for seed in {seeds}])"
    )
    root = Path(__file__).parents[3]
    made = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": "7"},
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    assert made.stdout.strip() == str(here)


Plant = Callable[[pytest.MonkeyPatch], None]


def _count_steps_twice(patch: pytest.MonkeyPatch) -> None:
    """A step that is broken off behind its optimizer is made again by who made it."""
    patch.setattr(Chunk, "stand", _stand_without_undo)


def _stand_without_undo(self: Chunk, step: int, sums: object) -> None:
    self.stepper.progress = self.stepper.progress._replace(steps=step)
    self.stepper.discard()
    self.is_fresh = False


def _forget_rows(patch: pytest.MonkeyPatch) -> None:
    """Rows are told and not written down."""
    real = Journal.write

    def write(self: Journal, **fields: object) -> None:
        if "row" not in fields:
            real(self, **fields)

    patch.setattr(Journal, "write", write)


def _take_the_newest_step(patch: pytest.MonkeyPatch) -> None:
    """All continue where the first of them stands, and not where the last does."""
    real = regrouping.stand

    def stand(reports: dict[object, Report], *rest: object) -> object:
        found = real(reports, *rest)  # type: ignore[arg-type]
        applied = [each.applied for each in reports.values() if each.applied is not None]
        return found._replace(step=max(applied), undo=frozenset()) if hasattr(found, "step") else found

    patch.setattr(state_machine, "stand", stand)


def _old_reports(patch: pytest.MonkeyPatch) -> None:
    """What a worker has reported for a generation that was given up counts for the next one."""

    def have_reported(self: Roster, generation: int) -> bool:
        return all(self.entries[member].report is not None for member in self.members())

    patch.setattr(Roster, "have_reported", have_reported)


def _fresh_counts(patch: pytest.MonkeyPatch) -> None:
    """A process that has just been built counts as one that was trained."""
    real = regrouping.stand

    def stand(reports: dict[object, Report], *rest: object) -> object:
        step = max((each.applied or 0 for each in reports.values()), default=0)
        trained = {
            member: Report(step, is_fresh=False) if each.is_fresh else each
            for member, each in reports.items()
        }
        return real(trained, *rest)  # type: ignore[arg-type]

    patch.setattr(state_machine, "stand", stand)


def _rows_of_anybody(patch: pytest.MonkeyPatch) -> None:
    """A step counts when the first worker has made it."""
    real = StepRows.add

    def add(self: StepRows, member: object, done: StepDone) -> object:
        self._members = frozenset({member})  # type: ignore  # pyright: ignore
        return real(self, member, done)  # type: ignore[arg-type]

    patch.setattr(StepRows, "add", add)


def _anybody_is_let_in(patch: pytest.MonkeyPatch) -> None:
    """A stranger need not know the token."""
    real = World._accept  # pyright: ignore[reportPrivateUsage]
    patch.setattr(World, "_accept", lambda self, process, token: real(self, process, TOKEN))  # pyright: ignore


def _stand_until_layers_come(patch: pytest.MonkeyPatch) -> None:
    """Found once: whoever waits for layers does not hear that a worker has passed the boundary."""
    patch.setattr(
        WorkerProcess,
        "_stands",
        lambda self, generation, step: (  # pyright: ignore
            self.link.asked <= generation and self.link.layers is None  # pyright: ignore
        ),
    )
    patch.setattr(state_machine.Standstill, "is_long", lambda self, seconds, is_first: False)  # pyright: ignore


def _end_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Found once: a coordinator that comes back does not know that the job has ended."""
    real = Journal.write

    def write(self: Journal, **fields: object) -> None:
        if "ended" not in fields:
            real(self, **fields)

    patch.setattr(Journal, "write", write)


def _impatient_return(patch: pytest.MonkeyPatch) -> None:
    """Found once: the last workers of a stage are given up as soon as any."""
    patch.setattr(Service, "_can_go_on_without", lambda self, workers: True)  # pyright: ignore


@pytest.mark.parametrize(
    ("plant", "seeds"),
    [
        (_count_steps_twice, range(60)),
        (_forget_rows, range(60)),
        (_take_the_newest_step, range(60)),
        (_old_reports, range(60)),
        (_fresh_counts, range(60)),
        (_rows_of_anybody, range(60)),
        (_anybody_is_let_in, range(60)),
        (_end_is_forgotten, [33]),
        (_impatient_return, [23]),
    ],
)
def test_a_planted_fault_is_found(
    jobs: list[WorldJob], monkeypatch: pytest.MonkeyPatch, plant: Plant, seeds: range | list[int]
) -> None:
    plant(monkeypatch)
    for seed in seeds:
        if World(scenario(seed, jobs)).run().wrong:
            return
    raise AssertionError(f"nothing was found: {plant.__doc__}")


def test_whoever_waits_for_layers_hears_that_the_boundary_has_moved(
    jobs: list[WorldJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found once: one worker had begun the next step, and another waited for its layers before it."""
    story = replace(
        scenario(152, jobs[:1]),
        faults=(KillWorker(2.5, worker=(1, 0)),),
        recut="always",
        steps=20,
        wild=False,
        nodes=6,
        room=1,
    )
    assert not World(story).run().wrong
    _stand_until_layers_come(monkeypatch)
    assert World(story).run().wrong


def test_nobody_is_given_up_for_a_peer_that_may_be_gone(jobs: list[WorldJob]) -> None:
    """Found once: a worker and its agent have no connection for a moment; its only peer is on a node that has
    just lost power, and is missed a second later."""
    story = replace(
        scenario(7, jobs[2:]),
        faults=(LoseNode(2.0, node=3), KillAgent(3.9, 1.0, node=1), CutLine(3.95, worker=(0, 1))),
        steps=30,
        nodes=4,
        room=1,
        wild=False,
        checkpoints=0,
        skipped=frozenset(),
    )
    outcome = World(story).run()
    assert not outcome.wrong and outcome.error is None, told(story, outcome)


def test_a_story_is_told_in_few_words(jobs: list[WorldJob], monkeypatch: pytest.MonkeyPatch) -> None:
    _forget_rows(monkeypatch)
    found = next(found for seed in range(200) if World(found := scenario(seed, jobs)).run().wrong)
    small, outcome = shrunk(found)
    assert outcome.wrong and len(small.faults) <= min(2, len(found.faults))
    text = told(small, outcome)
    assert text.startswith(f"seed {found.seed}: ") and "WRONG: step" in text
