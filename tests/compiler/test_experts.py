"""Jobs whose peers share experts: from the job to bundles that verifier and simulator accept."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from bench.rounds_optima import optimum_in_rounds, shorten_over_orders, tiny_job
from recycle_compiler.analysis.explain.report import explain
from recycle_compiler.analysis.explain.text import explanation_text
from recycle_compiler.backends.bundle import bundle_bytes, read_streams
from recycle_compiler.backends.replay import replay
from recycle_compiler.cli.main import main
from recycle_compiler.frontend import load_job
from recycle_compiler.frontend.gpt_model import DEVICES, GptModel, ModelRun, estimate_stages
from recycle_compiler.frontend.optimizer_state import StateRules
from recycle_compiler.ir.expert_messages import message_ticks
from recycle_compiler.ir.failure import failed_per_stage, failure_set, normal_form
from recycle_compiler.ir.job import JobSpec, TextError, parse_job, print_job
from recycle_compiler.ir.ops import OpKind
from recycle_compiler.ir.streams import Streams
from recycle_compiler.ir.target import Target
from recycle_compiler.ir.text import parse_graph, parse_schedule, print_graph, print_schedule
from recycle_compiler.passes.add_worker import AddWorker
from recycle_compiler.passes.assign_slots import AssignSlots
from recycle_compiler.passes.standard import GRAPH_PASSES, LOWERING_PASSES
from recycle_compiler.planner.choice import plan_cuts
from recycle_compiler.planner.compile import NoPlanError, compile_job, plan_failed
from recycle_compiler.planner.recut import fastest_layouts, plan_layout
from recycle_compiler.planner.start import NoStartError, started
from recycle_compiler.scheduling.budget import Guard
from recycle_compiler.scheduling.search import Effort
from recycle_compiler.simulator.engine import simulate
from recycle_compiler.verifier.report import VerifierRule
from recycle_compiler.verifier.verify import verify_bundle
from recycle_compiler.viz.heading import holders_text
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.isa import SERVES, Opcode
from tests.compiler.test_sharded import sharded
from tests.support.jobs import SLOT, figure3, small_targets
from tests.support.layers import layer_costs, layered_job


def with_experts(job: JobSpec, slots: int = 2) -> JobSpec:
    """The job with slots for experts, and so with a sharded state."""
    techniques = replace(job.techniques, adaptive=True)
    return replace(sharded(replace(job, techniques=techniques)), slots=slots, placed_every=1)


@st.composite
def small_expert_targets(draw: st.DrawFn) -> Target:
    """With exchanges that take from nothing to nearly all of each forward and backward."""
    target = draw(small_targets())
    job = with_experts(target.job)
    parts = draw(st.lists(st.integers(0, 4), min_size=job.chunks, max_size=job.chunks))
    most = zip(parts, job.forward, job.backward_input, strict=True)
    exchange = tuple(part * (min(forward, back) - 1) // 4 for part, forward, back in most)
    return Target(replace(job, exchange=exchange if any(exchange) else ()), target.failed)


@settings(max_examples=25, deadline=None)
@given(small_expert_targets())
def test_every_plan_in_rounds_holds(target: Target) -> None:
    """Verified, simulated to the planned times, and read back from text."""
    plan = plan_failed(target.job, target.failed, effort=Effort().least())
    bundle = Bundle.parse(bundle_bytes(source="", plans=[plan]))
    assert [str(violation) for violation in verify_bundle(bundle)] == []
    run = simulate(bundle, 0, iterations=2)
    assert (run.period, run.makespan) == (plan.claims.period, plan.claims.makespan)
    schedule = replay(read_streams(bundle, 0))
    assert list(schedule.verify()) == []
    assert print_schedule(parse_schedule(print_schedule(schedule))) == print_schedule(schedule)
    assert explanation_text(explain(schedule))
    graph = GRAPH_PASSES.run(target)
    assert print_graph(parse_graph(print_graph(graph))) == print_graph(graph)


def test_who_has_no_micro_batch_in_a_round_serves() -> None:
    job = replace(with_experts(figure3(6)), microbatches=5, failures=2)
    plans = compile_job(job)
    bundle = Bundle.parse(bundle_bytes(source="", plans=plans))
    assert (bundle.slots, bundle.placed_every) == (2, 1)
    assert parse_job(print_job(job).splitlines()) == job
    assert [str(violation) for violation in verify_bundle(bundle)] == []
    served = [
        [row.opcode for _, stream in plan.items() for row in stream if row.opcode >= Opcode.SERVE_FORWARD]
        for plan in plans
    ]
    # 15 micro-batches are 5 rounds of 3 workers, and 8 of 2, the last of which is short of one.
    assert served[0] == []
    assert served[1] == [Opcode.SERVE_FORWARD, Opcode.SERVE_BACKWARD_INPUT, Opcode.SERVE_BACKWARD_WEIGHT]


def test_one_failure_fewer_is_never_slower() -> None:
    """The plan for more failures, with one worker more, in the same rounds."""
    job = replace(with_experts(figure3(6)), microbatches=5, failures=4)
    crowded = plan_failed(job, failure_set([(2, 1), (2, 3)]))
    relieved = (AddWorker() >> LOWERING_PASSES).run(crowded)
    bundle = Bundle.parse(bundle_bytes(source="", plans=[crowded, relieved]))
    assert [str(violation) for violation in verify_bundle(bundle)] == []
    assert relieved.claims.period <= crowded.claims.period
    periods = [plan.claims.period for plan in compile_job(job)]
    assert periods == sorted(periods)


def test_bounds_and_plans_against_all_sizes_and_orders_of_rounds() -> None:
    """Whole and split backwards, one and several failures, one barrier for all: no plan is better than the
    best of all that there are, and no bound is above it. These plans are as good."""
    for seed in (0, 8, 113, 121):
        job, counts = tiny_job(seed)
        failed = normal_form(counts, job.pipelines)
        claims = plan_failed(job, failed).claims
        optimum = optimum_in_rounds(job, failed, claims.period + SLOT, shorten_over_orders)
        assert optimum is not None, f"seed {seed}: too many orders"
        assert claims.lower_bound <= optimum == claims.period, f"seed {seed}"


def test_without_time_there_is_a_plan_that_fits_memory() -> None:
    """One worker holds two micro-batches, and the three of the next stage would wait for one more."""
    job = replace(with_experts(figure3(6)), microbatches=2, capacity=(2 * SLOT, None, None, None))
    plan = plan_failed(job, failure_set([(1, 0), (2, 0)]), guard=Guard(0))
    bundle = Bundle.parse(bundle_bytes(source="", plans=[plan]))
    assert [str(violation) for violation in verify_bundle(bundle)] == []


def test_rounds_that_peers_do_not_share() -> None:
    job = replace(with_experts(figure3(6)), microbatches=5)
    plan = plan_failed(job, failure_set([(2, 1)]))

    def rules(changed: Streams) -> set[VerifierRule]:
        bundle = Bundle.parse(bundle_bytes(source="", plans=[changed]))
        return {violation.rule for violation in verify_bundle(bundle)}

    assert rules(plan) == set()
    serves = np.isin(plan.opcode, sorted(SERVES))
    assert VerifierRule.ROUND_HOLDERS in rules(without_rows(plan, serves))
    assert VerifierRule.ROUND_SERVICE in rules(
        without_rows(plan, plan.opcode == Opcode.SERVE_BACKWARD_WEIGHT)
    )
    # Of one worker, what goes back first and second.
    backward = np.flatnonzero(plan.opcode == Opcode.BACKWARD_INPUT)[:2]
    columns = {name: getattr(plan, name).copy() for name in ("microbatch", "pipeline", "buffer", "inbox")}
    for column in columns.values():
        column[backward] = column[backward[::-1]]
    assert VerifierRule.ROUND_GROUPS in rules(replace(plan, **columns))


def without_rows(plan: Streams, gone: NDArray[np.bool_]) -> Streams:
    names = ("opcode", "chunk", "pipeline", "microbatch", "buffer", "inbox", "neighbour")
    left = np.concatenate([[0], np.cumsum(~gone)])
    return replace(plan, offsets=left[plan.offsets], **{name: getattr(plan, name)[~gone] for name in names})


def test_the_cost_model_of_a_mixture() -> None:
    """A mixture of one expert costs what an MLP costs, but for its router and the way there and back."""
    dense = GptModel(8, 512, 8, 512, 5000)
    one = replace(dense, experts=1)
    assert one.layer_parameters() - dense.layer_parameters() == 512
    many = replace(dense, experts=16, active=2, imbalance_ppm=200_000)
    mlp = 8 * 512**2 + 5 * 512
    assert many.layer_parameters() - many.layer_parameters(2) == 14 * mlp
    run = ModelRun(2, 4, 1, 1, DEVICES["h100"], 450_000, StateRules(2, staggered=True, slots=4))
    plain, mixed = (estimate_stages(model, run)[0] for model in (dense, many))
    # Two copies of each token, a fifth more on the busiest worker, there and back, three quarters of them
    # to other workers.
    sent = 4 * 2 * (2 * 512 * 512) * 1.2 * 2 * 3 / 4
    assert 0 <= mixed.exchange - sent * 1e9 / 50e9 < 2
    assert mixed.forward - plain.forward > mixed.exchange
    assert (plain.exchange, plain.counts) == (0, plain.state_counts)
    assert mixed.state_counts - mixed.counts == 4 * 12 * mlp
    assert mixed.resident == 6 * mixed.counts and mixed.state == 28 * mixed.state_counts


def test_the_example(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    job = load_job("examples/mixture.job").spec
    assert (job.slots, job.placed_every, job.owners) == (5, 1, 2)
    assert min(job.exchange[1:]) > 0
    assert parse_job(print_job(job).splitlines()) == job
    plan = plan_failed(job, (), effort=Effort().least())
    assert plan.claims.status == "optimal"
    in_layers = tmp_path / "mixture.job"
    in_layers.write_text(Path("examples/mixture.job").read_text().replace("recut = off", ""))
    for file, *slow in (
        ("examples/mixture.job", "--slow", "1:2=3"),
        (str(in_layers), "--workers", "124", "--slow", "3"),
    ):
        assert main(["plan", file, *slow]) == 1
        assert "meet in rounds" in capsys.readouterr().err
    assert main(["check", "examples/mixture.job"]) == 0


def test_a_schedule_in_rounds_as_text(golden: Callable[[str, str], None]) -> None:
    job = replace(with_experts(figure3(6)), microbatches=5)
    graph = GRAPH_PASSES.run(Target(job, failure_set([(2, 1)])))
    text = print_schedule(AssignSlots(Effort().least()).run(graph))
    golden("schedules/experts.txt", text)
    assert print_schedule(parse_schedule(text)) == text


def test_fewer_peers_send_fewer_tokens() -> None:
    """Each of n workers keeps one token of n; a worker that is left alone exchanges nothing."""
    job = with_experts(figure3(6))
    job = replace(
        job, forward=(4 * SLOT,) * 4, backward_input=(4 * SLOT,) * 4, exchange=(SLOT, SLOT, SLOT, 0)
    )
    left = job.left_by((1, 0, 2, 2))
    assert left.exchange_left == (750, 1000, 0, 0)
    assert left.forward == left.backward_input == (3750, 4000, 3000, 4000)
    assert parse_job(print_job(left).splitlines()) == left
    assert left.left_by((2, 1, 0, 0)) == job.left_by((2, 1, 0, 0)) and left.unfailed == job
    short = replace(job, forward=(SLOT, *job.forward[1:]))
    assert any("must be longer than exchange" in broken for broken in short.verify())
    failed = failure_set([(2, 0), (2, 2), (1, 2), (2, 3), (1, 3)])
    plan = plan_failed(job, failed, effort=Effort().least())
    bundle = Bundle.parse(bundle_bytes(source="", plans=[plan]))
    assert [str(violation) for violation in verify_bundle(bundle)] == []
    assert simulate(bundle, 0, iterations=2).period == plan.claims.period
    # With the tokens of three peers the rounds of the one that is left would last longer.
    forged = replace(plan, job=replace(job, exchange=(0, 0, 0, 0), forward=job.forward))
    found = verify_bundle(Bundle.parse(bundle_bytes(source="", plans=[forged])))
    assert VerifierRule.CLAIM_PERIOD in {violation.rule for violation in found}


def test_a_plan_may_be_faster_with_a_failure_more() -> None:
    """A worker that is left alone exchanges nothing; the bound of the plan without failures is as good."""
    job = with_experts(figure3(6))
    times = (SLOT, SLOT, 20 * SLOT, SLOT)
    job = replace(job, forward=times, backward_input=times, exchange=(0, 0, 19 * SLOT, 0))
    plans = [plan_failed(job, failed) for failed in ((), failure_set([(1, 2), (2, 2)]))]
    assert plans[1].claims.period < plans[0].claims.lower_bound
    bundle = Bundle.parse(bundle_bytes(source="", plans=plans))
    assert [str(violation) for violation in verify_bundle(bundle)] == []


def test_fewer_peers_send_other_messages_of_experts() -> None:
    """Two of three workers own everything: sums take less, and no weights travel."""
    job = with_experts(figure3(6), slots=4)
    known = replace(job, expert_counts=(8, 8, 8, 0), slot_transfer=(SLOT, SLOT, 100, 0)).with_messages()
    assert known.reduce == tuple(
        reduce + message_ticks(ticks, 8, 4, 3, 2).sum
        for reduce, ticks in zip(job.reduce, known.slot_transfer, strict=True)
    )
    left = known.left_by((1, 0, 0, 1))
    assert left.reduce == (job.reduce[0] + 4 * SLOT, *known.reduce[1:])
    assert left.gather == (job.gather[0], *known.gather[1:])
    assert left.unfailed == known and left.left_by((0, 2, 1, 0)) == known.left_by((0, 2, 1, 0))
    assert parse_job(print_job(left).splitlines()) == left
    assert not list(left.verify())
    for wrong in (
        replace(known, expert_counts=()),
        replace(known, reduce=job.reduce),
        replace(known, expert_counts=(1 << 20,) * 4),
        replace(known, slots=0, placed_every=0),
    ):
        assert list(wrong.verify())
    failed = failure_set([(2, 0), (1, 3)])
    plan = plan_failed(known, failed, effort=Effort().least())
    bundle = Bundle.parse(bundle_bytes(source="", plans=[plan]))
    assert [str(violation) for violation in verify_bundle(bundle)] == []
    assert simulate(bundle, 0, iterations=2).period == plan.claims.period
    # With the messages of three workers each step would take longer.
    forged = replace(plan, job=replace(left, reduce=known.reduce))
    found = verify_bundle(Bundle.parse(bundle_bytes(source="", plans=[forged])))
    assert found


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("experts 4 1", "experts 1000000000 1"),
        ("experts 4 1", "experts -1 1"),
        ("expert_counts 8 8 8 0", "expert_counts 8 8 8"),
        ("expert_counts 8 8 8 0", "expert_counts 8 8 100000000000000000000 0"),
        ("expert_counts 8 8 8 0", ""),
        ("slot_transfer 1000 1000 100 0", "slot_transfer -1 1000 100 0"),
        ("slot_transfer 1000 1000 100 0", f"slot_transfer {'9' * 400} 1000 100 0"),
        ("owners 2", "owners 0"),
        ("shards 3 3 3 3", "shards 3 3 3"),
        ("shards 3 3 3 3", "shards 3 3 1000000000 3"),
        ("reduce 6594 6594 660 0", "reduce 6594 6594 660"),
        ("reduce 6594 6594 660 0", "reduce 6594 6594 100 0"),
    ],
)
def test_text_whose_messages_of_experts_cannot_be_is_refused(old: str, new: str) -> None:
    """At once, whatever it would take to count them."""
    job = with_experts(figure3(6), slots=4)
    known = replace(job, expert_counts=(8, 8, 8, 0), slot_transfer=(SLOT, SLOT, 100, 0)).with_messages()
    text = print_job(known)
    assert old in text
    with pytest.raises(TextError):
        parse_job(text.replace(old, new).splitlines())


def test_w_is_computed_while_rounds_exchange_tokens() -> None:
    """It takes no time of its own, the plan is shorter for it, and its bound is no higher than it."""
    times = {"forward": 4, "backward_input": 4, "backward_weight": 3, "exchange": 2}
    job = with_experts(replace(figure3(8), microbatches=12))
    job = replace(job, **{name: (ticks * SLOT,) * job.chunks for name, ticks in times.items()})
    for failed in (failure_set(()), failure_set([(2, 1)])):
        plan = plan_failed(job, failed)
        alone = plan_failed(replace(job, exchange=()), failed)
        assert plan.claims.period < alone.claims.period
        bundle = Bundle.parse(bundle_bytes(source="", plans=[plan]))
        assert [str(violation) for violation in verify_bundle(bundle)] == []
        schedule = replay(read_streams(bundle, 0))
        weights = np.isin(schedule.ops.kind, (OpKind.W, OpKind.SW))
        left = schedule.ops.duration[weights]
        assert set(left.tolist()) <= {0, SLOT, 2 * SLOT, 3 * SLOT} and (left == 0).sum() > len(left) // 3
        # Nothing follows the last backward of a worker in whose exchanges its W could be computed.
        assert (left == 3 * SLOT).sum() >= job.workers - len(failed)
        explained = explanation_text(explain(schedule))
        assert "is W computed meanwhile" in explained
        assert "without W computed during exchanges of tokens" in explained
        # Without exchanges the same streams take longer, and the verifier does not believe what they claim.
        forged = replace(plan, job=replace(job, exchange=()))
        found = verify_bundle(Bundle.parse(bundle_bytes(source="", plans=[forged])))
        assert VerifierRule.CLAIM_PERIOD in {violation.rule for violation in found}


def test_every_stage_of_every_cut_has_slots_for_its_experts() -> None:
    """Three workers have them, two have not. Failures lie elsewhere, and a layout has one worker more for a
    failure."""
    costs = replace(layer_costs((1000,) * 4), expert_counts=(0, 0, 0, 6), exchange=(0, 0, 0, 200))
    job = layered_job(costs, (2, 2), 4, 1, failures=2, owners=2, slots=2)
    own = compile_job(job, guard=Guard(0))
    assert all(failed_per_stage(plan.failed, 2)[1] < 2 for plan in own)
    with pytest.raises(NoPlanError, match="stage 1 has too few slots: its 6 experts need as many"):
        plan_failed(job, failure_set([(0, 1), (1, 1)]))
    layouts = [one for workers in (8, 7, 6) for one in fastest_layouts(job, workers, Guard(10**15))]
    assert layouts and all(one.workers[-1] > 3 for one in layouts)
    recut = plan_layout(job, layouts[0], Guard(0))
    bundle = Bundle.parse(bundle_bytes(source="", plans=own, recuts=[recut.plans]))
    assert [str(violation) for violation in verify_bundle(bundle)] == []
    # A plan that says nothing of how many experts there are may be of two workers.
    quiet = replace(job, expert_counts=(), layer_costs=replace(costs, expert_counts=()))
    plan = plan_failed(quiet, failure_set([(0, 1), (1, 1)]))
    forged = replace(plan, job=job)
    rules = {one.rule for one in verify_bundle(Bundle.parse(bundle_bytes(source="", plans=[forged])))}
    assert rules == {VerifierRule.ROUND_SLOTS}


def test_bounds_over_cuts_are_about_plans_with_slots_after_a_failure() -> None:
    """Two workers exchange less than three and have all slots, but none of them may fail: such a plan covers
    a failure in a bundle, and may be faster than all cuts that are looked at."""
    costs = layer_costs((1000,) * 2, resident=10_000, capacity=15_000)
    costs = replace(costs, expert_counts=(4, 4), exchange=(100_000,) * 2)
    job = layered_job(costs, (1, 1), 4, 1, failures=1, owners=2, slots=2)
    own = compile_job(job, guard=Guard(0))
    found = plan_cuts(job, dict(enumerate(own)), 1, Guard(10**15), groups=False)
    assert any(plan.claims.period < found.bounds[1] for plans in found.plans for plan in plans)
    bundle = Bundle.parse(bundle_bytes(source="", plans=found.own(own), recuts=found.plans))
    assert [str(violation) for violation in verify_bundle(bundle)] == []
    assert holders_text(job) == " with every layer on 2 or more, and slots for its experts on all but 1"


def test_a_job_with_experts_may_leave_its_cut_to_the_compiler() -> None:
    """Of eight workers with two slots each a stage of six experts needs three, and one more for a failure."""
    costs = replace(layer_costs((1000,) * 4), expert_counts=(6,) * 4)
    job = layered_job(costs, (4,), 8, 1, failures=1, owners=2, slots=2)
    free = replace(job, free_workers=8)
    start = started(free)
    assert start.pipelines >= 4 and start.expert_counts == (6,) * start.stages
    crowded = replace(free, layer_costs=replace(costs, expert_counts=(15,) * 4))
    with pytest.raises(NoStartError, match="with slots for all experts"):
        started(crowded)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (["compile", "--groups", "on", "--json"], "x cannot have groups of pipelines: its workers share"),
        (["plan", "--workers", "4", "--groups"], "x cannot have groups of pipelines: its workers share"),
        (["plan", "--layout", "1x1,1x1@2+2x2@2"], "cannot be in groups of pipelines"),
        (["plan", "--workers", "4", "--techniques", "none"], "need the technique `adaptive`"),
        (["compile", "--techniques", "decouple", "--json"], "need the technique `adaptive`"),
    ],
)
def test_what_experts_do_not_go_with_is_said_in_a_sentence(
    options: list[str], what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.job"
    path.write_text(
        "job x { parallel { pipeline = 2  data = 2 }  batch { microbatches = 2 }\n"
        "layers { unit = ms  forward = [1, 1]  backward_input = 1  backward_weight = 1  experts = 2 }\n"
        "optimizer { state = sharded }  experts { slots = 2 } }\n"
    )
    main([options[0], str(path), *options[1:]])
    assert what in capsys.readouterr().err
