"""Systems for mixtures of experts."""

from dataclasses import replace

import pytest

from recycle_compiler.fleet.policies.experts import ExpertParallel, Lazarus
from recycle_compiler.fleet.policies.layers import layer_costs_of
from recycle_compiler.fleet.policies.ours import Ours
from recycle_compiler.fleet.policies.restart import Restart
from recycle_compiler.fleet.policy import CannotRunError, Worker
from recycle_compiler.fleet.setting import FleetSetting
from recycle_compiler.planner.compile import plan_failed
from recycle_runtime.plan.plan_choice import Planned
from tests.compiler.fleet.policies.settings import comeback, failure, unit_setting
from tests.support.layers import layer_costs, layered_job


def with_experts() -> FleetSetting:
    """Two stages of five workers."""
    setting = unit_setting(2, 5)
    return replace(setting, job=replace(setting.job, slots=2))


WHOLE = unit_setting(2, 5).rate(unit_setting(2, 5).one_f_one_b)


def test_lazarus_goes_on_while_every_expert_is_somewhere() -> None:
    policy = Lazarus(with_experts())
    assert policy.begin(frozenset(), 0) == WHOLE
    # One of the pair 0 and 1, and another of the group of 2, 3 and 4.
    one = policy.react(failure(1000, {(0, 0), (4, 0)}, {(0, 0), (4, 0)}))
    assert (one.rate, one.pause) == (pytest.approx(WHOLE * 8 / 10), 1.0)
    assert one.redone == pytest.approx(0.5 / WHOLE)
    # Experts are placed anew: 1, 2 and 3 have the same.
    two = policy.react(failure(2000, {(1, 0), (2, 0)}, {(0, 0), (4, 0), (1, 0), (2, 0)}))
    assert (two.rate, two.pause) == (pytest.approx(WHOLE * 6 / 10), 1.0)
    back = policy.react(comeback(3000, {(0, 0)}, {(4, 0), (1, 0), (2, 0)}))
    assert (back.rate, back.redone) == (pytest.approx(WHOLE * 7 / 10), 0.0)


def test_lazarus_loses_experts_with_all_that_have_them() -> None:
    policy = Lazarus(with_experts())
    policy.begin(frozenset(), 0)
    lost = policy.react(failure(1000, {(0, 1), (1, 1)}, {(0, 1), (1, 1)}))
    assert lost.pause > 60 and lost.redone > 0 and "checkpoint" in lost.why
    assert lost.rate == pytest.approx(WHOLE * 8 / 10)
    # Within the pause of the first: nothing has been placed anew.
    policy = Lazarus(with_experts())
    policy.begin(frozenset(), 0)
    assert policy.react(failure(1000, {(0, 1)}, {(0, 1)})).pause == 1.0
    assert policy.react(failure(1000.5, {(1, 1)}, {(0, 1), (1, 1)})).pause > 60
    stage = {(pipeline, 1) for pipeline in range(5)}
    assert policy.react(failure(5000, stage - {(0, 1), (1, 1)}, stage)).rate == 0.0
    assert policy.react(comeback(6000, {(0, 1)}, stage - {(0, 1)})).rate == pytest.approx(WHOLE * 6 / 10)


def test_plain_expert_parallelism_restarts() -> None:
    change = failure(1000, {(0, 1)}, {(0, 1)})
    policies = ExpertParallel(with_experts()), Restart(with_experts())
    assert len({policy.begin(frozenset(), 0) for policy in policies}) == 1
    assert len({policy.react(change) for policy in policies}) == 1


@pytest.mark.parametrize("policy", [Lazarus, ExpertParallel])
def test_for_jobs_with_experts(policy: type[Lazarus] | type[ExpertParallel]) -> None:
    with pytest.raises(CannotRunError, match="the job has no experts"):
        policy(unit_setting())


def test_layers_that_others_cut_take_as_long_as_stages() -> None:
    """Tokens and experts travel between as many workers as a stage has."""
    costs = replace(
        layer_costs((3000,) * 4),
        expert_counts=(0, 4, 4, 0),
        exchange=(0, 400, 400, 0),
        slot_transfer=(0, 100, 100, 0),
    )
    job = layered_job(costs, (2, 2), 4, 4, owners=2, slots=2)
    layers = layer_costs_of(replace(unit_setting(2, 4), job=job))
    assert sum(layers.forward) == sum(job.forward) == 4 * 3000 + 2 * 300
    assert sum(layers.backward) == sum(job.backward_input) + sum(job.backward_weight)
    assert sum(layers.finish) == sum(job.reduce) + sum(job.optimizer) + sum(job.gather) > 0


def test_ours_needs_slots_for_all_experts() -> None:
    """A worker moves to a stage that has too few; where no stage can spare one the job waits."""
    costs = replace(layer_costs((3000,) * 4), expert_counts=(4,) * 4, exchange=(400,) * 4)
    job = layered_job(costs, (2, 2), 4, 4, owners=2, slots=2)
    plan = Planned((0, 0), plan_failed(job, ()).claims.period)
    policy = Ours(replace(unit_setting(2, 4), job=job, plans=(plan,), exact_plans=0))
    assert policy.begin(frozenset(), 0) > 0
    gone = set[Worker]()
    why: list[str] = []
    rates: list[float] = []
    # The last of them has moved to the other stage by then.
    for number, worker in enumerate([(0, 1), (1, 1), (2, 1), (3, 1), (0, 0)]):
        gone.add(worker)
        reaction = policy.react(failure(1000 * (number + 1), {worker}, gone))
        why.append(reaction.why)
        rates.append(reaction.rate)
    assert "1 worker moved to a stage with too few slots" in why[2]
    assert all(rate > 0 for rate in rates[:4])
    assert rates[4] == 0.0 and why[4].endswith("too few slots for experts, stands still")
    reaction = policy.react(comeback(6000, {(0, 0)}, gone - {(0, 0)}))
    while (due := policy.due()) is not None and due < 7000:
        reaction = policy.act(due)
    assert reaction.rate > 0
