"""What could be different about a job: memory, the number of micro-batches, techniques, the network."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from recycle_compiler.ir.job import JobSpec, Techniques
from recycle_compiler.ir.units import plural

_MORE = (1, 2)
"""How many activations are added."""


@dataclass(frozen=True, slots=True)
class Change:
    """A job that differs in one thing."""

    what: str
    """`with 1 more activation on stage 0`."""
    job: JobSpec
    relaxes: bool
    """Every plan for the job as it is can be run on the changed one, and is no slower there."""

    def includes(self, other: "Change") -> bool:
        """It differs from the other at most in having more memory."""
        if replace(self.job, capacity=other.job.capacity) != other.job:
            return False
        return all(
            mine is None or (theirs is not None and mine >= theirs)
            for mine, theirs in zip(self.job.capacity, other.job.capacity, strict=True)
        )


def changes_to(job: JobSpec, bottleneck: int) -> tuple[Change, ...]:
    """Everything worth asking, in a fixed order."""
    return (*_memory(job, bottleneck), *_techniques(job), *_network(job), _one_more_microbatch(job))


def _memory(job: JobSpec, bottleneck: int) -> Iterator[Change]:
    every = tuple(range(job.stages))
    places = {(bottleneck,): f"on stage {bottleneck}", (0,): "on stage 0", every: "on every stage"}
    for stages, where in places.items():
        for count in _MORE:
            more = _with_more(job, stages, count)
            if more is not None:
                yield Change(f"with {count} more {_activations(count)} {where}", more, relaxes=True)


def _with_more(job: JobSpec, stages: tuple[int, ...], count: int) -> JobSpec | None:
    """The job with room for `count` more activations on these stages; None if nothing limits them."""
    capacity = list(job.capacity)
    for stage in stages:
        limit = capacity[stage]
        capacity[stage] = None if limit is None else limit + count * job.activation[stage]
    return None if tuple(capacity) == job.capacity else replace(job, capacity=tuple(capacity))


def _activations(count: int) -> str:
    return "activation" if count == 1 else "activations"


def _techniques(job: JobSpec) -> Iterator[Change]:
    now = job.techniques
    for name in ("adaptive", "decouple", "stagger"):
        on = not getattr(now, name)
        other: Techniques = replace(now, **{name: on})
        word = "with" if on else "without"
        yield Change(f"{word} `{name}`", replace(job, techniques=other), relaxes=on)


def _network(job: JobSpec) -> Iterator[Change]:
    if any(job.transfer):
        free = replace(job, transfer=(0,) * len(job.transfer))
        yield Change("with transfers that take no time", free, relaxes=True)


def _one_more_microbatch(job: JobSpec) -> Change:
    more = job.microbatches + 1
    what = f"with {plural(more, 'micro-batch')} in each pipeline"
    return Change(what, replace(job, microbatches=more), relaxes=False)
