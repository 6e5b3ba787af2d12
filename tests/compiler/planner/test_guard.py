"""The time limit is a guard on a whole compile: no plan depends on the clock before it strikes."""

from collections.abc import Callable
from pathlib import Path

import pytest

from recycle_compiler.cli.main import main
from recycle_compiler.ir.job import SolverOptions
from recycle_compiler.ir.text import print_streams
from recycle_compiler.planner.compile import compile_job
from recycle_compiler.scheduling import budget
from recycle_compiler.scheduling.budget import Budget, Guard
from recycle_compiler.scheduling.search import Effort
from tests.support.jobs import unit_job

LIMIT = SolverOptions().time_limit_ns
TIGHT = """job tight {
  parallel { pipeline = 3  data = 3 }
  batch { microbatches = 4 }
  profile { forward = 1  backward_input = 1  backward_weight = 1  optimizer = 1 }
  memory { capacity = [3, 2, 1] }
  tolerate { failures = 2 }
}
"""


WithClock = Callable[["Ticks"], tuple[bytes, list[str]]]


class Ticks:
    """A clock that goes on by so many nanoseconds whenever it is read, and far on after so many reads."""

    def __init__(self, step: int, reads: int = 1 << 62) -> None:
        self.step, self.most = step, reads
        self.reads = 0

    def __call__(self) -> int:
        self.reads += 1
        return self.step * self.reads + (1 << 60 if self.reads > self.most else 0)


@pytest.fixture
def with_clock(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> WithClock:
    """The bundle of a job, made with a clock, and the rows of its table."""
    source, plan = tmp_path / "tight.job", tmp_path / "tight.plan"
    source.write_text(TIGHT)

    def compiled(clock: Ticks) -> tuple[bytes, list[str]]:
        monkeypatch.setattr(budget, "clock_ns", clock)
        assert main(["compile", str(source), "-o", str(plan), "--jobs", "1"]) == 0
        rows = capsys.readouterr().err.splitlines()[1:]
        assert main(["verify", str(plan)]) == 0
        capsys.readouterr()
        return plan.read_bytes(), rows

    return compiled


def test_a_fast_clock_changes_nothing_until_the_limit(with_clock: WithClock) -> None:
    clock = Ticks(1_000)
    usual, rows = with_clock(clock)
    assert not any("cut short" in row for row in rows)
    assert with_clock(Ticks(10_000))[0] == usual
    # Nearly all of the limit is used: no plan has a share of it that ends before.
    assert with_clock(Ticks(LIMIT * 95 // 100 // clock.reads))[0] == usual


def test_what_the_guard_cuts_is_named(with_clock: WithClock) -> None:
    """Rows say so where a plan could be better."""
    clock = Ticks(1_000)
    with_clock(clock)
    _, rows = with_clock(Ticks(1_000, clock.reads // 3))
    assert any(", cut short" in row for row in rows)
    assert all(", cut short" in row or " optimal " in row for row in rows)


def test_the_plan_without_failures_is_made_before_the_guard_strikes(monkeypatch: pytest.MonkeyPatch) -> None:
    job = unit_job(3, 3, 4, capacity=(3, 2, 1))
    clock = Ticks(1_000)
    monkeypatch.setattr(budget, "clock_ns", clock)
    (alone,) = compile_job(job, failures=0)
    usual = compile_job(job, failures=2)
    monkeypatch.setattr(budget, "clock_ns", Ticks(1_000, clock.reads // 3))
    first, *others = compile_job(job, failures=2)
    assert print_streams(first) == print_streams(alone) == print_streams(usual[0])
    assert all(plan.claims.cut_short and not list(plan.verify()) for plan in others)


def test_work_that_is_spent_is_not_cut_short() -> None:
    guard = Guard(LIMIT)
    spent = Budget(guard, 10)
    spent.spend(10)
    assert spent.is_spent() and not spent.was_cut
    assert Budget(Guard(-1)).is_spent()


def test_plans_that_are_made_together_share_their_work() -> None:
    assert Effort().shared(1) == Effort()
    assert Effort().shared(65).work * 65 < Effort().shared(20).work * 21
    assert Effort().shared(10_000).work == Effort().shared(20_000).work > 0
