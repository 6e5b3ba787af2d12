"""Every set of live workers gets roles that fit a plan, each role once."""

from hypothesis import given
from hypothesis import strategies as st

from recycle_runtime.plan.assembly import Worker
from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.isa import Opcode
from recycle_runtime.plan.plan_book import PlanBook, stream_of
from tests.runtime.recovery.plans_for_tests import fake_bundle, fewest


@st.composite
def books_and_live(draw: st.DrawFn) -> tuple[PlanBook, list[Worker]]:
    stages, pipelines = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    grid = [(pipeline, stage) for stage in range(stages) for pipeline in range(pipelines)]
    sets = st.lists(st.sampled_from(grid), unique=True)
    failures = [
        failed for failed in draw(st.lists(sets, max_size=4)) if _is_survivable(failed, stages, pipelines)
    ]
    book = PlanBook(fake_bundle(stages, pipelines, [[], *failures]))
    if draw(st.booleans()):
        book.add(fake_bundle(stages, pipelines, [fewest(stages, pipelines)]))
    failed = draw(sets.filter(lambda failed: _is_survivable(failed, stages, pipelines)))
    return book, [worker for worker in grid if worker not in failed]


def _is_survivable(failed: list[Worker], stages: int, pipelines: int) -> bool:
    return all(sum(worker[1] == stage for worker in failed) < pipelines for stage in range(stages))


@given(books_and_live())
def test_roles(drawn: tuple[PlanBook, list[Worker]]) -> None:
    book, live = drawn
    assignment = book.assign(live)
    counts = book.counts(live)
    plans = [
        (number, plan, book.counts(bundle.workers(plan)))
        for number, bundle in enumerate(book.bundles)
        for plan, _ in enumerate(bundle.plans)
    ]
    if assignment is None:
        assert not any(all(a >= b for a, b in zip(has, counts, strict=True)) for _, _, has in plans)
        return
    assert assignment.roles.keys() == set(live)
    assert len(set(assignment.roles.values())) == len(live)
    assert all(role[1] == place[1] for place, role in assignment.roles.items())
    planned = set(book.bundles[assignment.bundle].workers(assignment.plan))
    assert planned <= set(assignment.roles.values())
    assert assignment.standbys == len(live) - len(planned)
    assert assignment.is_exact == any(has == counts for _, _, has in plans)


@given(st.sets(st.tuples(st.integers(0, 2), st.integers(0, 1))))
def test_streams_of_a_compiled_job(small_bundle: str, failed: set[Worker]) -> None:
    """A standby does what its peers do together, and nothing else."""
    bundle = Bundle.read(small_bundle)
    book = PlanBook(bundle)
    assignment = book.assign([worker for worker in book.grid if worker not in failed])
    if assignment is None:
        return
    working = bundle.workers(assignment.plan)
    for role in assignment.roles.values():
        stream = stream_of(bundle, assignment.plan, role)
        opcodes = [instruction.opcode for instruction in stream]
        assert opcodes.count(Opcode.REDUCE) == opcodes.count(Opcode.OPTIMIZER) == 1
        if role not in working:
            assert {Opcode.FORWARD, Opcode.LOAD, Opcode.SEND_ACTIVATION}.isdisjoint(opcodes)
