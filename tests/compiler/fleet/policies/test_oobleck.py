"""Templates, coins and what Oobleck makes of failures."""

import json
from itertools import combinations, pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.fleet_settings import SHARED_DATA
from recycle_compiler.fleet.policies.layers import Layers
from recycle_compiler.fleet.policies.oobleck import Oobleck, best_pipelines, iteration
from recycle_compiler.fleet.policies.templates import Cutter, Template, templates_of
from recycle_compiler.fleet.policy import CannotRunError
from recycle_compiler.fleet.setting import Known, make_setting
from tests.compiler.fleet.policies.settings import comeback, failure, sized_job, unit_setting
from tests.support.jobs import unit_job

TIMES = st.lists(st.integers(1, 9), min_size=1, max_size=8)


def layers_with(times: list[int]) -> Layers:
    """Layers of these times, split in halves between forward and backward; nothing else costs anything."""
    half, none = tuple(time / 2 for time in times), (0.0,) * len(times)
    return Layers(half, half, none, none, none, 0.0, None)


def published_cost(times: list[int], cuts: tuple[int, ...]) -> float:
    """t1 + t2 + t3, literally."""
    stages = [sum(times[begin:end]) for begin, end in pairwise(cuts)]
    slow = stages.index(max(stages))
    count = len(stages)
    return sum(stages) + (4 * count - count + slow) * stages[slow] + sum(stages[slow:])


def all_cuts(layers: int, stages: int) -> list[tuple[int, ...]]:
    return [(0, *inner, layers) for inner in combinations(range(1, layers), stages - 1)]


@given(TIMES, st.integers(1, 8))
def test_templates_cost_as_little_as_the_best_of_all_cuts(times: list[int], stages: int) -> None:
    template = Cutter(layers_with(times), stages).template(stages)
    if stages > len(times):
        assert template is None
        return
    assert template is not None
    least = min(published_cost(times, cuts) for cuts in all_cuts(len(times), stages))
    assert template.cost == pytest.approx(least)
    assert published_cost(times, template.cuts) == pytest.approx(least)


def coins(sizes: list[int], total: int) -> list[tuple[int, ...]]:
    """Every multiset of sizes with this sum."""
    if total == 0:
        return [()]
    if not sizes or total < 0:
        return []
    first, *rest = sizes
    return coins(rest, total) + [(first, *more) for more in coins(sizes, total - first)]


@settings(deadline=None, max_examples=40)
@given(TIMES, st.integers(1, 3), st.integers(1, 9), st.integers(1, 20))
def test_coins_are_the_fastest(times: list[int], least: int, workers: int, microbatches: int) -> None:
    templates = templates_of(layers_with(times), least, workers)
    possible = [one for total in range(1, workers + 1) for one in coins(sorted(templates), total)]
    best = best_pipelines(templates, workers, microbatches)
    if not possible:
        assert best == ()
        return
    assert 0 < sum(best) <= workers
    made = iteration([templates[size] for size in best], microbatches)
    fastest = min(iteration([templates[size] for size in one], microbatches) for one in possible)
    assert made == pytest.approx(fastest)


def test_pipelines_get_shares_with_which_they_finish_together() -> None:
    fast, slow = Template((0, 1), 0, 1.0, 1.0), Template((0, 1), 0, 3.0, 3.0)
    assert iteration([fast, slow], 8) == fast.period(6) == slow.period(2)
    assert iteration([fast, slow, slow], 2) == slow.period(1) - 1


def test_a_pipeline_with_a_failed_worker_goes_on_with_a_shorter_template() -> None:
    policy = Oobleck(unit_setting(4, 3, 6), least=3)
    healthy = policy.begin(frozenset(), 0)
    reaction = policy.react(failure(10, {(1, 2)}, {(1, 2)}))
    assert 0 < reaction.rate < healthy
    assert reaction.pause == 2
    assert "1 x 3" in reaction.why or "x 5" in reaction.why


def test_a_pipeline_that_is_too_short_borrows_or_merges() -> None:
    policy = Oobleck(unit_setting(4, 3, 6), least=4)
    policy.begin(frozenset(), 0)
    reaction = policy.react(failure(10, {(1, 2)}, {(1, 2)}))
    assert reaction.rate > 0
    assert sum(policy.sizes()) == 11
    assert min(policy.sizes()) >= 4


def test_everybody_coming_back_restores_the_rate() -> None:
    policy = Oobleck(unit_setting())
    healthy = policy.begin(frozenset(), 0)
    policy.react(failure(10, {(1, 2)}, {(1, 2)}))
    assert policy.react(comeback(20, {(1, 2)}, set())).rate == healthy


def test_too_few_workers_stand_still() -> None:
    policy = Oobleck(unit_setting(4, 1, 6))
    policy.begin(frozenset(), 0)
    assert policy.react(failure(10, {(0, 1)}, {(0, 1)})).rate == 0


def test_layers_that_no_worker_holds_come_from_a_checkpoint() -> None:
    policy = Oobleck(unit_setting(4, 3, 6), least=4)
    policy.begin(frozenset(), 0)
    assert policy.sizes() == (4, 4, 4)
    ends = {(pipeline, stage) for pipeline in range(3) for stage in (2, 3)}
    reaction = policy.react(failure(2100, ends, ends))
    assert reaction.rate > 0 and reaction.redone == 300
    assert "from a checkpoint" in reaction.why


def test_memory_says_how_short_a_pipeline_may_be() -> None:
    roomy, tight = (make_setting(sized_job(4, 3, capacity, 14), ()) for capacity in (300, 12))
    assert min(Oobleck(roomy).templates) < min(Oobleck(tight).templates)
    with pytest.raises(CannotRunError, match="fits the memory"):
        Oobleck(make_setting(sized_job(4, 3, 1, 14), (), Known(layers=(1,) * 4)), least=5).begin(
            frozenset(), 0
        )


@pytest.mark.parametrize("capacity", [None, 1, 2, 3, (4, 3, 2, 1)])
@pytest.mark.parametrize("microbatches", [2, 6, 12])
def test_a_template_of_the_job_s_own_cut_is_as_fast_as_its_one_f_one_b(
    capacity: int | tuple[int, ...] | None, microbatches: int
) -> None:
    """Memory delays 1F1B, and delays a template no more than that."""
    setting = make_setting(unit_job(4, 3, microbatches, capacity), (), Known(layers=(1,) * 4))
    rate = Oobleck(setting, least=4).begin(frozenset(), 0)
    assert rate == pytest.approx(setting.rate(setting.one_f_one_b))


@settings(deadline=None)
@given(TIMES, st.integers(1, 6), st.integers(1, 30), st.data())
def test_a_template_fits_wherever_a_cut_does(
    times: list[int], stages: int, capacity: int, data: st.DataObject
) -> None:
    count = len(times)
    amounts = st.lists(st.integers(0, 5), min_size=count, max_size=count).map(tuple)
    half = tuple(time / 2 for time in times)
    layers = Layers(half, half, (0.0,) * count, data.draw(amounts), data.draw(amounts), 0.0, capacity)
    template = Cutter(layers, stages).template(stages)
    fitting = [cuts for cuts in all_cuts(count, stages) if layers.fits(cuts)] if stages <= count else []
    assert (template is not None) == bool(fitting)
    if template is not None:
        assert template.cuts in fitting
        assert template.slowest == layers.pace(template.cuts).each


def test_more_workers_are_never_slower() -> None:
    setting = unit_setting(4, 4, 6, layers=4)
    workers = [(pipeline, stage) for pipeline in range(4) for stage in range(4)]
    rates = [Oobleck(setting, least=3).begin(frozenset(workers[:failed]), 0) for failed in range(13)]
    assert rates == sorted(rates, reverse=True)


@pytest.mark.parametrize(
    ("profile", "model", "least", "microbatches", "distance"),
    [("gpt3_350M-8-16-1/mb8.json", "gpt_3m", 2, 1024, 0.04)],
)
def test_the_measured_shape(profile: str, model: str, least: int, microbatches: int, distance: float) -> None:
    """Throughput by nodes, against 30 nodes, as Oobleck's authors measured it."""
    path: Path = SHARED_DATA / "profiles" / profile
    if not path.exists():
        pytest.skip("published profiles are not there")
    rows = json.loads(path.read_text())
    forward, backward = (tuple(float(row[key]) for row in rows) for key in ("forward", "backward"))
    none = (0.0,) * len(rows)
    templates = templates_of(Layers(forward, backward, none, none, none, 0.0, None), least, 30)
    curve = json.loads((SHARED_DATA / "curves" / "oobleck-throughput-by-nodes.json").read_text())
    measured = {int(nodes): rate for nodes, rate in curve["tables"]["oobleck"][model].items()}

    def rate(nodes: int) -> float:
        sizes = best_pipelines(templates, nodes, microbatches)
        return 1 / iteration([templates[size] for size in sizes], microbatches)

    for nodes, found in measured.items():
        assert rate(nodes) / rate(30) == pytest.approx(found / measured[30], abs=distance)
