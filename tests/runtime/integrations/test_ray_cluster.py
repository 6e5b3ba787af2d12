"""A job on a real Ray: a head and raylets on this machine, which come and go while it trains."""

import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from recycle_runtime.integrations.ray import JobError, RayJob, start
from tests.runtime.recovery.watched import TINY
from tests.runtime.training.alone import train_alone
from tests.runtime.training.compare import changed

pytest.importorskip("ray", reason="Ray is not installed: pip install 'recyclec[ray]'")
pytestmark = pytest.mark.slow

_PATIENCE = 300.0
_PACED = """
import time

_loss = loss

def loss(output, target):
    time.sleep(float((Path(__file__).parent / "pace").read_text()))
    return _loss(output, target)
"""
_CONTROL = {"num_cpus": 0, "resources": {"control": 1}}


@pytest.fixture
def cluster() -> Generator[Any]:
    """Nodes for the coordinator and for two agents, and a head that has room for neither."""
    import ray  # pyright: ignore[reportMissingImports]
    from ray.cluster_utils import Cluster  # pyright: ignore[reportMissingImports]

    found: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    try:
        ray.init(address=found.address, log_to_driver=True)
        yield found
    finally:
        ray.shutdown()
        found.shutdown()


def set_pace(folder: Path, seconds: float) -> None:
    """Of a micro-batch."""
    aside = folder / "pace.new"
    aside.write_text(str(seconds))
    aside.replace(folder / "pace")


def turn_until(job: RayJob, is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not is_so():
        assert time.monotonic() < deadline and not job.is_over
        job.turn()
        time.sleep(0.05)


def turn_steps(job: RayJob, more: int, live: int | None = None) -> None:
    """So many more, the last of which this many workers made."""
    rows = job.result.steps
    goal = len(rows) + more
    turn_until(job, lambda: len(rows) >= goal and live in (None, rows[-1].live))


def test_nodes_come_and_go_and_the_coordinator_moves(tmp_path: Path, square: str, cluster: Any) -> None:
    steps = 600
    set_pace(tmp_path, 0.3)
    control = cluster.add_node(num_cpus=0, resources={"control": 1})
    first = cluster.add_node(num_cpus=2)
    cluster.add_node(num_cpus=2)
    job = start(
        square,
        program=changed(tmp_path, TINY, _PACED),
        steps=steps,
        workers_per_node=2,
        state=tmp_path / "state",
        plan_ahead="off",
        replan="off",
        coordinator_options=_CONTROL,
    )
    try:
        turn_steps(job, 5, live=4)
        cluster.remove_node(first, allow_graceful=False)
        turn_steps(job, 5, live=2)
        cluster.add_node(num_cpus=2)
        turn_steps(job, 5, live=4)
        before = job.coordinator
        cluster.remove_node(control, allow_graceful=False)
        cluster.add_node(num_cpus=0, resources={"control": 1})
        turn_until(job, lambda: job.coordinator is not before)
        turn_steps(job, 20, live=4)
        set_pace(tmp_path, 0.0)
        rows = job.wait().steps
    finally:
        job.end()
    assert [row.step for row in rows] == list(range(steps))
    assert [row.loss for row in rows] == pytest.approx(train_alone(TINY, 2, 4, steps).losses, rel=1e-9)


def test_a_job_is_stopped_with_a_checkpoint_and_resumed(tmp_path: Path, square: str, cluster: Any) -> None:
    """Over TLS."""
    set_pace(tmp_path, 0.3)
    cluster.add_node(num_cpus=4, resources={"control": 1})
    wanted: dict[str, Any] = {
        "program": changed(tmp_path, TINY, _PACED),
        "steps": 60,
        "workers_per_node": 4,
        "checkpoint": tmp_path / "kept",
        "coordinator_options": _CONTROL,
        "tls": True,
    }
    job = start(square, state=tmp_path / "first", **wanted)
    turn_steps(job, 5)
    job.stop()
    with pytest.raises(JobError, match="resume=True"):
        job.wait()
    made = len(job.result.steps)
    assert made < 60
    set_pace(tmp_path, 0.0)
    rows = start(square, state=tmp_path / "second", resume=True, **wanted).wait().steps
    assert [row.step for row in rows] == list(range(made, 60))
    losses = train_alone(TINY, 2, 4, 60).losses
    assert [row.loss for row in rows] == pytest.approx(losses[made:], rel=1e-9)
