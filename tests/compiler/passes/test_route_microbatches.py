"""route-microbatches in large jobs, where a stage with failures deals out all its micro-batches."""

import numpy as np

from recycle_compiler.passes.route_microbatches import routes
from tests.support.jobs import unit_job

JOB = unit_job(8, 8, 128)
ALL = tuple(range(8))
ALIVE = (ALL, ALL[:7], ALL[:7], ALL[:5], ALL[:5], ALL[:7], ALL, ALL[1:])
HOSTS = tuple(tuple(8 * stage + pipeline for pipeline in alive) for stage, alive in enumerate(ALIVE))


def test_every_live_worker_has_its_share() -> None:
    table = routes(JOB, HOSTS)
    for stage, alive in enumerate(HOSTS):
        loads = np.bincount(table[:, :, stage].ravel(), minlength=64)
        assert loads.sum() == 8 * 128
        assert set(np.flatnonzero(loads).tolist()) == set(alive)
        assert loads[list(alive)].max() - loads[list(alive)].min() <= 1


def test_stages_with_equally_many_failures_form_pipelines() -> None:
    table = routes(JOB, HOSTS)
    assert (table[:, :, 1] + 8 == table[:, :, 2]).all()
    assert (table[:, :, 3] + 8 == table[:, :, 4]).all()


def test_a_healthy_stage_keeps_everything_at_home() -> None:
    table = routes(JOB, HOSTS)
    assert (table[:, :, 0] == np.arange(8)[:, None]).all()


def test_small_jobs_deal_out_only_those_of_failed_workers() -> None:
    small = unit_job(3, 3, 4)
    table = routes(small, ((0, 1, 2), (3, 4), (6, 7, 8)))
    assert (table[:2, :, 1] == 3 + np.arange(2)[:, None]).all()
    assert table[2, :, 1].tolist() == [3, 4, 3, 4]
