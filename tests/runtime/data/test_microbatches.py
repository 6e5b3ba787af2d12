"""Micro-batches by number: the same for every worker, wherever it starts and whatever it asks for again."""

import random
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recycle_runtime.data import microbatches, reading
from recycle_runtime.data.items import checked, plain_item, shape_signature
from recycle_runtime.data.microbatches import MicroBatches
from recycle_runtime.program.errors import ProgramError
from recycle_runtime.program.loading import Program


def program(batches: Callable[[int], Any]) -> Program:
    def unused(*_: Any) -> Any:
        raise AssertionError

    names = dict.fromkeys(("build_stage", "loss", "optimizer"), unused)
    return Program(Path("made_here.py"), names | {"batches": batches})


def counting(length: int | None = None) -> tuple[Program, list[int]]:
    """A program whose items say their number, and the numbers that were drawn."""
    drawn: list[int] = []

    def batches(seed: int) -> Iterator[tuple[torch.Tensor, int]]:
        number = 0
        while length is None or number < length:
            drawn.append(number)
            yield torch.tensor([seed + number]), number
            number += 1

    return program(batches), drawn


@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3)), max_size=12),
    st.one_of(st.none(), st.integers(1, 5)),
)
def test_any_order_gives_the_right_item(
    per_step: int, asked: list[tuple[int, int]], length: int | None
) -> None:
    source, _ = counting(length)
    data = MicroBatches(source, 10, per_step)
    for step, index in asked:
        index %= per_step
        number = step * per_step + index
        expected = number if length is None else number % length
        value, target = data.item(step, index)
        assert (value.item(), target) == (10 + expected, expected)
        assert data.signature(step, index) == "int64[1]"


def test_a_step_and_the_one_before_are_drawn_once() -> None:
    source, drawn = counting()
    data = MicroBatches(source, 0, 3)
    for step in (0, 1, 2, 1, 2, 3, 2, 3):
        for index in (2, 0, 1):
            data.item(step, index)
    assert drawn == list(range(12))


def test_a_late_start_skips_and_a_long_way_back_starts_over() -> None:
    source, drawn = counting()
    data = MicroBatches(source, 0, 2)
    assert data.item(5, 1)[1] == 11
    assert drawn == list(range(12))
    assert data.item(1, 0)[1] == 2
    assert drawn == [*range(12), *range(3)]


def test_no_more_than_two_steps_are_kept() -> None:
    alive: list[weakref.ref[torch.Tensor]] = []

    def batches(_: int) -> Iterator[tuple[torch.Tensor, None]]:
        while True:
            yield torch.zeros(1000), None

    data = MicroBatches(program(batches), 0, 4)
    for step in range(5):
        alive += [weakref.ref(data.item(step, index)[0]) for index in range(4)]
        assert sum(each() is not None for each in alive) == min(4 * step + 4, 8)


def test_uneven_micro_batches_have_signatures_of_their_own() -> None:
    def batches(_: int) -> Iterator[Any]:
        yield torch.zeros(4, 2), torch.zeros(4)
        yield (torch.zeros(1, 2), torch.zeros(1, dtype=torch.bool)), {"label": torch.zeros(1)}

    data = MicroBatches(program(batches), 0, 2)
    assert [data.signature(0, 0), data.signature(0, 1)] == ["float32[4,2]", "float32[1,2] bool[1]"]
    assert data.signature(1, 0) == "float32[4,2]"
    assert shape_signature(torch.zeros(())) == "float32[]"


@pytest.mark.parametrize(
    ("length", "words"),
    [(2, "ended before micro-batch 2"), (3, "ended in the middle of a step, before micro-batch 3")],
)
def test_an_iterator_that_begins_again_is_told_once(
    length: int, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    data = MicroBatches(program(lambda seed: iter([(torch.zeros(1), 0)] * length)), 3, 2)
    with caplog.at_level("INFO", logger=reading.__name__):
        for step in range(6):
            data.item(step, 1)
    assert caplog.messages == [f"batches(3) {words}, and began again"]


def test_an_empty_iterator_is_an_error_once() -> None:
    with pytest.raises(ProgramError, match=r"^made_here.py: batches\(3\) yields no micro-batch$"):
        MicroBatches(program(lambda seed: iter(())), 3, 1).item(0, 0)
    once = iter([(torch.zeros(1), 0)])
    data = MicroBatches(program(lambda seed: once), 3, 1)
    data.item(0, 0)
    with pytest.raises(ProgramError, match="when it is called for epoch 2") as caught:
        data.item(1, 0)
    assert caught.value.hint == "each call of batches must start a new iterator"


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (torch.zeros(2), r"must be a pair \(input, target\), got a value of type Tensor"),
        (None, "must be a pair .*, got nothing"),
        ((1, 2, 3), "got a tuple of 3: int, int, int"),
        ((3, torch.zeros(1)), "input of micro-batch 0 .* must be a tensor, a tuple of .* got .* int"),
        (((torch.zeros(1), 2), 0), "got a tuple of 2: Tensor, int"),
    ],
)
def test_what_is_no_micro_batch_is_refused(item: Any, words: str) -> None:
    with pytest.raises(ProgramError, match=words):
        MicroBatches(program(lambda seed: iter([item])), 0, 1).item(0, 0)


def test_an_error_of_the_iterator_names_the_micro_batch() -> None:
    def batches(_: int) -> Iterator[Any]:
        yield torch.zeros(1), 0
        raise OSError("the disk is gone")

    data = MicroBatches(program(batches), 0, 4)
    with pytest.raises(ProgramError, match=r"micro-batch 1 of batches\(0\): OSError: the disk is gone"):
        data.item(0, 3)


def test_what_is_quick_is_drawn_to_the_end_of_the_step_and_not_beyond(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reading, "_QUICK", 3600.0)
    source, drawn = counting()
    data = MicroBatches(source, 0, 3)
    for step in range(3):
        data.expect(step, [0, 2])
        assert data.item(step, 0)[1] == 3 * step
        assert drawn == list(range(3 * step + 3))
        assert data.item(step, 2)[1] == 3 * step + 2


def test_what_takes_long_is_drawn_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_QUICK", 0.0)
    source, drawn = counting()
    data = MicroBatches(source, 0, 3)
    data.expect(0, [0, 1, 2])
    data.item(0, 0)
    assert drawn == [0]


def test_what_is_wrong_with_a_micro_batch_is_said_when_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reading, "_QUICK", 3600.0)

    def batches(_: int) -> Iterator[Any]:
        yield torch.zeros(1), 0
        yield torch.zeros(1), 1
        raise OSError("the disk is gone")

    data = MicroBatches(program(batches), 0, 4)
    data.expect(0, [0, 1, 2, 3])
    assert [data.item(0, index)[1] for index in (0, 1)] == [0, 1]
    with pytest.raises(ProgramError, match=r"micro-batch 2 of batches\(0\): OSError: the disk is gone"):
        data.item(0, 2)


@pytest.mark.parametrize("target", [torch.zeros(3, 2), torch.zeros(2), torch.tensor(1), torch.zeros(0, 2)])
@pytest.mark.parametrize("value", [torch.zeros(3), torch.zeros((), dtype=torch.int64), torch.zeros(0, 4)])
def test_two_tensors_are_checked_quickly_with_the_same_result(
    value: torch.Tensor, target: torch.Tensor
) -> None:
    value.add_(0)
    assert plain_item((value, target)) == checked(Path("made_here.py"), (value, target), "item")
    assert plain_item([value, target]) is plain_item((value, 3)) is plain_item((value,)) is None


def test_what_the_model_draws_does_not_change_the_data_nor_the_other_way_round() -> None:
    def batches(_: int) -> Iterator[Any]:
        while True:
            yield torch.randn(2), random.random()

    source = program(batches)
    quiet, disturbed = MicroBatches(source, 5, 1), MicroBatches(source, 5, 1)
    expected = [quiet.item(step, 0) for step in range(4)]
    for step in range(4):
        torch.manual_seed(step)  # pyright: ignore[reportUnknownMemberType]
        random.seed(step)
        before = torch.get_rng_state(), random.getstate()
        value, target = disturbed.item(step, 0)
        assert (value.tolist(), target) == (expected[step][0].tolist(), expected[step][1])
        assert torch.equal(torch.get_rng_state(), before[0])
        assert random.getstate() == before[1]
    assert MicroBatches(source, 6, 1).item(0, 0)[1] != expected[0][1]


def test_a_shuffled_loader_is_the_same_everywhere_and_new_in_each_epoch() -> None:
    rows: Any = [(torch.tensor([number]), number) for number in range(6)]

    def batches(_: int) -> Any:
        return torch.utils.data.DataLoader(rows, batch_size=2, shuffle=True)

    source = program(batches)
    first = [
        MicroBatches(source, 0, 3).item(step, index)[1].tolist() for step in range(4) for index in range(3)
    ]
    one = MicroBatches(source, 0, 3)
    assert first == [one.item(step, index)[1].tolist() for step in range(4) for index in range(3)]
    epochs = [first[begin : begin + 3] for begin in range(0, 12, 3)]
    assert [sorted(number for batch in epoch for number in batch) for epoch in epochs] == [list(range(6))] * 4
    assert len({str(epoch) for epoch in epochs}) > 1


def test_an_item_that_was_changed_in_place_is_not_given_again() -> None:
    buffer = torch.zeros(2)

    def batches(_: int) -> Iterator[Any]:
        while True:
            yield buffer.add_(1), {"target": torch.zeros(1)}

    data = MicroBatches(program(batches), 0, 2)
    data.item(0, 0)
    data.item(0, 1)
    with pytest.raises(ProgramError, match="micro-batch 0 of step 0 was changed in place"):
        data.item(0, 0)


def test_numbers_outside_a_step_are_refused() -> None:
    data = MicroBatches(counting()[0], 0, 2)
    for step, index in ((0, 2), (0, -1), (-1, 0)):
        with pytest.raises(IndexError):
            data.item(step, index)


def of_samples(*counts: int) -> MicroBatches:
    """One step of micro-batches with so many samples each, of two inputs and a target."""

    def batches(seed: int) -> Iterator[Any]:
        for count in counts:
            numbers = torch.arange(count, dtype=torch.float64)
            yield (numbers, numbers.reshape(count, 1)), {"labels": numbers + 100}

    return MicroBatches(program(batches), 0, len(counts))


def test_halves_of_a_micro_batch_are_its_samples_in_their_order() -> None:
    data = of_samples(4, 4)
    for index in range(2):
        for part, expected in enumerate(([0.0, 1.0], [2.0, 3.0])):
            (first, second), target = data.item(0, index, part, 2)
            assert first.tolist() == second.flatten().tolist() == expected
            assert target["labels"].tolist() == [100 + each for each in expected]
            assert data.weight(0, index, part, 2) == 0.5
            assert data.signature(0, index, part, 2) != data.signature(0, index)
    assert data.can_halve(0, 1)


@pytest.mark.parametrize("counts", [(3, 3), (1, 1), (2, 4)])
def test_what_does_not_come_out_even_is_not_for_halves(counts: tuple[int, ...]) -> None:
    """And where it happens all the same, every sample counts as it does in the whole."""
    data = of_samples(*counts)
    assert not all(data.can_halve(0, index) for index in range(2))
    for index in range(len(counts)):
        (whole, _), _ = data.item(0, index)
        means = [
            data.weight(0, index, part, 2) * data.item(0, index, part, 2)[0][0].mean().item()
            for part in range(2)
        ]
        assert sum(means) == pytest.approx(whole.mean().item(), abs=1e-12)


def test_values_that_belong_to_no_sample_are_not_split() -> None:
    made, _ = counting()
    data = MicroBatches(made, 0, 2)
    assert not data.can_halve(0, 1)
    assert data.item(0, 1, 1, 2)[1] == 1
    assert [data.weight(0, 1, part, 2) for part in range(2)] == [1.0, 0.0]


def test_an_error_says_that_data_was_loaded() -> None:
    def batches(seed: int) -> Iterator[Any]:
        raise OSError("the disk is gone")
        yield

    data = MicroBatches(program(batches), 0, 2)
    for look in (lambda: data.item(0, 0), lambda: data.signature(0, 1)):
        with pytest.raises(ProgramError, match="the disk is gone") as caught:
            look()
        assert caught.value.doing == "load"


def signed(sign: int) -> Callable[[int], tuple[torch.Tensor, int]]:
    return lambda index: (torch.tensor([sign * index]), 0)


def test_sources_that_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is opened once, numbers go on whichever is used, and a step that is made again has its own."""
    opened: list[Any] = []
    read = microbatches.reader_of

    def opening(path: Path, source: Any, *rest: Any, **options: Any) -> Any:
        opened.append(source)
        return read(path, source, *rest, **options)

    monkeypatch.setattr(microbatches, "reader_of", opening)
    data = MicroBatches(program(lambda seed: iter(())), 0, 2)
    odd, even = signed(-1), signed(1)
    for step in range(8):
        source = odd if step % 2 else even
        data.use(source, step)
        data.use(source, step)
        data.expect(step, [0, 1])
        for past in range(max(step - 1, 0), step + 1):
            found = [int(data.item(past, index)[0]) for index in range(2)]
            sign = -1 if past % 2 else 1
            assert found == [sign * (2 * past), sign * (2 * past + 1)]
    assert len(opened) == 2


def test_a_step_may_be_given_other_data_after_all() -> None:
    data = MicroBatches(program(lambda seed: iter(())), 0, 1)
    first, second = signed(1), signed(-1)
    data.use(first, 0)
    data.use(second, 3)
    assert int(data.item(3, 0)[0]) == -3
    data.use(first, 3)
    assert int(data.item(3, 0)[0]) == 3


def test_a_stream_that_is_given_goes_on_where_it_was_told_to() -> None:
    class Numbers:
        def __init__(self) -> None:
            self.next = 0

        def __iter__(self) -> Iterator[Any]:
            while True:
                self.next += 1
                yield torch.tensor([self.next - 1]), 0

        def state_dict(self) -> dict[str, int]:
            return {"next": self.next}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.next = state["next"]

    data = MicroBatches(program(lambda seed: iter(())), 0, 2)
    position = MicroBatches(program(lambda seed: iter(())), 0, 2)
    source = Numbers()
    position.use(source, 0)
    position.expect(0, [0, 1])
    for step in range(3):
        position.expect(step, [0, 1])
        position.item(step, 1)
    told = position.position(2)
    other = Numbers()
    data.go_to(2, told)
    data.use(other, 2)
    assert int(data.item(2, 0)[0]) == 4
