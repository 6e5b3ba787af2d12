"""Random times: the same for the same seed, none at all without variation."""

import numpy as np
import pytest
from hypothesis import given, settings

from recycle_compiler.ir.streams import Streams
from recycle_compiler.simulator.costs import Jitter
from recycle_compiler.simulator.engine import simulate
from recycle_runtime.plan.isa import Opcode
from tests.compiler.simulator.engine_plans import bundle_of, golden_plan
from tests.support.jobs import quick_plans


@settings(max_examples=20)
@given(quick_plans())
def test_no_variation_is_no_jitter(program: Streams) -> None:
    bundle = bundle_of(program)
    still, none = (
        simulate(bundle, 0, iterations=3, jitter=Jitter(0.0, seed=7)),
        simulate(bundle, 0, iterations=3),
    )
    assert (still.period, still.spread, still.ends) == (none.period, 0.0, none.ends)
    assert np.array_equal(still.ops.start, none.ops.start)


@settings(max_examples=20)
@given(quick_plans())
def test_the_same_seed_gives_the_same_run(program: Streams) -> None:
    bundle = bundle_of(program)
    one, again = (simulate(bundle, 0, iterations=4, jitter=Jitter(0.2, seed=3)) for _ in range(2))
    assert (one.period, one.spread, one.ends) == (again.period, again.spread, again.ends)
    assert np.array_equal(one.ops.end, again.ops.end)


def test_another_seed_gives_another_run() -> None:
    bundle = bundle_of(golden_plan("figure3.1"))
    ends = {simulate(bundle, 0, iterations=4, jitter=Jitter(0.2, seed)).ends for seed in range(4)}
    assert len(ends) == 4


def test_the_mean_over_iterations_and_how_far_they_are_from_it() -> None:
    bundle = bundle_of(golden_plan("figure3.1"))
    outcome = simulate(bundle, 0, iterations=30, jitter=Jitter(0.1))
    apart = np.diff(outcome.ends)
    assert (outcome.period, outcome.spread) == (apart.mean(), apart.std())
    # All wait for the latest of several, so what varies takes longer than what does not.
    assert outcome.period > simulate(bundle, 0).period
    assert outcome.spread > 0


def test_a_little_variation_changes_little() -> None:
    bundle = bundle_of(golden_plan("figure3.1"))
    outcome = simulate(bundle, 0, iterations=20, jitter=Jitter(0.001))
    assert outcome.period == pytest.approx(simulate(bundle, 0).period, rel=0.01)


def test_peers_sum_together() -> None:
    bundle = bundle_of(golden_plan("uneven-bytes.0"))
    outcome = simulate(bundle, 0, iterations=3, jitter=Jitter(0.3))
    reductions = outcome.ops.opcode == Opcode.REDUCE
    stage = np.array([worker.stage for worker in outcome.workers])[outcome.ops.worker[reductions]]
    for times in (outcome.ops.start[:, reductions], outcome.ops.end[:, reductions]):
        for each in set(stage.tolist()):
            assert (np.ptp(times[:, stage == each], axis=1) == 0).all()


def test_factors_have_mean_one_and_the_variation_asked_for() -> None:
    factors = Jitter(0.25, seed=1).factors(0, 200_000)
    assert factors.mean() == pytest.approx(1.0, abs=0.005)
    assert factors.std() == pytest.approx(0.25, abs=0.005)
    assert factors.min() > 0


@pytest.mark.parametrize(("variation", "seed"), [(-0.1, 0), (float("nan"), 0), (0.1, -1)])
def test_impossible_jitter(variation: float, seed: int) -> None:
    with pytest.raises(ValueError, match="must be at least 0"):
        Jitter(variation, seed)


def test_one_iteration_says_nothing_about_jitter() -> None:
    with pytest.raises(ValueError, match="iterations with jitter must be at least 2, got 1"):
        simulate(bundle_of(golden_plan("figure3.1")), 0, iterations=1, jitter=Jitter(0.1))
