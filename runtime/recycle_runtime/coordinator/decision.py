"""From what the survivors hold to the step they all go on from. Standard library only.

`applied` counts the steps that a member's parameters have seen. No stage is ever more than one step ahead of
another, so the least of these counts is where everybody can stand: who is one ahead undoes one step. The last
step that all have may still lack its verdict, because the sum of the norm broke off; then one who knows the
sum tells it, or, if nobody does, what the members had put into it is added up here.
"""

from collections.abc import Mapping
from typing import NamedTuple

from recycle_runtime.protocol.messages import Member, Report, Sums


class Standing(NamedTuple):
    """What everybody has to do before going on."""

    step: int
    undo: frozenset[Member]
    """They are one step ahead."""
    donors: dict[Member, Member]
    """Who gets its state from whom."""
    sums: Sums | None
    """Of the step before `step`, for those who lack them."""


class StageLost(NamedTuple):
    """Nobody alive holds the parameters of these stages."""

    stages: tuple[int, ...]


class CannotAgreeError(RuntimeError):
    """The reports contradict what the plans guarantee."""


def stand(
    reports: Mapping[Member, Report], stages: int, restorable: int | None = None
) -> Standing | StageLost:
    """Where the members can go on from. Whoever is fresh can still read a checkpoint of step `restorable`."""
    if restorable is not None:
        whole = Report(restorable, is_fresh=False)
        reports = {member: whole if report.is_fresh else report for member, report in reports.items()}
    seasoned = {
        member: report.applied
        for member, report in reports.items()
        if report.applied is not None and not report.is_fresh
    }
    step = min(seasoned.values(), default=0)
    holders = _holders(reports, step)
    if odd := [member for member, applied in seasoned.items() if applied > step + 1]:
        raise CannotAgreeError(f"{_names(odd)} are more than one step ahead of step {step}")
    lost = tuple(stage for stage in range(stages) if not any(member.worker[1] == stage for member in holders))
    if lost:
        return StageLost(lost)
    donors: dict[Member, Member] = {}
    for member in reports:
        if member not in holders:
            donor = _donor(member, holders)
            if donor is None:
                return StageLost((member.worker[1],))
            donors[member] = donor
    undo = frozenset(member for member, applied in holders.items() if applied == step + 1)
    return Standing(step, undo, donors, _sums(reports, holders, step))


def _holders(reports: Mapping[Member, Report], step: int) -> dict[Member, int]:
    """Who has a state of its own that can be used."""
    return {
        member: report.applied
        for member, report in reports.items()
        if report.applied is not None and (step == 0 or not report.is_fresh)
    }


def _donor(member: Member, holders: Mapping[Member, int]) -> Member | None:
    """A peer with the same part; those who lend to nobody yet need not be preferred, for copies are quick."""
    same = [
        other for other in holders if (other.worker[1], other.tp_rank) == (member.worker[1], member.tp_rank)
    ]
    return min(same, default=None)


def _sums(reports: Mapping[Member, Report], holders: Mapping[Member, int], step: int) -> Sums | None:
    open_verdicts = {
        (member.worker[1], member.tp_rank): sums
        for member, applied in holders.items()
        if applied == step and (sums := reports[member].unsettled) is not None
    }
    if not open_verdicts:
        return None
    for report in reports.values():
        if report.settled is not None and report.settled_steps == step:
            return report.settled
    squares = sum(open_verdicts[key].squares for key in sorted(open_verdicts))
    return Sums(squares, sum(sums.not_finite for sums in open_verdicts.values()))


def _names(members: list[Member]) -> str:
    return ", ".join(f"{place[0]}:{place[1]}" for place, _ in members)
