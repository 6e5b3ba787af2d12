"""Proofs of bounds as they are printed: the terms of `scheduling/bounds` in the words and units of the job.

Bounds are known by their reason, `load of stage 2`. A reason that is not known here has no parts.
"""

import re
from dataclasses import dataclass

from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.streams import Claims
from recycle_compiler.ir.units import ending_words, time_text
from recycle_compiler.scheduling.bounds import Bound, named_bound, stage_bounds
from recycle_compiler.scheduling.bounds.bound import ENDING
from recycle_compiler.scheduling.problem import Problem

_REASON = re.compile(r"(?P<kind>[\w ]+) of stage (?P<stage>\d+)")


@dataclass(frozen=True, slots=True)
class BoundTerm:
    """A share of a bound."""

    ticks: int
    what: str


@dataclass(frozen=True, slots=True)
class Proof:
    """Proof that no plan has a shorter period."""

    reason: str
    period: int
    parts: tuple[BoundTerm, ...]
    """They add up to the period; none where the bound cannot be taken apart."""
    claim: str = ""
    """Claim of the bound, in a sentence."""


def stage_of(problem: Problem, reason: str) -> int | None:
    """The stage that a reason names, if it names one of the problem."""
    named = _REASON.match(reason)
    if named is None or int(named["stage"]) >= problem.chunks:
        return None
    return int(named["stage"])


def binding_proof(problem: Problem, job: JobSpec, claims: Claims) -> Proof:
    """The bound that the plan claims."""
    proof = _proof(problem, job, Bound(claims.lower_bound, claims.reason))
    rest = claims.lower_bound - sum(part.ticks for part in proof.parts)
    if rest == 0 or not proof.parts:
        return proof
    is_rounded = 0 < rest <= problem.grain
    what = "rounded up to a sum of whole ops" if is_rounded else "more than is known of it here"
    return Proof(proof.reason, proof.period, (*proof.parts, BoundTerm(rest, what)), proof.claim)


def stage_proofs(problem: Problem, job: JobSpec, stage: int) -> tuple[Proof, ...]:
    """The bounds that this stage imposes, largest first."""
    ordered = sorted(stage_bounds(problem, stage), key=lambda bound: -bound.period)
    return tuple(_proof(problem, job, bound) for bound in ordered)


def bottleneck_stage(problem: Problem, claims: Claims) -> int:
    """The stage that the binding bound is about, or else the one with the largest bound."""
    named = stage_of(problem, claims.reason)
    if named is not None:
        return named
    largest = [max(bound.period for bound in stage_bounds(problem, s)) for s in range(problem.chunks)]
    return largest.index(max(largest))


def _proof(problem: Problem, job: JobSpec, bound: Bound) -> Proof:
    named, stage = _REASON.fullmatch(bound.reason), stage_of(problem, bound.reason)
    kind = None if named is None else named_bound(named["kind"])
    if kind is None or stage is None:
        return Proof(bound.reason, bound.period, ())
    parts = tuple(
        BoundTerm(term.ticks, _words(job, term.what, term.times))
        for term in kind.terms(problem, stage)
        if term.ticks
    )
    return Proof(bound.reason, bound.period, parts, kind.claim)


def _words(job: JobSpec, what: str, times: tuple[int, ...]) -> str:
    return ending_words(job) if what == ENDING else what.format(*(time_text(job, time) for time in times))
