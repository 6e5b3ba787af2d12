"""Run passes one after another; verify after each, show observers what it made, leave a reproducer on a crash."""

from collections.abc import Callable, Sequence
from typing import Any

from recycle_compiler.passes.base import Level, Pass

Observer = Callable[[int, str, Any], None]
"""Called after each pass with its number, its name and what it made."""


class PassFailure(AssertionError):
    """A pass crashed or left a broken value: a fault of the compiler, never of the user."""

    def __init__(self, name: str, what: str, before: Level, rest: tuple[str, ...]) -> None:
        super().__init__(f"{name}: {what}")
        self.before = before
        """What the pass was given."""
        self.rest = rest
        """The pass and those that would have followed."""


def run_passes(passes: Sequence[Pass], value: Level, observers: Sequence[Observer] = ()) -> Any:
    """The value after all passes."""
    names = tuple(step.name for step in passes)
    for number, step in enumerate(passes, start=1):
        before = value
        try:
            value = step.run(before)
        except (AssertionError, ArithmeticError, LookupError, TypeError, ValueError) as cause:
            raise PassFailure(step.name, repr(cause), before, names[number - 1 :]) from cause
        if broken := tuple(value.verify()):
            raise PassFailure(step.name, "; ".join(broken[:5]), before, names[number - 1 :])
        for observe in observers:
            observe(number, step.name, value)
    return value
