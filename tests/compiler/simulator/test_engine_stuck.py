"""Streams with a mistake: the engine says which worker is blocked, or gets what is not meant for it."""

from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recycle_compiler.ir.failure import Worker
from recycle_compiler.ir.streams import Streams
from recycle_compiler.simulator.engine import run_streams
from recycle_compiler.simulator.errors import DeadlockError, StuckStreamsError, WrongMessageError
from recycle_compiler.simulator.streams import streams_from
from recycle_runtime.plan.assembly import assemble
from recycle_runtime.plan.isa import RECEIVES, USES_NEIGHBOUR, Opcode
from recycle_runtime.plan.worker_ids import numbered_worker
from tests.compiler.simulator.engine_plans import Lists, golden_plan, places, run, streams_of
from tests.support.jobs import unit_job

PROGRAMS = [golden_plan(name) for name in ("staggered-equal-memory", "adaptive", "uneven-bytes.1")]
programs = st.sampled_from(PROGRAMS)


class Place(NamedTuple):
    worker: Worker
    position: int


def channels(streams: Lists) -> dict[tuple[Worker, Opcode, int], list[Place]]:
    """The sends, and the receives, of each pair of workers."""
    found: dict[tuple[Worker, Opcode, int], list[Place]] = {}
    for worker, position in places(streams, *USES_NEIGHBOUR):
        instruction = streams[worker][position]
        found.setdefault((worker, instruction.opcode, instruction.neighbour), []).append(
            Place(worker, position)
        )
    return found


@settings(max_examples=60)
@given(programs, st.data())
def test_a_send_or_a_receive_that_is_missing(program: Streams, data: st.DataObject) -> None:
    streams = streams_of(program)
    worker, position = data.draw(st.sampled_from(places(streams, *USES_NEIGHBOUR)))
    missing = streams[worker].pop(position)
    with pytest.raises(DeadlockError) as caught:
        run(program, streams)
    receiver = (
        worker
        if missing.opcode in RECEIVES
        else Worker(*numbered_worker(missing.neighbour, program.job.pipelines))
    )
    assert receiver in {each.worker for each in caught.value.blocked}
    assert all(str(each) in str(caught.value) for each in caught.value.blocked[:8])


@settings(max_examples=60)
@given(programs, st.data())
def test_two_of_a_pair_in_the_wrong_order(program: Streams, data: st.DataObject) -> None:
    streams = streams_of(program)
    pairs = [listed for listed in channels(streams).values() if len(listed) > 1]
    listed = data.draw(st.sampled_from(pairs))
    number = data.draw(st.integers(0, len(listed) - 2))
    one, other = listed[number], listed[number + 1]
    stream = streams[one.worker]
    stream[one.position], stream[other.position] = stream[other.position], stream[one.position]
    with pytest.raises(StuckStreamsError):
        run(program, streams)


def test_a_worker_that_leaves_out_the_sum() -> None:
    program = golden_plan("adaptive")
    streams = streams_of(program)
    worker, position = places(streams, Opcode.REDUCE)[0]
    del streams[worker][position]
    with pytest.raises(DeadlockError) as caught:
        run(program, streams)
    peers = [each for each in program.workers if each.stage == worker.stage and each != worker]
    assert [each.worker for each in caught.value.blocked] == peers
    assert {each.waits_for for each in caught.value.blocked} == {"1 of 3 workers"}


def test_a_worker_that_leaves_out_the_barrier() -> None:
    program = golden_plan("adaptive")
    streams = streams_of(program)
    worker, position = places(streams, Opcode.BARRIER)[0]
    del streams[worker][position]
    with pytest.raises(DeadlockError) as caught:
        run(program, streams)
    waits = {each.worker: each.waits_for for each in caught.value.blocked}
    assert waits == dict.fromkeys(program.workers, "1 of 11 workers") | {worker: "2 of 3 workers"}


def test_a_receive_that_is_missing_has_nothing_in_its_inbox() -> None:
    program = golden_plan("adaptive")
    streams = streams_of(program)
    worker, position = places(streams, Opcode.RECV_ACTIVATION)[0]
    del streams[worker][position]
    with pytest.raises(DeadlockError) as caught:
        run(program, streams)
    (blocked,) = (each for each in caught.value.blocked if each.worker == worker)
    assert blocked.waits_for == "a message that no worker sends"


CROSSED = """\
worker 0:0
    0  load              p0 m0    b0
    1  forward           p0 m0    b0
    2  send-activation   p0 m0    b0 -> 0:1
    3  recv-gradient     p0 m0    i0 <- 0:1
    4  backward          p0 m0    b0 <- i0
    5  load              p0 m1    b0
    6  forward           p0 m1    b0
    7  send-activation   p0 m1    b0 -> 0:1
    8  recv-gradient     p0 m1    i0 <- 0:1
    9  backward          p0 m1    b0 <- i0
   10  reduce
   11  optimizer
""", """\
worker 0:1
    0  recv-activation   p0 m0    i0 <- 0:0
    1  recv-activation   p0 m1    i1 <- 0:0
    2  load              p0 m1    b0
    3  forward           p0 m1    b0 <- i1
    4  backward          p0 m1    b0
    5  send-gradient     p0 m1    b0 -> 0:0
    6  load              p0 m0    b0
    7  forward           p0 m0    b0 <- i0
    8  backward          p0 m0    b0
    9  send-gradient     p0 m0    b0 -> 0:0
   10  reduce
   11  optimizer
"""  # fmt: skip


def test_two_workers_that_wait_for_each_other() -> None:
    streams = {Worker(*worker): list(stream) for worker, stream in (assemble(each, 1) for each in CROSSED)}
    with pytest.raises(DeadlockError) as caught:
        run_streams(streams_from(streams, 1), unit_job(2, 1, 2), (0, 0))
    assert [str(each) for each in caught.value.blocked] == [
        "0:0 at 4 (backward p0 m0 b0 <- i0) waits for the send of 0:1 at 5",
        "0:1 at 3 (forward p0 m1 b0 <- i1) waits for the send of 0:0 at 7",
    ]


def test_a_message_that_nobody_receives() -> None:
    program = golden_plan("adaptive")
    streams = streams_of(program)
    worker, position = places(streams, Opcode.SEND_ACTIVATION)[-1]
    streams[worker].insert(position, streams[worker][position])
    with pytest.raises(WrongMessageError, match="no worker receives"):
        run(program, streams)


@pytest.mark.parametrize(
    ("opcode", "words"),
    [
        (Opcode.FORWARD, "has no forward before it"),
        (Opcode.BACKWARD_INPUT, "has no backward or backward-input before it"),
    ],
)
def test_work_on_what_is_not_there(opcode: Opcode, words: str) -> None:
    program = golden_plan("staggered-equal-memory")
    streams = streams_of(program)
    alone = {Opcode.FORWARD: 0, Opcode.BACKWARD_INPUT: program.job.stages - 1}[opcode]
    worker, position = [place for place in places(streams, opcode) if place[0].stage == alone][-1]
    del streams[worker][position]
    with pytest.raises(WrongMessageError, match=words):
        run(program, streams)
