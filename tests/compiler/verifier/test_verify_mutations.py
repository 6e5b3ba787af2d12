"""One random change to a correct plan is either caught or leaves a plan that is still correct."""

from dataclasses import replace

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from recycle_compiler.ir.failure import failure_set
from recycle_compiler.ir.job import Techniques
from recycle_compiler.planner.compile import plan_failed
from recycle_compiler.scheduling.search import Effort
from recycle_compiler.verifier.verify import verify_plan
from recycle_runtime.plan.isa import RECEIVES, Instruction, Opcode
from tests.compiler.test_experts import with_experts
from tests.compiler.verifier.memory_bundle import Cell, Entry, MemoryBundle
from tests.compiler.verifier.symbolic_machine import SymbolicMachine, slow_times
from tests.compiler.verifier.tiny_plans import Orders, coupled_plan, split_plan, streams_from_orders, tiny_job
from tests.support.jobs import ADAPTIVE, ALL, unit_job

THREE_STAGE_ORDERS = {
    (0, 0): "F00 F01 I00 W00 I01 W01",
    (1, 0): "F10 F11 I10 W10 I11 W11",
    (0, 1): "F00 F10 F01 I00 W00 I10 W10 F11 I01 W01 I11 W11",
    (0, 2): "F00 B00 F01 B01",
    (1, 2): "F10 B10 F11 B11",
}


def _three_stages(orders: Orders) -> MemoryBundle:
    """An inner stage with the work of two, transfers, tight memory; claims that fit whatever the order."""
    job = tiny_job(stages=3, transfer=(1, 2), capacity=(2, 3, 1), kept_for_weight=(0, 1, 1))
    streams = streams_from_orders(job, orders)
    return _with_honest_claims(MemoryBundle(job, (Entry(((1, 1),), (0, 0, 0)),), (streams,)))


def _with_honest_claims(bundle: MemoryBundle) -> MemoryBundle:
    """A plan that became slower or faster is not to be refused for that alone."""
    times = slow_times(bundle.job, bundle.plans[0].release, bundle.streams[0])
    return bundle.with_entry(makespan=times.makespan, period=times.period, lower_bound=1)


def _in_rounds(techniques: Techniques) -> MemoryBundle:
    """Peers that share experts: three workers in one round, two in two, one of whom serves in the second."""
    job = with_experts(replace(unit_job(2, 3, 1, 3, techniques, optimizer=0), failures=1))
    plan = plan_failed(job, failure_set([(1, 1)]), effort=Effort().least())
    read = {(worker.pipeline, worker.stage): tuple(stream) for worker, stream in plan.items()}
    claims = plan.claims
    entry = Entry(((1, 1),), tuple(plan.release), claims.makespan, claims.period)
    return MemoryBundle(job, (entry,), (read,))


GOOD = (
    *(split_plan(), coupled_plan(), _three_stages(THREE_STAGE_ORDERS)),
    *map(_in_rounds, (ALL, ADAPTIVE)),
)


@st.composite
def other_orders(draw: st.DrawFn) -> MemoryBundle:
    """Ops elsewhere in their streams, with the messages that go with them."""
    orders = dict(THREE_STAGE_ORDERS)
    for _ in range(draw(st.integers(0, 2))):
        worker = draw(st.sampled_from(sorted(orders)))
        ops = orders[worker].split()
        here, there = (draw(st.integers(0, len(ops) - 1)) for _ in range(2))
        ops.insert(there, ops.pop(here))
        # Without its forward an op has no buffer to name, which only text can express.
        assume(all(ops.index(f"F{op[1:]}") <= place for place, op in enumerate(ops)))
        assume(all(f"W{op[1:]}" not in ops[:place] for place, op in enumerate(ops) if op[0] == "I"))
        orders[worker] = " ".join(ops)
    return _three_stages(orders)


@st.composite
def late_receives(draw: st.DrawFn) -> MemoryBundle:
    """Receives posted in order and in time, but late: fine with buffering, often a deadlock without."""
    bundle = draw(st.sampled_from(GOOD[1:3]))
    for worker, stream in bundle.streams[0].items():
        receives = [step for step in stream if step.opcode in RECEIVES]
        body = [step for step in stream if step.opcode not in RECEIVES]
        consumed_at = {step.inbox: place for place, step in enumerate(body) if step.inbox >= 0}
        latest = [consumed_at[step.inbox] for step in receives]
        places: list[int] = []
        for number in range(len(receives)):
            earliest = places[-1] if places else 0
            place = draw(st.integers(earliest, max(earliest, min(latest[number:]))))
            between_load_and_forward = place > 0 and body[place - 1].opcode == Opcode.LOAD
            places.append(max(earliest, place - between_load_and_forward))
        for place, step in reversed(list(zip(places, receives, strict=True))):
            body.insert(place, step)
        bundle = bundle.with_stream(worker, body)
    return bundle


@st.composite
def changed(draw: st.DrawFn) -> MemoryBundle:
    """One instruction swapped with another, moved, dropped, repeated or altered."""
    bundle = draw(st.sampled_from(GOOD))
    worker: Cell = draw(st.sampled_from(sorted(bundle.streams[0])))
    stream = list(bundle.streams[0][worker])
    here, there = (draw(st.integers(0, len(stream) - 1)) for _ in range(2))
    match draw(st.sampled_from(("swap", "move", "drop", "repeat", "opcode", "field"))):
        case "swap":
            stream[here], stream[there] = stream[there], stream[here]
        case "move":
            stream.insert(there, stream.pop(here))
        case "drop":
            del stream[here]
        case "repeat":
            stream.insert(there, stream[here])
        case "opcode":
            stream[here] = stream[here]._replace(opcode=draw(st.sampled_from(Opcode)))
        case _:
            field = draw(st.sampled_from(("chunk", "pipeline", "microbatch", "buffer", "inbox", "neighbour")))
            stream[here] = stream[here]._replace(**{field: draw(_values)})
    return bundle.with_stream(worker, stream)


_values = st.one_of(st.integers(-2, 8), st.sampled_from((-(2**80), 2**31, 2**63, 2**80)))


@given(st.one_of(changed(), other_orders(), late_receives()))
@settings(max_examples=500, deadline=None)
def test_a_mutation_is_caught_or_harmless(mutant: MemoryBundle) -> None:
    if not verify_plan(mutant, 0).passed:
        return
    SymbolicMachine(mutant.job, mutant.streams[0]).run()
    entry = mutant.plans[0]
    times = slow_times(mutant.job, entry.release, mutant.streams[0])
    assert (times.makespan, times.period) == (entry.makespan, entry.period)
    for (_, stage), peak in times.peak_memory.items():
        capacity = mutant.job.capacity[stage]
        assert capacity is None or peak <= capacity


_numbers = st.one_of(st.integers(-2, 5), st.integers())
_garbage = st.builds(Instruction, st.sampled_from(Opcode), _numbers, _numbers, _numbers, _numbers, _numbers)


@given(st.lists(st.lists(_garbage, max_size=12), min_size=3, max_size=3), st.integers(), st.integers())
@settings(max_examples=200, deadline=None)
def test_garbage_is_refused_without_a_crash(
    lists: list[list[Instruction]], period: int, release: int
) -> None:
    bundle = split_plan().with_entry(period=period, release=(0, release))
    streams = {worker: tuple(steps) for worker, steps in zip(sorted(bundle.streams[0]), lists, strict=True)}
    assert not verify_plan(MemoryBundle(bundle.job, bundle.plans, (streams,)), 0).passed
