"""The line in which a job says what it thinks of plans for today's times. Standard library only."""

from collections.abc import Collection, Mapping

from recycle_runtime.coordinator.replanning import Candidate, Offer
from recycle_runtime.plan.assembly import Worker


def about(change: float, most: int, slow: Mapping[Worker, float], known: Collection[Worker]) -> str:
    """Why plans are made."""
    words = [f"{_name(worker)} takes {by:.1f} times as long as its peers" for worker, by in slow.items()]
    words += [f"{_name(worker)} is as fast as its peers again" for worker in sorted(set(known) - set(slow))]
    return ", ".join(words) or f"op times have moved by {100 * change:.1f} % of a step, most on stage {most}"


def offered(offers: Collection[Offer], step: float, least: float) -> str:
    words: list[str] = []
    for offer in offers:
        words.append(f"{_plan_of(offer.candidate)} saves {100 * offer.saving:.1f} %")
    return f"{', '.join(words)} of {step:.3g} s a step, {100 * least:.1f} % asked for"


def _plan_of(candidate: Candidate) -> str:
    if candidate.watchers:
        return f"a plan in which {', '.join(map(_name, candidate.watchers))} only watches"
    if candidate.lighter:
        return f"a plan in which {', '.join(map(_name, candidate.lighter))} has less to do"
    return "a new plan for everybody"


def taken(best: Offer | None) -> str:
    if best is None:
        return "not taken"
    if best.candidate.watchers:
        return "taken, with a watcher"
    return "taken, with a lighter load" if best.candidate.lighter else "taken"


def _name(worker: Worker) -> str:
    return f"{worker[0]}:{worker[1]}"
