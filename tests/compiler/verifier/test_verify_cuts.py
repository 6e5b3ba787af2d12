"""Plans under other cuts: good ones pass, and every rule about them catches its fault."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recycle_compiler.backends.bundle import bundle_bytes
from recycle_compiler.cli.main import main
from recycle_compiler.ir.bundled import read_job
from recycle_compiler.ir.job import JobSpec, Techniques
from recycle_compiler.ir.layout import Layout, absent_cells, halved, job_of_layout
from recycle_compiler.planner.compile import plan_failed
from recycle_compiler.verifier.cuts import verify_cuts
from recycle_compiler.verifier.report import VerifierRule, Violation
from recycle_compiler.verifier.verify import verify_bundle, verify_plans
from recycle_runtime.plan.bundle import Bundle
from tests.compiler.verifier.memory_bundle import Entry, MemoryBundle


def in_memory(bundle: Bundle) -> MemoryBundle:
    entries = tuple(
        Entry(plan.failed, plan.release, plan.makespan, plan.period, plan.lower_bound, plan.bound_over_cuts)
        for plan in bundle.plans
    )
    streams = tuple(
        {worker: bundle.stream(plan, worker) for worker in bundle.workers(plan)}
        for plan in range(len(entries))
    )
    return MemoryBundle(read_job(bundle), entries, streams, recuts=tuple(map(in_memory, bundle.recuts)))


@pytest.fixture(scope="module")
def good(layered_bundle: str) -> MemoryBundle:
    """Six layers on eight workers: 3x4,3x4; cut 0 is 2x2,2x2,2x4, cut 1 is 5x4,1x2."""
    return in_memory(Bundle.read(layered_bundle))


def with_cut(bundle: MemoryBundle, recut: MemoryBundle, number: int = 0) -> MemoryBundle:
    recuts = list(bundle.recuts)
    recuts[number] = recut
    return replace(bundle, recuts=tuple(recuts))


def with_cut_job(bundle: MemoryBundle, **changes: Any) -> MemoryBundle:
    return with_cut(bundle, bundle.recuts[0].with_job(**changes))


def with_layers(bundle: MemoryBundle, **changes: Any) -> MemoryBundle:
    assert bundle.job.layer_costs is not None
    return bundle.with_job(layer_costs=replace(bundle.job.layer_costs, **changes))


def of(bundle: MemoryBundle, rule: VerifierRule) -> list[Violation]:
    return [violation for violation in verify_bundle(bundle) if violation.rule is rule]


def test_a_good_bundle_passes(good: MemoryBundle, layered_bundle: str) -> None:
    assert list(verify_bundle(good)) == []
    assert list(verify_bundle(Bundle.read(layered_bundle))) == []
    assert [(report.cut, report.plan) for report in verify_plans(good)] == [
        (None, 0), (None, 1), (None, 2), (0, 0), (0, 1), (1, 0), (1, 1),
    ]  # fmt: skip


def test_every_rule_holds_under_other_cuts_too(good: MemoryBundle) -> None:
    """A fault in a stream of another cut is found, and where it is."""
    recut = good.recuts[1]
    broken = with_cut(good, recut.with_stream((0, 1), recut.streams[0][0, 1][:-1]), 1)
    (violation,) = verify_bundle(broken)
    assert violation.rule is VerifierRule.FINISH_STEPS
    assert str(violation).startswith("cut 1, plan 0, worker 0:1")
    wrong = with_cut(good, recut.with_entry(makespan=1), 1)
    assert [str(one) for one in verify_bundle(wrong)] == [
        "cut 1, plan 0: claim-makespan: claims 1, the streams take 77000"
    ]


def test_an_index_that_states_another_cut(good: MemoryBundle) -> None:
    class Misstated(MemoryBundle):
        @property
        def cut(self) -> tuple[int, ...]:
            return (1, 5)

    wrong = Misstated(good.job, good.plans, good.streams, recuts=good.recuts)
    (violation,) = verify_bundle(wrong)
    assert (violation.rule, violation.message) == (
        VerifierRule.INDEX_SHAPE,
        "the bundle states (1, 5) layers per chunk, its job has (3, 3)",
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "stranger"}, "has name stranger, the job has layered"),
        ({"tensor": 2}, "has tensor 2, the job has 1"),
        ({"unit": "ms"}, "has unit ms, the job has slot"),
        ({"memory_unit": "byte"}, "has memory unit byte, the job has count"),
        ({"redundancy": 1}, "has redundancy 1, the job has 2"),
        ({"techniques": Techniques(adaptive=True, decouple=True, stagger=False)}, "has techniques "),
        ({"cut": (2, 2, 3)}, "has 7 layers, the job has 6"),
        ({"microbatches": 3}, "has 12 micro-batches in all, the job has 16"),
        ({"pipelines": 5}, "has 20 micro-batches in all, the job has 16"),
    ],
)
def test_another_model(good: MemoryBundle, changes: dict[str, Any], message: str) -> None:
    violations = of(with_cut_job(good, **changes), VerifierRule.CUT_MODEL)
    assert [(one.cut, one.plan) for one in violations] == [(0, None)]
    assert violations[0].message.startswith(message)


def test_several_chunks_on_a_stage(good: MemoryBundle) -> None:
    job = replace(good.recuts[0].job, chunk_stages=(0, 2, 1))
    violations = of(with_cut(good, replace(good.recuts[0], job=job)), VerifierRule.CUT_MODEL)
    assert [one.message for one in violations] == [
        "does not have one range of layers on each stage, but (0, 2, 1)"
    ]


def test_a_job_of_whole_stages_has_no_other_cuts(good: MemoryBundle) -> None:
    whole = good.with_job(layer_costs=None)
    assert [one.cut for one in of(whole, VerifierRule.CUT_MODEL)] == [0, 1]
    bounds = of(whole, VerifierRule.CLAIM_OVER_CUTS)
    # Every plan that claims a bound over all cuts.
    assert [(one.cut, one.plan) for one in bounds] == [(None, 0), (None, 1), (None, 2), (0, 0), (1, 0)]


def _one_more(job: JobSpec, name: str, stage: int) -> dict[str, Any]:
    values = list(getattr(job, name))
    values[stage] += 1
    return {name: tuple(values)}


@pytest.mark.parametrize(
    ("name", "stage"),
    [
        ("forward", 0),
        ("backward_input", 1),
        ("backward_weight", 2),
        ("optimizer", 0),
        ("reduce", 1),
        ("transfer", 1),
        ("activation", 2),
        ("parameters", 0),
    ],
)
def test_stages_that_do_not_cost_what_their_layers_do(good: MemoryBundle, name: str, stage: int) -> None:
    job = good.recuts[0].job
    (violation,) = of(with_cut_job(good, **_one_more(job, name, stage)), VerifierRule.CUT_COSTS)
    was = getattr(job, name)[stage]
    assert (violation.cut, violation.message) == (
        0,
        f"{name} of stage {stage} is {was + 1}, its layers {2 * stage} to {2 * stage + 1} give {was}",
    )


def test_what_stays_for_w_is_that_of_the_layers(good: MemoryBundle) -> None:
    job = good.recuts[0].job
    less = (job.kept_for_weight[0] - 1, *job.kept_for_weight[1:])
    (violation,) = of(with_cut_job(good, kept_for_weight=less), VerifierRule.CUT_COSTS)
    assert violation.message == "kept_for_weight of stage 0 is 1999, its layers 0 to 1 give 2000"


def test_the_reduction_is_that_of_the_workers_of_the_stage(good: MemoryBundle) -> None:
    """Stages of 2, 2 and 4 workers: a half, a half and three quarters of the ring, rounded up."""
    job = good.recuts[0].job
    ringed = with_cut_job(with_layers(good, reduce=(5,) * 6), reduce=(5, 5, 8))
    wrong = [one.message for one in of(ringed, VerifierRule.CUT_COSTS) if one.cut == 0]
    assert (job.reduce, wrong) == ((0, 0, 0), [])
    ringed = with_cut_job(with_layers(good, reduce=(5,) * 6), reduce=(5, 5, 7))
    wrong = [one.message for one in of(ringed, VerifierRule.CUT_COSTS) if one.cut == 0]
    assert wrong == ["reduce of stage 2 is 7, its layers 4 to 5 give 8"]


@pytest.mark.parametrize(("capacity", "said"), [(20_001, "20001"), (None, "unlimited")])
def test_room_that_the_state_of_layers_does_not_leave(
    good: MemoryBundle, capacity: int | None, said: str
) -> None:
    (violation,) = of(with_cut_job(good, capacity=(20_000, capacity, 20_000)), VerifierRule.CUT_COSTS)
    assert violation.message == (f"stage 1 has {said} for activations, the state of its layers leaves 20000")


def test_a_layer_that_too_few_workers_hold(good: MemoryBundle) -> None:
    asked = with_cut_job(good.with_job(redundancy=3), redundancy=3)
    asked = with_cut(asked, asked.recuts[1].with_job(redundancy=3), 1)
    assert [str(one) for one in verify_bundle(asked)] == [
        "cut 0, plan 0: cut-redundancy: layers 0 to 1 have 2 holders, the job asks for 3",
        "cut 0, plan 0: cut-redundancy: layers 2 to 3 have 2 holders, the job asks for 3",
        "cut 1, plan 0: cut-redundancy: layers 5 to 5 have 2 holders, the job asks for 3",
    ]


def test_state_and_activations_that_do_not_fit_together(good: MemoryBundle) -> None:
    """Layer 5 takes so much that stage 2 of cut 0 has no room; a stated room does not help."""
    heavy = with_layers(good, resident=(2000,) * 5 + (19_000,))
    violations = [one for one in of(heavy, VerifierRule.CUT_MEMORY) if one.cut == 0]
    assert {(one.plan, one.worker and one.worker.stage) for one in violations} == {(0, 2), (1, 2)}
    # Which schedule of this period the solver finds, and so how many activations, is not the same everywhere.
    assert re.fullmatch(
        r"the state of layers 4 to 5 takes 21000, activations up to [4-8]000, capacity is 24000",
        violations[0].message,
    )
    assert of(with_layers(heavy, capacity=None), VerifierRule.CUT_MEMORY) == []


def test_a_bound_over_cuts_above_that_of_its_own_cut(good: MemoryBundle) -> None:
    violations = of(
        with_cut(good, good.recuts[1].with_entry(bound_over_cuts=73_001), 1), VerifierRule.CLAIM_OVER_CUTS
    )
    assert [(one.cut, one.plan, one.message) for one in violations] == [
        (
            1,
            0,
            "claims 73001 as a bound over all cuts, which must be between 1 and the bound of its own cut, "
            "73000",
        ),
        (
            1,
            0,
            "claims that no plan of any cut for 6 workers beats 73001, but plan 0 of cut 1, with 6 workers, "
            "takes 73000",
        ),
    ]


def test_a_bound_over_cuts_that_a_plan_beats(good: MemoryBundle) -> None:
    """The plan for 8 workers under the own cut claims 51; cut 0 takes 50 with as many."""
    (violation,) = of(good.with_entry(bound_over_cuts=51_000), VerifierRule.CLAIM_OVER_CUTS)
    assert str(violation) == (
        "plan 0: claim-over-cuts: claims that no plan of any cut for 8 workers beats 51000, but plan 0 of "
        "cut 0, with 8 workers, takes 50000"
    )
    assert of(good.with_entry(bound_over_cuts=49_000), VerifierRule.CLAIM_OVER_CUTS) == []


def test_a_plan_for_fewer_workers_beats_a_bound_too(good: MemoryBundle) -> None:
    """The work that takes six workers 73 can be done by eight, two of them on standby."""
    slow = replace(good, plans=tuple(replace(plan, period=90_000) for plan in good.plans))
    claims = {"period": 80_000, "lower_bound": 75_000, "bound_over_cuts": 74_000}
    slow = with_cut(slow, slow.recuts[0].with_entry(**claims))
    (violation,) = (one for one in of(slow, VerifierRule.CLAIM_OVER_CUTS) if one.cut == 0)
    assert "for 8 workers beats 74000, but plan 0 of cut 1, with 6 workers, takes 73000" in violation.message


def halves(bundle: MemoryBundle, over_ppm: int) -> MemoryBundle:
    """The good bundle in a job that splits micro-batches, with a cut of halves."""
    job = replace(bundle.job, split_ppm=over_ppm)
    layout = Layout((3, 3), (4, 4))
    target = job_of_layout(halved(job), layout)
    plan = plan_failed(target, absent_cells(target, layout))
    recut = in_memory(Bundle.parse(bundle_bytes(source="", plans=[plan])))
    return replace(bundle.with_job(split_ppm=over_ppm), recuts=(recut,))


def test_halves_cost_half_and_a_little_more(good: MemoryBundle) -> None:
    split = halves(good, 40_000)
    assert [each for each in verify_cuts(split) if each.cut == 0] == []
    assert [report for report in verify_plans(split) if report.violations] == []
    cheaper = split.with_job(split_ppm=50_000)
    assert any("forward" in each.message for each in of(cheaper, VerifierRule.CUT_COSTS))


def test_halves_need_a_job_that_allows_them(good: MemoryBundle) -> None:
    forbidden = halves(good, 40_000).with_job(split_ppm=None)
    (found,) = of(forbidden, VerifierRule.CUT_MODEL)
    assert "micro-batches" in found.message


def test_a_bound_over_cuts_is_about_plans_that_keep_redundancy(tmp_path: Path) -> None:
    """With three failures 2x1,2x1,2x1, which covers them for a while, is faster than any that keeps it."""
    source, plan = tmp_path / "six.job", tmp_path / "six.plan"
    source.write_text(
        "job six { parallel { pipeline = 2  data = 3  groups = off }  batch { microbatches = 4 } "
        "layers { count = 6  forward = 1  backward_input = 1  backward_weight = 1  reduce = 0.5 } "
        "tolerate { failures = 3 } }"
    )
    assert main(["--quiet", "compile", str(source), "-o", str(plan), "--jobs", "1"]) == 0
    bundle = in_memory(Bundle.read(plan))
    bound = bundle.plans[3].bound_over_cuts
    (cover,) = (recut.plans[1] for recut in bundle.recuts if recut.job.cut == (2, 2, 2))
    assert len(cover.failed) == 3 * bundle.recuts[0].pipelines - 3 and cover.period < bound
    assert list(verify_bundle(bundle)) == []
