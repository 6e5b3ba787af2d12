"""From times to instructions: canonicalize-schedule, insert-transfers, assign-buffers."""

from collections.abc import Callable

from hypothesis import given, settings

from recycle_compiler.backends.replay import replay
from recycle_compiler.ir.schedule import Schedule
from recycle_compiler.ir.target import Target
from recycle_compiler.ir.text import parse_schedule, print_schedule, print_streams
from recycle_compiler.passes.assign_buffers import AssignBuffers
from recycle_compiler.passes.assign_slots import AssignSlots
from recycle_compiler.passes.canonicalize_schedule import CanonicalizeSchedule
from recycle_compiler.passes.insert_transfers import InsertTransfers
from recycle_compiler.scheduling.search import Effort
from recycle_runtime.plan.isa import NONE, USES_BUFFER, Opcode
from tests.support.jobs import routed, small_targets


def lowered(schedule: Schedule) -> str:
    return print_streams(AssignBuffers().run(InsertTransfers().run(schedule)))


def test_two_stages_with_a_failed_worker(tiny: Schedule, golden: Callable[[str, str], None]) -> None:
    text = lowered(tiny)
    streams = text[text.index("worker 1:0") :]
    golden("passes/assign-buffers/failed-worker.txt", streams[: streams.index("worker 0:1")])


def test_micro_batches_of_a_route_come_in_order(tiny_text: str) -> None:
    swapped = tiny_text.replace("0 F0.0  1 F0.1", "0 F0.1  1 F0.0").replace(
        "1 F0.0  2 I0.0", "1 F0.1  2 I0.1"
    )
    swapped = swapped.replace("5 F0.1  6 I0.1", "5 F0.0  6 I0.0").replace("9 W0.0", "9 W0.1")
    swapped = swapped.replace("11 W0.1", "11 W0.0").replace(
        "3 I0.0  4 W0.0  7 I0.1  8 W0.1", "3 I0.1  4 W0.1  7 I0.0  8 W0.0"
    )
    schedule = parse_schedule(swapped)
    assert not list(schedule.verify())
    assert print_schedule(CanonicalizeSchedule().run(schedule)) == print_schedule(
        CanonicalizeSchedule().run(parse_schedule(tiny_text))
    )


@settings(max_examples=30)
@given(small_targets().filter(lambda target: all(target.hosts)))
def test_replaying_the_streams_gives_the_schedule_back(target: Target) -> None:
    schedule = AssignSlots(effort=Effort(rules=3, op_moves=0, exact=False)).run(
        routed(target.job, target.failed)
    )
    canonical = CanonicalizeSchedule().run(schedule)
    assert canonical.claims.period <= schedule.claims.period
    assert print_schedule(CanonicalizeSchedule().run(canonical)) == print_schedule(canonical)
    program = AssignBuffers().run(InsertTransfers().run(canonical))
    assert print_schedule(replay(program)) == print_schedule(canonical)


@settings(max_examples=30)
@given(small_targets().filter(lambda target: all(target.hosts)))
def test_no_more_buffers_than_micro_batches_held_at_once(target: Target) -> None:
    schedule = AssignSlots(effort=Effort(rules=1, op_moves=0, exact=False)).run(
        routed(target.job, target.failed)
    )
    program = AssignBuffers().run(InsertTransfers().run(CanonicalizeSchedule().run(schedule)))
    for _, stream in program.items():
        held: set[tuple[int, int]] = set()
        most = 0
        for instruction in stream:
            place = (instruction.pipeline, instruction.microbatch)
            if instruction.opcode is Opcode.FORWARD:
                held.add(place)
            most = max(most, len(held))
            if instruction.opcode in (Opcode.BACKWARD, Opcode.BACKWARD_WEIGHT):
                held.discard(place)
        used = {step.buffer for step in stream if step.opcode in USES_BUFFER}
        assert used == set(range(most))
        assert all((step.buffer == NONE) == (step.opcode not in USES_BUFFER) for step in stream)
