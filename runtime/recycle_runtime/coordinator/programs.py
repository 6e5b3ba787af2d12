"""The program of a job: checks that all worker processes have the same one, with the same seed and plans, and
that tell its faults from those of machines. Needs no torch.

Nodes may have copies of their own of these files, one of them old, and each agent is started with options of
its own. What workers with different programs train together is neither program's; workers with different
plans wait for each other. Plans that the coordinator sends, made on demand, are the same for all.

One worker that fails may be a machine's fault, and the job goes on without it. If the same step fails on
another one, or hangs there, no machine is at fault, and the job ends with the reason.
"""

from collections.abc import Callable, Collection

from recycle_runtime.coordinator.events import Tell
from recycle_runtime.coordinator.last_generation import Setup
from recycle_runtime.plan.worker_ids import Worker, worker_text
from recycle_runtime.protocol.messages.generations import Failed, LeftGroup
from recycle_runtime.protocol.messages.members import Member

_MOST_FRUITLESS = 5
"""Generations in a row that end without a step or a failure; after more of them something else is wrong."""


class Programs:
    """The first process that comes says what the others must have; plans are the coordinator's."""

    def __init__(self, plans: str, first: Setup | None = None) -> None:
        """`plans` is the digest of those of the coordinator, `first` what its journal says."""
        self._plans = plans
        self.first = first
        """Whom the others are compared with."""

    def mistake(self, member: Member, left: LeftGroup, hosts: Callable[[Worker], str]) -> str | None:
        """Reason why a process cannot train with the others; `hosts` gives the host of a worker, if known."""
        if left.plans and left.plans != self._plans:
            return (
                f"{_called(member, hosts)} has another plan file than the coordinator (plans {left.plans} "
                f"and {self._plans}): every node needs the same file"
            )
        if self.first is None:
            self.first = Setup(_called(member, hosts), left.program, left.seed, self._plans)
        first = self.first
        if left.seed != first.seed:
            return (
                f"{_called(member, hosts)} has the seed {left.seed}, and {first.who} has {first.seed}: every "
                "agent needs the same --seed"
            )
        python, _, source = left.program.partition(" ")
        first_python, _, first_source = first.program.partition(" ")
        if python != first_python or not source or not first_source or source == first_source:
            # Two versions of Python do not read a source in the same words.
            return None
        return (
            f"{_called(member, hosts)} has another program than {first.who} (source {source} and "
            f"{first_source}): every node needs the same file, and the same modules beside it"
        )


def _called(member: Member, hosts: Callable[[Worker], str]) -> str:
    host = hosts(member.worker)
    return f"worker {worker_text(member.worker)}{host and f' on {host}'}"


class ProgramFaults:
    """Workers whose own work has failed, by step, until the step is made."""

    def __init__(self) -> None:
        self._raised: dict[int, set[Worker]] = {}
        self._stuck: dict[int, set[Worker]] = {}
        self._untold: list[tuple[int, Tell]] = []
        """Of which worker's own work has failed, until the step is made without it: then the program was not
        at fault. If it was, the job ends with that, and it is reported then."""
        self._fruitless = 0
        self._first_reason = ""

    def is_raised_alike(self, worker: Worker, said: Failed) -> bool:
        """True if the same step has raised an error on another worker, so that no machine is at fault."""
        others = self._raised.setdefault(said.step, set())
        if not said.is_injected:
            others.add(worker)
        if len(others) > 1:
            self._untold.clear()
            return True
        self._untold.append((said.step, told_of(worker, said)))
        return False

    def stuck(self, worker: Worker, step: int, peers: Collection[Worker], why: str) -> str | None:
        """A worker hangs in a step: the error that the job ends with, unless another of its stage, which does
        not hang, can do its work; None if one can."""
        others = self._stuck.setdefault(step, set())
        others.add(worker)
        if len(others) == 1:
            return None if set(peers) - others else why
        names = ", ".join(map(worker_text, sorted(others)))
        return f"workers {names} got stuck alike, so the program is at fault: {why}"

    def fruitless(self, worker: Worker, why: str) -> str | None:
        """No worker has failed, and yet they cannot continue: the error, once that was too often in a row."""
        if not self._fruitless:
            # What follows may be nothing but the consequence.
            self._first_reason = f"{worker_text(worker)}: {why}"
        self._fruitless += 1
        if self._fruitless <= _MOST_FRUITLESS:
            return None
        return (
            f"the workers could not talk to each other {self._fruitless} times in a row; at first "
            f"{self._first_reason}"
        )

    def worker_gone(self) -> None:
        """There is a reason why the others could not talk to it."""
        self._fruitless = 0

    def made(self, step: int) -> list[Tell]:
        """All have made this step."""
        self._fruitless = 0
        self._raised.pop(step, None)
        self._stuck.pop(step, None)
        return self.told(step)

    def told(self, step: int, error: str = "") -> list[Tell]:
        """Of workers that have failed in a step up to this one; not again what the job ends with."""
        told = [tell for failed, tell in self._untold if failed <= step]
        self._untold = [(failed, tell) for failed, tell in self._untold if failed > step]
        return [tell for tell in told if tell.text.partition(" failed: ")[2] not in error]


def told_of(worker: Worker, said: Failed) -> Tell:
    return Tell(f"{worker_text(worker)} failed: {said.why.partition(chr(10))[0]}")
