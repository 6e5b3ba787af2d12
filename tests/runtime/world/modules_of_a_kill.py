"""Modules of the runtime whose code runs between a kill and the next step, in one quiet simulated world.

python -m tests.runtime.world.modules_of_a_kill
"""

import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from types import FrameType

import recycle_runtime
from recycle_runtime.protocol.messages.steps import StepRow
from tests.runtime.world.faults import KillWorker
from tests.runtime.world.jobs import quiet, world_jobs
from tests.runtime.world.scenarios import scenario
from tests.runtime.world.world import Fault, Scenario, World

_RUNTIME = Path(recycle_runtime.__file__).parent
_SEEDS = 20


class KillWatched(World):
    """Profiled from its fault to the first step that is reported after a recovery."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self.calls: Counter[str] = Counter()
        self.is_seen = False
        self._recoveries = 0

    def _let_happen(self, fault: Fault) -> None:
        self._recoveries = self.outcome.recoveries
        sys.setprofile(self._called)
        super()._let_happen(fault)

    def _hear_row(self, row: StepRow) -> None:
        if sys.getprofile() is not None and self.outcome.recoveries > self._recoveries:
            sys.setprofile(None)
            self.is_seen = True
        super()._hear_row(row)

    def _called(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            self.calls[frame.f_code.co_filename] += 1


def modules_visited() -> dict[str, int]:
    """Calls into each module, by its path in the runtime."""
    with tempfile.TemporaryDirectory() as folder:
        jobs = world_jobs(Path(folder))
        kill = KillWorker(3.0, worker=(1, 1))
        story = quiet(7, jobs[:1], faults=(kill,), steps=60, nodes=3, checkpoints=0, copies=0)
        world = KillWatched(story)
        outcome = world.run()
    assert not outcome.wrong and outcome.error is None and world.is_seen, outcome.story
    paths = {Path(name): count for name, count in world.calls.items()}
    return {
        str(path.relative_to(_RUNTIME)): count
        for path, count in sorted(paths.items())
        if path.is_relative_to(_RUNTIME)
    }


def events_a_second() -> float:
    """Of worlds as they come, by CPU time."""
    with tempfile.TemporaryDirectory() as folder:
        jobs = world_jobs(Path(folder))
        began = time.process_time()
        events = sum(World(scenario(seed, jobs)).run().events for seed in range(_SEEDS))
        return events / (time.process_time() - began)


if __name__ == "__main__":
    visited = modules_visited()
    for name, count in visited.items():
        print(f"{count:6,}  {name}")
    folders = Counter(name.partition("/")[0] for name in visited)
    print(
        f"{len(visited)} modules:", ", ".join(f"{folder} {count}" for folder, count in folders.most_common())
    )
    print(f"{events_a_second():,.0f} events in a second of CPU time, {_SEEDS} worlds")
