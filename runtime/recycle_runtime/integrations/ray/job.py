"""The driver's part of a job on Ray: actors are made, looked at in turns, and made again when they are gone.

The driver holds no state of the job but the news it has heard. It tells agents where the coordinator is,
which may be somewhere else after every failure. When the driver ends, Ray ends its actors, and they all else.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from recycle_runtime.integrations.ray.actors import (
    AgentActor,
    AgentReport,
    CoordinatorActor,
    CoordinatorReport,
)
from recycle_runtime.integrations.ray.calls import AwayError, Calls, DeadError, RayCalls
from recycle_runtime.integrations.words import JobError, JobWords
from recycle_runtime.protocol.framing import TOKEN, new_token
from recycle_runtime.protocol.messages.observers import JobEnded, Recovered, ToObserver
from recycle_runtime.protocol.messages.steps import StepRow

_TURN_EVERY = 0.25
_LEAVE_SECONDS = 10.0
"""For agents to end by themselves once the job is over."""
_MOST_DEATHS = 5
"""In a row, of an actor that never answers."""


@dataclass(frozen=True, slots=True)
class Result:
    """Result at the end, or so far."""

    steps: list[StepRow] = field(default_factory=list[StepRow])
    recoveries: list[Recovered] = field(default_factory=list[Recovered])
    """One for every change of the group, the first being the start."""

    def take(self, message: ToObserver) -> None:
        if isinstance(message, StepRow):
            while self.steps and self.steps[-1].step >= message.step:
                # The job has gone back to a checkpoint; what is made again counts.
                self.steps.pop()
            self.steps.append(message)
        elif isinstance(message, Recovered):
            self.recoveries.append(message)


class KeptActor:
    """An actor that is made again, wherever Ray has room, when it is gone."""

    def __init__(
        self, calls: Calls, made: type, options: Mapping[str, Any], arguments: Sequence[object]
    ) -> None:
        self._calls, self._made, self._options, self._arguments = calls, made, options, arguments
        self.handle: Any = calls.create(made, options, *arguments)
        self._answer: Any = None
        self._deaths = 0
        """In a row."""
        self._made_again_at: float | None = None
        self.error: str | None = None
        """Reason why the actor is not started again."""

    def ask(self, *arguments: object) -> None:
        """Let it look, unless it still does."""
        if self._made_again_at is not None and time.monotonic() >= self._made_again_at:
            self._made_again_at = None
            self.handle = self._calls.create(self._made, self._options, *self._arguments)
        if self.error is None and self._made_again_at is None and self._answer is None:
            self._answer = self._calls.ask(self.handle, "look", *arguments)

    def heard(self) -> Any:
        """Answer of the last call; None if there is none yet."""
        if self._answer is None or not self._calls.is_there(self._answer):
            return None
        answer, self._answer = self._answer, None
        try:
            value = self._calls.value(answer)
        except AwayError:
            return None
        except DeadError as error:
            self._note_death(str(error))
            return None
        self._deaths = 0
        return value

    def kill(self) -> None:
        self._calls.kill(self.handle)

    def _note_death(self, why: str) -> None:
        # So that there are never two of it.
        self._calls.kill(self.handle)
        self._deaths += 1
        if self._deaths > _MOST_DEATHS:
            self.error = why
            return
        pause = 0.0 if self._deaths == 1 else 2.0 ** (self._deaths - 1)
        self._made_again_at = time.monotonic() + pause


class RayJob:
    """A job that runs. It is kept going by `wait`, or by calling `turn` at least every second."""

    def __init__(
        self,
        words: JobWords,
        calls: Calls,
        coordinator_options: Mapping[str, Any],
        agent_options: Mapping[str, Any],
        on_news: Callable[[ToObserver], None],
    ) -> None:
        token = os.environ.get(TOKEN) or new_token()
        self.result = Result()
        self._on_news = on_news
        self._coordinator = KeptActor(calls, CoordinatorActor, coordinator_options, (words, token))
        self._agents = [
            KeptActor(calls, AgentActor, agent_options, (words, token)) for _ in range(words.nodes)
        ]
        self._left: dict[int, AgentReport] = {}
        """Reports of agents that take no further part, by their number."""
        self._address = ""
        self._stops = False
        self._ended: JobEnded | None = None
        self._last: CoordinatorReport | None = None

    @property
    def coordinator(self) -> Any:
        """Its actor, which is another one after each of its failures."""
        return self._coordinator.handle

    @property
    def agents(self) -> tuple[Any, ...]:
        """The same, one for each node."""
        return tuple(agent.handle for agent in self._agents)

    @property
    def is_over(self) -> bool:
        return self._last is not None

    def stop(self) -> None:
        """End in order, with a last checkpoint if the job keeps any; `wait` for it."""
        self._stops = True

    def turn(self) -> None:
        """Hear what there is and look after all actors; JobError when the job cannot go on."""
        self._hear_coordinator()
        if self.is_over:
            return
        if self._address:
            self._hear_agents()

    def wait(self) -> Result:
        """Until the job is over; JobError if that is too early. Nothing of it is left then.

        Ctrl-C ends it in order, a second one at once.
        """
        try:
            self._run()
            deadline = time.monotonic() + _LEAVE_SECONDS
            while len(self._left) < len(self._agents) and time.monotonic() < deadline:
                self._hear_agents()
                time.sleep(_TURN_EVERY)
        finally:
            self.end()
        if (error := self._error()) is not None:
            raise JobError(error)
        return self.result

    def _run(self) -> None:
        """Ctrl-C ends the job in order, a second one at once."""
        while not self.is_over:
            try:
                self.turn()
                time.sleep(_TURN_EVERY)
            except KeyboardInterrupt:
                if self._stops:
                    raise
                self.stop()

    def end(self) -> None:
        """At once."""
        for actor in (self._coordinator, *self._agents):
            actor.kill()

    def _hear_coordinator(self) -> None:
        report: CoordinatorReport | None = self._coordinator.heard()
        if report is not None:
            self._address = report.address
            for message in report.news:
                self._take(message)
            if report.status is not None:
                self._last = report
                return
        if self._coordinator.error is not None:
            raise JobError(f"the coordinator cannot be started: {self._coordinator.error}")
        steps = self.result.steps
        self._coordinator.ask(steps[-1].step + 1 if steps else 0, self._stops)

    def _hear_agents(self) -> None:
        for number, agent in enumerate(self._agents):
            report: AgentReport | None = agent.heard()
            if agent.error is not None:
                report = AgentReport(1, agent.error)
            if report is not None and report.status is not None:
                self._left[number] = report
            if number not in self._left:
                agent.ask(self._address)
        if len(self._left) == len(self._agents) and all(left.status for left in self._left.values()):
            *_, last = self._left.values()
            raise JobError(f"no node is left: {last.error}")

    def _take(self, message: ToObserver) -> None:
        if isinstance(message, JobEnded):
            self._ended = message
        self.result.take(message)
        self._on_news(message)

    def _error(self) -> str | None:
        """Error that the job has ended with, if any."""
        ended, last = self._ended, self._last
        if ended is None or last is None:
            if last is None or last.status == 0:
                return None
            return last.error or f"the coordinator ended with status {last.status}; its log says why"
        if ended.error is None:
            return None
        if ended.checkpoint is None:
            return ended.error
        path, step = ended.checkpoint
        return f"{ended.error}; {path} has the first {step} steps: resume from it with resume=True"


def start(
    plan: str,
    *script: str,
    nodes: int | None = None,
    coordinator_options: Mapping[str, Any] | None = None,
    agent_options: Mapping[str, Any] | None = None,
    on_news: Callable[[ToObserver], None] = lambda _: None,
    calls: Calls | None = None,
    **options: object,
) -> RayJob:
    """Begin a job on the Ray cluster that this driver is connected to; JobError if it makes no sense.

    `script` is your script with its arguments, in place of `program=FILE`. `options` are those of
    `recycle-run node`, with underscores: `workers_per_node=4, state="/shared/state", resume=True`.
    `nodes` is how many agents there are (default: as few as the job needs; more are spare). Options of Ray
    for the actors, such as `{"num_gpus": 8, "resources": {"a100": 1}}`, are added to what they have: an agent
    asks for a CPU for each worker, and a GPU with `device="cuda"`. `calls` is for tests.
    """
    words = JobWords(plan, script, options, nodes)
    usual: dict[str, Any] = {"num_cpus": words.workers_per_node, "scheduling_strategy": "SPREAD"}
    if words.device == "cuda":
        usual["num_gpus"] = words.workers_per_node
    return RayJob(
        words,
        RayCalls() if calls is None else calls,
        {"num_cpus": 1, **(coordinator_options or {})},
        usual | dict(agent_options or {}),
        on_news,
    )


def train(plan: str, *script: str, **options: Any) -> Result:
    """The same, until it is over."""
    return start(plan, *script, **options).wait()
