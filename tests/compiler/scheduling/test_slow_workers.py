"""Slow workers: their shares, their routes, and their names in the normal form."""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from recycle_compiler.ir.failure import Worker, failure_set
from recycle_compiler.ir.job import JobSpec
from recycle_compiler.passes.rename_workers import normal_slow
from recycle_compiler.passes.route_microbatches import routes as numbered_routes
from recycle_compiler.scheduling.slow_workers import (
    SlowWorker,
    SlowWorkers,
    shares,
    slow_workers,
    stage_shares,
)
from tests.support.jobs import unit_job


def slow(pipeline: int, stage: int, factor: float, share: int | None = None) -> SlowWorker:
    return SlowWorker(Worker(pipeline, stage), Fraction(factor), share)


@pytest.mark.parametrize(
    ("total", "factors", "wanted"),
    [
        (18, [1, 1, 3], [8, 8, 2]),
        (18, [1, 1, 2], [8, 7, 3]),
        (18, [2, 2, 3], [7, 7, 4]),
        (6, [1, 1, 9], [3, 3, 0]),
        (5, [7], [5]),
        (0, [1, 2], [0, 0]),
        (4, [1, 1, 1], [2, 1, 1]),
    ],
)
def test_shares_by_hand(total: int, factors: list[int], wanted: list[int]) -> None:
    assert shares(total, factors) == wanted


@given(st.integers(0, 9), st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_the_longest_time_is_as_short_as_can_be(total: int, factors: list[int]) -> None:
    found = shares(total, factors)
    assert sum(found) == total
    every = (each for each in product(range(total + 1), repeat=len(factors)) if sum(each) == total)
    assert _longest(found, factors) == min(_longest(each, factors) for each in every)


def _longest(each: tuple[int, ...] | list[int], factors: list[int]) -> int:
    return max(share * factor for share, factor in zip(each, factors, strict=True))


def test_a_share_that_is_given_stays() -> None:
    assert stage_shares(18, (0, 1, 2), 1, (slow(1, 1, 3, share=4), slow(0, 0, 5))) == [7, 4, 7]
    assert stage_shares(18, (0, 1, 2), 1, (slow(1, 1, 2.5), slow(2, 1, 2.5, share=0))) == [13, 5, 0]


def test_what_a_user_says_is_exact() -> None:
    said = slow_workers([((1, 2), 2.5), ((0, 2), 1.3)])
    assert said == (
        SlowWorker(Worker(0, 2), Fraction(13, 10)),
        SlowWorker(Worker(1, 2), Fraction(5, 2)),
    )
    assert said[0].stretched(1000) == 1300


def test_slow_workers_stand_next_to_the_failed() -> None:
    failed = failure_set([(0, 1)])
    given_names = (slow(0, 0, 2), slow(1, 1, 2), slow(3, 1, 3))
    # In the normal form 3:1 has failed.
    assert [one.worker for one in normal_slow(given_names, failed, 4)] == [(3, 0), (1, 1), (2, 1)]


HEALTHY = ((0, 1, 2),) * 3


def routes(job: JobSpec, live: tuple[tuple[int, ...], ...], slow_ones: SlowWorkers = ()) -> NDArray[np.int64]:
    """table[pipeline, micro-batch, stage]: the pipeline of the worker that runs it, of a live one."""
    first = np.arange(job.stages) * job.pipelines
    hosts = tuple(tuple(int(first[stage]) + pipeline for pipeline in each) for stage, each in enumerate(live))
    return numbered_routes(job, hosts, slow_ones) - first


def test_homes_stay_and_the_rest_is_dealt_out() -> None:
    table = routes(unit_job(3, 3, 6), HEALTHY, (slow(2, 1, 3),))
    assert (table[:2] == np.arange(2)[:, None, None]).all()
    assert (table[2, :, [0, 2]] == 2).all()
    assert table[2, :, 1].tolist() == [0, 2, 1, 0, 2, 1]


@pytest.mark.parametrize(("microbatches", "pipelines"), [(6, 3), (5, 4), (300, 16)])
def test_no_share_is_as_if_failed(microbatches: int, pipelines: int) -> None:
    job = unit_job(3, pipelines, microbatches)
    everyone = tuple(range(pipelines))
    failed = (everyone, everyone[:-2], everyone[:-1])
    idle = (slow(pipelines - 2, 1, 9, share=0), slow(pipelines - 1, 2, 9, share=0))
    live = (everyone, everyone[:-1], everyone)
    assert (routes(job, live, idle) == routes(job, failed)).all()


@given(st.integers(1, 4), st.integers(1, 700), st.data())
def test_every_worker_has_its_share(pipelines: int, microbatches: int, data: st.DataObject) -> None:
    """Small jobs, which keep what they can at home, and large ones."""
    job = unit_job(4, pipelines, microbatches)
    live = tuple(range(data.draw(st.integers(1, pipelines))))
    who = tuple(slow(p, 2, data.draw(st.sampled_from([0.5, 1, 1.5, 2, 7]))) for p in live[:2])
    table = routes(job, (live,) * 4, who)
    loads = np.bincount(table[:, :, 2].ravel(), minlength=pipelines)[list(live)]
    assert loads.tolist() == stage_shares(pipelines * microbatches, live, 2, who)
    assert (table[:, :, [0, 1, 3]] == routes(job, (live,) * 4)[:, :, [0, 1, 3]]).all()
