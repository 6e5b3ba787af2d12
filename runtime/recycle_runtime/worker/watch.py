"""Between two instructions of a worker process: orders to leave, signs of life, harm that was asked for."""

from collections.abc import Callable, Sequence

from recycle_runtime.plan.isa import Instruction, Opcode
from recycle_runtime.testing.faults import Fault, Harm
from recycle_runtime.worker.heartbeat import Pulse
from recycle_runtime.worker.link import Link


class Interrupted(Exception):  # noqa: N818
    """The coordinator wants everybody to leave the group."""


class InstructionWatch:
    """Called before every instruction of one generation."""

    def __init__(
        self,
        generation: int,
        stream: Sequence[Instruction],
        link: Link,
        pulse: Pulse,
        harm: Harm,
        *,
        is_spared: bool,
    ) -> None:
        self._generation, self._length, self._link, self._pulse = generation, len(stream), link, pulse
        self._harm, self._is_spared = harm, is_spared
        self._armed: dict[int, Fault] = {}
        self._reduce = next(at for at, step in enumerate(stream) if step.opcode is Opcode.REDUCE)
        self.before_reduce: Callable[[], None] | None = None

    def begin(self, step: int, *, is_learning: bool = False) -> None:
        """A step is about to be made."""
        self._pulse.step = self._link.step = step
        self._armed = self._harm.in_step(
            step, self._length, is_spared=self._is_spared, is_learning=is_learning
        )

    def before(self, position: int) -> None:
        if self._link.asked > self._generation:
            raise Interrupted
        self._pulse.position = position
        if position == self._reduce and self.before_reduce is not None:
            self.before_reduce()
        if position in self._armed:
            self._harm.happen(self._armed.pop(position))
