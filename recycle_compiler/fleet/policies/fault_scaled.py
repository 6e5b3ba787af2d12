"""Fault-scaled: fault-free 1F1B times the share of workers that live, at no cost of any change."""

from recycle_compiler.fleet.policy import Change, Reaction, Worker
from recycle_compiler.fleet.setting import Setting


def make(setting: Setting) -> "FaultScaled":
    return FaultScaled(setting)


class FaultScaled:
    """As if every worker's share of the work could be spread over all others, at once."""

    name = "fault-scaled"
    note = "1F1B x live workers / all workers; changes cost nothing"

    def __init__(self, setting: Setting) -> None:
        self._workers = setting.job.workers
        self._whole = setting.rate(setting.one_f_one_b)

    def begin(self, down: frozenset[Worker], spare: int) -> float:
        return self._whole * (1 - len(down) / self._workers)

    def react(self, change: Change) -> Reaction:
        return Reaction(self.begin(change.down, change.spare))
