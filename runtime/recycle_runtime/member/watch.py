"""Between two instructions of a worker process: orders to leave, signs of life, harm that was asked for."""

from collections.abc import Sequence

from recycle_runtime.isa import Instruction
from recycle_runtime.member.faults import KINDS, Fault
from recycle_runtime.member.link import Link
from recycle_runtime.member.pulse import Pulse


class Interrupted(Exception):  # noqa: N818
    """The coordinator wants everybody to leave the group."""


class InstructionWatch:
    """Called before every instruction of one generation."""

    def __init__(
        self, generation: int, stream: Sequence[Instruction], link: Link, pulse: Pulse, faults: list[Fault]
    ) -> None:
        self._generation, self._length, self._link, self._pulse = generation, len(stream), link, pulse
        self._faults = faults
        """Those that have not happened yet, of all generations of this process."""
        self._armed: dict[int, Fault] = {}

    def begin(self, step: int) -> None:
        """A step is about to be made."""
        self._pulse.step = self._link.step = step
        self._armed = {self._position(fault): fault for fault in self._faults if fault.step == step}

    def before(self, position: int) -> None:
        if self._link.asked > self._generation:
            raise Interrupted
        self._pulse.position = position
        if position in self._armed:
            fault = self._armed.pop(position)
            self._faults.remove(fault)
            self._pulse.harmed()
            KINDS[fault.kind]()

    def _position(self, fault: Fault) -> int:
        return fault.position if 0 <= fault.position < self._length else self._length // 2
