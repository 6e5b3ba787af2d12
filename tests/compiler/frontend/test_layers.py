"""Jobs in layers: what a `layers` block says, the cut they start with, what is left to the compiler."""

from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate, pairwise

import pytest
from hypothesis import given

from recycle_compiler.frontend import format_job, load_job, parse_job_text
from recycle_compiler.ir.job import JobSpec, parse_job, print_job
from recycle_compiler.ir.layers import LayerCosts
from recycle_compiler.ir.layout import absent_cells, job_of_layout, own_layout, ring_time
from tests.compiler.frontend.job_texts import codes, errors, job_sources, layered_sources, marked, parse
from tests.compiler.frontend.test_format import ROOT

TIMES = """\
forward = [0.3, 28 * 1, 2]
backward_input = [0.45, 28 * 1.5, 3]
backward_weight = [0.24, 28 * 0.8, 1.6]
"""
LAYERS = f"layers {{ {TIMES} }}"
GPT = "model gpt { layers = 30  hidden = 4096  heads = 32  sequence = 2048  vocabulary = 50304 }"


def in_layers(layers: str = LAYERS, **blocks: str) -> JobSpec:
    return parse(layers, **({"profile": ""} | blocks))


def costs_of(job: JobSpec) -> LayerCosts:
    assert job.layer_costs is not None
    return job.layer_costs


def test_a_value_may_stand_for_all_layers_or_be_repeated() -> None:
    job = in_layers(f"layers {{ {TIMES}  optimizer = 2  transfer = [28 * 1, 2]  activation = [0, 29 * 1] }}")
    costs = costs_of(job)
    assert costs.count == 30
    assert costs.forward == (300, *[1000] * 28, 2000)
    assert costs.optimizer == (2000,) * 30
    assert costs.transfer == (*[1000] * 28, 2000)
    assert costs.activation == costs.kept_for_weight == (0, *[1000] * 29)
    assert costs.reduce == costs.parameters == costs.resident == (0,) * 30
    assert costs.capacity is None


def test_lists_of_stages_may_repeat_too() -> None:
    times = "backward_input = 1  backward_weight = 1"
    job = parse(
        profile=f"profile {{ forward = [3 * 1, 2]  {times} }}", memory="memory { capacity = [4 * 9] }"
    )
    assert (job.forward, job.capacity) == ((1000, 1000, 1000, 2000), (9000,) * 4)


@pytest.mark.parametrize(
    ("parallel", "cut"),
    [
        ("pipeline = 4  data = 3", (8, 8, 7, 7)),
        ("pipeline = 4  data = 3  cut = [9, 8, 6, 7]", (9, 8, 6, 7)),
        ("pipeline = 4  data = 3  cut = [3 * 1, 27]", (1, 1, 1, 27)),
        ("pipeline = 1  data = 3", (30,)),
    ],
)
def test_stages_are_the_sums_of_their_layers(parallel: str, cut: tuple[int, ...]) -> None:
    job = in_layers(
        f"layers {{ {TIMES}  optimizer = 1  reduce = 2  transfer = 0.5  parameters = 3 B  activation = 2 }}",
        parallel=f"parallel {{ {parallel} }}",
    )
    costs = costs_of(job)
    assert job.cut == cut
    ranges = list(pairwise(accumulate(cut, initial=0)))
    for name in ("forward", "backward_input", "backward_weight", "optimizer", "activation", "parameters"):
        values = getattr(costs, name)
        assert getattr(job, name) == tuple(sum(values[first:end]) for first, end in ranges)
    assert job.transfer == (500,) * (len(cut) - 1)
    # As given for three workers; very many take half as much again.
    assert job.reduce == tuple(2000 * layers for layers in cut)
    assert costs.reduce == (3000,) * 30
    assert list(job.verify()) == []


def test_the_own_cut_keeps_to_memory() -> None:
    layers = f"layers {{ {TIMES}  activation = [5, 29 * 1] }}"
    assert in_layers(layers).cut[0] == 8
    tight = in_layers(layers, memory="memory { capacity = 9 }")
    assert tight.cut[0] <= 5
    assert max(tight.activation) <= 9000


def test_capacity_is_that_of_a_whole_worker() -> None:
    job = in_layers(
        f"layers {{ {TIMES}  activation = 1 MiB  resident = [0 B, 28 * 2 MiB, 8 MiB] }}",
        memory="memory { capacity = 64 MiB }",
    )
    costs = costs_of(job)
    assert (costs.capacity, costs.resident[1]) == (64 << 20, 2 << 20)
    resident = [sum(costs.resident[first:end]) for first, end in pairwise(accumulate(job.cut, initial=0))]
    assert job.capacity == tuple((64 << 20) - taken for taken in resident)
    counted = in_layers(f"layers {{ {TIMES}  resident = 0.5 }}", memory="memory { capacity = 40 }")
    assert costs_of(counted).resident == (500,) * 30


def test_a_job_may_keep_its_cut() -> None:
    parallel = "parallel { pipeline = 4  data = 3  recut = off }"
    job = in_layers(parallel=parallel, memory="memory { capacity = [40, 30, 20, 10] }")
    assert job.layer_costs is None
    assert (sum(job.cut), job.capacity) == (30, (40000, 30000, 20000, 10000))


def test_a_model_that_keeps_its_cut_is_a_job_of_whole_stages() -> None:
    blocks = {"batch": "batch { microbatches = 6  micro = 1 }", "profile": ""}
    fixed = parse(GPT, "device a100", parallel="parallel { pipeline = 4  data = 3  recut = off }", **blocks)
    free = parse(GPT, "device a100", **blocks)
    assert (fixed.cut, fixed.layer_costs) == ((), None)
    assert free.cut == (8, 8, 8, 8)
    assert "cut" not in print_job(fixed)
    for name in ("forward", "backward_input", "reduce", "activation", "capacity", "parameters"):
        assert getattr(fixed, name) == getattr(free, name)


@pytest.mark.parametrize(
    ("data", "tolerate", "redundancy"),
    [
        (3, "", 2),
        (1, "", 1),
        (3, "tolerate { failures = 1  redundancy = 3 }", 3),
        (3, "tolerate { failures = 1  redundancy = 1 }", 1),
    ],
)
def test_every_layer_is_on_two_workers_unless_the_job_says_otherwise(
    data: int, tolerate: str, redundancy: int
) -> None:
    job = in_layers(parallel=f"parallel {{ pipeline = 4  data = {data} }}", tolerate=tolerate)
    assert job.redundancy == redundancy


@pytest.mark.parametrize(
    ("workers", "microbatches", "capacity", "shape"),
    [
        # Stages, pipelines of the grid, micro-batches of each.
        (12, 60, "unlimited", (1, 12, 5)),
        (31, 64, "unlimited", (1, 32, 2)),
        (12, 60, "20", (2, 6, 10)),
        (12, 60, "30", (1, 12, 5)),
        (13, 60, "16", (2, 10, 6)),
        (12, 4, "unlimited", (3, 4, 1)),
    ],
)
def test_the_compiler_places_workers(
    workers: int, microbatches: int, capacity: str, shape: tuple[int, int, int]
) -> None:
    job = in_layers(
        parallel=f"parallel {{ workers = {workers}  tensor = 2 }}",
        batch=f"batch {{ microbatches = {microbatches} }}",
        memory=f"memory {{ capacity = {capacity} }}",
        tolerate="tolerate { failures = 25% }",
    )
    assert (job.stages, job.pipelines, job.microbatches) == shape
    assert (job.free_workers, job.is_free, job.tensor) == (workers, True, 2)
    assert job.failures == workers // 4
    assert job.pipelines * job.microbatches == microbatches
    assert job.redundancy * job.stages <= workers <= job.workers
    assert list(job.verify()) == []


def test_a_global_batch_is_that_of_all_workers() -> None:
    job = in_layers(parallel="parallel { workers = 12 }", batch="batch { global = 96  micro = 4 }")
    assert job.pipelines * job.microbatches == 24


def test_what_a_free_job_reduces_is_given_for_very_many_workers() -> None:
    layers = f"layers {{ {TIMES}  reduce = 2 }}"
    job = in_layers(layers, parallel="parallel { workers = 12 }", batch="batch { microbatches = 12 }")
    assert costs_of(job).reduce == (2000,) * 30
    assert job.reduce == (ring_time(60_000, 12),)


def test_the_own_layout_costs_what_the_job_says() -> None:
    """The planner makes other cuts from layers; for the own cut both ways must agree."""
    for name in ("scale-2048-layers", "gpt3-3.35b-24-layers", "gpt3-6.7b-32", "megatron-18.4b-deep"):
        job = load_job(ROOT / "bench" / "jobs" / f"{name}.job").spec
        again = job_of_layout(job, own_layout(job))
        assert absent_cells(again, own_layout(job)) == ()
        for kind in ("forward", "backward_input", "backward_weight", "optimizer", "reduce", "transfer"):
            pairs = zip(getattr(job, kind), getattr(again, kind), strict=True)
            assert all(abs(one - other) <= max(job.cut) + 1 for one, other in pairs), (name, kind)


def test_jobs_by_layer_have_the_stages_of_those_they_are_made_from() -> None:
    jobs = ROOT / "bench" / "jobs"
    ours, stages = (load_job(jobs / f"{name}.job").spec for name in ("scale-2048-layers", "scale-2048"))
    assert (ours.cut, ours.capacity) == ((7, *[6] * 14, 7), stages.capacity)
    for name in ("forward", "backward_input", "backward_weight", "optimizer", "reduce", "activation"):
        assert getattr(ours, name) == pytest.approx(getattr(stages, name), rel=1e-6)
    assert (ours.transfer, ours.kept_for_weight) == (stages.transfer, stages.kept_for_weight)
    ours, stages = (load_job(jobs / f"{name}.job").spec for name in ("gpt3-3.35b-24-layers", "gpt3-3.35b-24"))
    for name in ("forward", "backward_input", "backward_weight", "transfer"):
        # A seventh of a slot, and rounded to hundredths there.
        scaled = [7 * time for time in getattr(stages, name)]
        assert getattr(ours, name) == pytest.approx(scaled, abs=7 * 5 + 5)
    assert ours.capacity[0] == 4 * ours.activation[0]


SMALL = "layers { forward = [0.5, 3 * 1, 2]  backward_input = 1  backward_weight = 1  reduce = 3 }"


def test_the_text_of_a_job_in_layers(golden: Callable[[str, str], None]) -> None:
    given = in_layers(SMALL, parallel="parallel { pipeline = 2  data = 3 }", memory="memory { capacity = 9 }")
    golden("resolved/layers.txt", print_job(given))
    golden("resolved/workers.txt", print_job(in_layers(SMALL, parallel="parallel { workers = 7 }")))


@pytest.mark.parametrize(
    ("blocks", "code", "place"),
    [
        ({"parallel": "parallel { pipeline = 4  data = 3  recut = maybe }"}, "type", "maybe"),
        ({"parallel": "parallel { pipeline = 4  data = 3  cut = 30 }"}, "type", "30"),
        ({"parallel": "parallel { pipeline = 4  data = 3  cut = [0, 10, 10, 10] }"}, "range", "0"),
        ({"parallel": "parallel { pipeline = 4  data = 3  cut = [10, 10, 10] }"}, "length", "["),
        ({"parallel": "parallel { pipeline = 31  data = 3 }"}, "range", "31"),
        ({"parallel": "parallel { pipeline = 4  data = 3  workers }"}, "missing-value", "workers"),
        ({"parallel": "parallel { workers = 0 }"}, "range", "0"),
        ({"parallel": "parallel { workers = 1048576  tensor = 2 }"}, "too-large", "parallel"),
        ({"parallel": "parallel { workers = 12  pipeline = 4 }"}, "conflict", "pipeline"),
        ({"tolerate": "tolerate { failures = 1  redundancy = 0 }"}, "range", "0"),
        ({"tolerate": "tolerate { failures = 1  redundancy }"}, "missing-value", "redundancy"),
        ({"layers": "layers { count = 5000  forward = 1 }"}, "range", "5000"),
        ({"layers": "layers { forward = [60000 * 1] }"}, "range", "["),
        ({"layers": "layers { transfer = [3 * 1] }"}, "missing", "layers"),
        (
            {"layers": f"layers {{ {TIMES}  activation = 1 MiB }}", "memory": "memory { capacity = 9 }"},
            "unit",
            "9",
        ),
        ({"layers": f"layers {{ {TIMES} }}", "memory": "memory { capacity = 9 MiB }"}, "missing", "layers"),
    ],
)
def test_a_mistake_is_found_at_its_place_with_a_hint(blocks: dict[str, str], code: str, place: str) -> None:
    layers = blocks.pop("layers", LAYERS)
    error = errors(layers, **({"profile": ""} | blocks))
    assert (code, place) in list(zip(codes(error), marked(error), strict=True))
    assert all(one.hint for one in error.diagnostics)


@given(layered_sources())
def test_any_job_in_layers_is_valid_and_survives_its_texts(source: str) -> None:
    job = parse_job_text(source, "a.job")
    assert list(job.verify()) == []
    assert parse_job(print_job(job).splitlines()) == job
    formatted = format_job(source, "a.job")
    assert format_job(formatted, "a.job") == formatted
    assert parse_job_text(formatted, "a.job") == job


@given(job_sources())
def test_a_job_of_whole_stages_says_nothing_of_layers(source: str) -> None:
    job = parse_job_text(source, "a.job")
    assert (job.cut, job.layer_costs, job.is_free) == ((), None, False)
    assert "layer" not in print_job(job)
    assert parse_job(print_job(job).splitlines()) == job


def test_micro_batches_are_split_where_the_job_says_so() -> None:
    assert in_layers().split_ppm is None
    assert in_layers(batch="batch { microbatches = 6  split = off }").split_ppm is None
    split = in_layers(batch="batch { microbatches = 6  split = 4.25% }")
    assert split.split_ppm == 42_500
    assert parse_job(print_job(split).splitlines()) == split
    plain = in_layers()
    assert replace(split, split_ppm=None) == plain
