"""Nodes that go when nodes do not reach each other, and connections that get no answer."""

import socket
from collections.abc import Callable
from pathlib import Path

from recycle_runtime.coordinator.reach import Reachability, ReachVerdict
from recycle_runtime.plan.assembly import Worker
from recycle_runtime.protocol.identity import node_number, process_number
from recycle_runtime.protocol.messages.generations import Reach
from recycle_runtime.protocol.surroundings import Machine
from recycle_runtime.transport.sockets import look
from recycle_runtime.worker.reach import ReachReporter

_PIPELINES, _STAGES = 3, 2
_LIVE = [(pipeline, stage) for pipeline in range(_PIPELINES) for stage in range(_STAGES)]


def _host(worker: Worker) -> str:
    """A node for each pipeline."""
    return f"10.0.0.{worker[0]}"


def _can_lose(gone: set[Worker]) -> bool:
    return {stage for _, stage in set(_LIVE) - gone} == set(range(_STAGES))


class _Talk:
    """Workers that say every second whom they miss."""

    def __init__(self, missed: Callable[[Worker], list[str]]) -> None:
        self.now = 100.0
        self.reach = Reachability()
        self.missed = missed

    def go_on(self, seconds: int, can_lose: Callable[[set[Worker]], bool] = _can_lose) -> ReachVerdict | None:
        for _ in range(seconds):
            for worker in _LIVE:
                missed = self.missed(worker)
                self.reach.hear(worker, [_host(worker)], missed, self.now)
            if (verdict := self.reach.decide(_LIVE, can_lose, self.now)) is not None:
                return verdict
            self.now += 1.0
        return None


def _failed(verdict: ReachVerdict | None) -> list[Worker]:
    assert verdict is not None
    assert verdict.error is None
    return [worker for worker, _ in verdict.failed]


def _none(worker: Worker) -> list[str]:
    return []


def test_no_node_goes_while_all_reach_each_other() -> None:
    assert _Talk(_none).go_on(100) is None


def test_the_node_that_all_others_miss_goes() -> None:
    talk = _Talk(lambda worker: ["10.0.0.0"] if worker[0] else [])
    verdict = talk.go_on(10)
    assert _failed(verdict) == [(0, 0), (0, 1)]
    assert verdict is not None
    assert verdict.failed[0][1] == "0:0 on 10.0.0.0 does not reach 10.0.0.1, 10.0.0.2"


def test_of_two_that_miss_each_other_one_goes() -> None:
    talk = _Talk(lambda worker: ["10.0.0.2"] if worker == (0, 1) else [])
    assert _failed(talk.go_on(10)) == [(2, 0), (2, 1)]


def test_a_host_that_answers_again_is_no_reason() -> None:
    talk = _Talk(lambda worker: ["10.0.0.2"] if worker[0] < 2 else [])
    assert talk.go_on(3) is None
    talk.missed = _none
    assert talk.go_on(100) is None


def test_words_that_were_held_up_are_no_reason() -> None:
    talk = _Talk(_none)
    talk.go_on(1)
    for _ in range(20):
        talk.reach.hear((0, 0), ["10.0.0.0"], ["10.0.0.1"], talk.now)
    for _ in range(100):
        assert talk.reach.decide(_LIVE, _can_lose, talk.now) is None
        talk.now += 0.1


def test_hosts_that_nobody_lives_on_do_not_matter() -> None:
    assert _Talk(lambda worker: ["10.9.9.9"]).go_on(100) is None


def test_if_nobody_may_go_the_job_ends_with_a_sentence() -> None:
    talk = _Talk(lambda worker: ["10.0.0.1"] if worker == (0, 0) else [])
    assert talk.go_on(20, lambda gone: False) is None
    verdict = talk.go_on(20, lambda gone: False)
    assert verdict is not None
    assert verdict.error == (
        "0:0, 0:1 on 10.0.0.0 and 1:0, 1:1 on 10.0.0.1 do not reach each other, and without either of them a "
        "stage would have no worker left, or a shard no owner"
    )


def test_a_connection_that_is_answered() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client, server.accept()[0] as other:
            sockets = {each.fileno(): number for number, each in enumerate((server, client, other))}
            ends = look(sockets, 0)
            assert (ends.here, ends.unanswered) == ({"127.0.0.1"}, set())
            assert client.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            said: list[Reach] = []
            reach = ReachReporter(lambda: look(sockets, 0), said.append, Machine())
            reach.look()
            reach.look()
    assert said == [Reach(("127.0.0.1",), ())]


def test_processes_with_one_number_on_two_nodes_are_two(tmp_path: Path) -> None:
    first, second = node_number(tmp_path / "a"), node_number(tmp_path / "b")
    assert node_number(tmp_path / "a") == first
    assert process_number(first, 7) != process_number(second, 7)


def test_nodes_that_miss_each_other_in_turn_for_a_moment_are_left_alone() -> None:
    pairs = [("10.0.0.0", "10.0.0.1"), ("10.0.0.1", "10.0.0.2"), ("10.0.0.0", "10.0.0.2")]
    talk = _Talk(lambda worker: [])

    def missed(worker: Worker) -> list[str]:
        pair = pairs[int(talk.now) // 2 % 3]
        return [host for host in pair if _host(worker) in pair and host != _host(worker)]

    talk.missed = missed
    assert talk.go_on(60) is None
