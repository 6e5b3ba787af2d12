"""The driver of a job on Ray, with a fake of the few calls that it makes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from recycle_runtime.integrations.ray import JobError, RayJob, job, start
from recycle_runtime.integrations.ray.actors import AgentReport, CoordinatorActor, CoordinatorReport
from recycle_runtime.integrations.ray.calls import AwayError, DeadError
from recycle_runtime.protocol.messages.checkpoints import CheckpointPath
from recycle_runtime.protocol.messages.observers import JobEnded
from recycle_runtime.protocol.messages.steps import StepRow


@dataclass
class FakeActor:
    """Answers with what it was given to say, and repeats the last of it."""

    made: type
    options: Mapping[str, Any]
    says: list[Any]
    asked: list[tuple[object, ...]] = field(default_factory=list[tuple[object, ...]])
    is_killed: bool = False


class FakeCalls:
    """Actors that say what `says` gives for each of them, by whether it is the coordinator."""

    def __init__(self, coordinators: list[list[Any]], agents: list[list[Any]]) -> None:
        self._says = {True: coordinators, False: agents}
        self.actors: list[FakeActor] = []

    def create(self, made: type, options: Mapping[str, Any], *arguments: object) -> FakeActor:
        actor = FakeActor(made, options, self._says[made is CoordinatorActor].pop(0))
        self.actors.append(actor)
        return actor

    def ask(self, actor: FakeActor, method: str, *arguments: object) -> Any:
        assert method == "look" and not actor.is_killed
        actor.asked.append(arguments)
        return actor.says.pop(0) if len(actor.says) > 1 else actor.says[0]

    def is_there(self, answer: Any) -> bool:
        return True

    def value(self, answer: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    def kill(self, actor: FakeActor) -> None:
        actor.is_killed = True


RUNS = AgentReport(None)
OVER = AgentReport(0)


def clock(sleep: Callable[[float], None]) -> SimpleNamespace:
    """On which long passes from one look to the next."""
    moments = count(0.0, 100.0)
    return SimpleNamespace(monotonic=lambda: next(moments), sleep=sleep)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "time", clock(lambda _: None))


def row(step: int, loss: float = 1.0) -> StepRow:
    return StepRow(step, loss, 0.1, 4, "0")


def told(*news: Any, at: str = "a:1", status: int | None = None, error: str | None = None) -> Any:
    return CoordinatorReport(at, news, status, error)


def begun(square: str, calls: FakeCalls, **options: Any) -> RayJob:
    usual: dict[str, Any] = {"program": "p.py", "steps": 3, "workers_per_node": 2, "state": "s"}
    return start(square, calls=calls, **(usual | options))


def test_a_job_from_its_start_to_its_end(square: str) -> None:
    end = told(JobEnded(None, False, None, 2), status=0)
    calls = FakeCalls([[told(), told(row(0)), told(row(1)), end]], [[RUNS, OVER], [RUNS, OVER]])
    heard: list[Any] = []
    result = begun(square, calls, on_news=heard.append, agent_options={"resources": {"x": 1}}).wait()
    assert [each.step for each in result.steps] == [0, 1]
    assert [type(each).__name__ for each in heard] == ["StepRow", "StepRow", "JobEnded"]
    coordinator, *agents = calls.actors
    assert coordinator.options == {"num_cpus": 1}
    assert [each.options for each in agents] == 2 * [
        {"num_cpus": 2, "scheduling_strategy": "SPREAD", "resources": {"x": 1}}
    ]
    # Steps that are known are not told again.
    assert [asked[0] for asked in coordinator.asked] == [0, 0, 1, 2]
    assert all(each.is_killed for each in calls.actors)


def test_agents_are_told_where_the_coordinator_is_now(square: str) -> None:
    first = [told(row(0), at="a:1"), AwayError("restarts"), DeadError("its node is gone")]
    second = [told(at="b:2"), told(row(1), at="b:2"), told(JobEnded(None, False, None, 2), status=0)]
    calls = FakeCalls([first, second], [[RUNS, RUNS, RUNS, RUNS, OVER], [RUNS, RUNS, RUNS, RUNS, OVER]])
    result = begun(square, calls).wait()
    assert [each.step for each in result.steps] == [0, 1]
    agent = calls.actors[1]
    assert ("a:1",) in agent.asked and agent.asked[-1] == ("b:2",)
    coordinators = [each for each in calls.actors if each.made is CoordinatorActor]
    assert len(coordinators) == 2
    assert coordinators[1].asked[0] == (1, False)


def test_an_agent_whose_node_is_gone_is_made_again(square: str) -> None:
    calls = FakeCalls(
        [[told(), told(), told(), told(JobEnded(None, False, None, 0), status=0)]],
        [[RUNS, DeadError("node")], [RUNS, OVER], [RUNS, OVER]],
    )
    one = begun(square, calls)
    before = one.agents
    one.wait()
    assert before[0].is_killed and one.agents[0] is not before[0]
    assert one.agents[1] is before[1]


def test_a_job_that_is_stopped(square: str) -> None:
    ended = JobEnded("stopped", False, CheckpointPath("kept/step-2", 2))
    calls = FakeCalls([[told(), told(), told(ended, status=130)]], [[OVER], [OVER]])
    one = begun(square, calls)
    one.stop()
    with pytest.raises(JobError, match=r"^stopped; kept/step-2 has the first 2 steps: .* with resume=True$"):
        one.wait()
    assert calls.actors[0].asked[-1] == (0, True)


def test_ctrl_c_stops_in_order_and_twice_at_once(square: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = FakeCalls([[told()]], [[RUNS], [RUNS]])
    one = begun(square, calls)

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(job, "time", clock(interrupt))
    with pytest.raises(KeyboardInterrupt):
        one.wait()
    assert calls.actors[0].asked == [(0, False), (0, True)]
    assert all(each.is_killed for each in calls.actors)


@pytest.mark.parametrize(
    ("coordinators", "agents", "words"),
    [
        ([[told(status=2)]], [[RUNS], [RUNS]], "the coordinator ended with status 2; its log says why"),
        (
            [[told(status=1, error="the coordinator has died 6 times")]],
            [[RUNS], [RUNS]],
            "^the coordinator has",
        ),
        ([[told()]], [[AgentReport(1, "why")], [AgentReport(1, "why")]], "^no node is left: why$"),
        ([[DeadError("no module")]] * 6, [[RUNS], [RUNS]], "cannot be started: no module"),
        ([[told()]], [[DeadError("no module")]] * 12, "^no node is left: no module$"),
        ([[told(JobEnded("broken", False, None), status=1)]], [[OVER], [OVER]], "^broken$"),
    ],
)
def test_how_a_job_fails(
    square: str, coordinators: list[list[Any]], agents: list[list[Any]], words: str
) -> None:
    calls = FakeCalls(coordinators, agents)
    with pytest.raises(JobError, match=words):
        begun(square, calls).wait()
    assert all(each.is_killed for each in calls.actors)


def test_steps_that_are_made_again_count(square: str) -> None:
    rows = [row(0), row(1, 7.0), row(2), row(1, 5.0), row(2, 6.0)]
    end = told(JobEnded(None, False, None, 3), status=0)
    calls = FakeCalls([[told(*rows), end]], [[OVER], [OVER]])
    assert [each.loss for each in begun(square, calls).wait().steps] == [1.0, 5.0, 6.0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"steps": "many"}, "--steps"),
        ({"colour": "red"}, "unrecognized arguments: --colour=red"),
        ({"port": 5}, "port is no option here"),
        ({"nodes": 1}, "nodes 1 with workers_per_node 2 is too few: the job takes 2 such nodes"),
        ({"program": None}, "give either a script to run"),
    ],
)
def test_what_makes_no_sense(square: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(JobError, match=words):
        begun(square, FakeCalls([], []), **options)


def test_a_plan_that_is_none(tmp_path: Any) -> None:
    with pytest.raises(JobError, match=r"missing\.plan: "):
        begun(str(tmp_path / "missing.plan"), FakeCalls([], []))
    other = tmp_path / "x.plan"
    other.write_text("hello")
    with pytest.raises(JobError, match="not a bundle"):
        begun(str(other), FakeCalls([], []))


@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed")
def test_without_ray_one_sentence_says_what_to_install(square: str) -> None:
    with pytest.raises(ImportError, match=r"pip install 'recyclec\[ray\]'"):
        start(square, program="p.py", steps=3, workers_per_node=2, state="s")
