"""A world in which something goes wrong, made small: fewer faults, fewer steps, the same end in words."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from recycle_runtime.plan.bundle import Bundle
from tests.runtime.world.world import Outcome, Scenario, World

_MOST_RUNS = 200
_WITHOUT: dict[str, Any] = {
    "skipped": frozenset(),
    "copies": 0,
    "echoes": 0.0,
    "standing": False,
    "saves": False,
    "checkpoints": 0,
    "recut": "off",
}
"""What a world may do without."""


def shrunk(found: Scenario) -> tuple[Scenario, Outcome]:
    """The smallest scenario that was found in which something still goes wrong, and what does."""
    best, outcome = found, World(found).run()
    runs = 1
    has_changed = True
    while has_changed and runs < _MOST_RUNS:
        has_changed = False
        for smaller in _smaller(best):
            runs += 1
            tried = World(smaller).run()
            if tried.wrong:
                best, outcome, has_changed = smaller, tried, True
                break
            if runs >= _MOST_RUNS:
                break
    return best, outcome


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    for place in range(len(scenario.faults)):
        yield replace(scenario, faults=scenario.faults[:place] + scenario.faults[place + 1 :])
    for name, without in _WITHOUT.items():
        if getattr(scenario, name) != without:
            yield replace(scenario, **{name: without})
    if scenario.steps > 6:
        yield replace(scenario, steps=6, skipped=frozenset(step for step in scenario.skipped if step < 6))


def ends_well(scenario: Scenario) -> Outcome:
    """Nothing goes wrong that should not, and the job ends without an error."""
    outcome = World(scenario).run()
    assert not outcome.wrong and outcome.error is None, told(scenario, outcome)
    return outcome


def told(scenario: Scenario, outcome: Outcome) -> str:
    """In words: the job, what goes wrong with the machines, and what comes of it."""
    bundle = scenario.bundle
    lines = [
        f"seed {scenario.seed}: {bundle.pipelines} x {bundle.stages} workers{_ranks(bundle)} on "
        f"{scenario.nodes} nodes with room for {scenario.room} each, {scenario.steps} steps"
        + (f", a checkpoint every {scenario.checkpoints}" if scenario.checkpoints else "")
        + (f", a copy in memory every {scenario.copies}" if scenario.copies else "")
        + (", calls that stand until they are aborted" if scenario.standing else "")
        + (", saved at the end" if scenario.saves else "")
        + (f", shards with {bundle.owners} owners" if bundle.owners else "")
        + (f", re-cut {scenario.recut}" if scenario.recut != "off" else "")
        + (f", all said again {scenario.echoes:.1f} s later" if scenario.echoes else "")
        + (f", not finite in {sorted(scenario.skipped)}" if scenario.skipped else ""),
        *outcome.story,
    ]
    return "\n".join(lines)


def _ranks(bundle: Bundle) -> str:
    return f" of {bundle.tensor} ranks" if bundle.tensor > 1 else ""
