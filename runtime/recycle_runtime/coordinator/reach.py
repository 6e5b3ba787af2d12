"""Nodes that do not reach each other, though all of them reach the coordinator. Needs no torch.

Workers say which hosts do not answer them. That alone does not tell at which end the fault is, so some time
is left for every node to report; then the node that most other nodes miss goes, and the job continues.
"""

from collections.abc import Callable, Collection
from typing import NamedTuple

from recycle_runtime.plan.assembly import Worker

_FRESH = 2.0
"""Seconds; workers say it every second for as long as it lasts."""
_GRACE = 4.0
"""Longer than that, so that what was held up on its way, or was soon over, has no effect."""
_LAST_GRACE = 30.0
"""If no node may go, the network gets this long to mend."""


class ReachVerdict(NamedTuple):
    """Decision on workers whose nodes do not reach each other."""

    failed: tuple[tuple[Worker, str], ...]
    """Workers that have to go, and why."""
    error: str | None
    """Reason why the job has to end instead."""


class Reachability:
    """Reports of workers on each other's hosts."""

    def __init__(self) -> None:
        self._hosts: dict[Worker, frozenset[str]] = {}
        self._missed: dict[tuple[Worker, str], float] = {}
        """Workers and the hosts that do not answer them, with the time of the last report."""
        self._since: dict[frozenset[str], float] = {}
        """For how long two nodes have missed each other."""

    def hear(self, worker: Worker, here: Collection[str], unanswered: Collection[str], now: float) -> None:
        """Addresses of its host, and of hosts that do not answer it now."""
        self._hosts[worker] = frozenset(here)
        for key in [key for key in self._missed if key[0] == worker and key[1] not in unanswered]:
            del self._missed[key]
        for host in unanswered:
            self._missed[worker, host] = now

    def decide(
        self, live: Collection[Worker], can_go_on_without: Callable[[set[Worker]], bool], now: float
    ) -> ReachVerdict | None:
        """None if all nodes reach each other, or it is too early to say."""
        if not self._missed:
            self._since.clear()
            return None
        self._missed = {key: at for key, at in self._missed.items() if now - at < _FRESH}
        nodes = self._nodes(live)
        self._since = {pair: self._since.get(pair, now) for pair in self._broken(nodes)}
        broken = {pair for pair, since in self._since.items() if now - since >= _GRACE}
        if not broken:
            return None
        dropped = _choose(nodes, broken, can_go_on_without)
        if dropped is None:
            is_over = now - min(self._since.values()) > _LAST_GRACE
            return self._hopeless(nodes, broken) if is_over else None
        self._since.clear()
        self._missed.clear()
        return ReachVerdict(tuple(_reasons(nodes, broken, dropped)), None)

    def _nodes(self, live: Collection[Worker]) -> dict[str, list[Worker]]:
        """Workers by the name of their node, the first of its addresses."""
        found: dict[str, list[Worker]] = {}
        for worker in sorted(live):
            if hosts := self._hosts.get(worker):
                found.setdefault(min(hosts), []).append(worker)
        return found

    def _broken(self, nodes: dict[str, list[Worker]]) -> set[frozenset[str]]:
        """Pairs of nodes."""
        name_of = {
            address: name
            for name, workers in nodes.items()
            for one in workers
            for address in self._hosts[one]
        }
        of_worker = {worker: name for name, workers in nodes.items() for worker in workers}
        pairs = {
            frozenset((of_worker[worker], name_of[host]))
            for worker, host in self._missed
            if worker in of_worker and host in name_of
        }
        return {pair for pair in pairs if len(pair) == 2}

    def _hopeless(self, nodes: dict[str, list[Worker]], broken: set[frozenset[str]]) -> ReachVerdict:
        first, second = sorted(sorted(broken, key=sorted)[0])
        return ReachVerdict(
            (),
            f"{_names(nodes[first])} on {first} and {_names(nodes[second])} on {second} do not reach each "
            "other, and without either of them a stage would have no worker left, or a shard no owner",
        )


def _choose(
    nodes: dict[str, list[Worker]],
    broken: set[frozenset[str]],
    can_go_on_without: Callable[[set[Worker]], bool],
) -> list[str] | None:
    """Few nodes, so that all that are left reach each other; None if the job could not go on."""
    dropped: list[str] = []
    left = set(broken)
    while left:
        missed = {name: sum(name in pair for pair in left) for pair in left for name in pair}
        gone = {worker for name in dropped for worker in nodes[name]}
        # Of two that miss each other, the one with the later pipelines.
        later = {name: [-number for number in nodes[name][0]] for name in missed}
        order = sorted(missed, key=lambda name: (-missed[name], len(nodes[name]), later[name]))
        choice = next((name for name in order if can_go_on_without(gone | set(nodes[name]))), None)
        if choice is None:
            return None
        dropped.append(choice)
        left = {pair for pair in left if choice not in pair}
    return dropped


def _reasons(
    nodes: dict[str, list[Worker]], broken: set[frozenset[str]], dropped: list[str]
) -> list[tuple[Worker, str]]:
    found: list[tuple[Worker, str]] = []
    for name in dropped:
        others = sorted(other for pair in broken if name in pair for other in pair - {name})
        for worker in nodes[name]:
            found.append((worker, f"{_names([worker])} on {name} does not reach {', '.join(others)}"))
    return found


def _names(workers: list[Worker]) -> str:
    return ", ".join(f"{pipeline}:{stage}" for pipeline, stage in workers)
