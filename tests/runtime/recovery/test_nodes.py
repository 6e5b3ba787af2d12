"""Jobs on several nodes, of which some fail: killed, stopped, or cut off for a while or for good.

How long it took from the fault to the next step is printed; `pytest -s` shows it.
"""

import re
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.runtime.recovery.nodes import LoopbackNode, NamespaceNode, Switch, why_no_namespaces
from tests.runtime.recovery.several_nodes import SeveralNodes


@pytest.mark.slow
def test_a_node_is_killed_and_replaced_on_loopback(tmp_path: Path, wide: str) -> None:
    job = SeveralNodes(tmp_path, wide, 120, LoopbackNode("coordinator"), port=0)
    try:
        nodes = [LoopbackNode(f"node{number}") for number in range(3)]
        for node in nodes:
            job.add(node)
        job.until_steps(5)
        killed = time.monotonic()
        nodes[1].kill()
        job.add(LoopbackNode("another"))
        _print("a node on loopback killed", job.next_step_after(killed, 4))
        job.until(lambda: job.live() == 6, "six workers")
        job.until_steps(3)
        job.finish_and_check()
    finally:
        job.end()


class Cluster:
    """Three nodes with an agent each, on cables of their own, and one for the coordinator."""

    def __init__(self, folder: Path, bundle: str, steps: int) -> None:
        self.switch = Switch()
        try:
            self.head = self.switch.add("head")
            self.job = SeveralNodes(folder, bundle, steps, self.head)
            self.nodes: list[NamespaceNode] = []
            for number in range(3):
                self.add(f"node{number}")
        except BaseException:
            self.switch.remove()
            raise

    def add(self, name: str) -> NamespaceNode:
        node = self.switch.add(name)
        self.nodes.append(node)
        self.job.add(node)
        return node

    def end(self) -> None:
        try:
            self.job.end()
        finally:
            self.switch.remove()


@pytest.fixture(scope="session")
def namespaces() -> None:
    why = why_no_namespaces()
    if why is not None:
        pytest.skip(why)


@pytest.fixture
def fresh(tmp_path: Path, wide: str, namespaces: None) -> Generator[Cluster]:
    """One whose workers have not even met."""
    made = Cluster(tmp_path, wide, 300)
    try:
        yield made
    finally:
        made.end()


@pytest.fixture
def cluster(tmp_path: Path, wide: str, namespaces: None) -> Generator[Cluster]:
    made = Cluster(tmp_path, wide, 300)
    try:
        made.job.until_steps(5)
        yield made
    finally:
        made.end()


def _print(what: str, seconds: float) -> None:
    print(f"\n{what}: next step after {seconds:.2f} s")


@pytest.mark.slow
def test_a_node_is_killed_and_replaced(cluster: Cluster) -> None:
    job, killed = cluster.job, time.monotonic()
    cluster.nodes[1].kill()
    _print("node killed", job.next_step_after(killed, 4))
    cluster.add("another")
    job.until(lambda: job.live() == 6, "six workers")
    job.until_steps(3)
    job.finish_and_check()


@pytest.mark.slow
def test_a_cable_is_pulled_for_good(cluster: Cluster) -> None:
    job, pulled = cluster.job, time.monotonic()
    cluster.switch.pull(cluster.nodes[1])
    _print("cable pulled", job.next_step_after(pulled, 4))
    cluster.add("another")
    job.until(lambda: job.live() == 6, "six workers")
    job.until_gone(cluster.nodes[1])
    job.finish_and_check()


@pytest.mark.slow
def test_a_cable_is_plugged_in_again_when_the_job_has_gone_on(cluster: Cluster) -> None:
    job, pulled = cluster.job, time.monotonic()
    cluster.switch.pull(cluster.nodes[1])
    _print("cable pulled", job.next_step_after(pulled, 4))
    job.until_steps(20)
    plugged = time.monotonic()
    cluster.switch.plug(cluster.nodes[1])
    job.until(lambda: job.live() == 6, "six workers")
    print(f"\nplugged in again: six workers after {time.monotonic() - plugged:.2f} s")
    job.until_steps(3)
    job.finish_and_check()


@pytest.mark.slow
def test_a_cable_is_plugged_in_again_when_others_have_the_places(cluster: Cluster) -> None:
    job, pulled = cluster.job, time.monotonic()
    cluster.switch.pull(cluster.nodes[1])
    job.next_step_after(pulled, 4)
    cluster.add("another")
    job.until(lambda: job.live() == 6, "six workers")
    cluster.switch.plug(cluster.nodes[1])
    job.until_steps(30)
    assert job.live() == 6
    job.finish_and_check()


@pytest.mark.slow
def test_the_coordinators_cable_is_pulled_for_a_while(cluster: Cluster) -> None:
    job, pulled = cluster.job, time.monotonic()
    cluster.switch.pull(cluster.head)
    time.sleep(6.0)
    cluster.switch.plug(cluster.head)
    job.until_steps(5)
    _print("the coordinator's cable pulled for 6 s", job.next_step_after(pulled + 6.0, 6) + 6.0)
    assert job.live() == 6
    job.finish_and_check()


@pytest.mark.slow
def test_the_coordinators_cable_is_pulled_for_good(cluster: Cluster) -> None:
    cluster.switch.pull(cluster.head)
    job = cluster.job
    assert "every worker of stage" in (job.finish().error or "")
    for node in cluster.nodes:
        job.until_gone(node)


@pytest.mark.slow
def test_two_nodes_do_not_reach_each_other(cluster: Cluster) -> None:
    job, parted = cluster.job, time.monotonic()
    cluster.switch.separate(*cluster.nodes[1:])
    _print("two nodes parted", job.next_step_after(parted, 4))
    job.until_steps(5)
    job.finish_and_check()


@pytest.mark.slow
def test_two_nodes_never_reach_each_other(fresh: Cluster) -> None:
    fresh.switch.separate(*fresh.nodes[:2])
    job = fresh.job
    job.until(lambda: job.live() == 4, "four workers")
    job.finish_and_check()


@pytest.mark.slow
def test_a_firewall_that_rejects_is_named(fresh: Cluster) -> None:
    """With host, port and what to open, in place of gloo's words."""
    one, other = fresh.nodes[:2]
    one.reject(other)
    other.reject(one)
    job = fresh.job
    job.until(lambda: job.is_over, "the end")
    error = job.outcome.error or ""
    assert re.search(
        r"a worker on node[01] at 10\.77\.0\.[23]:\d+ cannot be reached: permission denied", error
    )
    assert "net.ipv4.ip_local_port_range" in error


@pytest.mark.slow
def test_no_two_nodes_reach_each_other(cluster: Cluster) -> None:
    """Each of them holds a worker of every stage, so one goes on alone."""
    job, parted = cluster.job, time.monotonic()
    cluster.switch.separate(*cluster.nodes)
    _print("all nodes parted", job.next_step_after(parted, 2))
    job.finish_and_check()
