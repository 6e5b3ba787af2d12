"""A bound, the terms that it is the sum of, and the ends of the window that all of them are about."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from recycle_compiler.scheduling.problem import Problem
from recycle_compiler.scheduling.ways import head

ENDING = "reduction and optimizer"


@dataclass(frozen=True, slots=True)
class Bound:
    """A period (in ticks) that no schedule goes below, and why."""

    period: int
    reason: str


class SpanTerm(NamedTuple):
    """A share of a bound, and what it stands for."""

    ticks: int
    what: str
    times: tuple[int, ...] = ()
    """In ticks: they take the places of `{}` in `what`."""


class StageBound(Protocol):
    """An argument about any stage: one module each, with its proof."""

    @property
    def name(self) -> str: ...

    @property
    def claim(self) -> str:
        """The claim, in a sentence."""
        ...

    def span(self, problem: Problem, stage: int) -> int:
        """The least time from the first op of the stage to the end of its last."""
        ...

    def terms(self, problem: Problem, stage: int) -> tuple[SpanTerm, ...]:
        """They add up to the span, and what lies before it and after it: to the period."""
        ...


def window(problem: Problem, stage: int, span: int) -> int:
    """The period, when this stage takes so long from its first op to its last."""
    if problem.staggered:
        return span + problem.closes(stage)
    return head(problem, 0, stage) + span + problem.closing


def ends_of_window(problem: Problem, stage: int, first: int) -> tuple[SpanTerm, ...]:
    """Times before the work of a stage and after that of all, in the window that opens at `first`."""
    begin = first if problem.staggered else 0
    finish = problem.finish[first] if problem.staggered else problem.closing
    down = head(problem, begin, stage)
    alone = problem.closes(first) - finish if problem.staggered else 0
    return (
        SpanTerm(down, f"the first F on its way down from stage {begin}"),
        SpanTerm(alone, "of the last W, which no later exchange hides"),
        SpanTerm(finish, ENDING),
    )


def share_of(problem: Problem, stage: int) -> int:
    """Micro-batches that some worker of the stage must run, however they are routed."""
    return -(-problem.units // len(problem.hosts[stage]))


def times_of(problem: Problem, stage: int) -> tuple[int, int, int]:
    """F, backward and W of a micro-batch."""
    return problem.forward[stage], problem.backward[stage], problem.weight[stage]


def work_term(
    problem: Problem, stage: int, count: int, also: str = "", noun: str = "micro-batch"
) -> SpanTerm:
    """`work: 9 micro-batches x (F 1 + I 1 + W 1)`."""
    times = times_of(problem, stage)
    each = "F {} + I {} + W {}" if problem.split[stage] else "F {} + B {}"
    plural = "" if count == 1 else "es" if noun.endswith("h") else "s"
    what = f"work: {count} {noun}{plural} x ({each}){also}"
    return SpanTerm(count * sum(times), what, times if problem.split[stage] else times[:2])
