"""Reports of the stages on their parameters before the first step and their gradients after it, and what is
wrong with these as a whole.

Needs no torch.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations

from recycle_runtime.coordinator.events import Answer, GivenUp, Tell
from recycle_runtime.coordinator.participant import Asked, Hears, Memory, Participant, View
from recycle_runtime.protocol.messages.members import Member
from recycle_runtime.protocol.messages.steps import ChunkGradients, FirstGradients, ParameterLook, Parameters
from recycle_runtime.protocol.trained_chunks import ALL_FROZEN, TrainedChunks

_SHOWN = 8


class ModelParameters(Participant):
    """One worker of each stage speaks; what follows is said once."""

    memory = (
        Memory(
            "parameters and first gradients of stages",
            said=(Parameters, FirstGradients),
            lost="they warn the user before the first step and after it; gradients are told again in the "
            "next generation",
        ),
    )

    def __init__(self, stages: int, *, may_be_frozen: bool = False) -> None:
        """`may_be_frozen`: a script may have come to evaluate a frozen model."""
        self._stages, self._may_be_frozen = stages, may_be_frozen
        self._said: dict[int, Parameters] = {}
        self._gradients: dict[int, tuple[ChunkGradients, ...]] = {}

    @classmethod
    def open(cls, asked: Asked, job: View) -> "ModelParameters":
        return cls(job.cells.book.stages, may_be_frozen=asked.has_scripts)

    def hears(self) -> Hears:
        return {Parameters: self._hear_parameters, FirstGradients: self._hear_first_gradients}

    def _hear_parameters(self, member: Member, said: Parameters) -> list[Answer]:
        """Mistakes in the model as a whole are known once all stages have spoken."""
        stage = self.job.cells.stage(member.worker) if member in self.job.roster else None
        if stage is None or not self.hear(stage, said):
            return []
        if (mistake := self.mistake()) is not None:
            return [GivenUp(mistake)]
        return [] if (warning := self.warning()) is None else [Tell(warning)]

    def _hear_first_gradients(self, member: Member, said: FirstGradients) -> list[Answer]:
        stage = self.job.cells.stage(member.worker) if member in self.job.roster else None
        reached = None if stage is None else self.hear_gradients(stage, said)
        if reached is None:
            return []
        if (mistake := reached.mistake()) is not None:
            return [GivenUp(mistake)]
        return [*map(Tell, reached.warnings())]

    def hear(self, stage: int, said: Parameters) -> bool:
        """True if this was the last that was missing."""
        was_whole = len(self._said) == self._stages
        self._said[stage] = said
        return not was_whole and len(self._said) == self._stages

    def hear_gradients(self, stage: int, said: FirstGradients) -> TrainedChunks | None:
        """Add the gradients of a stage; return those of all stages, with the last stage that was missing."""
        was_whole = len(self._gradients) == self._stages
        self._gradients[stage] = said.chunks
        if was_whole or len(self._gradients) < self._stages:
            return None
        chunks = [each for chunks in self._gradients.values() for each in chunks]
        return TrainedChunks(said.step, chunks, "stage" if len(chunks) == self._stages else "chunk")

    def mistake(self) -> str | None:
        """Reason why this model should not be trained; None if there is none."""
        return self._nothing_trained() or self._copies()

    def warning(self) -> str | None:
        """Warning about parameters that the optimizer leaves out."""
        if not (count := sum(said.untrained for said in self._said.values())):
            return None
        return f"warning: the optimizer leaves out {self._named(count)}, which require gradients: {_HINT}"

    def _nothing_trained(self) -> str | None:
        count = sum(said.untrained for said in self._said.values())
        if any(said.trained for said in self._said.values()):
            return None
        if not count:
            return None if self._may_be_frozen else ALL_FROZEN
        return (
            f"the optimizer has no parameter, so nothing would be trained; it leaves out {self._named(count)}"
        )

    def _named(self, count: int) -> str:
        names = [name for _, said in sorted(self._said.items()) for name in said.names][:_SHOWN]
        more = f" and {count - len(names)} more" if count > len(names) else ""
        return f"{', '.join(names)}{more}"

    def _copies(self) -> str | None:
        """Two parameters of different layers that look like one."""
        looks = [look for _, said in sorted(self._said.items()) for look in said.looks]
        found = next(_pairs(looks), None)
        if found is None:
            return None
        one, other = found
        if one.name == other.name:
            return (
                f"two embeddings of the same shape are called {one.name}, and would be trained apart; if "
                "they are one parameter, call one of them otherwise and name both in TIED, if not, "
                "write TIED = [] into the program"
            )
        return (
            f"{one.name} and {other.name} begin with the same numbers, and would be trained apart; if they "
            f"are one parameter, write TIED = [({one.name!r}, {other.name!r})] into the program and `tied` "
            "into the job, if not, TIED = []"
        )


_HINT = "they are not trained (requires_grad_(False) says so)"


def _pairs(looks: Sequence[ParameterLook]) -> Iterator[tuple[ParameterLook, ParameterLook]]:
    """Those of the same shape alone: few, in any model."""
    alike: dict[object, list[ParameterLook]] = {}
    for look in looks:
        if look.numbers:
            alike.setdefault((look.shape, look.numbers), []).append(look)
        if look.is_embedding:
            alike.setdefault((look.shape, look.name, "name"), []).append(look)
    for group in alike.values():
        yield from (pair for pair in combinations(group, 2) if _is_one(*pair))


def _is_one(one: ParameterLook, other: ParameterLook) -> bool:
    """Layers that are copied from one another begin alike too: there the same kinds of modules do."""
    is_of_two_kinds = one.owner != other.owner or one.is_embedding
    return one.layer != other.layer and is_of_two_kinds
