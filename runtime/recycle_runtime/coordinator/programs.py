"""Check that all worker processes of a job have the same program, seed and plans. Needs no torch.

Nodes may have copies of their own of these files, one of them old, and each agent is started with options of
its own. What workers with different programs train together is neither program's; workers with different
plans wait for each other. Plans that the coordinator sends, made on demand, are the same for all.
"""

from collections.abc import Callable

from recycle_runtime.coordinator.last_generation import Setup
from recycle_runtime.plan.worker_ids import Worker, worker_text
from recycle_runtime.protocol.messages.generations import LeftGroup
from recycle_runtime.protocol.messages.members import Member


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
