"""Whether all worker processes of a job have the same program and seed. Standard library only.

Nodes may have copies of their own of the program's file, one of them old, and each agent is started with
options of its own. What such workers train together is neither program's.
"""

from typing import NamedTuple

from recycle_runtime.plan.worker_ids import worker_text
from recycle_runtime.protocol.messages import LeftGroup, Member


class _Said(NamedTuple):
    who: str
    program: str
    seed: int


class Programs:
    """The first process that comes says what the others must have."""

    def __init__(self) -> None:
        self._first: _Said | None = None

    def mistake(self, member: Member, left: LeftGroup) -> str | None:
        """Why a process cannot train with the others."""
        said = _Said(f"worker {worker_text(member.worker)}", left.program, left.seed)
        first = self._first = self._first or said
        if said.seed != first.seed:
            return (
                f"{said.who} has the seed {said.seed}, and {first.who} has {first.seed}: every agent needs "
                "the same --seed"
            )
        python, _, source = said.program.partition(" ")
        first_python, _, first_source = first.program.partition(" ")
        if python != first_python or not source or not first_source or source == first_source:
            # Two versions of Python do not read a source in the same words.
            return None
        return (
            f"{said.who} has another program than {first.who} (source {source} and {first_source}): every "
            "node needs the same file, and the same modules beside it"
        )
