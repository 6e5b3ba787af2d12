"""Bounds and what they are made of: which one the plan claims, and what else its stage imposes."""

from dataclasses import dataclass

from recycle_compiler.analysis.explain.parts import Part, parts_of, period_of, stage_of
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.ir.streams import Claims
from recycle_compiler.scheduling.bounds import Bound, stage_bounds
from recycle_compiler.scheduling.problem import Problem


@dataclass(frozen=True, slots=True)
class Proof:
    """Why no plan has a shorter period."""

    reason: str
    period: int
    parts: tuple[Part, ...]
    """They add up to the period; none where the bound cannot be taken apart."""


def binding_proof(problem: Problem, job: JobSpec, claims: Claims) -> Proof:
    """The bound that the plan claims."""
    stage = stage_of(problem, claims.reason)
    found = None if stage is None else period_of(problem, stage, claims.reason)
    period = claims.lower_bound if found is None else found
    proof = _proof(problem, job, Bound(period, claims.reason))
    if period == claims.lower_bound:
        return proof
    rest = Part(claims.lower_bound - period, "rounded up to a sum of whole ops")
    return Proof(claims.reason, claims.lower_bound, (*proof.parts, rest))


def stage_proofs(problem: Problem, job: JobSpec, stage: int) -> tuple[Proof, ...]:
    """The best bound of each kind that this stage imposes, largest first."""
    best: dict[str, Bound] = {}
    for bound in stage_bounds(problem, stage):
        kind = bound.reason.partition(" of ")[0]
        if kind not in best or bound.period > best[kind].period:
            best[kind] = bound
    ordered = sorted(best.values(), key=lambda bound: -bound.period)
    return tuple(_proof(problem, job, bound) for bound in ordered)


def bottleneck_stage(problem: Problem, claims: Claims) -> int:
    """The stage that the binding bound is about, or else the one with the largest bound."""
    named = stage_of(problem, claims.reason)
    if named is not None:
        return named
    largest = [max(bound.period for bound in stage_bounds(problem, s)) for s in range(problem.stages)]
    return largest.index(max(largest))


def _proof(problem: Problem, job: JobSpec, bound: Bound) -> Proof:
    return Proof(bound.reason, bound.period, parts_of(problem, job, bound))
