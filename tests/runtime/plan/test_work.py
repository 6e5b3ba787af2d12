"""Streams of compiled plans do the work of a step; with an instruction left out or changed they do not."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recycle_runtime.plan.bundle import Bundle
from recycle_runtime.plan.isa import Instruction, Opcode
from recycle_runtime.plan.plan_book import stream_of
from recycle_runtime.plan.work import StreamMistakeError, chunks_amiss, work_shares

_COUNTED = frozenset(
    {
        Opcode.FORWARD,
        Opcode.BACKWARD,
        Opcode.BACKWARD_INPUT,
        Opcode.BACKWARD_WEIGHT,
        Opcode.REDUCE,
        Opcode.OPTIMIZER,
    }
)


@dataclass
class _Plan:
    """The streams of a plan, to be changed."""

    bundle: Bundle
    streams: list[list[Instruction]]

    def amiss(self) -> list[int]:
        shares = [share for stream in self.streams for share in work_shares(stream, self.bundle.microbatches)]
        units = self.bundle.pipelines * self.bundle.microbatches
        return chunks_amiss(shares, len(self.bundle.chunk_stages), units)


def _plan(path: str, number: int = 0) -> _Plan:
    bundle = Bundle.read(path)
    return _Plan(bundle, [list(bundle.stream(number, worker)) for worker in bundle.workers(number)])


def test_every_compiled_plan_does_all_work(small_bundle: str) -> None:
    for number, _ in enumerate(Bundle.read(small_bundle).plans):
        assert _plan(small_bundle, number).amiss() == []


def test_a_standby_has_no_share(small_bundle: str) -> None:
    bundle = Bundle.read(small_bundle)
    number = next(number for number, plan in enumerate(bundle.plans) if plan.failed)
    assert work_shares(stream_of(bundle, number, bundle.plans[number].failed[0]), bundle.microbatches) == ()


@given(st.data())
def test_an_instruction_left_out_is_noticed(small_bundle: str, data: st.DataObject) -> None:
    plan = _plan(small_bundle)
    stream = data.draw(st.sampled_from(plan.streams))
    places = [place for place, each in enumerate(stream) if each.opcode in _COUNTED]
    del stream[data.draw(st.sampled_from(places))]
    with pytest.raises(StreamMistakeError):
        assert plan.amiss() == []


@given(st.data())
def test_an_instruction_done_twice_is_noticed(small_bundle: str, data: st.DataObject) -> None:
    plan = _plan(small_bundle)
    stream = data.draw(st.sampled_from(plan.streams))
    places = [place for place, each in enumerate(stream) if each.opcode in _COUNTED]
    place = data.draw(st.sampled_from(places))
    stream.insert(data.draw(st.integers(place, len(stream))), stream[place])
    with pytest.raises(StreamMistakeError):
        assert plan.amiss() == []


@given(st.data())
def test_another_micro_batch_in_place_of_one_is_noticed(small_bundle: str, data: st.DataObject) -> None:
    """All of a micro-batch's instructions on a worker, so that the stream by itself is a right one."""
    plan = _plan(small_bundle)
    stream = data.draw(st.sampled_from(plan.streams))
    forwards = [(each.pipeline, each.microbatch) for each in stream if each.opcode is Opcode.FORWARD]
    old = data.draw(st.sampled_from(forwards))
    everything = st.tuples(
        st.integers(0, plan.bundle.pipelines - 1), st.integers(0, plan.bundle.microbatches - 1)
    )
    new = data.draw(everything.filter(lambda unit: unit != old))
    chunk = next(each.chunk for each in stream if each.opcode is Opcode.FORWARD)
    stream[:] = [
        each._replace(pipeline=new[0], microbatch=new[1]) if (each.pipeline, each.microbatch) == old else each
        for each in stream
    ]
    assert plan.amiss() == [chunk]


def test_a_worker_that_gives_work_to_another_is_all_right(small_bundle: str) -> None:
    """Whoever runs it."""
    plan = _plan(small_bundle)
    shares = [work_shares(stream, plan.bundle.microbatches) for stream in plan.streams]
    units = plan.bundle.pipelines * plan.bundle.microbatches
    assert chunks_amiss([each for share in reversed(shares) for each in share], 2, units) == []
    assert chunks_amiss([each for share in shares[1:] for each in share], 2, units) == [0]
