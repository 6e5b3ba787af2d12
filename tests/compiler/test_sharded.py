"""Jobs whose optimizer state is sharded: from the job to bundles that verifier and simulator accept."""

import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.reference.optima import Optimum, load_optima
from recycle_compiler.backends.bundle import bundle_bytes, read_streams
from recycle_compiler.backends.replay import replay
from recycle_compiler.cli.main import main
from recycle_compiler.frontend import load_job
from recycle_compiler.ir.failure import failed_per_stage, failure_set, normal_form
from recycle_compiler.ir.groups import GroupedLayout, absent_of_groups, job_of_groups, parse_any_layout
from recycle_compiler.ir.job import JobSpec, Techniques, parse_job, print_job
from recycle_compiler.ir.layout import shared_out
from recycle_compiler.ir.ops import OpKind
from recycle_compiler.ir.sharding import Sharding
from recycle_compiler.ir.state import held_by_stage, with_techniques, with_whole_state, without_undo
from recycle_compiler.ir.streams import Streams
from recycle_compiler.ir.target import Target
from recycle_compiler.ir.text import parse_schedule, print_schedule
from recycle_compiler.planner.baselines import one_f_one_b_period
from recycle_compiler.planner.compile import NoPlanError, compile_job, plan_failed
from recycle_compiler.simulator.engine import simulate
from recycle_compiler.verifier.report import VerifierRule
from recycle_compiler.verifier.verify import verify_bundle
from recycle_runtime.plan.bundle import Bundle, BundleError
from recycle_runtime.plan.bundle_index import pack_index, unpack_index
from recycle_runtime.plan.isa import Opcode
from tests.compiler.frontend.job_texts import job_text, parse
from tests.support.jobs import SLOT, figure3, small_targets, unit_job
from tests.support.layers import layer_costs, layered_job

OPTIMA = Path(__file__).resolve().parents[1] / "data" / "optima.jsonl"
PARTS = 40
SHARDED = "optimizer { state = sharded  owners = 2 }"
BLOCKS = {
    "batch": "batch { global = 24  micro = 2 }",
    "profile": "",
    "memory": "memory { capacity = 80 GiB }",
}
GPT = "model gpt { layers = 32  hidden = 4096  heads = 32  sequence = 2048  vocabulary = 50304 }"


def sharded(job: JobSpec, owners: int = 2, gather: int = 500, state: int = 0) -> JobSpec:
    """The job with its state shared out among the workers of each stage."""
    each = (job.pipelines,) * job.chunks
    return shared_out(job, owners, each, (gather,) * job.chunks, (state,) * job.chunks, (0,) * job.stages)


def bundled(*plans: Streams) -> Bundle:
    bundle = Bundle.parse(bundle_bytes(source="", plans=list(plans)))
    assert [str(violation) for violation in verify_bundle(bundle)] == []
    return bundle


def test_weights_are_gathered_right_after_their_step() -> None:
    plan = plan_failed(sharded(figure3(4)), ())
    for _, stream in plan.items():
        opcodes = [each.opcode for each in stream]
        assert opcodes[-4:] == [Opcode.REDUCE, Opcode.OPTIMIZER, Opcode.GATHER, Opcode.VALIDATE]
    barrier = plan_failed(sharded(figure3(4, Techniques(stagger=False))), ())
    for _, stream in barrier.items():
        opcodes = [each.opcode for each in stream]
        assert opcodes[-4:] == [Opcode.BARRIER, Opcode.REDUCE, Opcode.OPTIMIZER, Opcode.GATHER]


def test_a_bundle_says_how_many_own_a_shard() -> None:
    whole, shared = plan_failed(figure3(4), ()), plan_failed(sharded(figure3(4)), ())
    assert (bundled(whole).owners, bundled(shared).owners) == (0, 2)
    index = bundled(shared)
    assert unpack_index(pack_index(index)).owners == 2
    with pytest.raises(BundleError, match="the number of owners is 0"):
        unpack_index(pack_index(index)[:-1] + b"\0")
    assert pack_index(replace(index, owners=0)) == pack_index(index)[:-3]


def test_a_stage_steps_the_shards_that_it_owns() -> None:
    """Of 3 slots two thirds; when one of three has failed, the others own everything."""
    job = sharded(figure3(None), gather=0)
    assert (job.optimizer, job.left_by((1, 0, 0, 0)).optimizer) == ((2000,) * 4, (3000, 2000, 2000, 2000))
    assert job.left_by((1, 0, 2, 0)).left_by((0, 0, 0, 0)) == job == job.left_by((1, 2, 0, 0)).unfailed


def test_who_is_left_has_less_room() -> None:
    job = sharded(replace(unit_job(2, 4, 4), capacity=(9000, 9000)), state=4000)
    assert job.capacity == (7000, 7000)
    assert job.left_by((1, 2)).capacity == (6000, 5000)
    assert job.left_by((3, 0)).capacity == (5000, 7000)
    assert parse_job(print_job(job.left_by((1, 0))).splitlines()) == job.left_by((1, 0))


def test_plans_by_the_number_of_failures() -> None:
    job = sharded(replace(figure3(5), failures=3), state=2000)
    plans = compile_job(job)
    bundle = bundled(*plans)
    for number, plan in enumerate(plans):
        failed = failed_per_stage(plan.failed, job.stages)
        assert plan.job == job.left_by(failed)
        assert read_streams(bundle, number).job == plan.job
        schedule = replay(read_streams(bundle, number))
        assert list(schedule.verify()) == []
        assert print_schedule(parse_schedule(print_schedule(schedule))) == print_schedule(schedule)
        assert simulate(bundle, number).period == plan.claims.period
        gathers = schedule.ops.kind == OpKind.G
        assert int(gathers.sum()) == job.workers - len(plan.failed)
        assert set(schedule.ops.duration[gathers].tolist()) == {500}
    assert [plan.claims.period for plan in plans] == sorted(plan.claims.period for plan in plans)


def test_failures_that_leave_no_room() -> None:
    job = sharded(replace(unit_job(2, 3, 3), capacity=(4500, 4500), failures=4), state=3000)
    assert job.left_by((2, 0)).capacity == (1500, 2500)
    tight = replace(job, capacity=(2400, 2400))
    with pytest.raises(NoPlanError, match="stage 0 has no room for a micro-batch"):
        plan_failed(replace(tight, capacity=(1900, 9000)), failure_set([(1, 0), (2, 0)]))
    with pytest.raises(NoPlanError, match="2 failures of 6 workers leave no room for a micro-batch"):
        compile_job(replace(tight, capacity=(1900, 1900)), failures=2)
    # One stage can carry both failures, the other none.
    plans = compile_job(replace(tight, capacity=(1000, 9000)), failures=2)
    assert [failed_per_stage(plan.failed, 2) for plan in plans] == [(0, 0), (0, 1), (0, 2)]


def as_sharded(entry: Optimum) -> JobSpec:
    """A sharded job with the same schedules: some of each step is gathering, room that of who is left."""
    random, job = Random(entry.seed), entry.job
    owners = random.randint(1, job.pipelines)
    gather = tuple(random.randint(0, ticks // SLOT) * SLOT for ticks in job.optimizer)
    each, nothing = (job.pipelines,) * job.stages, (0,) * job.stages
    state = tuple(random.randint(0, 5) * 1000 for _ in nothing)
    plain = Sharding(owners, each, gather, nothing, state, nothing, nothing)
    lost = plain.lost_with(job.holders, entry.failed_per_stage)
    step = tuple(
        (whole - part) * shards // plain.owned(chunk, lost[chunk])
        for chunk, (whole, part, shards) in enumerate(zip(job.optimizer, gather, each, strict=True))
    )
    known = replace(plain, step=step)
    room = tuple(
        None if room is None else room + known.kept(stage, lost[stage]) - known.kept(stage, 0)
        for stage, room in enumerate(job.capacity)
    )
    steps = tuple(known.step_time(chunk, 0) for chunk in range(job.chunks))
    return replace(job, optimizer=steps, capacity=room, sharding=known)


@pytest.mark.parametrize(
    "part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, PARTS))]
)
def test_bounds_and_plans_against_proven_optima(part: int) -> None:
    """The optimum is that of the job in which gathering is part of the optimizer step."""
    for entry in load_optima(OPTIMA):
        if entry.seed % PARTS != part:
            continue
        job = as_sharded(entry)
        left = job.left_by(entry.failed_per_stage)
        assert left.capacity == entry.job.capacity
        assert tuple(map(sum, zip(left.optimizer, left.gather, strict=True))) == entry.job.optimizer
        plan = plan_failed(job, normal_form(entry.failed_per_stage, job.pipelines))
        bundled(plan)
        assert plan.claims.lower_bound <= entry.best, f"seed {entry.seed}: the bound certifies a lie"
        assert plan.claims.period >= entry.lower_bound, f"seed {entry.seed}: better than can be"


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(small_targets(), st.integers(1, 3), st.integers(0, 3000))
def test_random_jobs_run_as_they_say(target: Target, owners: int, gather: int) -> None:
    bundle = bundled(plan_failed(sharded(target.job, owners, gather), target.failed))
    assert simulate(bundle, 0).period == bundle.plans[0].period


@pytest.mark.parametrize("text", ["3x2,3x2@6+6x1@2", "2x1,4x3@9+1x1,5x2@4+6x2@3"])
@pytest.mark.parametrize("stagger", [True, False])
def test_groups_gather_with_all_that_hold_a_chunk(text: str, stagger: bool) -> None:
    layout = parse_any_layout(text)
    assert isinstance(layout, GroupedLayout)
    costs = layer_costs((1000,) * 6, optimizer=900, reduce=400, transfer=200, resident=100, capacity=60_000)
    costs = replace(costs, gather=(300,) * 6, state=(600,) * 6)
    units = sum(layout.shares)
    whole = layered_job(costs, (6,), 2, units // 2, owners=2)
    job = replace(whole, techniques=replace(whole.techniques, stagger=stagger))
    derived = job_of_groups(job, layout)
    assert list(derived.verify()) == []
    assert parse_job(print_job(derived).splitlines()) == derived
    plan = plan_failed(derived, absent_of_groups(derived, layout))
    bundle = bundled(plan)
    assert bundle.owners == 2
    assert simulate(bundle, 0).period == plan.claims.period
    assert print_schedule(replay(read_streams(bundle, 0))).count(" G") > 0


def test_other_cuts_are_cut_and_verified(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, made = tmp_path / "a.job", str(tmp_path / "a.plan")
    path.write_text(
        "job a {\n  parallel { pipeline = 2  data = 4 }\n  batch { microbatches = 4 }\n"
        "  layers { count = 6  forward = [1, 4 * 1, 3]  backward_input = 1  backward_weight = 1\n"
        "    optimizer = 3  reduce = 0.5  gather = 0.25  resident = 0.5  sharded = 2 }\n"
        f"  {SHARDED}\n  memory {{ capacity = 14 }}\n  tolerate {{ failures = 2 }}\n}}\n"
    )
    assert main(["compile", str(path), "-o", made]) == 0
    bundle = Bundle.read(made)
    assert bundle.recuts and {recut.owners for recut in bundle.recuts} == {2}
    assert [str(violation) for violation in verify_bundle(bundle)] == []
    for recut in bundle.recuts:
        for plan, entry in enumerate(recut.plans):
            assert simulate(recut, plan).period == entry.period
    capsys.readouterr()
    assert main(["explain", made, "--failures", "1", "--what-if", "none"]) == 0
    assert "reduction, optimizer and gathering of weights" in capsys.readouterr().out


def test_the_verifier_sees_what_is_not_as_the_shards_say() -> None:
    job = sharded(figure3(4), state=500)
    plan = plan_failed(job, failure_set([(0, 1)]))
    assert plan.job.sharding is not None

    def rules(changed: JobSpec) -> set[VerifierRule]:
        raw = bundle_bytes(source="", plans=[replace(plan, job=changed)])
        return {violation.rule for violation in verify_bundle(Bundle.parse(raw))}

    assert rules(plan.job) == set()
    longer = replace(plan.job.sharding, gather=(900,) * 4)
    assert VerifierRule.CLAIM_PERIOD in rules(replace(plan.job, sharding=longer))
    first = plan.job.unfailed
    assert first.sharding is not None
    more = replace(first, sharding=replace(first.sharding, state=(12_000,) * 4))
    assert VerifierRule.MEMORY in rules(more)


def test_a_model_by_what_its_workers_hold() -> None:
    whole, shared = parse(GPT, "device a100", **BLOCKS), parse(GPT, "device a100", SHARDED, **BLOCKS)
    for before, after in zip(held_by_stage(whole), held_by_stage(shared), strict=True):
        count = before.parameters
        assert list(before.parts) == list(after.parts)
        sizes = [2, 4, 12, 12, 4]
        assert list(before.parts.values())[:5] == [size * count for size in sizes]
        # Two of three workers own each shard.
        shares = [1, 1, 2 / 3, 2 / 3, 2 / 3]
        expected = [size * count * share for size, share in zip(sizes, shares, strict=True)]
        assert list(after.parts.values())[:5] == pytest.approx(expected, abs=2)
        assert before.total + (before.activations or 0) == 80 << 30
        assert after.total + (after.activations or 0) == pytest.approx(80 << 30, abs=8)
    assert all(a > b for a, b in zip(shared.capacity, whole.capacity, strict=True) if a and b)


@pytest.mark.parametrize("more", [(), (SHARDED,)])
def test_techniques_change_what_is_held(more: tuple[str, ...]) -> None:
    staggered = parse(GPT, "device a100", *more, **BLOCKS)
    plain = parse(GPT, "device a100", *more, techniques="techniques { adaptive  decouple }", **BLOCKS)
    assert with_techniques(staggered, plain.techniques) == plain
    assert with_techniques(plain, staggered.techniques) == staggered


def test_other_systems_have_the_room_of_what_they_do_not_hold() -> None:
    whole, shared = parse(GPT, "device a100", **BLOCKS), parse(GPT, "device a100", SHARDED, **BLOCKS)
    plain = parse(GPT, "device a100", techniques="techniques { adaptive  decouple }", **BLOCKS)
    assert without_undo(whole) == replace(plain, techniques=whole.techniques)
    assert one_f_one_b_period(whole) == one_f_one_b_period(plain)
    unshared = with_whole_state(shared)
    assert (unshared.capacity, unshared.parameters) == (whole.capacity, whole.parameters)


@pytest.mark.parametrize(
    ("block", "said"),
    [
        (
            "optimizer { state = sharded  owners = 4 }",
            "owners may be at most 3, the workers of a stage, got 4",
        ),
        ("optimizer { owners = 2 }", "`owners` is given, and every worker has the whole state"),
        (
            "optimizer { state = whole  owners = 2 }",
            "`owners` is given, and every worker has the whole state",
        ),
        ("optimizer { state = split }", "state must be `whole` or `sharded`, got split"),
        ("optimizer { state = sharded  owners = 0 }", "owners must be at least 1, got 0"),
        ("optimizer { state = sharded  owner = 2 }", "block `optimizer` has no setting `owner`"),
    ],
)
def test_mistakes(block: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.job"
    path.write_text(
        "job a {\n  parallel { pipeline = 4  data = 3 }\n  batch { microbatches = 6 }\n"
        f"  profile {{ forward = 1  backward_input = 1  backward_weight = 1 }}\n  {block}\n}}\n"
    )
    assert main(["check", str(path)]) == 1
    told = capsys.readouterr().err
    assert "a.job:5:" in told and said in told and "^" in told and "hint: " in told


def test_gather_needs_a_sharded_state(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.job"
    path.write_text(
        "job a {\n  parallel { pipeline = 4  data = 3 }\n  batch { microbatches = 6 }\n"
        "  profile { forward = 1  backward_input = 1  backward_weight = 1  gather = 1 }\n}\n"
    )
    assert main(["check", str(path)]) == 1
    assert (
        "`gather` is given, and every worker has the whole state of the optimizer" in capsys.readouterr().err
    )


def test_a_profile_of_the_whole_state(tmp_path: Path) -> None:
    """Half of an all-reduce is a sum for one owner each; bf16 weights are a quarter of its bytes."""
    row = {"forward": 10, "backward_input": 10, "backward_weight": 10, "optimizer": 90, "reduce": 1200}
    row |= {"activation_bytes": 100, "parameter_count": 10}
    profile = {"format": "recycle-profile", "version": 1, "layers": [row] * 4, "overhead_bytes": 50}
    (tmp_path / "a.json").write_text(json.dumps(profile))

    def job(*more: str) -> JobSpec:
        blocks = {"parallel": "parallel { pipeline = 2  data = 3 }", "profile": 'profile from "a.json"'}
        text = job_text(*more, memory="memory { capacity = 5000 B }", **blocks)
        path = tmp_path / "a.job"
        path.write_text(text)
        return load_job(str(path)).spec

    whole, shared = job(), job(SHARDED)
    assert (whole.optimizer, whole.reduce, whole.gather) == ((180,) * 2, (2400,) * 2, (0,) * 2)
    assert whole.capacity == (5000 - 50 - 34 * 20,) * 2
    # Of three workers two own each shard, so a third of the gradients is sent once more.
    assert (shared.optimizer, shared.reduce, shared.gather) == ((120,) * 2, (1800,) * 2, (600,) * 2)
    assert shared.capacity == (5000 - 50 - 6 * 20 - -(-28 * 20 * 2 // 3),) * 2
    rows = [row | {"working_bytes": size} for size in (0, 30, 20, 0)]
    (tmp_path / "a.json").write_text(json.dumps(profile | {"layers": rows}))
    assert job().capacity == (5000 - 50 - 30 - 34 * 20,) * 2
    (tmp_path / "a.json").write_text(json.dumps(profile | {"layers": [row | {"gather": 7}] * 4}))
    assert (job(SHARDED).reduce, job(SHARDED).gather, job().gather) == ((2400,) * 2, (14,) * 2, (0,) * 2)


@pytest.mark.parametrize("shape", ["grid", "svg", "html", "trace", "json", "asm", "schedule"])
def test_every_form_of_a_plan_shows_gathering(
    shape: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.plan"
    path.write_bytes(bundle_bytes(source="", plans=[plan_failed(sharded(figure3(4), gather=2000), ())]))
    assert main(["show", str(path), "--format", shape]) == 0
    words = {"grid": "gathering of weights", "svg": "gathering of weights", "html": "gathering of weights"}
    words |= {"trace": '"G"', "json": '"kind": "G"', "asm": "gather", "schedule": " G"}
    assert words[shape] in capsys.readouterr().out


def test_check_and_explain_list_what_a_worker_holds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, made = tmp_path / "a.job", str(tmp_path / "a.plan")
    path.write_text(job_text(GPT, "device a100", SHARDED, **BLOCKS))
    assert main(["check", str(path)]) == 0
    told = capsys.readouterr().err
    assert "optimizer state in shards of 2 owners" in told
    assert "memory of a worker of each stage, in GiB (in bytes for each parameter)" in told
    assert "(8.00)" in told
    assert main(["compile", str(path), "-o", made, "--failures", "0", "--recut", "off"]) == 0
    capsys.readouterr()
    assert main(["explain", made, "--what-if", "none"]) == 0
    assert "kept gradients" in capsys.readouterr().out
    assert main(["explain", made, "--what-if", "none", "--json"]) == 0
    memory = json.loads(capsys.readouterr().out)["memory"]
    assert all(0 < row["activations"] <= row["left"] for row in memory)


def test_whole_is_what_is_left_unsaid() -> None:
    assert parse("optimizer { state = whole }") == parse()
    assert parse("optimizer { state = sharded }") == parse(SHARDED)
