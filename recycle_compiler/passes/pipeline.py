"""Passes, and the pipeline that runs them one after another.

    plan = NormalizeFailures() >> BuildGraph() >> SplitBackward()        Pipeline[Target, Graph]
    plan.run(target)                                                     Graph

A pass is a frozen dataclass whose fields are its options. It turns one level of the IR into the next, or into
the same, and leaves what it was given as it was. Passes that do not fit each other are a type error. Every
value is verified after the pass that made it; dumps and the like are observers, of which passes know nothing.
"""

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, Never, TypeAlias, TypeVar, cast

from recycle_compiler.ir.text import Level

In = TypeVar("In", bound=Level, contravariant=True)
Out = TypeVar("Out", bound=Level, covariant=True)
Next = TypeVar("Next", bound=Level)

_LOGGER = logging.getLogger(__name__)
_NOT_OURS = (MemoryError, OSError)
"""With these a pass has not crashed: the machine is too small, or something is wrong with it."""


class Pass(ABC, Generic[In, Out]):
    """Fields are options; `run` returns a new value and leaves its argument as it was."""

    __slots__ = ()

    name: ClassVar[str]
    """As its file, with `-` in place of `_`."""

    @abstractmethod
    def run(self, before: In, /) -> Out:
        """Apply the pass to a value."""

    def __rshift__(self, following: "Pass[Out, Next] | Pipeline[Out, Next]") -> "Pipeline[In, Next]":
        alone: Pipeline[In, Out] = Pipeline((self,))
        return alone >> following


AnyPass: TypeAlias = Pass[Never, Level]
"""A pass from some level to some level."""


@dataclass(frozen=True, slots=True)
class Pipeline(Generic[In, Out]):
    """Passes, each of which takes what the one before it gives; made by `>>`."""

    steps: tuple[AnyPass, ...]

    def __rshift__(self, following: "Pass[Out, Next] | Pipeline[Out, Next]") -> "Pipeline[In, Next]":
        more = following.steps if isinstance(following, Pipeline) else (following,)
        return Pipeline((*self.steps, *more))

    def run(self, value: In, observers: "Sequence[Observer]" = ()) -> Out:
        """The value after all passes; raises PassError."""
        # That the passes fit each other, `>>` has seen to.
        return cast(Out, run_passes(self.steps, value, observers))


@dataclass(frozen=True, slots=True, eq=False)
class PassDone:
    """State of the pipeline after a pass, for observers."""

    number: int
    """Counts the passes of a pipeline from 1."""
    done: AnyPass
    value: Level
    """Result of the pass."""
    rest: tuple[AnyPass, ...]
    """The passes that follow."""


Observer = Callable[[PassDone], None]


class PassError(AssertionError):
    """A pass crashed or left a broken value: a fault of the compiler, never of the user."""

    def __init__(self, what: str, before: Level, rest: tuple[AnyPass, ...]) -> None:
        super().__init__(f"{rest[0].name}: {what}")
        self._arguments = (what, before, rest)
        self.before = before
        """Input of the pass."""
        self.rest = rest
        """The pass and those that would have followed."""

    def __reduce__(self) -> tuple[type, tuple[str, Level, tuple[AnyPass, ...]]]:
        # Processes that plan side by side hand it to their parent.
        return PassError, self._arguments


def run_passes(passes: tuple[AnyPass, ...], value: Level, observers: Sequence[Observer] = ()) -> Level:
    """The value after passes whose levels are known to fit."""
    for number, step in enumerate(passes, start=1):
        before, rest = value, passes[number - 1 :]
        began = time.perf_counter()
        try:
            value = cast(Pass[Level, Level], step).run(before)
        except (*_NOT_OURS, PassError):
            # A pass that runs passes of its own leaves their reproducer.
            raise
        except Exception as cause:
            raise PassError(repr(cause), before, rest) from cause
        if broken := tuple(value.verify()):
            raise PassError("; ".join(broken[:5]), before, rest)
        _LOGGER.debug("pass %s: %.6f s", step.name, time.perf_counter() - began)
        for observe in observers:
            observe(PassDone(number, step, value, rest[1:]))
    return value
