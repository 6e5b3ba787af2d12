"""Run passes one after another; verify after each, and show observers what it made."""

from collections.abc import Callable, Sequence
from typing import Any

from recycle_compiler.ir.levels import Level
from recycle_compiler.passes.base import Pass

Observer = Callable[[int, str, Any], None]
"""Called after each pass with its number, its name and what it made."""


class PassError(AssertionError):
    """A pass crashed or left a broken value: a fault of the compiler, never of the user."""

    def __init__(self, name: str, what: str, before: Level, rest: tuple[str, ...]) -> None:
        super().__init__(f"{name}: {what}")
        self._arguments = (name, what, before, rest)
        self.before = before
        """What the pass was given."""
        self.rest = rest
        """The pass and those that would have followed."""

    def __reduce__(self) -> tuple[type, tuple[str, str, Level, tuple[str, ...]]]:
        # Processes that plan side by side hand it to their parent.
        return PassError, self._arguments


def run_passes(passes: Sequence[Pass], value: Level, observers: Sequence[Observer] = ()) -> Any:
    """The value after all passes."""
    names = tuple(step.name for step in passes)
    for number, step in enumerate(passes, start=1):
        before = value
        try:
            value = step.run(before)
        except (AssertionError, ArithmeticError, LookupError, TypeError, ValueError) as cause:
            raise PassError(step.name, repr(cause), before, names[number - 1 :]) from cause
        if broken := tuple(value.verify()):
            raise PassError(step.name, "; ".join(broken[:5]), before, names[number - 1 :])
        for observe in observers:
            observe(number, step.name, value)
    return value
