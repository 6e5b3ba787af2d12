"""Meaning of a good job: defaults, units, exact integers."""

from pathlib import Path

import pytest
from hypothesis import given

from recycle_compiler.frontend import load_job, most_failures, parse_job_text
from recycle_compiler.ir.job import JobSpec, SolverOptions, Techniques
from tests.compiler.frontend.job_texts import job_sources, parse

GOLDEN = Path(__file__).resolve().parents[3] / "golden"
TIMES = "forward = 1  backward_input = 1  backward_weight = 1"

FIGURE3 = JobSpec(
    name="figure3",
    stages=4,
    pipelines=3,
    tensor=1,
    microbatches=6,
    unit="slot",
    memory_unit="count",
    forward=(1000,) * 4,
    backward_input=(1000,) * 4,
    backward_weight=(1000,) * 4,
    optimizer=(3000,) * 4,
    reduce=(0,) * 4,
    transfer=(0,) * 3,
    activation=(1000,) * 4,
    kept_for_weight=(1000,) * 4,
    capacity=(4000, 3000, 2000, 1000),
    parameters=(0,) * 4,
    techniques=Techniques(True, True, True),
    failures=3,
    solver=SolverOptions(60_000_000_000, 10_000, 0),
)


def test_the_running_example() -> None:
    assert load_job(GOLDEN / "specs" / "figure3.job").spec == FIGURE3


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("specs/*.job")), ids=lambda path: path.name)
def test_every_golden_job_is_valid(path: Path) -> None:
    job = load_job(path)
    assert list(job.spec.verify()) == []
    assert job.spec.name == path.stem
    assert (job.source, job.name) == (path.read_text(encoding="utf-8"), str(path))


@given(job_sources())
def test_every_good_text_is_a_valid_job(source: str) -> None:
    assert list(parse_job_text(source, "a.job").verify()) == []


def test_defaults() -> None:
    job = parse()
    assert (job.unit, job.memory_unit, job.tensor, job.failures) == ("slot", "count", 1, 0)
    assert job.optimizer == job.reduce == job.parameters == (0, 0, 0, 0)
    assert job.transfer == (0, 0, 0)
    assert job.activation == job.kept_for_weight == (1000,) * 4
    assert job.capacity == (None,) * 4
    assert job.techniques == Techniques(True, True, True)
    assert job.solver == SolverOptions(600_000_000_000, 0, 0)


@pytest.mark.parametrize(
    ("text", "ticks"),
    [
        ("unit = slot  forward = 1.125", 1_125),
        ("unit = us  forward = 1.125", 1_125),
        ("unit = ms  forward = 2.5", 2_500_000),
        ("unit = s  forward = 0.000000001", 1),
        ("unit = s  forward = 3 ms", 3_000_000),
        ("unit = ms  forward = 250 us", 250_000),
        ("forward = 2 slot", 2_000),
        ("forward = 1.100", 1_100),
        ("forward = 1.10000000000000000000", 1_100),
    ],
)
def test_times_are_exact(text: str, ticks: int) -> None:
    profile = f"profile {{ {text}  backward_input = 1  backward_weight = 1 }}"
    assert parse(profile=profile).forward == (ticks,) * 4


@pytest.mark.parametrize(
    ("amount", "size"),
    [("1 B", 1), ("1.5 KiB", 1536), ("96 MiB", 96 << 20), ("0.5 GiB", 1 << 29), ("2 TiB", 2 << 40)],
)
def test_bytes_are_exact(amount: str, size: int) -> None:
    job = parse(profile=f"profile {{ {TIMES}  activation = {amount}  kept_for_weight = 0 }}")
    assert (job.memory_unit, job.activation, job.kept_for_weight) == ("byte", (size,) * 4, (0,) * 4)


def test_parts_of_bytes_are_rounded_to_the_safe_side() -> None:
    job = parse(
        profile=f"profile {{ {TIMES}  activation = 0.1 MiB }}", memory="memory { capacity = 1.8 MiB }"
    )
    assert (job.activation, job.capacity) == ((104858,) * 4, (1887436,) * 4)


def test_counts_have_thousandths() -> None:
    job = parse(profile=f"profile {{ {TIMES}  activation = 1.5 }}", memory="memory { capacity = 2.125 }")
    assert (job.memory_unit, job.activation, job.capacity) == ("count", (1500,) * 4, (2125,) * 4)


@pytest.mark.parametrize("transfer", ["[1, 2, 3]", "[1, 2, 3, 9]"])
def test_the_last_stage_sends_nothing(transfer: str) -> None:
    assert parse(profile=f"profile {{ {TIMES}  transfer = {transfer} }}").transfer == (1000, 2000, 3000)


@pytest.mark.parametrize("transfer", ["1", "[]", "[1]"])
def test_one_stage_has_no_transfers(transfer: str) -> None:
    one = "parallel { pipeline = 1  data = 3 }"
    assert parse(parallel=one, profile=f"profile {{ {TIMES}  transfer = {transfer} }}").transfer == ()


def test_capacity_may_be_unlimited_on_some_stages() -> None:
    assert parse(memory="memory { capacity = [4, unlimited, 2, 1] }").capacity == (4000, None, 2000, 1000)
    assert parse(memory="memory { capacity = unlimited }").capacity == (None,) * 4


def test_techniques_are_those_listed() -> None:
    assert parse(techniques="techniques { }").techniques == Techniques(False, False, False)
    assert parse(techniques="techniques { stagger adaptive }").techniques == Techniques(True, False, True)


@pytest.mark.parametrize(
    ("failures", "number"),
    [
        ("0", 0),
        ("8", 8),
        ("0%", 0),
        ("25%", 3),
        ("24.9999%", 2),
        ("12.5%", 1),
        ("66.6666%", 7),
        ("66.6667%", 8),
    ],
)
def test_a_share_of_the_workers_is_rounded_down(failures: str, number: int) -> None:
    assert parse(tolerate=f"tolerate {{ failures = {failures} }}").failures == number


def test_the_global_batch_is_divided() -> None:
    assert parse(batch="batch { global = 48  micro = 2 }").microbatches == 8
    assert parse(batch="batch { microbatches = 6  micro = 2 }").microbatches == 6


def test_solver_options() -> None:
    solver = parse(solver="solver { time_limit = 1.5 s  gap = 0.25%  seed = 2147483647 }").solver
    assert solver == SolverOptions(1_500_000_000, 2_500, 2_147_483_647)
    assert parse(solver="solver { time_limit = 10 ms }").solver == SolverOptions(10_000_000, 0, 0)


def test_most_failures_leave_every_stage_a_worker() -> None:
    assert most_failures(4, 3) == 8
    assert most_failures(4, 1) == 0
