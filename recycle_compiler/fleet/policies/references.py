"""Reference points rather than systems: what the job would do if failures cost nothing, or never happened."""

from dataclasses import dataclass

from recycle_compiler.fleet.our_plans import healthy_period
from recycle_compiler.fleet.policy import Change, Reaction, Worker
from recycle_compiler.fleet.setting import FleetSetting


class FaultScaled:
    """Fault-free 1F1B times the share of live workers, as if work could be spread at once."""

    name = "fault-scaled"
    note = "1F1B x live workers / all workers; changes cost nothing"

    def __init__(self, setting: FleetSetting) -> None:
        self._workers = setting.job.workers
        self._whole = setting.rate(setting.one_f_one_b)

    def begin(self, down: frozenset[Worker], spare: int) -> float:
        return self._whole * (1 - len(down) / self._workers)

    def react(self, change: Change) -> Reaction:
        return Reaction(self.begin(change.down, change.spare))


@dataclass(slots=True)
class Unfailing:
    """One rate throughout, whatever the trace says."""

    name: str
    note: str
    rate: float

    def begin(self, down: frozenset[Worker], spare: int) -> float:
        return self.rate

    def react(self, change: Change) -> Reaction:
        return Reaction(self.rate)


def fault_free(setting: FleetSetting) -> Unfailing:
    """1F1B on machines that never fail."""
    # Of the share of its grid that has workers.
    rate = setting.rate(setting.one_f_one_b) * setting.job.present / setting.job.workers
    return Unfailing("fault-free", "1F1B; nothing ever fails", rate)


def zero_bubble(setting: FleetSetting) -> Unfailing:
    """Our plan without failures on machines that never fail, which is what 100 % means."""
    rate = setting.rate(healthy_period(setting))
    return Unfailing("zero-bubble", "our plan without failures; nothing ever fails", rate)
