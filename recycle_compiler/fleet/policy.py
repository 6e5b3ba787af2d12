"""Interface of fault-tolerance policies, by which they are led through a trace, and the table of them.

A policy is asked once how fast the job runs in the beginning, and then at every change: how long no worker
gets on, how much work is done again, and how fast the job runs after that. Rates are in iterations of the job
as it was written (all its micro-batches) per second, so that policies with other shapes can be compared.
"""

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    # Loading it takes as long as the planner does, and the names are needed before that.
    from recycle_compiler.fleet.setting import FleetSetting


Worker = tuple[int, int]
"""Pipeline and stage."""


class Change(NamedTuple):
    """Workers fail or come back, at one moment."""

    at: float
    """Seconds from the beginning of the trace."""
    failed: frozenset[Worker]
    returned: frozenset[Worker]
    down: frozenset[Worker]
    """Every worker that is down from now on."""
    spare: int
    """Live machines from now on that the job has no place for, in workers."""
    from_spares: frozenset[Worker] = frozenset()
    """Of those that returned, whose place a spare machine has taken."""


class Reaction(NamedTuple):
    """Reaction of a policy to a change."""

    rate: float
    """Iterations a second once the pause is over; 0 if the job cannot run until something comes back."""
    pause: float = 0.0
    """Seconds without progress. A change in the pause is answered again; the pause that ends later counts."""
    redone: float = 0.0
    """Seconds of work from before the change that have to be redone, at the rate that it was done with."""
    why: str = ""
    """A few words for the log."""
    saved: float = 0.0
    """Seconds of the pause, its first ones, in which a checkpoint is saved."""


class CannotRunError(Exception):
    """The policy cannot run this job at all: one sentence says why."""


class Policy(Protocol):
    """One way of surviving, with its state during one trace.

    One that stops training for checkpoints says by an attribute `saving` which share of the time that is; its
    rates are averages over training and saving.
    """

    name: str
    """As users write it."""
    note: str
    """Notes on how it was modelled, what was measured, and what assumed."""

    def begin(self, down: frozenset[Worker], spare: int) -> float:
        """The rate before anything happens; CannotRunError where the job does not fit at all."""
        ...

    def react(self, change: Change) -> Reaction:
        """Reaction to the change."""
        ...


_FOLDER = "recycle_compiler.fleet.policies"
_POLICIES = {
    "ours": "ours:Ours",
    "ours-ranks": "ours_ranks:OursWithFewerRanks",
    "recycle": "recycle:Recycle",
    "oobleck": "oobleck:Oobleck",
    "chameleon": "chameleon:Chameleon",
    "elaswave": "elaswave:Elaswave",
    "bamboo": "bamboo:Bamboo",
    "varuna": "varuna:Varuna",
    "torchft": "torchft:TorchFt",
    "nvrx": "restart:InProcessRestart",
    "ntp": "ntp:NonuniformTensor",
    "lazarus": "experts:Lazarus",
    "expert-parallel": "experts:ExpertParallel",
    "elastic": "elastic:Elastic",
    "restart": "restart:Restart",
    "fault-scaled": "references:FaultScaled",
    "fault-free": "references:fault_free",
    "zero-bubble": "references:zero_bubble",
}
"""By the name that users write: the module, and what makes a policy from a setting. Each is imported when it
is asked for."""
NAMES = tuple(_POLICIES)
"""In the order of tables."""
AT_ONCE = frozenset({"restart", "nvrx", "ntp", "varuna", "fault-scaled", "fault-free", "zero-bubble"})
"""Those whose restarts include the start-up of machines, and those for whom changes cost nothing."""
CUT_ANEW = frozenset({"oobleck", "chameleon", "elaswave", "varuna"})
"""Those that partition the model again: they ask how many layers there are."""
OF_EXPERTS = frozenset({"lazarus", "expert-parallel"})
"""For jobs whose peers share experts."""
OF_RANKS = frozenset({"ours-ranks"})
"""For jobs with several tensor-parallel ranks."""


def make_policy(name: str, setting: "FleetSetting") -> Policy:
    """A policy that has seen nothing yet; CannotRunError where it cannot run the job."""
    module, _, maker = _POLICIES[name].partition(":")
    make: Callable[[FleetSetting], Policy] = getattr(import_module(f"{_FOLDER}.{module}"), maker)
    return make(setting)
