"""Sources that a program may give: whatever it is, micro-batches by number; and sentences for mistakes."""

import logging
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

from recycle_runtime.data.batches import Batches
from recycle_runtime.data.microbatches import MicroBatches
from recycle_runtime.program.errors import ProgramError
from recycle_runtime.program.loading import Program, load_program


def program(**names: Any) -> Program:
    def unused(*_: Any) -> Any:
        raise AssertionError

    return Program(Path("made_here.py"), dict.fromkeys(("build_stage", "loss", "optimizer"), unused) | names)


def giving(source: Any) -> Program:
    def data(seed: int) -> Any:
        return source

    return program(data=data)


def counting_items() -> tuple[Program, list[int]]:
    drawn: list[int] = []

    def microbatch(index: int) -> tuple[torch.Tensor, int]:
        drawn.append(index)
        return torch.tensor([index]), index

    return program(microbatch=microbatch), drawn


class Numbers(Dataset[Any]):
    """Samples that say their number."""

    def __init__(self, length: int) -> None:
        self._length = length
        self.asked: list[int] = []

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, place: int) -> tuple[torch.Tensor, int]:
        self.asked.append(place)
        return torch.tensor([float(place)]), place


def targets(data: MicroBatches, steps: int, per_step: int) -> list[Any]:
    return [_plain(data.item(step, index)[1]) for step in range(steps) for index in range(per_step)]


def _plain(target: Any) -> Any:
    return target.tolist() if isinstance(target, torch.Tensor) else target


@pytest.mark.usefixtures("drawn_once")
def test_what_is_expected_and_no_more_is_drawn_each_once() -> None:
    """Also ahead: when the next step begins its items are there."""
    source, drawn = counting_items()
    data = MicroBatches(source, 0, 4)
    data.ends_at = 3
    for step in range(3):
        data.expect(step, [3, 1])
        assert [data.item(step, index)[1] for index in (3, 1)] == [4 * step + 3, 4 * step + 1]
    assert sorted(drawn) == [1, 3, 5, 7, 9, 11]


@pytest.mark.usefixtures("drawn_once")
def test_another_plan_draws_what_it_needs_on_demand() -> None:
    source, drawn = counting_items()
    data = MicroBatches(source, 0, 4)
    data.ends_at = 8
    data.expect(5, [0, 1])
    data.item(5, 0)
    data.expect(5, [0, 1, 2])
    assert [data.item(5, index)[1] for index in range(3)] == [20, 21, 22]
    assert set(drawn) <= {20, 21, 22, 24, 25, 26} and len(set(drawn)) == len(drawn)


@pytest.mark.usefixtures("drawn_once")
def test_a_late_start_draws_nothing_of_the_past() -> None:
    source, drawn = counting_items()
    data = MicroBatches(source, 0, 4, first_step=100, first_item=400)
    data.approach(100)
    assert data.item(100, 2)[1] == 402
    assert drawn == [402]


def test_random_numbers_depend_on_the_micro_batch_alone() -> None:
    """Drawn on the thread that asks, since the model draws from the same generators."""

    def microbatch(index: int) -> tuple[torch.Tensor, float]:
        return torch.randn(3), random.random()

    source = program(microbatch=microbatch)
    forward, backward = MicroBatches(source, 7, 2), MicroBatches(source, 7, 2)
    torch.manual_seed(3)  # pyright: ignore[reportUnknownMemberType]
    before = torch.get_rng_state(), random.getstate()
    there = {}
    for step in range(3):
        forward.expect(step, [0, 1])
        there[step] = [forward.item(step, index) for index in range(2)]
    for step in reversed(range(3)):
        back = backward.item(step, 1)
        assert torch.equal(back[0], there[step][1][0]) and back[1] == there[step][1][1]
    assert torch.equal(torch.get_rng_state(), before[0]) and random.getstate() == before[1]
    assert there[0][0][1] != there[0][1][1]
    assert MicroBatches(source, 8, 2).item(0, 0)[1] != there[0][0][1]


def test_data_that_is_random_now_and_then_is_the_same_ahead_and_on_demand() -> None:
    """The first items draw nothing, so a thread draws ahead; it leaves alone what it must not draw."""

    def microbatch(index: int) -> tuple[torch.Tensor, Any]:
        return (torch.rand(2) if index % 3 == 2 else torch.zeros(2)), (random.random() if index == 7 else 0)

    source = program(microbatch=microbatch)
    ahead, on_demand = MicroBatches(source, 1, 3), MicroBatches(source, 1, 3)
    for step in range(4):
        ahead.expect(step, [0, 1, 2])
        for index in range(3):
            one, other = ahead.item(step, index), on_demand.item(step, index)
            assert torch.equal(one[0], other[0]) and one[1] == other[1]


@pytest.mark.parametrize("length", [7, 64, 1000])
def test_every_sample_comes_once_in_an_epoch(length: int) -> None:
    batches = Batches(Numbers(length), 1, seed=5)
    epochs = [[batches.samples(epoch * length + place)[0] for place in range(length)] for epoch in range(2)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(length))] * 2
    assert epochs[0] != epochs[1] != list(range(length))
    assert epochs[0] != [Batches(Numbers(length), 1, seed=6).samples(place)[0] for place in range(length)]


def test_shuffling_does_not_depend_on_who_asks() -> None:
    """Two pipelines of four micro-batches or four of two: step by step the same samples."""
    dataset = Numbers(50)

    def shuffled(seed: int) -> Batches:
        return Batches(dataset, 3, seed=seed)

    source = program(data=shuffled)
    whole = targets(MicroBatches(source, 2, 8), 4, 8)
    shares: dict[int, Any] = {}
    for mine in ([0, 1, 2, 3], [4, 5, 6, 7]):
        data = MicroBatches(source, 2, 8)
        for step in range(4):
            data.expect(step, mine)
            shares |= {8 * step + index: _plain(data.item(step, index)[1]) for index in mine}
    assert [shares[number] for number in range(32)] == whole


def test_batches_are_whole_or_the_last_is_smaller() -> None:
    dataset = Numbers(10)
    assert len(Batches(dataset, 4)) == 2
    kept = Batches(dataset, 4, drop_last=False, shuffle=False)
    assert [batch[1].tolist() for batch in kept.epoch()] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert kept.microbatch(5)[1].tolist() == [8, 9]
    with pytest.raises(ValueError, match="3 samples make no micro-batch of 4"):
        Batches(Numbers(3), 4)


def loaders() -> dict[str, Callable[[], "DataLoader[Any]"]]:
    def generator() -> torch.Generator:
        return torch.Generator().manual_seed(11)

    return {
        "in order": lambda: DataLoader(Numbers(10), batch_size=3),
        "shuffled": lambda: DataLoader(Numbers(10), batch_size=3, shuffle=True, generator=generator()),
        "one by one": lambda: DataLoader(Numbers(10), batch_size=None, shuffle=True, generator=generator()),
        "dropped": lambda: DataLoader(
            Numbers(10), batch_size=4, shuffle=True, drop_last=True, generator=generator()
        ),
    }


@pytest.mark.parametrize("name", loaders())
def test_a_loader_gives_what_a_loop_over_it_gives(name: str) -> None:
    """Epoch after epoch, from any place on."""
    plain = loaders()[name]()
    expected = [_plain(target) for _ in range(4) for _, target in plain]
    given = loaders()[name]()
    data = MicroBatches(giving(given), 0, 1)
    assert targets(data, len(expected), 1) == expected
    assert _plain(data.item(2, 0)[1]) == expected[2]


def test_a_loader_without_a_generator_is_shuffled_by_the_seed_of_the_run() -> None:
    made = giving(DataLoader(Numbers(12), batch_size=2, shuffle=True))
    orders = [targets(MicroBatches(made, seed, 3), 4, 3) for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    samples = [sample for batch in orders[0][:6] for sample in batch]
    assert sorted(samples) == list(range(12)) != samples


def test_processes_of_a_loader_load_the_same(tmp_path: Path) -> None:
    """In the background, with random numbers that depend on the micro-batch."""

    class Noisy(Numbers):
        def __getitem__(self, place: int) -> tuple[torch.Tensor, int]:
            return torch.rand(4), place

    def of(workers: int) -> MicroBatches:
        loader: DataLoader[Any] = DataLoader(
            Noisy(40), batch_size=2, shuffle=True, num_workers=workers, generator=torch.Generator()
        )
        return MicroBatches(giving(loader), 3, 4)

    alone, helped = of(0), of(2)
    helped.ends_at = 3
    try:
        for step in range(3):
            helped.expect(step, [0, 2, 3])
            for index in (0, 2, 3):
                (one, which), (other, same) = alone.item(step, index), helped.item(step, index)
                assert torch.equal(one, other) and torch.equal(which, same)
    finally:
        helped.close()


def test_a_loader_for_several_processes_is_refused() -> None:
    dataset = Numbers(8)
    loader: DataLoader[Any] = DataLoader(
        dataset, batch_size=2, sampler=DistributedSampler(dataset, num_replicas=2, rank=0)
    )
    with pytest.raises(ProgramError, match=r"data\(0\).*a DistributedSampler gives every process other"):
        MicroBatches(giving(loader), 0, 2).item(0, 0)


class Lines(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter([(torch.tensor([float(number)]), number) for number in range(5)])


class Stateful:
    """A stream that knows where it stands; `drawn` are the items that it has made."""

    def __init__(self) -> None:
        self.place = 0
        self.drawn: list[int] = []

    def __iter__(self) -> Iterator[Any]:
        while True:
            number, self.place = self.place, self.place + 1
            self.drawn.append(number)
            yield torch.rand(2) + number, number

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]


def test_a_stream_goes_on_from_where_another_stood() -> None:
    stream = Stateful()
    data = MicroBatches(giving(stream), 0, 3)
    kept: list[Any] = []
    for step in range(4):
        data.expect(step, [0, 1, 2])
        kept = [data.item(step, index) for index in range(3)]
    position = data.position(3)
    other = Stateful()
    later = MicroBatches(giving(other), 0, 3)
    later.go_to(3, position)
    for index in range(3):
        assert torch.equal(later.item(3, index)[0], kept[index][0])
    assert other.drawn == [9, 10, 11]
    # A step that is made again is still there, or is drawn again from its beginning.
    later.expect(4, [0])
    assert later.item(3, 1)[1] == 10 and later.item(4, 2)[1] == 14


@pytest.fixture
def heard(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    """Log lines, also where another test has given the runtime's logger handlers of its own."""
    monkeypatch.setattr(logging.getLogger("recycle_runtime"), "propagate", True)
    monkeypatch.setattr(logging.getLogger("recycle_runtime"), "level", logging.INFO)
    return caplog


@pytest.mark.parametrize(
    "given",
    [
        [(torch.tensor([float(number)]), number) for number in range(5)],
        DataLoader(Lines(), batch_size=None),
        Lines(),
    ],
    ids=["list", "loader of a stream", "iterable"],
)
def test_what_ends_begins_again_and_says_so_once(given: Any, heard: pytest.LogCaptureFixture) -> None:
    with heard.at_level(logging.INFO):
        found = targets(MicroBatches(giving(given), 0, 3), 5, 3)
    assert [number if type(number) is int else int(number) for number in found] == [0, 1, 2, 3, 4] * 3
    said = [row.getMessage() for row in heard.records if "in the middle of a step" in row.getMessage()]
    assert len(said) == 1 and "data(0)" in said[0]


def test_fewer_than_a_step_takes_are_used_more_than_once(heard: pytest.LogCaptureFixture) -> None:
    few = [(torch.tensor([number]), number) for number in range(3)]
    with heard.at_level(logging.INFO):
        assert targets(MicroBatches(giving(few), 0, 4), 2, 4) == [0, 1, 2, 0, 1, 2, 0, 1]
    assert "an epoch of data(0) has 3 micro-batches and a step takes 4" in heard.text


def test_sources_may_change_between_steps() -> None:
    """A step that is made again uses the one that it was given."""
    data = MicroBatches(giving(None), 0, 2)
    first, second = ([(torch.tensor([number]), (name, number)) for number in range(2)] for name in "ab")
    data.use(first, 0)
    data.use(first, 1)
    assert data.item(1, 1)[1] == ("a", 1)
    data.use(second, 2)
    for step, name in ((2, "b"), (1, "a"), (2, "b"), (3, "b")):
        assert data.item(step, 0)[1] == (name, 0)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (None, r"made_here.py: data\(0\) must be micro-batches by index, .*, got nothing"),
        ({"a": 1}, "must be a pair"),
        ([], "list holds no micro-batch"),
        (DataLoader(Numbers(2), batch_size=4, drop_last=True), "has no batch"),
    ],
)
def test_what_is_no_source_is_refused(given: Any, words: str) -> None:
    with pytest.raises(ProgramError, match=words):
        MicroBatches(giving(given), 0, 2).item(0, 0)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_names_line_and_micro_batch(tmp_path: Path, workers: int) -> None:
    file = tmp_path / "broken.py"
    file.write_text(
        "import recycle_runtime as recycle\n"
        "class Samples:\n"
        "    def __len__(self):\n"
        "        return 8\n"
        "    def __getitem__(self, place):\n"
        "        if place == 5:\n"
        "            raise OSError('sample 5 is gone')\n"
        "        return [float(place)], place\n"
        "def data(seed):\n"
        f"    return recycle.Batches(Samples(), 2, shuffle=False, workers={workers})\n"
        "layers = loss = optimizer = lambda *_: None\n",
        encoding="utf-8",
    )
    data = MicroBatches(load_program(file), 0, 4)
    data.expect(0, [0, 1, 2])
    try:
        with pytest.raises(ProgramError, match=r"broken.py:7: micro-batch 2 of data\(0\): OSError: sample 5"):
            for index in range(3):
                data.item(0, index)
    finally:
        data.close()


def test_data_that_is_another_when_it_is_drawn_again_is_refused() -> None:
    """The first and the last stage draw for themselves: input and target did not belong together."""
    own = torch.Generator().manual_seed(0)

    def microbatch(index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.rand(4, generator=own), torch.zeros(4)

    def seeded(index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.rand(4) + random.random(), torch.zeros(4)

    MicroBatches(program(microbatch=seeded), 0, 4).item(0, 1)
    with pytest.raises(ProgramError, match="is another one when it is drawn again") as raised:
        MicroBatches(program(microbatch=microbatch), 0, 4).item(0, 1)
    assert "not on a generator of its own" in raised.value.hint
