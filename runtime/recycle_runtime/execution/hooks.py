"""Hooks by which tests reach into a worker process: they that do nothing in production.

A run that is asked to survive faults has `testing.faults.InjectedFaults` in their place; only the command
line and tests put it there.
"""

from typing import Literal, Protocol

from recycle_runtime.protocol.messages.members import InjectedFault

Moment = Literal["leave", "meet", "give", "take", "settle", "evaluate", "save", "copy"]
"""Outside the stream: leaving a group, meeting the next one, giving state, taking it, stopping at a step,
evaluating or saving before one, copying state into the memory of the node."""


class FaultReporter(Protocol):
    """Hears of a fault before it happens, which may be the last thing that this process does."""

    def fault_is_next(self, fault: InjectedFault, *, goes_on: bool) -> None:
        """`goes_on`: the process lives on as if nothing had happened."""
        ...


class Hooks:
    """Called by a worker process; here they do nothing."""

    slowdown: float = 1.0
    """Factor by which ops take longer than they need to."""

    def attach(self, reporter: FaultReporter) -> None:
        """The worker process begins."""

    def begin_step(self, step: int, length: int, *, is_spared: bool, is_joining: bool) -> None:
        """A stream of so many instructions is about to run.

        `is_spared`: this worker may be the last one of its stage. `is_joining`: its state is on its way.
        """

    def before_instruction(self, position: int) -> None:
        """Of the stream of this step."""

    def at(self, moment: Moment, step: int) -> None:
        """Somewhere outside the stream, in this step or before it."""

    def before_wait(self) -> None:
        """This process is about to wait for other workers."""

    def caused(self, error: BaseException) -> bool:
        """True if an error was raised on purpose."""
        return False
