"""Runs that are cut anew while they train: nothing is lost or repeated, all numbers are as they should be."""

import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from recycle_compiler.frontend.load import parse_job_text
from recycle_runtime.checkpoint.manifest import Manifest
from recycle_runtime.cli.main import main
from recycle_runtime.launcher.supervisor import Supervisor
from recycle_runtime.options.run import AdaptationOptions
from recycle_runtime.protocol.messages.observers import JobEvent, ToObserver
from recycle_runtime.protocol.messages.steps import StepRow
from recycle_runtime.weights.named import open_weights
from tests.runtime.recovery.recut_plans import LAYERED, check_layers, three_by_two, write_bundle
from tests.runtime.recovery.watched import Drive, Outcome, run
from tests.runtime.training.alone import train_alone
from tests.runtime.training.compare import changed
from tests.support.layers import layer_costs, layered_job

FIVE, FOUR = "4x3,2x2", "3x2,3x2"
"""The best layouts for five workers and for four; the second has the job's own cut."""
NORMED = """

class Normed(Layer):
    def __init__(self, number):
        super().__init__(number)
        self.norm = nn.BatchNorm1d(WIDTH, dtype=torch.float64)

    def forward(self, value):
        return super().forward(self.norm(value))


def layers():
    return [(f"blocks.{number}", (Normed if number in (2, 4) else Layer)(number)) for number in range(6)]
"""
"""Layers that travel have running statistics."""
PER_STEP = 12
MOST_RUNS = 4


@pytest.fixture(scope="session")
def recuttable(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("recut") / "recut.plan"
    return write_bundle(path, three_by_two(), {FIVE: [(1, 0), (0, 1), (1, 1)]})


@pytest.fixture(scope="session")
def recuttable_with_barrier(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("recut") / "barrier.plan"
    return write_bundle(path, three_by_two(barrier=True), {FIVE: [(1, 0), (0, 1)]})


@pytest.fixture(scope="session", params=[False, True], ids=["staggered", "barrier"])
def recuttable_with_shards(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Optimizer state in shards with two owners each."""
    path = tmp_path_factory.mktemp("recut") / "shards.plan"
    return write_bundle(path, three_by_two(barrier=request.param, owners=2), {FIVE: [(1, 0), (0, 1), (1, 1)]})


def run_until(
    folder: Path,
    bundle: str,
    faults: Sequence[str],
    returns: Sequence[str],
    happened: Callable[[Outcome], bool],
    steps: int = 60,
    drive: Callable[[], Drive] = lambda: lambda supervisor, message: None,
    program: str = LAYERED,
    per_step: int = PER_STEP,
    adaptation: AdaptationOptions = AdaptationOptions(replan=None, recut="always"),  # noqa: B008
    checkpoint_every: int = 0,
) -> Outcome:
    """A run that is long enough for all of it; how many steps that takes depends on the machine."""
    outcome = Outcome()
    for attempt in range(MOST_RUNS):
        here = folder / f"run-{attempt}"
        checkpoint = here / "kept" if checkpoint_every else None
        outcome = run(
            here, bundle, program, steps, [*faults], [*returns], drive(), adaptation=adaptation,
            checkpoint=checkpoint, checkpoint_every=checkpoint_every or 100,
        )  # fmt: skip
        check_layers(here, outcome, program, per_step, steps)
        if happened(outcome):
            return outcome
        steps *= 3
    pytest.fail(f"it has not come to it: {outcome.events} {outcome.causes}")


def has_recut(layout: str, times: int = 1) -> Callable[[Outcome], bool]:
    def happened(outcome: Outcome) -> bool:
        done = [event for event in outcome.events if event.startswith(f"re-cut to {layout}: ")]
        return len(done) >= times

    return happened


def plans_in_order(outcome: Outcome) -> list[str]:
    """Those of all steps, each as long as it lasted."""
    names = [row.plan for row in outcome.rows]
    return [name for at, name in enumerate(names) if at == 0 or names[at - 1] != name]


@pytest.mark.slow
def test_a_failure_is_rerouted_and_then_recut(tmp_path: Path, recuttable: str) -> None:
    outcome = run_until(tmp_path, recuttable, ["kill=1:1@5"], [], has_recut(FIVE))
    assert plans_in_order(outcome) == ["0 0", "0 1", FIVE]


@pytest.mark.slow
def test_shards_travel_with_layers(tmp_path: Path, recuttable_with_shards: str) -> None:
    outcome = run_until(tmp_path, recuttable_with_shards, ["kill=1:1@5"], ["1:1@40"], has_recut("3x3,3x3"))
    assert plans_in_order(outcome)[:3] == ["0 0", "0 1", FIVE]


class Copies:
    """Copies of checkpoints, made when they are complete: the job deletes them soon."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.under: list[str] = []
        """Plan of the last step before each."""
        self._plan = ""

    def __call__(self, supervisor: Supervisor, message: ToObserver) -> None:
        if isinstance(message, StepRow):
            self._plan = message.plan
        if not isinstance(message, JobEvent) or not message.text.startswith("checkpoint of step "):
            return
        try:
            shutil.copytree(message.text.partition(": ")[2], self._folder / str(len(self.under)))
        except (shutil.Error, FileNotFoundError):
            # It was deleted meanwhile: this process had no time for it.
            shutil.rmtree(self._folder / str(len(self.under)), ignore_errors=True)
            return
        self.under.append(self._plan)

    def check(self, place: int) -> None:
        """An export has the weights of a plain loop, and owners have written as many shards as ever."""
        checkpoint, target = self._folder / str(place), self._folder / f"export-{place}"
        assert main(["--quiet", "export", str(checkpoint), "-o", str(target)]) == 0
        step = Manifest.read(checkpoint).step
        found, expected = dict(open_weights(target)), train_alone(LAYERED, 1, PER_STEP, step, cut=(6,)).states
        assert found.keys() == expected[0].keys()
        for name, tensor in expected[0].items():
            torch.testing.assert_close(found[name], tensor, rtol=1e-12, atol=1e-12)
        names = [path.name for path in checkpoint.iterdir() if path.is_dir()]
        assert sum("-optimizer-" in name for name in names) == 18 and len(names) == 24


@pytest.mark.slow
def test_exports_of_what_owners_have_written(tmp_path: Path, recuttable_with_shards: str) -> None:
    """Before an owner fails, without it, under another cut, and with another owner."""
    tried: list[Copies] = []

    def drive() -> Drive:
        tried.append(Copies(tmp_path / f"copies-{len(tried)}"))
        return tried[-1]

    run_until(
        tmp_path, recuttable_with_shards, ["kill=1:1@8"], ["1:1@40"], has_recut("3x3,3x3"), drive=drive,
        checkpoint_every=6,
    )  # fmt: skip
    copies = tried[-1]
    assert {FIVE, "0 0"} <= set(copies.under)
    for place in range(len(copies.under)):
        copies.check(place)


@pytest.mark.slow
def test_there_and_back_again(tmp_path: Path, recuttable: str) -> None:
    """Two failures, each re-routed and then re-cut; one worker comes back, then the other."""
    program = tmp_path / "normed.py"
    program.write_text(Path(LAYERED).read_text() + NORMED)
    faults, returns = ["kill=1:1@5", "kill=0:0@25"], ["1:1@40", "0:0@60"]
    outcome = run_until(
        tmp_path, recuttable, faults, returns, has_recut("3x3,3x3"), steps=150, program=str(program)
    )
    found = plans_in_order(outcome)
    assert found[:4] == ["0 0", "0 1", FIVE, "4x2,2x2"]
    assert {"1 1", FIVE} <= set(found[4:])
    assert found[-1] == "0 0"


@pytest.mark.slow
def test_workers_that_have_no_place_wait_for_the_next_cut(tmp_path: Path) -> None:
    """The grid of the cut for four is full: those who come back get their layers outside it."""
    counts = [(0, 0), (0, 1), (0, 2)]
    bundle = write_bundle(tmp_path / "full.plan", three_by_two(), {"6x4": [(1,)]}, counts)
    faults, returns = ["kill=1:1@5", "kill=0:1@9"], ["1:1@20", "0:1@22"]
    outcome = run_until(tmp_path, bundle, faults, returns, has_recut("3x3,3x3"), steps=100)
    assert plans_in_order(outcome)[-3:] == ["0 2", "6x4", "0 0"]


@pytest.mark.slow
@pytest.mark.parametrize("clip", [0.02, 0.2])
def test_with_steps_made_again(tmp_path: Path, recuttable: str, clip: float) -> None:
    """Every step is clipped, or some of them are."""
    program = tmp_path / "clipped.py"
    program.write_text(Path(LAYERED).read_text() + f"\n\nCLIP_NORM = {clip}\n")
    run_until(tmp_path, recuttable, ["kill=1:1@5"], [], has_recut(FIVE), program=str(program))


@pytest.mark.slow
def test_with_barriers(tmp_path: Path, recuttable_with_barrier: str) -> None:
    run_until(tmp_path, recuttable_with_barrier, ["kill=1:1@5"], [], has_recut(FIVE))


@pytest.mark.slow
def test_a_checkpoint_of_another_cut_is_resumed_under_the_jobs_own(tmp_path: Path, recuttable: str) -> None:
    steps = 40
    for attempt in range(MOST_RUNS):
        kept, here = tmp_path / f"kept-{attempt}", tmp_path / f"first-{attempt}"
        outcome = run(here, recuttable, LAYERED, steps, ["kill=1:1@5"], recut="always", checkpoint=kept)
        check_layers(here, outcome, LAYERED, PER_STEP, steps)
        again = tmp_path / f"again-{attempt}"
        resumed = run(again, recuttable, LAYERED, steps + 8, recut="off", checkpoint=kept, resume=True)
        check_layers(again, resumed, LAYERED, PER_STEP, steps + 8, first=steps)
        assert {row.plan for row in resumed.rows} == {"0 0"}
        if has_recut(FIVE)(outcome):
            return
        steps *= 3
    pytest.fail("it has not been cut anew")


IN_HALVES = "3x2,3x2 in halves"
HALVES = """job halves {
  parallel { pipeline = 2  data = 2 }
  batch    { microbatches = 2  split = 0% }
  layers   { count = 6  unit = slot  forward = 1  backward_input = 1  backward_weight = 1 }
  tolerate { failures = 2  redundancy = 1 }
}
"""
HALVES_IN_SHARDS = HALVES.replace("data = 2", "data = 3").replace(
    "  tolerate", "  optimizer { state = sharded  owners = 2 }\n  tolerate"
)


def halves_bundle(path: Path) -> str:
    """Own plans for no failure and for one on each stage; of those in halves too, so that one is covered."""
    job = parse_job_text(HALVES, "halves.job")
    return write_bundle(path, job, {IN_HALVES: [(1, 1)]}, [(0, 0), (1, 1)], source=HALVES)


@pytest.mark.slow
def test_in_halves_failures_are_planned_on_demand(tmp_path: Path) -> None:
    """From the start on micro-batches are split, since that is faster; nothing has to travel for it."""
    program = even_program(tmp_path)
    bundle = halves_bundle(tmp_path / "halves.plan")

    def happened(outcome: Outcome) -> bool:
        return outcome.rows[-1].plan == "3x2,3x1 in halves"

    outcome = run_until(tmp_path, bundle, ["kill=1:1@20"], [], happened, program=program, per_step=4)
    assert plans_in_order(outcome) == ["0 0", IN_HALVES, "3x1,3x1 in halves", "3x2,3x1 in halves"]
    assert "planned on demand" in " ".join(outcome.events)


def even_program(folder: Path) -> str:
    """Four samples, and no dropout, which would draw for each half."""
    program = folder / "even.py"
    program.write_text(Path(LAYERED).read_text().replace("randn(3,", "randn(4,").replace("0.1 if", "0.0 if"))
    return str(program)


@pytest.mark.slow
@pytest.mark.parametrize("clip", [None, 0.2])
def test_halves_with_shards(tmp_path: Path, clip: float | None) -> None:
    """Weights go out after the last half; an owner fails under halves and comes back."""
    program = changed(tmp_path, even_program(tmp_path), f"CLIP_NORM = {clip}")
    job, layout = parse_job_text(HALVES_IN_SHARDS, "halves.job"), "3x3,3x3 in halves"
    counts = [(0, 0), (0, 1), (1, 0), (1, 1)]
    bundle = write_bundle(
        tmp_path / "halves.plan", job, {layout: [(0, 1), (1, 0), (1, 1)]}, counts, source=HALVES_IN_SHARDS
    )

    def happened(outcome: Outcome) -> bool:
        names = [row.plan for row in outcome.rows]
        return len(outcome.faults) == 2 and "3x3,3x2 in halves" in names and names[-1] == layout

    faults, returns = ["kill=1:1@20", "kill=0:1@60"], ["1:1@25", "0:1@62"]
    outcome = run_until(tmp_path, bundle, faults, returns, happened, steps=100, program=program, per_step=6)
    assert plans_in_order(outcome)[:2] == ["0 0", layout]


BEYOND = """job beyond {
  parallel { pipeline = 2  data = 3 }
  batch    { microbatches = 4 }
  layers   { count = 6  unit = slot  forward = 1  backward_input = 1  backward_weight = 1 }
  tolerate { failures = 1 }
}
"""


@pytest.mark.slow
def test_beyond_the_bundle_the_fastest_cut_is_made_on_demand(tmp_path: Path) -> None:
    """The bundle has plans for one failure. Two workers fail, and the others ask for a cut of their own."""
    job = parse_job_text(BEYOND, "beyond.job")
    bundle = write_bundle(
        tmp_path / "beyond.plan", job, {FIVE: [(1, 1)]}, [(0, 0), (0, 1), (1, 0)], source=BEYOND
    )
    adaptation = AdaptationOptions(recut="always", ahead=True)
    faults = ["kill=1:1@5", "kill=0:0@25"]
    outcome = run_until(tmp_path, bundle, faults, [], has_recut("6x4"), steps=90, adaptation=adaptation)
    assert plans_in_order(outcome)[-1] == "6x4"


def _sleepy(folder: Path) -> Path:
    """The program with layers that take their time, so that a slow worker is told from others."""
    program = folder / "sleepy.py"
    slept = (
        Path(LAYERED)
        .read_text()
        .replace("        return self.dropout", "        sleep(0.004)\n        return self.dropout")
    )
    program.write_text(slept.replace("import torch\n", "from time import sleep\n\nimport torch\n", 1))
    return program


@pytest.mark.slow
def test_a_worker_that_is_slow_under_another_cut_has_less_to_do(tmp_path: Path) -> None:
    """Both workers hold the whole model then, the one that was named after stage 1 as its second worker."""
    program = _sleepy(tmp_path)
    job = layered_job(layer_costs((1000,) * 6), (4, 2), 1, 8, redundancy=1)
    bundle = write_bundle(tmp_path / "slow.plan", job, {"6x2": [(1,)]}, [(0, 0)])
    found: list[str] = []

    def happened(outcome: Outcome) -> bool:
        found[:] = [event for event in outcome.events if event.endswith("taken, with a lighter load")]
        return bool(found)

    run_until(
        tmp_path, bundle, ["slow=0:1@10"], [], happened, program=str(program), per_step=8,
        adaptation=AdaptationOptions(recut="always", replan_every=5),
    )  # fmt: skip
    assert found[0].startswith("0:1 takes ") and "a plan in which 0:1 has less to do saves " in found[0]


@pytest.mark.slow
def test_what_cannot_be_halved_stays_whole(tmp_path: Path) -> None:
    """Three samples are no two halves of equal size."""
    bundle = halves_bundle(tmp_path / "halves.plan")
    outcome = run(tmp_path / "run", bundle, LAYERED, 20, recut="always")
    check_layers(tmp_path / "run", outcome, LAYERED, 4, 20)
    assert plans_in_order(outcome) == ["0 0"]


def on_event(beginning: str, act: Callable[[Supervisor], None]) -> Drive:
    """Once, at the first event that begins so."""
    done: list[bool] = []

    def drive(supervisor: Supervisor, message: ToObserver) -> None:
        if isinstance(message, JobEvent) and message.text.startswith(beginning) and not done:
            done.append(True)
            act(supervisor)

    return drive


def kill_coordinator(supervisor: Supervisor) -> None:
    supervisor.coordinator.process.send_signal(signal.SIGKILL)


def test_the_coordinator_is_killed_while_layers_travel(tmp_path: Path, recuttable: str) -> None:
    outcome = run_until(
        tmp_path,
        recuttable,
        ["kill=1:1@5"],
        [],
        has_recut(FIVE),
        drive=lambda: on_event("re-cut begins", kill_coordinator),
    )
    assert plans_in_order(outcome) == ["0 0", "0 1", FIVE]


@pytest.mark.slow
def test_the_coordinator_is_killed_under_another_cut(tmp_path: Path, recuttable: str) -> None:
    """The worker that fails after that has seen the next coordinator: nobody else knows its shares of the
    loss."""
    outcome = run_until(
        tmp_path,
        recuttable,
        ["kill=1:1@5", "kill=0:1@250"],
        [],
        has_recut(FOUR),
        steps=280,
        drive=lambda: on_event(f"re-cut to {FIVE}: ", kill_coordinator),
    )
    assert plans_in_order(outcome)[-1] == "1 1"


def is_run_by_four(outcome: Outcome) -> bool:
    """Both faults have happened, and the best layout for those who are left was reached, or was there."""
    return len(outcome.faults) == 2 and outcome.rows[-1].plan == "1 1"


MOMENTS = ["0:1@5.give", "0:0@5.take", "0:1@5.settle", "0:0@6.settle", "0:0@6.leave", "2:1@6.meet"]


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_second_failure_around_the_switch(tmp_path: Path, recuttable: str, moment: str) -> None:
    """Whoever it hits, and whenever."""
    run_until(tmp_path, recuttable, ["kill=1:1@5", f"kill={moment}"], [], is_run_by_four)


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_an_owner_fails_around_the_switch(tmp_path: Path, recuttable_with_shards: str, moment: str) -> None:
    run_until(tmp_path, recuttable_with_shards, ["kill=1:1@5", f"kill={moment}"], [], is_run_by_four)


def kill_during_the_move(folder: Path, bundle: str, worker: str, position: int) -> None:
    """The first failure is in step 5, and layers travel from step 6 on; the switch is some steps later."""
    step = 7 + position % 4
    faults = ["kill=1:1@5", f"kill={worker}@{step}.{position}"]
    run_until(folder, bundle, faults, [], is_run_by_four)


@pytest.mark.slow
@pytest.mark.parametrize("position", range(40))
@pytest.mark.parametrize("worker", ["0:1", "0:0"])
def test_each_instruction(tmp_path: Path, recuttable: str, worker: str, position: int) -> None:
    kill_during_the_move(tmp_path, recuttable, worker, position)


SLOW = """job slow {
  parallel { pipeline = 2  data = 2 }
  batch    { microbatches = 4 }
  layers   { count = 6  unit = slot  forward = 1  backward_input = 1  backward_weight = 1 }
}
"""


SLOW_WITH_SHARDS = SLOW.replace("data = 2", "data = 3").replace(
    "  layers", "  optimizer { state = sharded  owners = 2 }\n  layers"
)


@pytest.mark.slow
@pytest.mark.parametrize(("text", "peers"), [(SLOW, 2), (SLOW_WITH_SHARDS, 3)], ids=["whole", "sharded"])
def test_the_stage_of_a_slow_worker_gets_fewer_layers(tmp_path: Path, text: str, peers: int) -> None:
    """The bundle has no plans of other cuts: the cut is found and planned while training goes on.

    Then the slow worker is killed.
    """
    program = _sleepy(tmp_path)
    bundle = write_bundle(
        tmp_path / "slow.plan", parse_job_text(text, "slow.job"), {}, [(0, 0), (0, 1), (1, 0)], source=text
    )
    steps = 200
    for attempt in range(MOST_RUNS):
        here = tmp_path / f"run-{attempt}"
        outcome = run(
            here, bundle, str(program), steps, ["slow=0:1@10", f"kill=0:1@{steps - 30}"],
            adaptation=AdaptationOptions(recut="always", replan_every=5),
        )  # fmt: skip
        check_layers(here, outcome, str(program), 4 * peers, steps)
        found = [event for event in outcome.events if ": taken, with layout " in event]
        if found:
            layout = found[0].rpartition(" ")[2]
            assert found[0].startswith("0:1 takes ") and f"layout {layout} saves " in found[0]
            assert layout in plans_in_order(outcome) and outcome.rows[-1].live == 2 * peers - 1
            return
        steps *= 3
    pytest.fail("it has not come to it")
