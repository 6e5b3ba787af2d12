"""The engine runs plans under other cuts as any others."""

from hypothesis import given, settings

from recycle_compiler.backends.replay import replay
from recycle_compiler.ir.streams import Streams
from recycle_compiler.simulator.engine import simulate
from recycle_runtime.plan.bundle import Bundle
from tests.compiler.simulator.engine_plans import bundle_of, quick_recuts


@settings(max_examples=50)
@given(quick_recuts())
def test_periods_makespans_memory_and_times(program: Streams) -> None:
    outcome = simulate(bundle_of(program), 0)
    schedule = replay(program)
    assert (outcome.period, outcome.makespan) == (program.claims.period, program.claims.makespan)
    assert [(*worker, amount) for worker, amount in outcome.peak_memory] == schedule.peak_memory()
    assert outcome.ops.start[0].tolist() == schedule.start.tolist()
    assert outcome.ops.end[0].tolist() == schedule.end.tolist()


@settings(max_examples=30)
@given(quick_recuts())
def test_no_iteration_takes_longer_than_the_period(program: Streams) -> None:
    outcome = simulate(bundle_of(program), 0, iterations=5)
    for number, end in enumerate(outcome.ends):
        assert end <= outcome.ends[0] + number * program.claims.period


def test_cuts_of_a_bundle(layered_bundle: str) -> None:
    """Every plan of every cut, those for one more failure among them; all that is live has a stream."""
    bundle = Bundle.read(layered_bundle)
    seen = [
        (simulate(recut, plan).period, len(recut.workers(plan)))
        for recut in bundle.recuts
        for plan in range(len(recut.plans))
    ]
    assert seen == [(50_000, 8), (98_000, 5), (73_000, 6), (145_000, 4)]
