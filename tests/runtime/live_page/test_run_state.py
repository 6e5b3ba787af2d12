"""The state of a run is what its news say."""

import json
import math

from recycle_runtime.live_page.prometheus import prometheus_text
from recycle_runtime.live_page.run_state import RunState
from recycle_runtime.protocol.messages.observers import (
    Generation,
    Hello,
    JobEnded,
    JobEvent,
    Recovered,
    Starting,
    ToObserver,
)
from recycle_runtime.protocol.messages.steps import StepRow, StepSettled

WORKERS = ((0, 0), (0, 1), (1, 0), (1, 1))
START = Generation(1, 0, "0 0", WORKERS, 0, 24_000_000)
FAILED = Generation(2, 3, "0 1", WORKERS[:3], 0, 48_000_000)


def recovered(generation: int, step: int, plan: str, *causes: str) -> Recovered:
    return Recovered(generation, causes, step, 0, 0.1, plan, 0.05, 0.02, 0.03, 0.1)


def row(step: int, loss: float = 0.5) -> StepRow:
    return StepRow(step, loss, 0.03, 4, "0 0", samples=8, tokens=0, learning_rate=0.01)


def state_after(*news: ToObserver, timed: bool = True) -> RunState:
    times = iter(range(1000))
    state = RunState("tiny", 2, 2, timed=timed, now=lambda: float(next(times)))
    for message in news:
        state.take(message)
    return state


def test_before_the_first_step() -> None:
    found = state_after(Hello(20, 0), Starting("4 workers start")).snapshot()
    assert found["phase"] == "4 workers start"
    assert found["steps_wanted"] == 20
    assert found["grid"] == [["starting", "starting"], ["starting", "starting"]]


def test_a_failed_worker_leaves_the_grid_and_the_plan_changes() -> None:
    state = state_after(START, recovered(1, 0, "0 0", "start"), row(0), FAILED)
    state.take(recovered(2, 3, "0 1", "1:1 was killed by signal 9"))
    found = state.snapshot()
    assert found["grid"] == [["live", "live"], ["live", "failed"]]
    assert (found["plan"], found["planned_seconds"]) == ("0 1", 0.048)
    assert found["why"] == "1:1 was killed by signal 9"
    (change,) = found["recoveries"]
    assert (change["step"], change["detection"], change["total"]) == (3, 0.05, 0.1)
    assert "continues with step 3" in found["events"][-1]["text"]


def test_steps_have_what_the_plan_promised_when_they_were_made() -> None:
    found = state_after(START, row(0), FAILED, row(1)).snapshot()
    assert [step["planned"] for step in found["steps"]] == [0.024, 0.048]


def test_slots_are_no_seconds() -> None:
    assert state_after(START, timed=False).snapshot()["planned_seconds"] is None


def test_what_is_not_finite_is_left_out_so_that_all_is_json() -> None:
    state = state_after(START, row(0, math.nan), StepSettled(0, math.inf, True), row(1))
    found = json.loads(json.dumps(state.snapshot(), allow_nan=False))
    assert [step["loss"] for step in found["steps"]] == [None, 0.5]
    assert found["steps"][0]["skipped"] is True
    assert state.totals()["steps_skipped_total"] == 1


def test_what_became_of_a_step_may_be_known_before_it_counts() -> None:
    early = (StepSettled(0, 1.5, False), StepSettled(1, math.inf, True))
    state = state_after(START, *early, row(0), row(1), row(2))
    found = [(step["gradient_norm"], step["skipped"]) for step in state.snapshot()["steps"]]
    assert found == [(1.5, False), (None, True), (None, False)]
    assert state.totals()["steps_skipped_total"] == 1


def test_how_it_ended() -> None:
    assert state_after(JobEnded(None, False, None, 20)).snapshot()["phase"] == "ended"
    assert state_after(JobEnded("no plan", True, None)).snapshot()["phase"] == "ended: no plan"


def test_only_so_much_is_kept() -> None:
    state = state_after(START, *(row(step) for step in range(2500)), *(JobEvent(str(n)) for n in range(300)))
    found = state.snapshot()
    assert (len(found["steps"]), found["steps"][-1]["step"]) == (2000, 2499)
    assert (len(found["events"]), state.totals()["steps_total"]) == (200, 2500)


def test_numbers_for_prometheus() -> None:
    state = state_after(START, row(0), StepSettled(0, 1.5, False))
    lines = prometheus_text(state.totals()).splitlines()
    assert "recycle_loss 0.5" in lines
    assert "recycle_gradient_norm 1.5" in lines
    assert "recycle_samples_total 8" in lines
    assert "# TYPE recycle_samples_total counter" in lines
    assert "# TYPE recycle_loss gauge" in lines
    names = [line.split()[0] for line in lines if not line.startswith("#")]
    assert len(names) == len(set(names))


def test_what_is_unknown_is_not_told() -> None:
    assert "recycle_loss" not in prometheus_text(state_after(START).totals())
